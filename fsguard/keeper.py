"""The keeper: a process that does nothing but hold what must not be lost, and start whoever does the work.

It is the daemon's first process. It has made the mount and imported everything, has one
thread, and reads no requests. Its worker is a copy of it that shares its table of
descriptors (`_clone.c`): the FUSE connection, the marks for changes from behind and
every file that is open below the mount stay open whatever becomes of the worker. While
one process holds the connection, the kernel lets its callers wait.

    keeper ── clone ──► worker 0 ✝
           ── clone ──► worker 1, which goes on with what worker 0 has left (`takeover.py`)

A worker that ends without having said that it is done is followed by another one, and one
that hangs is killed.
`fsguard restart` is carried out here too: the keeper executes the next program, so
that the process which the service manager knows stays the same.
"""

from __future__ import annotations

import logging
import mmap
import os
import pickle
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from fsguard._clone import clone_sharing

__all__ = ["PASSED_ON", "Board", "NoWorkerError", "dying", "keep"]

_log = logging.getLogger("fsguard.keeper")

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Blocked before `keep` is called; the worker hears of those that the keeper gets."""

DEATHS, WITHIN = 10, 5.0
"""So many workers that die in so many seconds are enough: the fault is in what they start from."""


STILL = 30.0
"""Seconds without a sign of life after which a worker counts as hanging."""

LOOK_SECONDS = 0.2
"""How often a worker is looked at that may have died without our being told."""

_EXECUTE = signal.SIGUSR1
_ASKED, _TAKEN, _FAILED = 1, 2, 3
_BEATS, _WORDS = slice(4, 8), 16
ANSWER_SECONDS = 10.0


class Board:
    """A page that keeper and worker both see: what the worker has to say to a keeper that does not talk."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)
        self.keeper = os.getpid()

    @property
    def done(self) -> bool:
        """The worker will end, and none is to follow."""
        return bool(self._page[0])

    @done.setter
    def done(self, done: bool) -> None:
        self._page[0] = done

    def beat(self) -> None:
        """The worker's sign of life, from the loop that serves requests: what hangs that hangs the mount."""
        self._page[_BEATS] = (self.beats + 1 & 0xFFFFFFFF).to_bytes(4, "little")

    @property
    def beats(self) -> int:
        return int.from_bytes(self._page[_BEATS], "little")

    def execute(self, order: object) -> str:
        """Have the keeper call `perform(order)`, which does not return. Returns only if it failed: why."""
        fd = os.memfd_create("fsguard-order", os.MFD_CLOEXEC)
        with open(fd, "wb") as file:
            pickle.dump(order, file)
            file.flush()
            self._page[_WORDS:] = str(fd).encode().ljust(len(self._page) - _WORDS, b"\0")
            self._page[1] = _ASKED
            os.kill(self.keeper, _EXECUTE)
            until = time.monotonic() + ANSWER_SECONDS
            while self._page[1] != _FAILED:
                if time.monotonic() >= until and self._page[1] == _ASKED:
                    self._page[1] = 0
                    return "the keeper does not answer"
                time.sleep(0.0005)
            self._page[1] = 0
            return self._words()

    def perform(self, perform: Callable[[Any], object]) -> None:
        """In the keeper: what was asked for."""
        if self._page[1] != _ASKED:
            return
        self._page[1] = _TAKEN
        try:
            with open(os.dup(int(self._words())), "rb") as file:
                file.seek(0)
                order = pickle.load(file)
            perform(order)
        except Exception as error:
            words = f"{type(error).__name__}: {error}".encode("utf-8", "replace")
            self._page[_WORDS:] = words[: len(self._page) - _WORDS - 1].ljust(len(self._page) - _WORDS, b"\0")
        self._page[1] = _FAILED

    def _words(self) -> str:
        return self._page[_WORDS:].split(b"\0", 1)[0].decode("utf-8", "replace")


class NoWorkerError(Exception):
    """A process that shares descriptors can't be made here; says why."""


def keep(work: Callable[[Sequence[int]], int], board: Board, perform: Callable[[Any], object]) -> int:
    """Run `work([])` in a worker, `work([its pid])` in the next one when that has died, and so on.

    Returns twice over: in each worker what `work` has returned, in the keeper the last worker's
    exit code. `perform`: executes another program here (`Board.execute`). NoWorkerError: there can be none.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [*PASSED_ON, signal.SIGCHLD, _EXECUTE])
    deaths: deque[float] = deque(maxlen=DEATHS)
    dead: list[int] = []
    while True:
        try:
            pid = clone_sharing()
        except OSError as error:
            if dead:
                _log.critical("no other worker can be made (%s): whoever uses the mount gets ENOTCONN", error)
                return 1
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            raise NoWorkerError(error.strerror) from None
        if pid == 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            return work(dead)
        code = _ended(pid, board, perform)
        if board.done:
            return code if code >= 0 else 1
        how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
        deaths.append(time.monotonic())
        if len(deaths) == DEATHS and deaths[-1] - deaths[0] < WITHIN:
            _log.critical(
                "worker %d %s, the last of %d within %.0f s: giving up. Whoever uses the mount gets ENOTCONN;"
                " what was open is closed, nothing that was written is lost. Mount it again.",
                pid, how, DEATHS, WITHIN,
            )  # fmt: skip
            return 1
        dead.append(pid)
        _log.error("worker %d %s; another one goes on", pid, how)


def _ended(pid: int, board: Board, perform: Callable[[Any], object]) -> int:
    """Wait for the worker's end; its exit code, or the signal's number, negative."""
    beats, since = board.beats, time.monotonic()
    while True:
        heard = signal.sigtimedwait([*PASSED_ON, signal.SIGCHLD, _EXECUTE], LOOK_SECONDS)
        number = heard.si_signo if heard is not None else None
        if number == _EXECUTE:
            board.perform(perform)
        elif number in PASSED_ON:
            os.kill(pid, number)  # not waited for yet: the number is still its own
        while True:  # those before it may take their time, see `dying`
            try:
                ended, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if ended == pid:
                return os.waitstatus_to_exitcode(status)
            if not ended:
                break
        if number is not None:
            continue
        if dying(pid):
            return -signal.SIGKILL
        if board.beats != beats or board.beats == 0 or _traced(pid):
            beats, since = board.beats, time.monotonic()
        elif time.monotonic() - since >= STILL:
            _log.error("worker %d hangs: no sign of life for %.0f s", pid, STILL)
            os.kill(pid, signal.SIGKILL)


def dying(pid: int) -> bool:
    """Whether a child of ours was killed that can't be waited for yet: a thread of it is in the kernel
    and waits there for a lock that a caller of the filesystem holds, who waits for an answer.

    No such thread does anything more out here, so another worker can give the answer.
    """
    try:
        if _field(f"/proc/{pid}/status", b"State:") != b"Z":
            return False
        for thread in os.listdir(f"/proc/{pid}/task"):
            where = f"/proc/{pid}/task/{thread}/status"
            if _field(where, b"State:") in (b"Z", b"X"):
                continue
            if not int(_field(where, b"SigPnd:"), 16) >> (signal.SIGKILL - 1) & 1:
                return False
    except (OSError, ValueError):
        return False  # it changes at this very moment; there is another look
    return True


def _field(path: str, name: bytes) -> bytes:
    with open(path, "rb") as file:
        for line in file:
            if line.startswith(name):
                return line.split()[1]
    raise ValueError(path)


def _traced(pid: int) -> bool:
    """Somebody looks at it with a debugger."""
    try:
        return _field(f"/proc/{pid}/status", b"TracerPid:") != b"0"
    except (OSError, ValueError):
        return False
