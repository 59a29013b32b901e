"""`user.fsguard.*`: what any tool may ask about a file, and no tool takes along."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.abilities import need_tools
from tests.kit.mounting import Workspace

ALL = ("writer", "version", "warnings")


def asked(workspace: Workspace, path: str, task: str | None = None) -> dict[str, str]:
    """What getfattr shows of a path, by a process of a task or of none."""
    found = {}
    for name in ALL:
        command = ["getfattr", "--only-values", "-n", f"user.fsguard.{name}", path]
        # By an exported name: at the end of a `fsguard run` the warnings would be delivered.
        env = {**workspace.env, "FSGUARD_TASK": task} if task else workspace.env
        result = workspace.plain(*command, env=env)
        if result.code == 0:
            found[name] = result.out
        else:
            assert "No such attribute" in result.err, result.err
    return found


def test_last_writer_version_and_pending_warnings(workspace: Workspace) -> None:
    need_tools("getfattr")
    workspace.plain("sh", "-c", "echo 0 > f; echo 0 > untouched").ok()
    external = asked(workspace, "f")
    assert external["writer"].startswith("external: sh -c") and "(pid " in external["writer"]
    assert external["warnings"] == ""
    workspace.run("A", "cat", "f").ok()
    workspace.run("B", "sed", "-i", "s/0/1/", "f").ok()
    theirs = asked(workspace, "f", "A")
    assert theirs["writer"] == "B" and int(theirs["version"]) > int(external["version"])
    assert theirs["warnings"] == ""
    workspace.plain("sh", "-c", "echo 2 > f", env={**workspace.env, "FSGUARD_TASK": "A"}).ok()
    (warning,) = workspace.warnings("A")
    assert asked(workspace, "f", "C")["warnings"] == "", "a task is told of its own business"
    for task in (None, "A"):
        mine = asked(workspace, "f", task)
        assert mine["writer"] == "A" and mine["warnings"] == warning["message"] + "\n"
    assert workspace.fsguard("warnings", "--json", "--ack").lines() == [warning], "asking is no delivery"
    assert asked(workspace, "f")["warnings"] == ""
    who = workspace.fsguard("who", "f", "--json").json()
    assert asked(workspace, "f")["version"] == str(who["version"])


def test_what_has_none(workspace: Workspace, make_workspace: Callable[..., Workspace]) -> None:
    before = make_workspace(mount=False)
    (before.directory / "old").write_text("x")
    before.mount()
    assert asked(before, "old") == {"version": "0", "warnings": ""}, "nobody has written it since the mount"
    workspace.plain("sh", "-c", "mkdir d; mkfifo p; echo x > f").ok()
    for path in ("d", "p"):
        assert asked(workspace, path) == {}
    with pytest.raises(OSError) as caught:
        os.getxattr(workspace.root / "f", "user.fsguard.tomorrow")
    assert caught.value.errno == errno.ENODATA
    for change in (
        lambda: os.setxattr(workspace.root / "f", "user.fsguard.writer", b"me"),
        lambda: os.removexattr(workspace.root / "f", "user.fsguard.writer"),
    ):
        with pytest.raises(OSError) as caught:
            change()
        assert caught.value.errno == errno.EOPNOTSUPP


def test_a_mount_without_the_guard_has_none(make_workspace: Callable[..., Workspace]) -> None:
    workspace = make_workspace(mount=False)
    workspace.mount(env={"FSGUARD_DISABLE": "1"})
    (workspace.root / "f").write_text("x")
    assert asked(workspace, "f") == {}


@pytest.mark.parametrize(
    "copy",
    [
        "cp -a in out",
        "cp -a --preserve=all in out",
        "rsync -aX in/ out/",
        'mkdir out; export TAR_OPTIONS="--xattrs --xattrs-include=*"; tar -C in -cf - . | tar -C out -xf -',
        "cp -a in ../beside; cp -a ../beside out",
    ],
)
def test_copies_take_the_files_own_attributes_and_none_of_these(workspace: Workspace, copy: str) -> None:
    need_tools("getfattr", "rsync", "tar")
    workspace.sh("A", "mkdir in; echo x > in/f; setfattr -n user.own -v 1 in/f").ok()
    assert asked(workspace, "in/f")["writer"] == "A"
    result = workspace.sh("B", copy).ok()
    assert result.err == ""
    listed = workspace.plain("getfattr", "-d", "-m", "-", "out/f").ok().out
    assert 'user.own="1"' in listed and "fsguard" not in listed
    assert asked(workspace, "out/f")["writer"] == "B", "it is the copy's own writer"
    assert workspace.conflicts() == []


def test_nothing_of_it_is_in_the_tree(split_workspace: Workspace) -> None:
    workspace = split_workspace
    backing: Path | None = workspace.backing
    assert backing is not None
    workspace.sh("A", "echo x > f").ok()
    assert asked(workspace, "f")["writer"] == "A"
    assert os.listxattr(backing / "f") == []
