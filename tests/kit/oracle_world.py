"""The guard without a mount: an in-memory tree, fake processes, a clock that is told.

`World` does to `fsguard.dispatch` what the filesystem does, in the same order
(announce, carry out, confirm), so that rules can be tried with plain values:

    w = World()
    a, b = w.run("A"), w.run("B")
    a.read("f"), b.write("f", "b"), a.write("f", "a")
    assert w.told() == {("A", "f", "stale_write", "B")}
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fsguard.core.guard import Guard, Limits
from fsguard.core.model import CONFLICT, Act, Actor, Command, Footprint, Process, Task, Warning
from fsguard.core.policy import DEFAULT_IGNORE, Policies
from fsguard.dispatch import Dispatch, OpenFile
from fsguard.observer import Caller, Exchange, Linked, Made, Removed, Renamed, Truncated

__all__ = ["Facts", "Handle", "Inode", "Proc", "Told", "World"]

START = 1_700_000_000.0

#: (task, path, kind, sibling)
Told = tuple[str, str, str, str | None]


def name(path: str | bytes) -> bytes:
    return path.encode("utf-8", "surrogateescape") if isinstance(path, str) else path


def shown(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def octets(data: str | bytes) -> bytes:
    return data.encode() if isinstance(data, str) else data


class Facts:
    """What the outside would be asked (`fsguard.core.guard.Probe`), as plain sets."""

    def __init__(self) -> None:
        self.locking: set[bytes] = set()
        self.ignored: set[bytes] = set()
        self.asked = 0

    def self_locking(self, path: bytes, file: object, act: Act) -> bool:
        self.asked += 1
        return path in self.locking and act in (Act.WRITE, Act.APPEND)

    def git_ignored(self, path: bytes) -> bool:
        self.asked += 1
        return path in self.ignored


class Inode:
    """A file behind the mount (`fsguard.observer.FileView`)."""

    _numbers = iter(range(100, 1 << 60))

    def __init__(self, data: bytes = b"", regular: bool = True) -> None:
        self.data = data
        self.names: list[bytes] = []
        self.regular = regular
        self.number = next(self._numbers)
        self.digests = 0

    @property
    def ino(self) -> int:
        return self.number

    def paths(self) -> Sequence[bytes]:
        return tuple(self.names)

    def is_regular(self) -> bool:
        return self.regular

    def size(self) -> int:
        return len(self.data)

    def stat(self) -> os.stat_result:
        mode = stat.S_IFREG if self.regular else stat.S_IFLNK
        return os.stat_result((mode | 0o644, self.number, 1, len(self.names), 0, 0, len(self.data), 0, 0, 0))

    def digest(self, limit: int) -> bytes | None:
        self.digests += 1
        if len(self.data) > limit:
            return None
        return hashlib.blake2b(self.data, digest_size=16).digest()

    def head(self, size: int) -> bytes:
        return self.data[:size]

    def pread(self, size: int, offset: int) -> bytes:
        return self.data[offset : offset + size]


class Handle:
    """One open file description of a process."""

    def __init__(self, proc: Proc, inode: Inode, session: OpenFile, flags: int) -> None:
        self.proc = proc
        self.inode = inode
        self.session = session
        self.flags = flags
        self.position = 0

    def read(self, size: int | None = None) -> bytes:
        self.proc.world.step()
        self.session.reading(self.proc.tid)
        end = None if size is None else self.position + size
        data = self.inode.data[self.position : end]
        self.position += len(data)
        return data

    def write(self, data: str | bytes, at: int | None = None, by: Proc | None = None, tid: int = -1) -> None:
        """`by`: another process that inherited the descriptor; `tid` 0: the kernel flushes a mapping."""
        raw = octets(data)
        self.proc.world.step()
        if self.flags & os.O_APPEND:
            offset = len(self.inode.data)
        else:
            offset = self.position if at is None else at
        self.session.writing((by or self.proc).tid if tid < 0 else tid, offset, raw)
        old = self.inode.data.ljust(offset, b"\0")
        self.inode.data = old[:offset] + raw + old[offset + len(raw) :]
        if at is None:
            self.position = offset + len(raw)
        self.session.wrote(offset, len(raw))

    def truncate(self, size: int, by: Proc | None = None) -> None:
        who = by or self.proc
        who.world.step()
        with who.world.dispatch.changing(who.caller, Truncated(self.inode, size, self.session)):
            self.inode.data = self.inode.data[:size].ljust(size, b"\0")

    def close(self) -> None:
        self.proc.world.step()
        self.session.released()


class Proc:
    """A process: what it does reaches the guard as the filesystem would tell it."""

    def __init__(self, world: World, tid: int, actor: Actor) -> None:
        self.world = world
        self.tid = tid
        self.actor = actor
        self.alive = True
        world.procs[tid] = self

    @property
    def caller(self) -> Caller:
        return Caller(self.tid, 0, 0)

    @property
    def task(self) -> str | None:
        return self.actor.task.id if self.actor.task is not None else None

    def fork(self, text: str | None = None) -> Proc:
        """A child in the same command; in one of its own (a bare exported task ID) when `text` is given."""
        command = self.actor.command
        if text is not None:
            command = Command(self.world.key("p"), text, self.actor.task, self.world.now)
        return self.world.process(self.actor.task, command, parent=self.actor.process)

    def exit(self) -> None:
        self.alive = False

    def end(self) -> None:
        """The command ends: the run is over, what waited for its end is judged."""
        self.alive = False
        self.world.step()
        command = self.actor.command
        command.ended = self.world.now
        self.world.guard.settle(self.world.now, self.world.gone, command)

    # -- system calls ---------------------------------------------------------

    def open(self, path: str | bytes, flags: int = os.O_RDONLY) -> Handle:
        world, p = self.world, name(path)
        world.step()
        inode = world.tree.get(p)
        if inode is None:
            if not flags & os.O_CREAT:
                world.opening = flags & os.O_ACCMODE != os.O_WRONLY
                world.dispatch.missed(self.caller, p)
                world.opening = False
                raise FileNotFoundError(errno.ENOENT, "no such file", p)
            session = world.wait(world.dispatch.create(self.caller, p, flags))
            inode = world.place(p, Inode())
        else:
            if flags & os.O_EXCL:
                raise FileExistsError(errno.EEXIST, "exists", p)
            session = world.wait(world.dispatch.open(self.caller, inode, flags))
            if flags & os.O_TRUNC:
                inode.data = b""
        session.opened(inode)
        return Handle(self, inode, session, flags)

    def stat(self, path: str | bytes) -> bool:
        """stat(2): true when it is there."""
        found = name(path) in self.world.tree
        if not found:
            self.world.dispatch.missed(self.caller, name(path))
        return found

    def truncate(self, path: str | bytes, size: int = 0) -> None:
        world = self.world
        world.step()
        inode = world.tree[name(path)]
        with world.dispatch.changing(self.caller, Truncated(inode, size, None)):
            inode.data = inode.data[:size].ljust(size, b"\0")

    def unlink(self, path: str | bytes) -> None:
        world, p = self.world, name(path)
        world.step()
        inode = world.tree[p]
        with world.dispatch.changing(self.caller, Removed(p, inode)):
            world.remove(p)

    def rename(self, source: str | bytes, target: str | bytes) -> None:
        world, old, new = self.world, name(source), name(target)
        world.step()
        if old not in world.tree:
            self._rename_directory(old, new)
            return
        inode, replaced = world.tree[old], world.tree.get(new)
        with world.dispatch.changing(self.caller, Renamed(old, new, inode, replaced, False)):
            if replaced is not None:
                world.remove(new)
            inode.names[inode.names.index(old)] = new
            world.tree[new] = world.tree.pop(old)

    def _rename_directory(self, old: bytes, new: bytes) -> None:
        world = self.world
        below = [p for p in world.tree if p.startswith(old + b"/")]
        with world.dispatch.changing(self.caller, Renamed(old, new, None, None, True)):
            for p in below:
                inode = world.tree.pop(p)
                moved = new + p[len(old) :]
                inode.names[inode.names.index(p)] = moved
                world.tree[moved] = inode

    def exchange(self, first: str | bytes, second: str | bytes) -> None:
        world, one, two = self.world, name(first), name(second)
        world.step()
        x, y = world.tree[one], world.tree[two]
        with world.dispatch.changing(self.caller, Exchange(one, two, x, y, False, False)):
            x.names[x.names.index(one)] = two
            y.names[y.names.index(two)] = one
            world.tree[one], world.tree[two] = y, x

    def link(self, known: str | bytes, target: str | bytes) -> None:
        world, p = self.world, name(target)
        world.step()
        inode = world.tree[name(known)]
        with world.dispatch.changing(self.caller, Linked(p, inode)):
            world.place(p, inode)

    def symlink(self, path: str | bytes, to: str | bytes = b"x") -> None:
        world, p = self.world, name(path)
        world.step()
        with world.dispatch.changing(self.caller, Made(p, "symlink")):
            world.place(p, Inode(octets(to), regular=False))

    def readlink(self, path: str | bytes) -> bytes:
        self.world.step()
        inode = self.world.tree[name(path)]
        self.world.dispatch.readlink(self.caller, inode)
        return inode.data

    # -- what programs do -----------------------------------------------------

    def read(self, path: str | bytes) -> bytes | None:
        """`cat`: the content, None when there is nothing."""
        try:
            handle = self.open(path)
        except FileNotFoundError:
            return None
        data = handle.read()
        handle.close()
        return data

    def write(self, path: str | bytes, data: str | bytes) -> None:
        """`> path`."""
        handle = self.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        if data:
            handle.write(data)
        handle.close()

    def append(self, path: str | bytes, data: str | bytes) -> None:
        """`>> path`."""
        handle = self.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        handle.write(data)
        handle.close()

    def patch(self, path: str | bytes, data: str | bytes, at: int = 0) -> None:
        """`dd conv=notrunc`: bytes in place."""
        handle = self.open(path, os.O_WRONLY)
        handle.write(data, at)
        handle.close()

    def replace(self, path: str | bytes, data: str | bytes) -> None:
        """Write a temporary file and rename it over `path`."""
        p = name(path)
        temp = p + b".tmp%d" % next(self.world.numbers)
        self.write(temp, data)
        self.rename(temp, p)

    def sed(self, path: str | bytes, change: Callable[[bytes], bytes]) -> None:
        """`sed -i`: read, write a temporary file, rename it over."""
        data = self.read(path)
        assert data is not None
        self.replace(path, change(data))

    def edit(self, path: str | bytes, data: str | bytes) -> None:
        """Read all, then write all: a formatter."""
        self.read(path)
        self.write(path, data)

    def checkout(self, path: str | bytes, data: str | bytes) -> None:
        """`git checkout -- path`: unlink, then make anew."""
        if name(path) in self.world.tree:
            self.unlink(path)
        handle = self.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        if data:
            handle.write(data)
        handle.close()


class World:
    """A workspace in memory, with its guard; also the processes that the guard may ask about."""

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        ignore: Iterable[str] = DEFAULT_IGNORE,
        policy: str = "warn",
        tick: float = 0.01,
    ) -> None:
        self.now = START
        self.tick = tick
        self.facts = Facts()
        self.guard = Guard(self.facts, policies=Policies(policy), ignore=ignore, limits=limits)
        self.dispatch = Dispatch(self.guard, self, clock=lambda: self.now)
        self.dispatch.waiting.now = lambda: self.now
        self.tree: dict[bytes, Inode] = {}
        self.procs: dict[int, Proc] = {}
        self.numbers = iter(range(1, 1 << 60))
        self.opening = False

    # -- what the dispatcher asks (`fsguard.dispatch.Processes`) ----------------

    def actor(self, tid: int, paths: Sequence[bytes] = ()) -> Actor:
        return self.procs[tid].actor

    def author(self, pid: int, texts: Mapping[str, bytes], paths: Sequence[bytes] = ()) -> Actor:
        return self.actor(pid, paths)

    def opens_for_reading(self, tid: int) -> bool:
        return self.opening

    def reads_link(self, tid: int) -> bool:
        return True

    def wants_out(self, tid: int) -> bool:
        return False

    def gone(self, actor: Actor) -> bool:
        return not any(p.alive for p in self.procs.values() if p.actor.process is actor.process)

    # -- making things --------------------------------------------------------

    def step(self) -> float:
        self.now += self.tick
        return self.now

    def key(self, prefix: str) -> str:
        return f"{prefix}{next(self.numbers)}"

    def wait(self, coroutine: Any) -> OpenFile:
        """The result of a coroutine that never waits."""
        try:
            coroutine.send(None)
        except StopIteration as done:
            assert isinstance(done.value, OpenFile)
            return done.value
        raise AssertionError("the dispatcher waits")

    def place(self, path: bytes, inode: Inode) -> Inode:
        inode.names.append(path)
        self.tree[path] = inode
        return inode

    def remove(self, path: bytes) -> None:
        self.tree.pop(path).names.remove(path)

    def file(self, path: str | bytes, data: str | bytes = "base") -> Inode:
        """A file that was there before the mount: the guard knows nothing of it."""
        return self.place(name(path), Inode(octets(data)))

    def content(self, path: str | bytes) -> bytes | None:
        inode = self.tree.get(name(path))
        return inode.data if inode is not None else None

    def task(self, task_id: str, parent: str | None = None) -> Task:
        task = self.guard.tasks.get(task_id, self.now, self.guard.ledger.version)
        if parent is not None:
            assert self.guard.tasks.adopt(task, self.task(parent))
        return task

    def process(self, task: Task | None, command: Command, parent: Process | None = None) -> Proc:
        tid = next(self.numbers)
        return Proc(self, tid, Actor(task, Process(tid, tid, "sh", parent), command))

    def run(self, task_id: str, text: str = "", parent: str | None = None, footprint: bool = False) -> Proc:
        """One `fsguard run` of a task: its first process."""
        task = self.task(task_id, parent)
        command = Command(self.key("run"), text or f"work of {task_id}", task, self.now)
        if footprint:
            command.footprint = Footprint()
        return self.process(task, command)

    def bare(self, task_id: str, text: str = "") -> Proc:
        """A process with an exported task ID: a command of its own."""
        task = self.task(task_id)
        return self.process(task, Command(self.key("p"), text or f"process of {task_id}", task, self.now))

    def person(self, text: str = "vim f") -> Proc:
        """A process that belongs to no task."""
        return self.process(None, Command(self.key("p"), text, None, self.now))

    # -- what was said --------------------------------------------------------

    def warnings(self, task: str | None = None) -> list[Warning]:
        return [w for w in self.guard.outbox if task is None or w.task == task]

    def told(self, severity: str = CONFLICT) -> set[Told]:
        """Everything on record, one item per path."""
        return {
            (w.task, shown(p), str(w.kind), w.sibling)
            for w in self.guard.outbox
            if w.severity == severity
            for p in w.paths
        }

    def notes(self) -> set[Told]:
        return self.told("note")

    def news(self) -> tuple[set[Told], set[Told]]:
        """(conflicts, notes) since the last call; what is taken counts as delivered."""
        conflicts: set[Told] = set()
        notes: set[Told] = set()
        fresh = self.guard.outbox.pending()
        for w in fresh:
            into = conflicts if w.severity == CONFLICT else notes
            into |= {(w.task, shown(p), str(w.kind), w.sibling) for p in w.paths}
        self.guard.outbox.deliver(fresh)
        return conflicts, notes
