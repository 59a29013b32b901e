"""What the kernel keeps by itself: requests that do not come, and where it has to ask."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.abilities import need_root, need_tools
from tests.kit.mounting import Workspace

LANE = ("--io", "lane")


def tree(directory: Path) -> None:
    for i in range(20):
        (directory / f"d{i}").mkdir()
        for j in range(10):
            (directory / f"d{i}" / f"f{j}").write_text(f"{i} {j}\n")
    (directory / "link").symlink_to("d1/f1")


def asked(workspace: Workspace, *command: str) -> dict[str, int]:
    """Requests that a command makes."""
    before = workspace.fsguard("status", "--json").json()["requests"]
    workspace.plain(*command).ok()
    after = workspace.fsguard("status", "--json").json()["requests"]
    return {name: n - before.get(name, 0) for name, n in after.items() if n != before.get(name, 0)}


def cache(workspace: Workspace) -> dict[str, object]:
    found: dict[str, object] = workspace.fsguard("status", "--json").json()["cache"]
    return found


def test_a_second_look_at_a_tree_asks_nothing(make_workspace: Callable[..., Workspace]) -> None:
    need_root()
    need_tools("find", "git")
    workspace = make_workspace(mount=False, options=LANE)
    tree(workspace.directory)
    git = ("git", "-c", "user.name=A", "-c", "user.email=a@example.org")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        workspace.plain(*git, *words, cwd=workspace.directory).ok()
    workspace.mount()
    assert cache(workspace)["mode"] == "auto" and cache(workspace)["seconds"] == 3600.0
    for command in (["find", ".", "-type", "f", "-newer", "link"], ["ls", "-aR", "--color=always"]):
        workspace.plain(*command).ok()
        # A directory's time of access is asked for once after it was read: the kernel does not keep that.
        second = asked(workspace, *command)
        assert sum(second.values()) <= second.get("getattr", 0) + 2 <= 250, second
        again = asked(workspace, *command)
        again.pop("statfs", None)  # find(1) asks once what filesystem it is on
        links = again.pop("readlink", 0)  # a look; the kernel may not keep that
        assert not again and links <= 1, (command, again)
    # The first ones read files anew that are as young as the index.
    again = [asked(workspace, "git", "status") for _ in range(4)][-1]
    # It opens its own few files anew; what the tree is like it knows.
    assert again.get("lookup", 0) + again.get("getattr", 0) + again.get("readdir", 0) < 20, again
    assert sum(again.values()) < 120, again


def test_what_is_not_there_is_remembered_and_still_seen_to_come(
    make_workspace: Callable[..., Workspace],
) -> None:
    workspace = make_workspace(options=LANE)
    assert workspace.plain("cat", "nothing").code != 0
    again = asked(workspace, "sh", "-c", "cat nothing nothing nothing 2>&1 || true")
    assert again.get("lookup", 0) <= 1, again
    workspace.plain("sh", "-c", "echo x > nothing; cat nothing").ok()


def test_who_reads_a_link_has_seen_it_however_often_it_was_read(workspace: Workspace) -> None:
    (workspace.root / "current").symlink_to("v1")
    for task in ("A", "B"):
        workspace.run(task, "readlink", "current").ok()
    workspace.run("A", "ln", "-sfn", "v2", "current").ok()
    workspace.run("B", "readlink", "current").ok()
    workspace.run("B", "ln", "-sfn", "v3", "current").ok()
    assert not workspace.warnings("B"), "it has looked since"
    workspace.run("A", "ln", "-sfn", "v4", "current").ok()
    assert [w["path"] for w in workspace.warnings("A")] == ["current"]


def test_beside_a_separate_mountpoint_nothing_is_believed(make_workspace: Callable[..., Workspace]) -> None:
    need_root()
    workspace = make_workspace(separate=True, options=LANE)
    assert workspace.backing is not None
    for i in range(20):
        (workspace.backing / "f").write_text(str(i))
        assert (workspace.root / "f").read_text() == str(i)
        (workspace.backing / "f").unlink()
        assert not (workspace.root / "f").exists() and os.listdir(workspace.root) == []
    assert cache(workspace)["seconds"] == 0.0
    end = time.monotonic() + 5
    while True:  # and yet it is known who does it
        entries = workspace.fsguard("log", "f", "--json").lines()
        if {("create", os.getpid()), ("delete", os.getpid())} <= {(e["op"], e["pid"]) for e in entries}:
            break
        assert time.monotonic() < end, entries


@pytest.mark.parametrize("mode", ["trust", "short"])
def test_what_is_asked_for(make_workspace: Callable[..., Workspace], mode: str) -> None:
    need_tools("find")
    workspace = make_workspace(separate=True, mount=False, options=LANE)
    assert workspace.backing is not None
    tree(workspace.backing)
    workspace.mount("--cache", mode)
    told = cache(workspace)
    assert (told["mode"], told["seconds"], told["reason"]) == (
        mode,
        3600.0 if mode == "trust" else 1.0,
        "asked for",
    )
    assert f"{told['seconds']:g} s: asked for" in workspace.fsguard("status").out
    for _ in range(2):
        workspace.plain("find", ".", "-type", "f", "-newer", "link").ok()
    if mode == "trust":
        again = asked(workspace, "find", ".", "-type", "f", "-newer", "link")
        assert set(again) <= {"statfs"}, again


def test_the_configuration_says_it_as_well(make_workspace: Callable[..., Workspace]) -> None:
    workspace = make_workspace(mount=False)
    (workspace.directory / "fsguard.toml").write_text('[watch]\ncache = "short"\n')
    workspace.mount()
    assert cache(workspace)["mode"] == "short"
    workspace.unmount()
    workspace.mount("--cache", "auto")
    assert cache(workspace)["mode"] == "auto"
    workspace.unmount()
    (workspace.directory / "fsguard.toml").write_text('[watch]\ncache = "long"\n')
    refused = workspace.mount(check=False)
    assert refused.code == 2 and "watch.cache is one of auto, short, trust" in refused.err


def test_hard_links_show_one_inode(make_workspace: Callable[..., Workspace]) -> None:
    """Attributes are the same under each name, whichever they changed through, and as they are."""
    workspace = make_workspace(separate=True, options=(*LANE, "--cache", "trust"))
    assert workspace.backing is not None
    a, b, c = (workspace.root / name for name in ("a", "b", "c"))
    a.write_text("one")
    for act in (
        lambda: b.hardlink_to(a),
        lambda: b.chmod(0o600),
        lambda: a.write_text("longer"),
        lambda: os.truncate(b, 2),
        lambda: c.hardlink_to(b),
        c.unlink,
        lambda: os.utime(a, (5, 5)),
        lambda: os.setxattr(b, "user.x", b"1"),
    ):
        assert [p.lstat() for p in (a, b) if p.exists()]  # so that it is cached
        act()
        for name in ("a", "b"):
            assert _said(workspace.root / name) == _said(workspace.backing / name)


def _said(path: Path) -> tuple[int, ...]:
    st = path.lstat()
    return st.st_mode, st.st_size, st.st_nlink, st.st_mtime_ns, st.st_ctime_ns
