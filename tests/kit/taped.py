"""A guard on a tape that can be killed at any moment, and the kernel's side of it, in memory.

`Kernel` is what outlives a death: the files, the processes, requests without an answer, and what
the lane has not told yet. `Inside` is what a process of ours holds; `Kernel.die` takes it away and
makes another from the checkpoint and the tape. A request that was under way comes again then, and
each of its system calls is done once, as the filesystem does it.
"""

from __future__ import annotations

import errno
import hashlib
import marshal
import os
import random
import stat
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import coroutine
from typing import Any

from fsguard import restart, taping
from fsguard.attribution.procfs import Stat
from fsguard.attribution.resolver import Resolver, Run
from fsguard.control.server import Peer
from fsguard.core.guard import Guard, Limits
from fsguard.core.model import Actor, Command, Kept
from fsguard.core.policy import Policies
from fsguard.dispatch import Dispatch, Shield
from fsguard.dispatch.replay import Replay
from fsguard.errors import FsguardError
from fsguard.observer import Caller, Exchange, Linked, Made, Outside, Removed, Renamed, Session, Truncated
from fsguard.service import Service
from fsguard.tape import Tape

__all__ = ["TAPE_BYTES", "File", "Inside", "Kernel", "Killed", "canonical"]

AGAIN = 1 << 63
TAPE_BYTES = 1 << 20


class Killed(BaseException):
    """SIGKILL, as far as Python can have one."""


class File:
    """A file behind the mount (`fsguard.observer.FileView`), alive as long as anybody knows it."""

    __module__ = "fsguard.some_files"  # so that a checkpoint takes it for one of ours, which has a name

    def __init__(self, kernel: Kernel, id_: int, data: bytes = b"", regular: bool = True) -> None:
        self.kernel = kernel
        self.id = id_
        self.data = data
        self.regular = regular
        self.names: list[bytes] = []

    @property
    def ino(self) -> int:
        return self.id

    def _asked(self) -> None:
        self.kernel.point()

    def paths(self) -> tuple[bytes, ...]:
        self._asked()
        return tuple(self.names)

    def is_regular(self) -> bool:
        self._asked()
        return self.regular

    def size(self) -> int:
        self._asked()
        return len(self.data)

    def stat(self) -> os.stat_result:
        self._asked()
        if not self.names and self.id % 3 == 0:
            raise FileNotFoundError(errno.ENOENT, "gone")
        mode = stat.S_IFREG if self.regular else stat.S_IFLNK
        return os.stat_result((mode | 0o644, self.id, 1, 1, 0, 0, len(self.data), 0, 0, 0))

    def digest(self, limit: int) -> bytes | None:
        self._asked()
        return hashlib.blake2b(self.data, digest_size=16).digest() if len(self.data) <= limit else None

    def head(self, size: int) -> bytes:
        self._asked()
        return self.data[:size]

    def pread(self, size: int, offset: int) -> bytes:
        self._asked()
        return self.data[offset : offset + size]


@dataclass(eq=False)
class Proc:
    tid: int
    task: str | None
    parent: int = 1
    token: str = ""
    image: int = 1
    alive: bool = True
    reads: bool = True
    ending: bool = False
    shell: bool = False


@dataclass(eq=False)
class Handle:
    proc: Proc
    file: File
    number: int
    flags: int
    granted: bool = False


@dataclass(eq=False)
class Request:
    """One of the kernel's: `run` handles it, from the beginning each time that it comes."""

    unique: int
    run: Callable[[Request], Coroutine[Any, Any, None]]
    again: bool = False
    done: dict[str, Any] = field(default_factory=dict)
    task: Coroutine[Any, Any, None] | None = None

    def once(self, what: str, fn: Callable[[], Any]) -> Any:
        """A system call, which the filesystem does once however often the request comes."""
        if what not in self.done:
            self.done[what] = fn()
        return self.done[what]


@coroutine
def _stand() -> Generator[None, None, None]:
    yield


async def _rest(wait: Any, seconds: float) -> None:
    await _stand()


