"""What a worker of the daemon leaves to the next one when it dies at any moment, and how that is taken up.

Three things outlive it: the descriptors (the keeper has the same table), the lane's
memory, in which its nodes, names and handles live, and checkpoints of what Python knows,
made by a forked child whenever something has changed. All memory is in memfds, so
none of it has a name, and it goes with the last process.
"""

from __future__ import annotations

import gc
import logging
import os
import pickle
import signal
import struct
import time
import warnings
import zlib
from collections.abc import Callable, Collection, Hashable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any, NamedTuple

import trio

from fsguard.fuse.handshake import Agreement
from fsguard.fuse.tracebacks import describe
from fsguard.keeper import Board
from fsguard.tape import Tape

__all__ = [
    "Checkpoints",
    "Life",
    "Memory",
    "Will",
    "close_strangers",
    "close_those_below",
    "open_now",
    "why_no_keeper",
]

_log = logging.getLogger("fsguard.takeover")

LINUX = (6, 9)
"""The first with FUSE_NOTIFY_RESEND: requests that a dead worker had read come again."""

_HEAD = struct.Struct("=8sQQI")
_MAGIC = b"fsgkept1"
_BODY = 64
_STANDARD = frozenset((0, 1, 2))


def why_no_keeper(release: str | None = None) -> str | None:
    """Why nobody can take over here when the daemon dies; None: somebody can."""
    numbers = (release or os.uname().release).split(".")[:2]
    try:
        version = tuple(int("".join(filter(str.isdigit, n.split("-")[0]))) for n in numbers)
    except ValueError:
        version = (0, 0)
    if version < LINUX:
        return f"Linux {LINUX[0]}.{LINUX[1]} or later is needed, which sends requests again"
    return None


class Will(NamedTuple):
    """What the first worker has arranged, for every one after it."""

    agreement: Agreement
    listener: int


class Life(NamedTuple):
    """What a worker knows of the keeper; `dead`: the workers before this one."""

    board: Board
    memory: Memory
    dead: tuple[int, ...]


class Checkpoint(NamedTuple):
    """What Python knew; `mark`: where on the tape what comes after it begins."""

    number: int
    mark: int
    data: bytes


