"""Opens that wait: until when at most, and what tells them to stop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING

import trio

from fsguard.core.model import Act, Write
from fsguard.core.turns import Ticket
from fsguard.dispatch.ports import Processes
from fsguard.observer import Caller, FileView

if TYPE_CHECKING:
    from fsguard.dispatch.openfile import OpenFile

__all__ = ["Bell", "Stage", "Wait", "Waits", "as_queue", "rest"]

# After its first signal a waiter's pending signals are polled: the kernel
# sends FUSE_INTERRUPT for the first one only (measured on Linux 6.18). The
# more there are to be asked, the more rarely each is.
POLL_SECONDS = 0.02
POLLED_AT_ONCE = 20


class Stage(Enum):
    """How far a wait has come."""

    BEHIND = "behind a lease"
    CLEAR = "no lease is in the way"
    LETTING = "lets those go first who have closed already"
    LINE = "in the queue for the turn"


class Bell:
    """An event that wakes who waits; it is made anew where a checkpoint is gone on with."""

    __slots__ = ("is_set", "set", "statistics", "wait")

    def __init__(self) -> None:
        event = trio.Event()
        self.is_set, self.set, self.wait, self.statistics = (
            event.is_set,
            event.set,
            event.wait,
            event.statistics,
        )

    def __reduce__(self) -> tuple[type[Bell], tuple[()]]:
        return Bell, ()


class Wait:
    """One open that waits until `end` at most; `event` is renewed after each wake-up.

    All that it is about and how far it has come is noted here, so that whoever finds it in a
    checkpoint can go on with it. `began`: since when it waits for the turn; `again`: the kernel has
    looked the name up once more already; `checks`: how often it has let others go first. `number`: of
    the call, see `recorder`.
    """

    __slots__ = (
        "act",
        "actor",
        "again",
        "began",
        "checks",
        "end",
        "event",
        "file",
        "holder",
        "number",
        "paths",
        "session",
        "signalled",
        "since",
        "stage",
        "ticket",
        "tid",
        "unique",
    )

    def __init__(
        self,
        session: OpenFile,
        caller: Caller,
        act: Act,
        file: FileView,
        paths: tuple[bytes, ...],
        since: float,
        end: float,
        again: bool,
    ) -> None:
        self.session = session
        self.tid, self.unique = caller.tid, caller.unique
        self.actor = session.actor
        self.act = act
        self.file = file
        self.paths = paths
        self.since = self.began = since
        self.end = end
        self.again = again
        self.event = Bell()
        self.signalled = False
        self.stage = Stage.BEHIND
        self.checks = 0
        self.number = 0
        self.ticket: Ticket[FileView] | None = None
        self.holder: Write | None = None


async def rest(wait: Wait, seconds: float) -> None:
    """Until it is woken, `seconds` at most."""
    with trio.move_on_after(seconds):
        await wait.event.wait()


class Waits:
    """All that wait now, by the number of their request."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._by_request: dict[int, Wait] = {}
        self._signalled = 0
        self.rest: Callable[[Wait, float], Awaitable[None]] = rest
        """The only place where an open stands still."""

    def __len__(self) -> int:
        return len(self._by_request)

    @contextmanager
    def one(self, wait: Wait) -> Iterator[None]:
        if wait.unique:
            self._by_request[wait.unique] = wait
        try:
            yield
        finally:
            self._by_request.pop(wait.unique, None)
            if wait.signalled:
                self._signalled -= 1

    def clear(self) -> None:
        """None is known any more."""
        self._by_request.clear()
        self._signalled = 0

    def all(self) -> dict[int, Wait]:
        """By the number of their request, first come first."""
        return dict(self._by_request)

    def stirring(self) -> bool:
        """Whether one of them has been woken and has not yet gone on."""
        return any(wait.event.is_set() for wait in self._by_request.values())

    def interrupted(self, unique: int) -> None:
        """FUSE_INTERRUPT: some signal has come, it may be one with a handler."""
        wait = self._by_request.get(unique)
        if wait is not None:
            if not wait.signalled:
                wait.signalled = True
                self._signalled += 1
            wait.event.set()

    def told_to_stop(self, wait: Wait) -> bool:
        return wait.signalled and self._processes.wants_out(wait.tid)

    async def pause(self, wait: Wait, seconds: float) -> None:
        """Until it is woken, `seconds` at most."""
        if wait.signalled:
            seconds = min(seconds, POLL_SECONDS * max(1.0, self._signalled / POLLED_AT_ONCE))
        await self.rest(wait, seconds)
        if wait.event.is_set():
            wait.event = Bell()


def as_queue(waiting: Iterable[Ticket[FileView] | Wait], now: float) -> list[dict[str, object]]:
    """Who waits, in the order in which they come; for `fsguard status`."""
    return [
        {
            "task": w.actor.task.id if w.actor.task is not None else None,
            "pid": w.actor.process.pid,
            "command": w.actor.command.text,
            "waiting": round(now - w.since, 3),
            "next": i == 0,
        }
        for i, w in enumerate(waiting)
    ]