class FakeProc:
    """/proc."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def _find(self, tid: int) -> Proc | None:
        self.kernel.point()
        proc = self.kernel.procs.get(tid)
        return proc if proc is not None and proc.alive else None

    def inode(self, tid: int) -> int | None:
        return tid + 1000 if self._find(tid) is not None else None

    def tgid(self, tid: int) -> int | None:
        return tid if self._find(tid) is not None else None

    def stat(self, pid: int) -> Stat | None:
        proc = self._find(pid)
        if proc is None:
            return None
        return Stat("sh" if proc.shell else "cp", "S", proc.parent, pid * 7, proc.image, 1)

    def groups(self, pid: int) -> bytes:
        proc = self._find(pid)
        return b"0::/fsguard-" + proc.token.encode() if proc is not None and proc.token else b"0::/"

    def variables(self, pid: int, threads: int, names: tuple[bytes, ...]) -> dict[bytes, bytes]:
        proc = self._find(pid)
        if proc is None:
            return {}
        if self.kernel.chance(pid) < 0.03:
            raise TimeoutError
        return {b"FSGUARD_TASK": proc.task.encode()} if proc.task is not None and not proc.token else {}

    def cmdline(self, pid: int, threads: int) -> bytes:
        return b"program\0%d\0" % pid if self._find(pid) is not None else b""

    def syscall(self, tid: int) -> tuple[int, tuple[int, ...]] | None:
        proc = self._find(tid)
        return (257, (0, 0, os.O_RDONLY)) if proc is not None and proc.reads else (89, (0, 0))

    def pending(self, tid: int) -> int | None:
        proc = self._find(tid)
        return None if proc is None else (1 << 8 if proc.ending else 0)


class FakeKeeper:
    """The version store: what was put by gets the same number however often that happens."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def keep(self, file: Any, path: bytes, actor: Any, cause: str, keeping: Any, *_: Any) -> Kept:
        self.kernel.point()
        digest = file.digest(1 << 20)
        self.kernel.rows += 1
        self.kernel.point()
        return Kept(keeping.number * 10, keeping.number, digest, "too big" if len(path) % 5 == 0 else None)

    def told(self, kept: Kept, warning: Any) -> None:
        self.kernel.point()

    def needless(self, kept: Kept) -> None:
        self.kernel.point()

    def diff(self, path: bytes, base: Kept | None, file: Any) -> str:
        self.kernel.point()
        return "\n-" + file.head(10).decode("latin-1") if base is not None else ""


class FakeFacts:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def self_locking(self, path: bytes, file: Any, act: Any) -> bool:
        self.kernel.point()
        return path.endswith(b".db") and "WRITE" in act.name

    def git_ignored(self, path: bytes) -> bool:
        self.kernel.point()
        if self.kernel.faulty:
            raise ValueError("a bug")
        return path.endswith(b".o")


class Lane:
    """Who is who, as the filesystem numbers them (`fuse.lane.Lane`)."""

    def __init__(self) -> None:
        self._actors: dict[int, Actor] = {}
        self._numbers: dict[Actor, int] = {}
        self._groups: dict[Any, int] = {}
        self._last = self._last_group = 0