class _Slot:
    """One thing in a memfd that is there whole or not at all."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def write(self, number: int, data: bytes) -> None:
        os.pwrite(self.fd, bytes(_HEAD.size), 0)
        os.ftruncate(self.fd, _BODY)
        at = 0
        while at < len(data):
            at += os.pwrite(self.fd, data[at:], _BODY + at)
        os.pwrite(self.fd, _HEAD.pack(_MAGIC, number, len(data), zlib.crc32(data)), 0)

    def read(self) -> tuple[int, bytes] | None:
        """(its number, what it is), if it is whole."""
        head = os.pread(self.fd, _HEAD.size, 0)
        if len(head) < _HEAD.size:
            return None
        magic, number, size, check = _HEAD.unpack(head)
        if magic != _MAGIC or size > os.fstat(self.fd).st_size - _BODY:
            return None
        data = os.pread(self.fd, size, _BODY)
        return (number, data) if zlib.crc32(data) == check else None

    def number(self) -> int:
        """0: nothing is there."""
        head = os.pread(self.fd, _HEAD.size, 0)
        return _HEAD.unpack(head)[1] if len(head) == _HEAD.size and head.startswith(_MAGIC) else 0


class Memory:
    """The descriptors of what outlives a worker; made by the keeper."""

    def __init__(self, connection: int) -> None:
        """`connection`: the FUSE descriptor; a copy is held for as long as there is a keeper."""
        self.connection = os.dup(connection)
        self.lane = _memfd("lane")
        self.tape = _memfd("tape")
        self._will = _Slot(_memfd("will"))
        self._checkpoints = (_Slot(_memfd("checkpoint")), _Slot(_memfd("checkpoint")))

    def descriptors(self) -> set[int]:
        return {
            self.connection,
            self.lane,
            self.tape,
            self._will.fd,
            *(slot.fd for slot in self._checkpoints),
        }

    def make_will(self, will: Will) -> None:
        if self._will.number() == 0:
            self._will.write(1, pickle.dumps(will))

    def will(self) -> Will | None:
        """None: the worker has died before it served anybody."""
        found = self._will.read()
        return pickle.loads(found[1]) if found is not None else None

    def checkpoint(self) -> Checkpoint | None:
        """The newest that is whole."""
        whole = [found for found in (slot.read() for slot in self._checkpoints) if found is not None]
        if not whole:
            return None
        number, data = max(whole)
        return Checkpoint(number, int.from_bytes(data[:8], "little"), data[8:])

    def save(self, checkpoint: Checkpoint) -> None:
        """Over the older one of the two."""
        older = min(self._checkpoints, key=_Slot.number)
        older.write(checkpoint.number, checkpoint.mark.to_bytes(8, "little") + checkpoint.data)


def _memfd(name: str) -> int:
    return os.memfd_create(f"fsguard-{name}", os.MFD_CLOEXEC)


# ---- descriptors ------------------------------------------------------------------------


def open_now() -> dict[int, str]:
    """Every descriptor, and what it is."""
    found = {}
    for fd in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # the one through which they were listed
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
    return found


def close_those_below(directory: str) -> None:
    """The dead worker's descriptors of files in there, before they are opened again.

    Locks of the kind that SQLite takes belong to the table of descriptors, so they are still
    held, and closing any descriptor of such a file gives up all.
    """
    below = os.path.realpath(directory) + "/"
    for fd, what in open_now().items():
        if fd not in _STANDARD and what.startswith(below):  # the log is in there, too
            with suppress(OSError):
                os.close(fd)


def close_strangers(before: Mapping[int, str], known: Collection[int]) -> None:
    """Of those that were open `before`, close what only the dead worker knew: sockets of clients, who come
    again, and the like. (The keeper has the same table: a number may be another file's by now.)"""
    now = open_now()
    for fd, what in before.items():
        if fd not in _STANDARD and fd not in known and now.get(fd) == what:
            with suppress(OSError):
                os.close(fd)


# ---- checkpoints ------------------------------------------------------------------------


class Checkpoints:
    """Writes down what Python knows, in a child, so that nobody waits for it.

    :param gather: gives it as bytes; called in the child, which has nothing else of this process's life.
    :param changed: a value that is another one after anything has changed.
    :param starting: around the start of a child, whose pid is given to what it yields.
    :param tape: of what happens between one and the next.
    :param whole: whether all that there is can be written down now.
    """

    SECONDS = 1.0
    SHARE = 20
    """A checkpoint takes at most so small a part of the time."""

    def __init__(
        self,
        memory: Memory,
        gather: Callable[[], bytes],
        changed: Callable[[], Hashable],
        starting: Callable[[], AbstractContextManager[Callable[[int], Any]]],
        tape: Tape | None = None,
        whole: Callable[[], bool] = lambda: True,
    ) -> None:
        self._memory = memory
        self._gather = gather
        self._changed = changed
        self._starting = starting
        self._tape = tape
        self._whole = whole
        self._wanted = trio.Event()
        self._saved: Hashable = None
        found = memory.checkpoint()
        self.number = found.number if found is not None else 0
        self.seconds = 0.0
        """That the last one took, in its child."""

    def soon(self) -> None:
        """Make the next one as soon as possible."""
        self._wanted.set()

    async def run(self) -> None:
        pause = self.SECONDS
        while True:
            if self._wanted.is_set() or self._changed() != self._saved:
                while not self._whole():
                    await trio.sleep(0.01)
                self._wanted = trio.Event()
                try:
                    await self.take()
                except OSError as error:
                    _log.error("no checkpoint: %s", describe(error))
                pause = max(self.SECONDS, self.SHARE * self.seconds)
            with trio.move_on_after(pause):
                await self._wanted.wait()

    async def take(self) -> None:
        """Make one now; returns when it is written."""
        began, changed = time.monotonic(), self._changed()
        mark = self._tape.cut() if self._tape is not None else 0
        pid = self._fork(mark)
        try:
            pidfd = os.pidfd_open(pid)
            try:
                await trio.lowlevel.wait_readable(pidfd)
            finally:
                trio.lowlevel.notify_closing(pidfd)
                os.close(pidfd)
        finally:
            with suppress(ChildProcessError):
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self.seconds = time.monotonic() - began
        if code == 0:
            self._saved = changed
            if self._tape is not None:
                self._tape.forget(mark)
        else:
            _log.error("no checkpoint: its child ended with %d", code)

    def _fork(self, mark: int) -> int:
        self.number += 1
        hear, tell = os.pipe()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            with self._starting() as started, warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads, Python ≥ 3.12
                pid = os.fork()
                if pid == 0:
                    self._write_down(tell, mark)
                started(pid)
                # It has given back its copies of our descriptors: it is not the last to have one open.
                os.close(tell)
                tell = -1
                os.read(hear, 1)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(hear)
            if tell >= 0:
                os.close(tell)
        return pid

    def _write_down(self, tell: int, mark: int) -> None:
        """In the child; does not return."""
        code = 1
        try:
            keep = sorted({2, tell, *self._memory.descriptors()})
            for low, high in zip([-1, *keep], [*keep, 1 << 31], strict=True):
                os.closerange(low + 1, min(high, 1 << 30))
            os.write(tell, b".")
            gc.disable()
            with suppress(OSError):
                os.nice(5)
            self._memory.save(Checkpoint(self.number, mark, self._gather()))
            code = 0
        except BaseException as error:
            os.write(2, f"fsguard: no checkpoint: {describe(error)}\n".encode("utf-8", "replace"))
        finally:
            os._exit(code)
