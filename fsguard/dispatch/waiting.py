"""Waiting for turns: bounded, first come first served, left at once when told to stop.

The only place of fsguard that waits for anybody. Which turn it is, and who
comes next, is decided in `fsguard.core.turns`.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from fsguard.core.guard import Change as Edit
from fsguard.core.guard import Guard
from fsguard.core.leases import Lease, Leases
from fsguard.core.model import Act, Actor, Command, Process, Task, Write
from fsguard.core.policy import Patterns
from fsguard.core.turns import Ticket, Turn, Turns
from fsguard.dispatch.ports import Processes
from fsguard.observer import Caller, FileView

if TYPE_CHECKING:
    from fsguard.dispatch.openfile import OpenFile

__all__ = ["Waiting"]

# After its first signal a waiter's pending signals are polled: the kernel
# sends FUSE_INTERRUPT for the first one only (measured on Linux 6.18).
POLL_SECONDS = 0.02
NOTED_SECONDS = 0.01
LEASE_POLL_SECONDS = 0.05


class _Wait:
    """One open that waits; `event` is renewed after each wake-up."""

    def __init__(self, tid: int) -> None:
        self.tid = tid
        self.event = trio.Event()
        self.signalled = False


class Waiting:
    """:param seconds: how long an open waits at most."""

    def __init__(
        self,
        guard: Guard,
        turns: Turns,
        processes: Processes,
        seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._guard = guard
        self.turns = turns
        self._processes = processes
        self.seconds = seconds
        self._clock = clock
        self.now: Callable[[], float] = time.monotonic
        self.leases = Leases(self._writing)
        self.announced: Callable[[], Iterable[tuple[Task, bytes]]] = tuple
        self._waits: dict[Ticket, _Wait] = {}
        self._by_request: dict[int, _Wait] = {}

    def applies(self, path: bytes, actor: Actor) -> bool:
        """False where nothing is serialised: no task, ignored, policy ``off``."""
        return self._guard.watched(path, actor)

    # -- opens ----------------------------------------------------------------

    async def enter(
        self, session: OpenFile, path: bytes, caller: Caller, act: Act, file: FileView | None
    ) -> bool:
        """Wait until `session` may do `act` to `path`; True when it goes on without its turn.

        :raises OSError: EAGAIN when the wait ran out under ``block``, EINTR when
            the waiter was killed or interrupted.
        """
        edit, append = session.edit, bool(session.flags & os.O_APPEND) and act is not Act.TRUNCATE
        actor = edit.actor
        if len(self.leases):
            await self._behind_lease(path, actor, caller)
        if actor.task is None or not self.turns.busy(path) or not self.applies(path, actor):
            return False
        in_place = act in (Act.WRITE, Act.APPEND)
        if in_place and self._guard.locks_itself(path, file, act):
            return False
        began = self.now()
        ticket = self.turns.enter(path, session, actor, append, began)
        if ticket is None:
            return False
        holder = self._holder(path)
        if ticket.broken:
            self._collide(edit, path, act, holder, 0.0)
            return True
        wait = self._waits[ticket] = _Wait(caller.tid)
        if caller.unique:
            self._by_request[caller.unique] = wait
        try:
            outcome = await self._until_ready(wait, ticket, began + self.seconds)
        except BaseException:
            self._wake(self.turns.cancel(ticket, self.now()))
            raise
        finally:
            del self._waits[ticket]
            self._by_request.pop(caller.unique, None)
        if outcome == "granted":
            waited = self.now() - began
            if waited >= NOTED_SECONDS and holder is not None:
                self._guard.tell.waited(actor, path, holder, waited, self._clock())
            return False
        self._wake(self.turns.cancel(ticket, self.now()))
        if outcome == "killed":
            raise OSError(errno.EINTR, "interrupted while waiting for a turn")
        self._collide(edit, path, act, self._holder(path) or holder, self.seconds)
        return True

    async def _behind_lease(self, path: bytes, actor: Actor, caller: Caller) -> None:
        """Wait until no other task has a lease on `path`; refused when that takes too long."""
        began = self.now()
        wait = self._by_request[caller.unique] = _Wait(caller.tid)
        try:
            while (lease := self._lease_over(path, actor)) is not None:
                if wait.signalled and self._processes.wants_out(caller.tid):
                    raise OSError(errno.EINTR, "interrupted while waiting for a lease")
                if self.now() - began >= self.seconds:
                    raise self._leased(path, actor, lease, self.now() - began)
                await trio.sleep(LEASE_POLL_SECONDS)
        finally:
            self._by_request.pop(caller.unique, None)
        self.leases.wrote(path, actor.task, self.now())

    def _lease_over(self, path: bytes, actor: Actor) -> Lease | None:
        if not self._leases_bind(path, actor):
            return None
        return self.leases.over(path, actor.task, self.now())

    def _leases_bind(self, path: bytes, actor: Actor) -> bool:
        if actor.task is None or actor.disabled:
            return False
        return self._guard.policies.of(path, actor.task.id) != "off"

    def _leased(self, path: bytes, actor: Actor, lease: Lease, waited: float) -> OSError:
        now = self._clock()
        ahead = now - self.now()
        warning = self._guard.tell.leased(
            actor, path, lease, lease.since + ahead, lease.until + ahead, waited, now
        )
        return OSError(errno.EBUSY, warning.message)

    def check_lease(self, path: bytes, actor: Actor) -> None:
        """For what never waits. :raises OSError: EBUSY under another task's lease."""
        if len(self.leases) and (lease := self._lease_over(path, actor)) is not None:
            raise self._leased(path, actor, lease, 0.0)

    def check_lease_below(self, directory: bytes, actor: Actor) -> None:
        """`check_lease` for a directory that is about to be renamed with all that is in it."""
        if len(self.leases) and self._leases_bind(directory, actor):
            lease = self.leases.over_tree(directory, actor.task, self.now())
            if lease is not None:
                raise self._leased(directory, actor, lease, 0.0)

    def _writing(self, patterns: Patterns, task: Task) -> str | None:
        """Another task that is writing a path of `patterns` right now."""
        now = self.now()
        for turn in self.turns.all():
            if self.turns.running(turn.path, now) is turn and patterns(turn.path):
                for holder in turn.tasks:
                    if not holder.related(task):
                        return holder.id
        for writer, path in self.announced():  # not yet approved, perhaps; in progress all the same
            if patterns(path) and not writer.related(task):
                return writer.id
        return None

    async def _until_ready(self, wait: _Wait, ticket: Ticket, end: float) -> str:
        while True:
            now = self.now()
            self._wake(self.turns.tick(ticket.path, now))
            if ticket.granted:
                return "granted"
            if wait.signalled and self._processes.wants_out(wait.tid):
                return "killed"
            if now >= end:
                return "expired"
            pause = end - now
            lapse = self.turns.deadline(ticket.path)
            if lapse is not None:
                pause = min(pause, max(lapse - now, 0.0) + 0.001)
            if wait.signalled:
                pause = min(pause, POLL_SECONDS)
            with trio.move_on_after(pause):
                await wait.event.wait()
            if wait.event.is_set() and not ticket.granted:
                wait.event = trio.Event()

    def interrupted(self, unique: int) -> None:
        wait = self._by_request.get(unique)
        if wait is not None:
            wait.signalled = True
            wait.event.set()

    # -- writes and endings ---------------------------------------------------

    def write(self, session: OpenFile, edit: Edit, path: bytes, act: Act) -> bool:
        """A WRITE on `session`: its turn begins or goes on; True when it collides.

        :raises OSError: EBUSY under ``block``.
        """
        append = act is Act.APPEND
        if len(self.leases):
            self.leases.wrote(path, edit.actor.task, self.now())
        foreign = self.turns.begin(path, session, edit.actor, append, self.now())
        if foreign is not None:
            self.collide(edit, path, act, foreign)
            return True
        if append:
            return False
        rival = self._guard.rival_since(edit, path)
        if rival is None:
            return False
        self._collide(edit, path, act, rival, None)
        return True

    def leave(self, session: OpenFile) -> None:
        """The handle is released, or was never opened."""
        self._wake(self.turns.left(session, self.now()))

    def moved(self, path: bytes) -> None:
        """`path` does not lead to the same file any more."""
        if self.turns.busy(path):
            self._wake(self.turns.moved(path, self.now()))

    # -- collisions -----------------------------------------------------------

    def foreign(self, path: bytes, actor: Actor) -> Turn | None:
        """Another task's running turn on `path`, where that matters to `actor`."""
        if not self.turns.busy(path) or not self.applies(path, actor):
            return None
        return self.turns.foreign(path, actor, False, self.now())

    def collide(self, edit: Edit, path: bytes, act: Act, turn: Turn) -> None:
        self._collide(edit, path, act, self._author(path, turn), None)

    def _collide(self, edit: Edit, path: bytes, act: Act, holder: Write | None, waited: float | None) -> None:
        if holder is None:
            return
        warning = self._guard.collide(edit, path, act, holder, self._clock(), waited)
        if warning.refused:
            code = errno.EBUSY if waited is None else errno.EAGAIN
            raise OSError(code, warning.message)

    def _holder(self, path: bytes) -> Write | None:
        turn = self.turns.turn(path)
        return self._author(path, turn) if turn is not None else None

    def _author(self, path: bytes, turn: Turn) -> Write:
        """The holder as an author; the time is when its turn began, whatever it has written since."""
        state = self._guard.ledger.find(path)
        since = self._clock() - (self.now() - turn.since)
        for write in reversed(state.writers) if state is not None else ():
            if write.task in turn.tasks:
                return replace(write, time=since)
        actor = next(iter(turn.handles.values()), None)
        task = next(iter(turn.tasks))
        if actor is None:
            return Write(task, Process(0), Command("", "?"), Act.WRITE, since, 0, 0)
        return Write(actor.task, actor.process, actor.command, Act.WRITE, since, 0, 0)

    def _wake(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            wait = self._waits.get(ticket)
            if wait is not None:
                wait.event.set()

    # -- for status -----------------------------------------------------------

    def queues(self) -> list[dict[str, object]]:
        """Who holds and who waits, for every path that is waited for."""
        now = self.now()
        result: list[dict[str, object]] = []
        for path in self.turns.contended():
            turn = self.turns.turn(path)
            result.append(
                {
                    "path": path.decode("utf-8", "surrogateescape"),
                    "holder": sorted(t.id for t in turn.tasks) if turn is not None else [],
                    "since": round(now - turn.since, 3) if turn is not None else None,
                    "queue": [
                        {
                            "task": t.actor.task.id if t.actor.task is not None else None,
                            "pid": t.actor.process.pid,
                            "command": t.actor.command.text,
                            "waiting": round(now - t.since, 3),
                            "next": i == 0,
                        }
                        for i, t in enumerate(self.turns.queue(path))
                    ],
                }
            )
        return result
