"""The compiled lane as the filesystem drives it: set-up, and who is behind what it reports."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from ..lane import OPCODES, engine
from ..observer import Outside
from ._library import request
from .nodes import ROOT_ID
from .outside import Outsides

__all__ = ["LANE_FH", "Estate", "Lane", "Left", "Record"]

LANE_FH = 1 << 62  # lane.h: numbers of handles that the lane has given

# include/uapi/linux/fuse.h
_FOPEN_KEEP_CACHE, _FOPEN_CACHE_DIR = 1 << 1, 1 << 3
# More than there are processors: one may wait for the disk.
THREADS = 4
# For how long a thread counts as somebody's without being looked up again: as the resolver does
# with a process that may have moved to another control group.
KNOWN_SECONDS = 1.0
GRANTED_SECONDS = 0.5
MAX_ACTORS = 65_536
# At once: some 10 ms in which nobody else is served.
MAX_CHANGES = 500
_BUFFER = (1 << 20) + 8192  # requests carry at most fs.fuse.max_pages_limit pages: 1 MiB by default


class Record(NamedTuple):
    """What was done without us; `engine.take_records` says what the kinds mean."""

    kind: str
    who: Hashable | None  # None: it is not remembered any more
    paths: Sequence[bytes]
    time: float  # seconds since the epoch
    node: int
    fh: int
    wrote: bool
    number: int  # they go on by one; 1 is the first


class Left(NamedTuple):
    """An open file of Python's, as the lane's memory has it."""

    fh: int
    node: int
    fd: int
    flags: int
    readable: bool
    tid: int
    last: float  # when the lane last wrote through it (monotonic seconds; 0: it never did)


class Estate(NamedTuple):
    """What a worker has left when it died."""

    handles: Sequence[Left]
    fds: frozenset[int]

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> Estate:
        handles = [
            Left(fh, node, fd, flags, readable, tid, last / 1e9)
            for fh, node, fd, flags, readable, tid, last in said["handles"]
        ]
        return cls(handles, frozenset(said["fds"]))


class Lane:
    """One in a process, like the mount itself.

    `entry_timeout`, `attr_timeout`: seconds for which the kernel may believe
    names and attributes; `watched`: the same where changes from behind are heard
    of, if that is longer; `keep_cache`: keep a file's pages from one open to the
    next; `watch`: listen for changes from behind; `state`: go on with what another
    program's `dump` said (ValueError: that can't be); `memory`: a memfd to keep everything in,
    which another process can go on with (`goes_on`) when this one has died; `before`: processes
    that did this work before.
    """

    def __init__(
        self,
        root_fd: int,
        entry_timeout: float,
        attr_timeout: float,
        keep_cache: bool,
        watched: float = 0.0,
        watch: bool = False,
        state: bytes | None = None,
        memory: int | None = None,
        goes_on: bool = False,
        before: Iterable[int] = (),
    ) -> None:
        if memory is not None and not goes_on:
            engine.share(memory)
        engine.start(
            root_fd=root_fd,
            entry_ns=round(entry_timeout * 1e9),
            attr_ns=round(attr_timeout * 1e9),
            open_flags=_FOPEN_KEEP_CACHE if keep_cache else 0,
            opendir_flags=_FOPEN_KEEP_CACHE | _FOPEN_CACHE_DIR if entry_timeout > 0 else 0,
            watched_ns=round(watched * 1e9),
        )
        for pid in before:
            engine.watch_before(pid)
        self.unwatched: OSError | None = None  # why nothing can be heard of
        self.numbered: Callable[[int, Hashable], object] = lambda number, actor: None
        """Told what number somebody has got."""
        self.left: Estate | None = None
        """What another worker has left, if this one goes on with it."""
        if memory is not None and goes_on:
            self.left = Estate.read(engine.take_over(memory))
        elif state is not None:
            engine.load_state(state)
        if watch and not engine.watch_load()["on"]:
            try:
                engine.watch()
            except OSError as error:
                self.unwatched = error
        self._outsides = Outsides()
        self.eventfd = engine.eventfd()
        self.wait = engine.wait
        self.lifetimes = engine.lifetimes
        self.makes = False
        self._last = 0  # numbers are not used twice: handles keep theirs
        self._actors: dict[int, Hashable] = {}
        self._numbers: dict[Hashable, int] = {}
        self.group_of: Callable[[Hashable], Hashable | None] = lambda actor: None
        self._groups: dict[Hashable, int] = {}
        self._last_group = 0

    def serve(
        self,
        device: int,
        max_write: int,
        before: Callable[[], object],
        no_opendir: bool = False,
        first: Iterable[bytes] = (),
    ) -> None:
        """Read requests from `device` from now on; pyfuse3 gets those that are Python's.

        `before()` is called before each of them, when there are records to take. `no_opendir`: the
        kernel understands that directories need not be opened. `first`: requests that come before
        those from `device`.
        """
        os.set_blocking(device, False)
        request.take_from(*engine.hooks(), before)
        engine.serve(device, THREADS, max(_BUFFER, max_write + 8192), no_opendir, list(first))

    def pause(self, seconds: float) -> bool:
        """Stop serving; what comes in waits in the kernel. Blocks; False: not done in time."""
        return engine.pause(seconds)

    def go_on(self, device: int, max_write: int, no_opendir: bool) -> None:
        """After `pause`, when nobody has taken over."""
        engine.serve(device, THREADS, max(_BUFFER, max_write + 8192), no_opendir)

    @contextmanager
    def starting_a_child(self) -> Iterator[Callable[[int], None]]:
        """While one is forked and executed; give its pid to what this yields.

        It has copies of our descriptors until then, and is the last to close some: no change of its own.
        """
        pids = [0]
        engine.watch_hold()
        try:
            yield pids.append
        finally:
            engine.watch_let_go(pids[-1])

    def queued(self) -> int:
        """Requests that Python has not taken yet."""
        return engine.load()["queued"]

    def untold(self) -> bool:
        """Whether there is more to take: records, or changes from behind."""
        return bool(engine.pending() or engine.pending_changes())

    def lost_count(self) -> None:
        """Whose the numbers are is not known any more: what carries one must not pass for another's."""
        self._last = self._last_group = 1 << 31

    def skip_numbers(self) -> None:
        """Some may have been given of which nothing is on record."""
        self._last = (self._last + (1 << 24)) & 0x7FFFFFFF
        self._last_group = (self._last_group + (1 << 24)) & 0x7FFFFFFF

    def dump(self) -> tuple[bytes, list[int]]:
        """(what the next program has to know, descriptors that it goes on with); paused, records taken."""
        return engine.dump()

    def know(self, tid: int, actor: Hashable) -> None:
        """Opens for reading by this thread, which is blocked in a request, are `actor`'s."""
        number = self._number(actor)
        if engine.known(tid) != number:
            engine.know(tid, number, self._group(actor), KNOWN_SECONDS)

    def known(self, tid: int) -> Hashable | None:
        """Whose the thread is, as `know` was told."""
        return self._actors.get(engine.known(tid))

    def _number(self, actor: Hashable) -> int:
        number = self._numbers.get(actor)
        if number is None:
            if len(self._numbers) >= MAX_ACTORS:
                self.forget()
            self._last = number = self._last % 0xFFFFFFFF + 1
            self.is_called(number, actor)
            self.numbered(number, actor)
        return number

    def is_called(self, number: int, actor: Hashable) -> None:
        """What number somebody has."""
        self._numbers[actor] = number
        self._actors[number] = actor
        self._last = max(self._last, number)

    def _group(self, actor: Hashable) -> int:
        group = self.group_of(actor)
        if group is None:
            return 0
        number = self._groups.get(group)
        if number is None:
            if len(self._groups) >= MAX_ACTORS:
                self._groups.clear()
                engine.disown_all()
            self._last_group = number = self._last_group % 0xFFFFFFFF + 1
            self._groups[group] = number
        return number

    def forget(self) -> None:
        """Who is who may have changed: every thread is looked up anew."""
        engine.forget_threads(False)
        engine.revoke_all()
        self._numbers.clear()
        # Looks and handles may still carry numbers, which are never used for somebody else.
        while len(self._actors) > 2 * MAX_ACTORS:
            del self._actors[next(iter(self._actors))]

    def tidy(self) -> None:
        """Give back what watches threads that were not heard of for a while; once a second or so."""
        engine.forget_threads(True)

    def take_records(self) -> list[Record]:
        """What was done since the last time, in that order."""
        if not engine.pending():
            return []
        actors = self._actors
        return [
            Record(kind, actors.get(who), paths, at, node, fh, wrote, number + 1)
            for kind, who, paths, at, node, fh, wrote, number in engine.take_records()
        ]

    def told(self) -> None:
        """What was taken is told: whoever takes over need not take it again."""
        engine.records_told()

    def let_make(self, on: bool) -> None:
        """Whether files may be made without asking; False also hands over those that are being made."""
        engine.let_make(on)
        self.makes = on

    def disown_all(self) -> None:
        """Somebody may have seen any file: no task is alone with what it has made."""
        engine.disown_all()

    def reading(self) -> list[tuple[Hashable, Sequence[bytes]]]:
        """(actor, paths) of the handles that are open for reading."""
        return [(self._actors.get(number, 0), paths) for number, paths in engine.reading()]

    def take_changes(self) -> Iterator[Outside]:
        """What others have changed behind the mount since the last time."""
        return self._outsides.read(engine.take_changes(MAX_CHANGES) if engine.pending_changes() else ())

    def add_handle(self, id_: int, fd: int, actor: Hashable | None) -> int:
        """The number of a handle that the lane reads from; it closes `fd`. Raises OSError."""
        if actor is None:
            return engine.add_handle(id_, fd, 0, 0)
        return engine.add_handle(id_, fd, self._number(actor), self._group(actor))

    def making(self, fh: int) -> tuple[int, int, int]:
        """(descriptor, flags, thread) of a file that Python goes on with, and closes."""
        return engine.making(fh)

    def close_handle(self, fh: int) -> None:
        """It is released."""
        engine.close_handle(fh)

    def grant(self, id_: int, fh: int, fd: int, tid: int, append: bool) -> None:
        """Further writes of this thread through the handle need no decision, until anything else
        concerns the file. Not for long: the thread may execute another program."""
        engine.grant(id_, fh, fd, tid, append, GRANTED_SECONDS)

    def revoke(self, id_: int) -> float:
        """They do. When the last one was that did not come here (monotonic seconds; 0: none)."""
        return engine.revoke(id_)

    def revoke_all(self) -> None:
        """Every next write comes here."""
        engine.revoke_all()

    def watch_miss(self, parent: int, name: bytes) -> None:
        """Lookups of this name that find nothing are the filesystem's."""
        engine.watch_miss(parent, name)

    def watch_miss_at(self, path: bytes) -> None:
        """The same by path; the kernel, which may believe by now that nothing is there, is to ask again."""
        parent, name = _place(path)
        if parent:
            engine.watch_miss(parent, name)
            engine.expire(parent, name)

    def only_misses(self, paths: Iterable[bytes]) -> None:
        """After another worker: these are all whose absence matters."""
        for path in paths:
            parent, name = _place(path)
            if parent:
                engine.watch_miss(parent, name)
        engine.misses_known()

    def counts(self) -> dict[str, int]:
        """Requests answered without Python, by name."""
        named: dict[str, int] = {}
        for opcode, count in engine.counts().items():
            name = OPCODES.get(opcode, str(opcode))
            named[name] = named.get(name, 0) + count
        return named

    def heard(self) -> dict[str, int]:
        """What is watched, and how much was heard of it."""
        return engine.watch_load()

    def load(self) -> dict[str, int]:
        return engine.load()


def _place(path: bytes) -> tuple[int, bytes]:
    """(the directory's node, the name in it); node 0: it is not known."""
    *above, name = path.split(b"/")
    parent = ROOT_ID
    for part in above:
        parent = engine.child(parent, part)
        if not parent:
            break
        engine.release(parent)
    return parent, name
