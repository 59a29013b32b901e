"""Opens that wait: until when at most, and what tells them to stop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import trio

from fsguard.core.model import Actor
from fsguard.core.turns import Ticket
from fsguard.dispatch.ports import Processes
from fsguard.observer import Caller, FileView

__all__ = ["Wait", "Waits", "as_queue"]

# After its first signal a waiter's pending signals are polled: the kernel
# sends FUSE_INTERRUPT for the first one only (measured on Linux 6.18). The
# more there are to be asked, the more rarely each is.
POLL_SECONDS = 0.02
POLLED_AT_ONCE = 20


class Wait:
    """One open that waits until `end` at most; `event` is renewed after each wake-up."""

    __slots__ = ("actor", "end", "event", "signalled", "since", "tid")

    def __init__(self, tid: int, actor: Actor, since: float, end: float) -> None:
        self.tid = tid
        self.actor = actor
        self.since = since
        self.end = end
        self.event = trio.Event()
        self.signalled = False


class Waits:
    """All that wait now, by the number of their request."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._by_request: dict[int, Wait] = {}
        self._signalled = 0

    def __len__(self) -> int:
        return len(self._by_request)

    @contextmanager
    def one(self, caller: Caller, actor: Actor, since: float, end: float) -> Iterator[Wait]:
        wait = Wait(caller.tid, actor, since, end)
        if caller.unique:
            self._by_request[caller.unique] = wait
        try:
            yield wait
        finally:
            self._by_request.pop(caller.unique, None)
            if wait.signalled:
                self._signalled -= 1

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
        with trio.move_on_after(seconds):
            await wait.event.wait()
        if wait.event.is_set():
            wait.event = trio.Event()


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
