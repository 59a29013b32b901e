"""Changes on the backing directory, past the mount: soon visible, on record, told to readers."""

from __future__ import annotations

import os
import random
import signal
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kit.abilities import need_root, need_tools
from tests.kit.behind import Behind, behind
from tests.kit.mounting import Workspace

SOON = 0.1
"""Seconds within which a change is visible through the mount."""


@pytest.fixture(params=["lane", "daemon"])
def io(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def guarded(make_workspace: Callable[..., Workspace], io: str) -> Iterator[tuple[Workspace, Behind]]:
    need_root()
    need_tools("unshare", "mount")
    workspace = make_workspace(mount=False)
    with behind(workspace.directory) as worker:
        for name in ("a", "b"):
            worker("mkdir", name)
        worker("write", "f", "old\n")
        workspace.mount("--io", io)
        yield workspace, worker
        workspace.unmount()


def until(what: str, holds: Callable[[], bool], seconds: float = SOON) -> float:
    """Seconds until it does; fails after `seconds`."""
    begin = time.monotonic()
    while not holds():
        assert time.monotonic() - begin < seconds, f"{what}: not visible after {seconds} s"
    return time.monotonic() - begin


def seen(path: Path) -> tuple[int, int, int] | None:
    """Kind and permissions, size, inode; None: nothing is there."""
    try:
        st = path.lstat()
    except FileNotFoundError:
        return None
    return st.st_mode, st.st_size if not stat.S_ISDIR(st.st_mode) else 0, st.st_ino


class World:
    """Makes one change after the other behind the mount, and knows how each can be seen through it."""

    def __init__(self, root: Path, worker: Behind, seed: int) -> None:
        self.root = root
        self.do = worker
        self.random = random.Random(seed)
        self.files: list[str] = []
        self.logged: set[tuple[str, str]] = set()
        self._number = 0

    def fresh(self) -> str:
        self._number += 1
        return f"{self.random.choice(['', 'a/', 'b/'])}n{self._number}"

    def some(self) -> str:
        if not self.files:
            self.create()
        return self.random.choice(self.files)

    def listed(self, name: str) -> bool:
        path = self.root / name
        return path.name in os.listdir(path.parent)

    def create(self) -> None:
        name = self.fresh()
        assert seen(self.root / name) is None, "and that is remembered"
        self.do("write", name, "x" * self.random.randrange(50))
        until(f"create {name}", lambda: seen(self.root / name) is not None)
        until(f"list {name}", lambda: self.listed(name))
        self.files.append(name)
        self.logged.add(("create", name))

    def write(self) -> None:
        name, text = self.some(), str(self.random.random())
        (self.root / name).read_text()
        self.do("write", name, text)
        until(f"write {name}", lambda: (self.root / name).read_text() == text)
        self.logged.add(("write", name))

    def append(self) -> None:
        name = self.some()
        before = (self.root / name).read_text()
        self.do("append", name, "more\n")
        until(f"append {name}", lambda: (self.root / name).read_text() == before + "more\n")
        until(f"size of {name}", lambda: (self.root / name).stat().st_size == len(before) + 5)
        self.logged.add(("write", name))

    def chmod(self) -> None:
        name = self.some()
        mode = 0o600 if (self.root / name).stat().st_mode & 0o777 != 0o600 else 0o755
        self.do("chmod", name, mode)
        until(f"chmod {name}", lambda: (self.root / name).stat().st_mode & 0o777 == mode)

    def rename(self) -> None:
        name, to = self.some(), self.fresh()
        was = seen(self.root / name)
        self.do("rename", name, to)
        until(f"rename {name}", lambda: seen(self.root / name) is None and seen(self.root / to) == was)
        until(f"list {to}", lambda: self.listed(to) and not self.listed(name))
        self.files.remove(name)
        self.files.append(to)
        self.logged.add(("rename", name))

    def replace(self) -> None:
        name, over = self.some(), self.some()
        if name == over:
            return
        was = seen(self.root / name)
        (self.root / over).read_text()
        self.do("rename", name, over)
        until(f"rename over {over}", lambda: seen(self.root / over) == was and seen(self.root / name) is None)
        self.files.remove(name)
        self.logged.add(("rename", name))

    def out_and_in(self) -> None:
        name, away = self.some(), f"../out/n{self._number}"
        was = seen(self.root / name)
        self.do("rename", name, away)
        until(f"move away {name}", lambda: seen(self.root / name) is None)
        to = self.fresh()
        self.do("rename", away, to)
        until(f"move in {to}", lambda: seen(self.root / to) == was and self.listed(to))
        self.files.remove(name)
        self.files.append(to)
        self.logged |= {("rename", name), ("create", to)}

    def unlink(self) -> None:
        name = self.some()
        seen(self.root / name)
        self.do("unlink", name)
        until(f"unlink {name}", lambda: seen(self.root / name) is None and not self.listed(name))
        self.files.remove(name)
        self.logged.add(("delete", name))

    def mkdir(self) -> None:
        name = self.fresh()
        self.do("mkdir", name)
        until(f"mkdir {name}", (self.root / name).is_dir)
        self.do("write", f"{name}/inner", "deep")
        until(f"file in {name}", lambda: os.listdir(self.root / name) == ["inner"])
        self.do("unlink", f"{name}/inner")
        until(f"empty {name}", lambda: os.listdir(self.root / name) == [])
        self.do("rmdir", name)
        until(f"rmdir {name}", lambda: seen(self.root / name) is None)
        self.logged |= {("mkdir", name), ("rmdir", name)}

    def symlink(self) -> None:
        name = self.fresh()
        for target in ("one", "two"):
            self.do("symlink", target, name)
            until(f"symlink {name}", lambda t=target: _target(self.root / name) == t)  # type: ignore[misc]
            self.do("unlink", name)
            until(f"unlink {name}", lambda: seen(self.root / name) is None)
        self.logged |= {("create", name), ("delete", name)}


def _target(path: Path) -> str | None:
    try:
        return os.readlink(path)
    except FileNotFoundError:
        return None


def test_a_thousand_changes_from_behind(guarded: tuple[Workspace, Behind]) -> None:
    workspace, worker = guarded
    worker("mkdir", "../out")
    world = World(workspace.root, worker, seed=20)
    acts = [
        world.create,
        world.create,
        world.write,
        world.append,
        world.chmod,
        world.rename,
        world.replace,
        world.out_and_in,
        world.unlink,
        world.mkdir,
        world.symlink,
    ]
    for turn in range(600):  # of one to four changes each
        acts[turn % len(acts)]()
    entries = workspace.fsguard("log", "--json", "--limit", "100000").lines()
    theirs = [e for e in entries if e["pid"] == worker.pid]
    assert all(e["task"] is None and "python" in e["command"] for e in theirs)
    found = {(e["op"], e["path"]) for e in theirs}
    assert world.logged <= found, f"not on record: {sorted(world.logged - found)[:10]}"
    ours = [e for e in entries if e["pid"] != worker.pid and e["op"] != "read"]
    assert not ours, f"nobody else has changed anything: {ours[:3]}"


def snapshot(root: Path) -> dict[str, tuple[object, ...]]:
    """All that a tree shows: names, attributes, contents."""
    found: dict[str, tuple[object, ...]] = {}
    for directory, below, files in os.walk(root):
        for name in below + files:
            path = Path(directory, name)
            st = path.lstat()
            facts: tuple[object, ...] = (st.st_mode, st.st_nlink, st.st_mtime_ns, st.st_ctime_ns)
            if stat.S_ISLNK(st.st_mode):
                facts += (os.readlink(path),)
            elif stat.S_ISREG(st.st_mode):
                facts += (st.st_size, path.read_bytes())
            found[os.path.relpath(path, root)] = facts
    return found


def test_what_both_sides_do_shows_alike(guarded: tuple[Workspace, Behind]) -> None:
    """Files, links and directories, made, moved and removed through the mount and behind it, in turn."""
    workspace, worker = guarded
    behind_it = Path(f"/proc/{worker.pid}/cwd")
    root, rng = workspace.root, random.Random(5)

    def ours(act: str, *words: object) -> None:
        paths = [root / w if isinstance(w, str) and (i == 0 or act in ("rename", "link")) else w
                 for i, w in enumerate(words)]  # fmt: skip
        if act == "write":
            Path(str(paths[0])).write_text(str(paths[1]))
        elif act == "symlink":
            os.symlink(str(words[0]), root / str(words[1]))
        else:
            getattr(os, act)(*paths)

    def alike() -> bool:
        try:
            return snapshot(root) == snapshot(behind_it)
        except FileNotFoundError:  # moved between a listing and the look at what it said
            return False

    for number in range(120):
        tree = snapshot(behind_it)
        directories = ["", *(n for n, f in tree.items() if stat.S_ISDIR(f[0]))]  # type: ignore[arg-type]
        files = [n for n, f in tree.items() if stat.S_ISREG(f[0])]  # type: ignore[arg-type]
        do = rng.choice([ours, worker])
        fresh = os.path.join(rng.choice(directories), f"n{number}")
        some = rng.choice(files) if files else None
        acts = "write write rewrite mkdir symlink link chmod rename over move unlink"
        act = rng.choice(acts.split())
        if act == "write" or some is None:
            do("write", fresh, "x" * rng.randrange(9))
        elif act == "rewrite":
            do("write", some, str(number))
        elif act == "mkdir":
            do("mkdir", fresh)
        elif act == "symlink":
            do("symlink", f"to{number}", fresh)
        elif act == "link":
            do("link", some, fresh)
        elif act == "chmod":
            do("chmod", some, rng.choice([0o600, 0o644, 0o755]))
        elif act == "rename":
            do("rename", some, fresh)
        elif act == "over":
            do("rename", some, rng.choice(files))
        elif act == "move":
            directory = rng.choice(directories)
            if directory and not fresh.startswith(directory + "/"):
                do("rename", directory, fresh)
        else:
            do("unlink", some)
        whose = "ours" if do is ours else "theirs"
        until(f"{whose}: {act} {some} {fresh}", alike, seconds=2)


@pytest.mark.parametrize("how", ["deleted", "replaced", "moved away", "its directory moved away"])
def test_what_is_open_outlives_its_name(guarded: tuple[Workspace, Behind], how: str) -> None:
    workspace, worker = guarded
    ways = {"r": os.O_RDONLY, "w": os.O_WRONLY, "rw": os.O_RDWR}
    for name in ways:
        worker("write", f"a/{name}", "what was there\n")
    fds = {name: os.open(workspace.root / "a" / name, flags) for name, flags in ways.items()}
    for name in ways:
        if how == "deleted":
            worker("unlink", f"a/{name}")
        elif how == "replaced":
            worker("write", "new", "something else\n")
            worker("rename", "new", f"a/{name}")
        elif how == "moved away":
            worker("rename", f"a/{name}", f"../away-{name}")
    if how == "its directory moved away":
        worker("rename", "a", "../elsewhere")
    for name, fd in fds.items():
        if name != "w":
            assert os.pread(fd, 20, 0) == b"what was there\n"
        if name != "r":
            assert os.pwrite(fd, b"WHAT", 0) == 4
            os.ftruncate(fd, 10)
        os.fchmod(fd, 0o600)
        st = os.fstat(fd)
        assert (st.st_size, st.st_mode & 0o777) == (15 if name == "r" else 10, 0o600)
        os.close(fd)
        if how == "replaced":
            new = workspace.root / "a" / name
            until("the other file", lambda new=new: new.read_text() == "something else\n")


def test_stores_through_a_mapping_show_when_it_is_closed(guarded: tuple[Workspace, Behind]) -> None:
    workspace, worker = guarded
    assert (workspace.root / "f").read_text() == "old\n"
    worker("store", "f", "new")
    until("the store", lambda: (workspace.root / "f").read_text() == "new\n")
    entries = workspace.fsguard("log", "f", "--json").lines()
    assert any(e["op"] == "write" and e["pid"] == worker.pid for e in entries)


def test_who_has_read_it_is_told(guarded: tuple[Workspace, Behind]) -> None:
    workspace, worker = guarded
    workspace.run("A", "cat", "f").ok()
    worker("write", "f", "theirs\n")
    until("the change", lambda: (workspace.root / "f").read_text() == "theirs\n")
    workspace.plain("sh", "-c", "echo mine > f", env={**workspace.env, "FSGUARD_TASK": "A"}).ok()
    (warning,) = workspace.warnings("A")
    assert warning["kind"] == "external_write" and warning["path"] == "f"
    assert f"pid {worker.pid}" in warning["message"] or "python" in warning["message"]
    who = workspace.fsguard("who", "f", "--json").json()
    assert any(w["pid"] == worker.pid for w in who["writers"])


def test_a_task_that_goes_around_the_mount_is_that_task(guarded: tuple[Workspace, Behind]) -> None:
    workspace, worker = guarded
    workspace.run("A", "cat", "f").ok()
    workspace.sh("B", f"echo around > /proc/{worker.pid}/cwd/f; sleep 0.2").ok()
    until("the change", lambda: (workspace.root / "f").read_text() == "around\n")
    entries = workspace.fsguard("log", "f", "--json").lines()
    assert any(e["op"] == "write" and e["task"] == "B" for e in entries)
    workspace.plain("sh", "-c", "echo mine > f", env={**workspace.env, "FSGUARD_TASK": "A"}).ok()
    (warning,) = workspace.warnings("A")
    assert warning["kind"] == "stale_write" and warning["sibling"] == "B"


def test_own_changes_are_no_news(guarded: tuple[Workspace, Behind]) -> None:
    workspace, _ = guarded
    script = (
        "mkdir -p d; for i in 1 2 3 4 5; do echo $i > d/$i; mv d/$i d/x$i; chmod 600 d/x$i; done; rm -r d"
    )
    workspace.sh("A", script).ok()
    heard = workspace.fsguard("status", "--json").json()["cache"]["heard"]
    assert heard["foreign"] == 0, heard
    ops = {(e["op"], e["task"]) for e in workspace.fsguard("log", "--json").lines()}
    assert all(task == "A" for op, task in ops), ops


def test_more_changes_than_can_be_heard_of(guarded: tuple[Workspace, Behind]) -> None:
    workspace, worker = guarded
    limit = int(Path("/proc/sys/fs/fanotify/max_queued_events").read_text())
    worker("write", "a/known", "old")
    until("known", (workspace.root / "a" / "known").exists)
    (workspace.root / "a" / "known").read_text()
    assert not (workspace.root / "a" / "last").exists() and os.listdir(workspace.root / "b") == []
    pid = workspace.worker_pid()
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)  # nobody reads the queue meanwhile
    try:
        worker("many", "b/", limit + 2000)  # some may have been read before it stopped
        worker("write", "a/known", "new!")
        worker("write", "a/last", "")
    finally:
        os.kill(pid, signal.SIGCONT)
    # Thousands of events have to be gone through first; what counts is that nothing stays as it was.
    end = time.monotonic() + 30
    while (workspace.root / "a" / "known").read_text() != "new!" or not (
        workspace.root / "a" / "last"
    ).exists():
        assert time.monotonic() < end
    assert len(os.listdir(workspace.root / "b")) == limit + 2000

    def overflows() -> int:
        count: int = workspace.fsguard("status", "--json").json()["cache"]["heard"]["overflows"]
        return count

    until("the overflow", lambda: overflows() >= 1, seconds=30)