class Inside:
    """The parts of one process, wired as the daemon does it."""

    def __init__(self, kernel: Kernel, memory: int | None, policy: str) -> None:
        self.kernel = kernel
        self.tape = Tape(memory, TAPE_BYTES)
        append = self.tape.append

        def appending(data: bytes) -> None:
            kernel.point()
            append(data)
            kernel.committed(*marshal.loads(data))
            kernel.point()

        self.tape.append = appending  # type: ignore[method-assign]
        kernel.files_as = self.tape.view(File)
        self.guard = Guard(
            taping.probe(self.tape, FakeFacts(kernel)),
            policies=Policies(policy),
            limits=Limits(paths=14, tasks=5, warnings=40, log=60, bulk_files=6),
        )
        self.resolver = Resolver(
            self.guard,
            clock=kernel.clock,
            proc=taping.proc(self.tape, FakeProc(kernel)),  # type: ignore[arg-type]
        )
        self.dispatch = Dispatch(
            self.guard,
            self.resolver,
            keeper=taping.keeper(self.tape, FakeKeeper(kernel)),  # type: ignore[arg-type]
            clock=kernel.clock,
            wait_seconds=3.0,
        )
        self.dispatch.waiting.now = kernel.clock
        self.dispatch.waiting.pending.rest = _rest
        self.dispatch.take_records = self.take_records
        self.dispatch.waiting.leases.before_granting = self.take_records
        self.lane = Lane()
        self.resolver.recall = self.known
        self.resolver.learn = self.know
        self.resolver.changed = kernel.known.clear
        self.recorder = taping.record(self.tape, self.dispatch, self.resolver, lambda: kernel.unique)
        self.shield = Shield(self.recorder, self.say)
        self.service = Service(self.dispatch, self.resolver, dict, None, -1)
        self.handlers = taping.note(self.recorder, self.service.groups(), self.service.handlers())
        self.settle = self.recorder.act("settle", self._settle)
        self.begin_run = self.recorder.act("run", self._begin_run)
        self.announce = self.recorder.act("announce", self._announce)

    def say(self, error: BaseException) -> str:
        if not self.kernel.faulty:
            raise AssertionError("the guard has a fault") from error
        return str(error)

    def fault(self) -> None:
        assert self.kernel.faulty
        self.shield.faults += 1

    def parts(self) -> dict[str, object]:
        guard, dispatch = self.guard, self.dispatch
        waiting = dispatch.waiting
        return {
            "guard": guard,
            "outbox": guard.outbox,
            "ledger": guard.ledger,
            "tasks": guard.tasks,
            "history": guard.history,
            "policies": guard.policies,
            "shield": self.shield,
            "dispatch": dispatch,
            "orphans": dispatch.orphans,
            "outsiders": dispatch.outsiders,
            "waiting": waiting,
            "waits": waiting.pending,
            "behind": waiting.behind,
            "turns": waiting.turns,
            "leases": waiting.leases,
            "resolver": self.resolver,
            "announced": self.resolver.announced,
            "recorder": self.recorder,
            "lane": self.lane,
            **self.service.parts(),
        }

    def gather(self) -> bytes:
        return restart.gather({**self.parts(), **self.kernel.names()}, under_way=True)

    def session(self, handle: Handle) -> Session:
        return self.shield.session(self.recorder.sessions[handle.number])

    # -- the lane ---------------------------------------------------------------------

    def known(self, tid: int) -> object:
        self.kernel.point()
        return self.lane._actors.get(self.kernel.known.get(tid, 0))

    def know(self, tid: int, actor: Actor) -> None:
        number = self.lane._numbers.get(actor)
        if number is None:
            self.kernel.lane_number += 1
            number = self.lane._numbers[actor] = self.kernel.lane_number
            self.lane._actors[number] = actor
            self.recorder.numbered(number, actor)
        self.kernel.known[tid] = number

    def take_records(self) -> None:
        for number, name, args in list(self.kernel.records):
            if number > self.recorder.record:
                self.kernel.point()
                self.recorder.record = number
                getattr(self, f"_told_{name}")(*args)

    def _told_looked(self, number: int, path: bytes, at: float) -> None:
        self.shield.looks([(self.lane._actors.get(number), (path,), at)])

    def _told_made(self, number: int, path: bytes, file: File, at: float) -> None:
        self.shield.made(self.lane._actors.get(number), path, file, at, True)

    def _told_outside(self, change: Outside) -> None:
        self.shield.outside(change)

    # -- what a timer and the control socket do ---------------------------------------

    def _settle(self) -> None:
        self.guard.settle(self.dispatch.clock(), self.resolver.gone)

    def _begin_run(self, token: str, task: str, pid: int) -> None:
        now = self.dispatch.clock()
        found = self.guard.tasks.get(task, now, self.guard.ledger.version)
        command = Command(token, f"run {token}", found, now)
        self.resolver.register(Run(token, pid, found, command, pid, pid * 7, None))

    def _announce(self, name: str, task: str, pid: int, path: bytes) -> None:
        now = self.dispatch.clock()
        found = self.guard.tasks.get(task, now, self.guard.ledger.version)
        process = self.resolver.actor(pid).process
        command = Command(f"tool:{name}", "write", found, now)
        self.resolver.announced.begin(name, found, process, command, path, True, now)


class Kernel:
    """:param deaths: whether processes of ours really die when they are told to.

    `log` is what has happened, in order: what was done, and which open that waits went on when. Another
    kernel whose processes do not die can do the same (`follow`).
    """

    def __init__(self, deaths: bool, policy: str = "warn") -> None:
        self.deaths = deaths
        self.policy = policy
        self.now = 1_700_000_000.0
        self.tree: dict[bytes, File] = {}
        self.files: dict[int, File] = {}
        self.files_as: type[File] = File
        self.procs: dict[int, Proc] = {}
        self.handles: dict[int, Handle] = {}  # by the number of the request that opened it
        self.requests: dict[int, Request] = {}  # without an answer, in the order in which they came
        self.records: deque[tuple[int, str, tuple[Any, ...]]] = deque()
        self.known: dict[int, int] = {}  # whose thread it is, as the lane knows
        self.known_then: dict[int, int] = {}  # when something last came onto the tape
        self.lane_number = self.last_record = self.rows = self.unique = self.last_unique = self.last_file = 0
        self.points_left = -1
        self.frozen: bytes | None = None
        self.kinds: list[str] = []  # of what came onto the tape during this act
        self.log: list[tuple[str, Any]] = []
        self.answers: list[str] = []
        self.deaths_seen = 0
        self.faulty = False
        self.inside = Inside(self, None, policy)
        self.checkpoint = (self.inside.gather(), self.inside.tape.cut())

    def clock(self) -> float:
        self.point()
        return self.now

    def chance(self, number: int) -> float:
        return random.Random(f"{number} {self.now}").random()

    def names(self) -> dict[str, object]:
        """Files, as the checkpoint calls them."""
        return {f"file {id_}": file for id_, file in self.files.items()}

    # -- deaths -----------------------------------------------------------------------

    def point(self) -> None:
        """Where a process may be killed."""
        if self.points_left > 0:
            self.points_left -= 1
            if self.points_left == 0:
                self.frozen = bytes(self.inside.tape._map)
                raise Killed
        elif self.frozen is not None:
            raise Killed  # nothing is done any more

    def committed(self, kind: str, unique: int, *rest: Any) -> None:
        self.kinds.append(kind)
        self.known_then = dict(self.known)
        if kind == "goes_on_waiting":
            self.log.append(("resume", unique))

    def save(self) -> None:
        data, mark = self.inside.gather(), self.inside.tape.cut()
        self.checkpoint = (data, mark)
        self.inside.tape.forget(mark)

    def die(self, order: random.Random) -> None:
        """The process is gone; another goes on, and what was without an answer comes again."""
        frozen = self.frozen if self.frozen is not None else bytes(self.inside.tape._map)
        self.points_left, self.frozen = -1, None
        self.deaths_seen += 1
        # Who asks again is looked up again: else it would be another's turn to be forgotten.
        self.known.clear()
        self.known.update(self.known_then)
        memory = os.memfd_create("test")
        os.write(memory, frozen)
        try:
            self.inside = self.revived(memory)
        finally:
            os.close(memory)
        again = list(self.requests.values())
        order.shuffle(again)
        # One that has not waited yet is half done; whatever comes next comes after it.
        again.sort(key=lambda request: -request.unique if request.unique == self.last_unique else 0)
        for request in again:
            self.handle(request, again=True)

    def revived(self, memory: int) -> Inside:
        data, mark = self.checkpoint
        inside = Inside(self, memory, self.policy)
        for file in self.files.values():  # each process has its own idea of them
            file.__class__ = self.files_as
        restart.restore(data, {**inside.parts(), **self.names()}, self.files.__getitem__)
        replay = Replay(
            inside.recorder,
            self.files.__getitem__,
            numbered=lambda number, actor: inside.lane._actors.update({number: actor}),
            faults=inside.fault,
        )
        replay.run(inside.tape.entries(mark))
        return inside

    # -- what goes on -----------------------------------------------------------------

    def do(self, act: tuple[Any, ...], order: random.Random | None = None, points: int = -1) -> None:
        """One thing happens; `points`: the process is killed at that point of it."""
        self.log.append(("act", act))
        while self.records and self.records[0][0] <= self.inside.recorder.record:
            self.records.popleft()
        seconds, name, *args = act
        self.now += seconds
        self.kinds.clear()
        self.known_then = dict(self.known)
        self.points_left = points
        try:
            getattr(self, f"_{name}")(*args)
        except Killed:
            assert order is not None
            noted = bool({"act", "went_on", "interrupted"} & set(self.kinds))
            self.die(order)
            if name in _OF_OURS and not noted:  # who asks, asks again
                getattr(self, f"_{name}")(*args)
        self.points_left = -1

    def follow(self, log: list[tuple[str, Any]]) -> None:
        for kind, what in log:
            if kind == "act":
                self.do(what)
            else:
                self.go_on(self.requests[what])

    def ask(self, run: Callable[[Request], Coroutine[Any, Any, None]]) -> None:
        self.last_unique += 2
        request = self.requests[self.last_unique] = Request(self.last_unique, run)
        self.handle(request)

    def handle(self, request: Request, again: bool = False) -> None:
        request.again = again
        request.task = request.run(request)
        self.go_on(request, request.unique | AGAIN if again else request.unique)

    def go_on(self, request: Request, unique: int = 0) -> None:
        """`unique`: what the filesystem can see of the request; nothing after it has waited."""
        assert request.task is not None
        self.unique = unique
        try:
            request.task.send(None)
            return
        except StopIteration:
            pass
        except OSError as error:
            self.answers.append(f"{request.unique} {error.errno} {error.strerror}")
        finally:
            self.unique = 0
        del self.requests[request.unique]

    def caller(self, request: Request, tid: int) -> Caller:
        return Caller(tid, 0, 0, 0o22, request.unique | AGAIN if request.again else request.unique)

    def make(self, data: bytes = b"", regular: bool = True) -> File:
        self.last_file += 1
        file = self.files[self.last_file] = self.files_as(self, self.last_file, data, regular)
        return file

    def place(self, path: bytes, file: File) -> File:
        file.names.append(path)
        self.tree[path] = file
        return file

    def remove(self, path: bytes) -> None:
        self.tree.pop(path).names.remove(path)

    def rename(self, old: bytes, new: bytes) -> None:
        if new in self.tree:
            self.remove(new)
        file = self.tree.pop(old)
        file.names[file.names.index(old)] = new
        self.tree[new] = file

    # -- processes --------------------------------------------------------------------

    def _spawn(self, tid: int, task: str | None, parent: int, token: str, shell: bool) -> None:
        self.procs[tid] = Proc(tid, task, parent, token, shell=shell)

    def _exit(self, tid: int) -> None:
        self.procs[tid].alive = False
        self.known.pop(tid, None)
        self.known_then.pop(tid, None)

    def _exec(self, tid: int) -> None:
        self.procs[tid].image += 1
        self.known.pop(tid, None)
        self.known_then.pop(tid, None)

    # -- requests ---------------------------------------------------------------------

    def _open(self, tid: int, path: bytes, flags: int) -> None:
        file = self.tree[path]

        async def run(r: Request) -> None:
            session = await self.inside.shield.open(self.caller(r, tid), file, flags)
            if flags & os.O_TRUNC:
                r.once("empty", lambda: setattr(file, "data", b""))
            self._opened(r, tid, file, flags, session)

        self.ask(run)

    def _opened(self, r: Request, tid: int, file: File, flags: int, session: Any) -> None:
        session.opened(file)
        if not hasattr(session, "inner"):
            return  # nobody watches it
        self.handles[r.unique] = Handle(self.procs[tid], file, session.inner.number, flags)

    def _fail_open(self, tid: int, path: bytes, flags: int) -> None:
        file = self.tree[path]

        async def run(r: Request) -> None:
            session = await self.inside.shield.open(self.caller(r, tid), file, flags)
            session.aborted()
            raise OSError(errno.EACCES, "not this time")

        self.ask(run)

    def _create(self, tid: int, path: bytes, flags: int) -> None:
        async def run(r: Request) -> None:
            session = await self.inside.shield.create(self.caller(r, tid), path, flags)
            file = r.once("made", lambda: self.place(path, self.make()))
            self._opened(r, tid, file, flags, session)

        self.ask(run)

    def _read(self, handle: int, tid: int) -> None:
        async def run(r: Request) -> None:
            self.inside.session(self.handles[handle]).reading(tid)

        self.ask(run)

    def _write(self, handle: int, tid: int, offset: int, data: bytes) -> None:
        async def run(r: Request) -> None:
            open_file = self.handles[handle]
            file, session = open_file.file, self.inside.session(open_file)
            at = r.once("at", lambda: len(file.data) if open_file.flags & os.O_APPEND else offset)

            def put() -> None:
                old = file.data.ljust(at, b"-")
                file.data = old[:at] + data + old[at + len(data) :]

            session.writing(tid, at, data)
            r.once("put", put)
            session.wrote(at, len(data))
            open_file.granted = session.goes_on(tid)

        self.ask(run)

    def _went_on(self, handle: int) -> None:
        if self.handles[handle].granted:
            self.inside.session(self.handles[handle]).went_on(self.now)

    def _release(self, handle: int) -> None:
        async def run(r: Request) -> None:
            open_file = self.handles[handle]
            # The filesystem knows a handle that is released no more when it has said so already.
            if open_file.number in self.inside.recorder.sessions:
                self.inside.session(open_file).released()
            del self.handles[handle]

        self.ask(run)

    def _truncate(self, tid: int, path: bytes, size: int, handle: int) -> None:
        async def run(r: Request) -> None:
            open_file = self.handles.get(handle)
            file = open_file.file if open_file is not None else r.once("file", lambda: self.tree[path])
            session = self.inside.session(open_file) if open_file is not None else None
            with self.inside.shield.changing(self.caller(r, tid), Truncated(file, size, session)):
                r.once("cut", lambda: setattr(file, "data", file.data[:size].ljust(size, b"0")))

        self.ask(run)

    def _unlink(self, tid: int, path: bytes, fails: bool) -> None:
        file = self.tree[path]

        async def run(r: Request) -> None:
            with self.inside.shield.changing(self.caller(r, tid), Removed(path, file)):
                if fails:
                    raise OSError(errno.EPERM, "immutable")
                r.once("gone", lambda: self.remove(path))

        self.ask(run)

    def _rename(self, tid: int, old: bytes, new: bytes) -> None:
        file, there = self.tree[old], self.tree.get(new)

        async def run(r: Request) -> None:
            with self.inside.shield.changing(self.caller(r, tid), Renamed(old, new, file, there, False)):
                r.once("moved", lambda: self.rename(old, new))

        self.ask(run)

    def _rename_directory(self, tid: int, old: bytes, new: bytes) -> None:
        def move() -> None:
            for path in [p for p in self.tree if p.startswith(old + b"/")]:
                self.rename(path, new + path[len(old) :])

        async def run(r: Request) -> None:
            with self.inside.shield.changing(self.caller(r, tid), Renamed(old, new, None, None, True)):
                r.once("moved", move)

        self.ask(run)

    def _exchange(self, tid: int, one: bytes, two: bytes) -> None:
        x, y = self.tree[one], self.tree[two]

        def swap() -> None:
            x.names[x.names.index(one)] = two
            y.names[y.names.index(two)] = one
            self.tree[one], self.tree[two] = y, x

        async def run(r: Request) -> None:
            with self.inside.shield.changing(self.caller(r, tid), Exchange(one, two, x, y, False, False)):
                r.once("swapped", swap)

        self.ask(run)

    def _link(self, tid: int, known: bytes, path: bytes) -> None:
        file = self.tree[known]

        async def run(r: Request) -> None:
            with self.inside.shield.changing(self.caller(r, tid), Linked(path, file)):
                r.once("linked", lambda: self.place(path, file))

        self.ask(run)

    def _symlink(self, tid: int, path: bytes) -> None:
        async def run(r: Request) -> None:
            with self.inside.shield.changing(self.caller(r, tid), Made(path, "symlink")):
                r.once("made", lambda: self.place(path, self.make(b"target", regular=False)))

        self.ask(run)

    def _lookup(self, tid: int, path: bytes) -> None:
        async def run(r: Request) -> None:
            self.inside.shield.missed(self.caller(r, tid), path)

        self.ask(run)

    def _readlink(self, tid: int, path: bytes) -> None:
        file = self.tree[path]

        async def run(r: Request) -> None:
            self.inside.shield.readlink(self.caller(r, tid), file)

        self.ask(run)

    def _look(self, tid: int, path: bytes) -> None:
        """open(2) for reading, by a thread that the lane does not know."""
        file = self.tree[path]

        async def run(r: Request) -> None:
            actor = self.inside.shield.looked(self.caller(r, tid), file)
            if isinstance(actor, Actor):
                self.inside.know(tid, actor)

        self.ask(run)

    def _attribute(self, tid: int, path: bytes) -> None:
        file = self.tree[path]

        async def run(r: Request) -> None:
            self.inside.shield.attribute(self.caller(r, tid), file, "version")

        self.ask(run)

    def _interrupt(self, unique: int, tid: int, ends: bool) -> None:
        self.procs[tid].ending = ends
        self.inside.shield.interrupted(unique)

    # -- what happens past us ---------------------------------------------------------

    def _record(self, name: str, *args: Any) -> None:
        self.last_record += 1
        self.records.append((self.last_record, name, args))

    def _past_look(self, tid: int, path: bytes) -> None:
        self._record("looked", self.known[tid], path, self.now)

    def _past_make(self, tid: int, path: bytes) -> None:
        self._record("made", self.known[tid], path, self.place(path, self.make(b"made")), self.now)

    def _past_outside(self, kinds: tuple[str, ...], path: bytes, target: bytes | None, pid: int) -> None:
        if kinds == ("write",) and path in self.tree:
            self.tree[path].data += b"outside"
        author = {
            "stat": b"%d (vi) S 1 0 0 0 -1 " % pid + b"0 " * 13 + b"%d" % (pid * 7) + b" 0" * 28 + b" 1"
        }
        self._record("outside", Outside(kinds, path, target, pid, self.now, False, author if pid else {}))

    def _take(self) -> None:
        self.inside.take_records()

    # -- what is asked of us ----------------------------------------------------------

    def _resume(self, unique: int) -> None:
        request = self.requests.get(unique)
        if request is not None and self.deaths:
            self.go_on(request)

    def _settle(self) -> None:
        self.inside.settle()

    def _run(self, token: str, task: str, pid: int) -> None:
        self.inside.begin_run(token, task, pid)

    def _announce(self, name: str, task: str, pid: int, path: bytes) -> None:
        self.inside.announce(name, task, pid, path)

    def _lease(self, task: str, pattern: str) -> None:
        leases = self.inside.service.groups()["leases"]
        leases._ask(task, [pattern], 2.0, "")

    def _lease_over(self, heard: bool) -> None:
        leases = self.inside.service.groups()["leases"]
        for number, ticket in list(leases._askers.items())[:1]:
            if heard and ticket.lease is not None:
                leases._heard(number)
            else:
                leases._gone(number)

    def _pump(self) -> None:
        self.inside.service.groups()["leases"]._pump_all()

    def _end_run(self, token: str) -> None:
        if token in self.inside.resolver.runs:
            self.inside.service.runs._end(token, 0.0)

    def _forget_runs(self) -> None:
        self.inside.service.runs.forget_runs()

    def _asked(self, name: str, pid: int, params: dict[str, Any]) -> None:
        """A question on the control socket that is answered at once."""
        stretches: Any = self.inside.handlers[name](Peer(pid, 0, 0), dict(params))
        try:
            stretches.send(None)
        except (StopIteration, FsguardError):
            pass  # an answer may be lost, with who was to give it


_OF_OURS = ("settle", "run", "announce", "lease", "lease_over", "pump", "asked", "end_run", "forget_runs")
_OF_OURS += ("take", "went_on", "interrupt")


def canonical(root: object, names: Mapping[int, str]) -> list[Any]:
    """Objects and what they lead to, so that two states can be compared; `names`: parts, by id."""
    numbers: dict[int, int] = {}
    keep: list[object] = []
    found: list[Any] = []
    waiting: deque[Any] = deque()

    def of(value: Any) -> Any:
        kind = type(value)
        if value is None or kind in (int, float, str, bytes, bool) or isinstance(value, Enum):
            return value
        if id(value) in names:
            return names[id(value)]
        if kind in (tuple, list, frozenset) or (isinstance(value, tuple) and hasattr(kind, "_fields")):
            return [kind.__name__, *(of(x) for x in value)]
        if kind.__name__ in ("dict", "OrderedDict", "Counter", "defaultdict"):
            return [kind.__name__, *((of(k), of(v)) for k, v in value.items())]
        if kind is set:
            return ["set", *sorted(map(repr, map(of, value)))]
        if kind.__name__ == "deque":
            return ["deque", *map(of, value)]
        if kind.__name__ in ("count", "Bell"):
            return repr(value) if kind.__name__ == "count" else "bell"
        if kind.__name__ == "partial":
            return ["partial", value.func.__name__, of(value.args), of(value.keywords)]
        number = numbers.get(id(value))
        if number is None:
            number = numbers[id(value)] = len(numbers)
            keep.append(value)
            waiting.append(value)
        return ("#", number)

    found.append(of(root))
    while waiting:
        value = waiting.popleft()
        fields = dict(getattr(value, "__dict__", {}))
        for above in type(value).__mro__:
            for slot in getattr(above, "__slots__", ()):
                if hasattr(value, slot):
                    fields[slot] = getattr(value, slot)
        if type(value).__name__ in ("Patterns", "function"):
            fields = {"lines": getattr(value, "lines", None)}
        found.append((type(value).__name__, sorted((k, of(v)) for k, v in fields.items() if k[:1] != "\0")))
    return found
