"""Turns: one task at a time writes a file, first come, first served.

A state machine without waiting: `enter` says whether an open for writing may
go on or gives it a `Ticket`; every other call returns the tickets whose turn
has come. Who waits, and how long at most, is the caller's business, and so is
what stands for a file (a *place*: anything that can be a key).

A turn begins with a truncating open or with the first write on a handle, and
ends when the last handle that took part is released, or after `lapse` seconds
without a write: an open log file or database handle holds no turn.

    nobody      --begin-------->   held
    held        --left (last)-->   nobody, or held by the next in line
    held        --lapse-------->   the same, as soon as somebody waits
    held        --begin (other)->  held, and the other is told: concurrent

Several tasks hold a file together only while all of them append, or when they
are one family: a holder and those below it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from fsguard.core.model import Actor, Process, Task

__all__ = ["LAPSE_SECONDS", "Ticket", "Turn", "Turns"]

LAPSE_SECONDS = 1.0
MAX_ANCESTORS = 64

PlaceT = TypeVar("PlaceT")


@dataclass(slots=True, eq=False)
class Turn(Generic[PlaceT]):
    """The right to write a file.

    `append`: all of it is appending, which commutes. `handles` are the open
    files that take part, with who writes through each, the first of a task;
    `tasks` counts the handles of each holder. `over`: it has ended or passed on.
    """

    place: PlaceT
    append: bool
    since: float
    last_write: float
    over: bool = False
    handles: dict[object, list[Actor]] = field(default_factory=dict)
    tasks: dict[Task, int] = field(default_factory=dict)

    def admits(self, actor: Actor, append: bool) -> bool:
        """True for the holder, those below it, and an append among appends."""
        task = actor.task
        if task is None or (append and self.append):
            return True
        return not any(self._hinders(other, task) for other in self.tasks)

    def _hinders(self, holder: Task, task: Task) -> bool:
        """The holder's own, and those below it, do not wait for it, nor a holder for those below."""
        return not task.below(holder) and not (task in self.tasks and holder.below(task))

    def hindering(self, ticket: Ticket[PlaceT]) -> list[Actor]:
        """For whom `ticket` waits; for all if it only stands behind others who do."""
        task = ticket.actor.task
        assert task is not None
        found = [w for w in self.writers() if w.task is not None and self._hinders(w.task, task)]
        return found or list(self.writers())

    def own(self, actor: Actor, append: bool) -> bool:
        """True when `actor` would wait for its own task or one above it, if it waited."""
        if append and self.append:
            task = actor.task
            return task is None or any(task.below(holder) for holder in self.tasks)
        return self.admits(actor, False)

    def foreign(self, handle: object, actor: Actor, append: bool) -> bool:
        """True when writing now is a collision: none between relatives, none by one handle."""
        task = actor.task
        if task is None or (task in self.tasks and len(self.tasks) == 1) or (append and self.append):
            return False
        return any(
            not task.related(writer.task)
            for h, writers in self.handles.items()
            if h is not handle
            for writer in writers
        )

    def writers(self) -> Iterator[Actor]:
        for writers in self.handles.values():
            yield from writers

    def join(self, handle: object, task: Task, actor: Actor) -> None:
        """`actor` writes through `handle`, too."""
        writers = self.handles.setdefault(handle, [])
        if not any(writer.task is task for writer in writers):
            writers.append(actor)
            self.tasks[task] = self.tasks.get(task, 0) + 1

    def leave(self, handle: object) -> bool:
        """The handle takes part no longer; True when that ends the part of a task."""
        ended = False
        for writer in self.handles.pop(handle, ()):
            task = writer.task
            assert task is not None
            self.tasks[task] -= 1
            if not self.tasks[task]:
                del self.tasks[task]
                ended = True
        return ended


@dataclass(slots=True, eq=False)
class Ticket(Generic[PlaceT]):
    """A place in a queue.

    `stands`: its process does nothing else while it waits. One whose pool of
    threads goes on may well close what it holds.
    """

    place: PlaceT
    handle: object
    actor: Actor
    append: bool
    since: float
    number: int
    stands: bool = True
    granted: bool = False
    broken: bool = False  # waiting would close a circle: goes on without a turn

    @property
    def ready(self) -> bool:
        return self.granted or self.broken

    def processes(self) -> Iterator[Process]:
        """Who stands while this waits: the process, and those that have started it."""
        process: Process | None = self.actor.process if self.stands else None
        for _ in range(MAX_ANCESTORS):
            if process is None:
                return
            yield process
            process = process.parent


class Turns(Generic[PlaceT]):
    """:param lapse: seconds without a write after which a turn is over."""

    def __init__(self, lapse: float = LAPSE_SECONDS) -> None:
        self.lapse = lapse
        self._turns: dict[PlaceT, Turn[PlaceT]] = {}
        self._queues: dict[PlaceT, OrderedDict[Ticket[PlaceT], None]] = {}
        self._of_handle: dict[object, list[Turn[PlaceT]]] = {}
        self._entered = 0

    def __len__(self) -> int:
        return len(self._turns)

    # -- questions ------------------------------------------------------------

    def running(self, place: PlaceT, now: float) -> Turn[PlaceT] | None:
        """The turn on `place`, unless it has lapsed."""
        turn = self._turns.get(place)
        return turn if turn is not None and now - turn.last_write < self.lapse else None

    def busy(self, place: PlaceT) -> bool:
        """True when there is a turn or a queue on `place`, lapsed or not."""
        return place in self._turns or place in self._queues

    def turn(self, place: PlaceT) -> Turn[PlaceT] | None:
        """The turn on `place`, lapsed or not."""
        return self._turns.get(place)

    def foreign(self, place: PlaceT, actor: Actor, append: bool, now: float) -> Turn[PlaceT] | None:
        """A running turn that is not `actor`'s to write in."""
        turn = self.running(place, now)
        return turn if turn is not None and turn.foreign(None, actor, append) else None

    def queue(self, place: PlaceT) -> tuple[Ticket[PlaceT], ...]:
        return tuple(self._queues.get(place, ()))

    def head(self, place: PlaceT) -> Ticket[PlaceT] | None:
        """Who is next in line."""
        return next(iter(self._queues.get(place, ())), None)

    def contended(self) -> list[PlaceT]:
        return list(self._queues)

    def deadline(self, place: PlaceT) -> float | None:
        """When the turn on `place` lapses if nothing is written until then."""
        turn = self._turns.get(place)
        return turn.last_write + self.lapse if turn is not None else None

    # -- opens ----------------------------------------------------------------

    def enter(
        self, place: PlaceT, handle: object, actor: Actor, append: bool, now: float, stands: bool = True
    ) -> Ticket[PlaceT] | None:
        """An open for writing arrives; None: it may go on at once.

        A ticket that comes back `broken` must not wait: the holder waits,
        directly or through others, for something that the caller holds.
        """
        if actor.task is None:
            return None
        turn = self.running(place, now)
        if turn is None or turn.admits(actor, append):
            if place not in self._queues:
                return None
            if turn is not None and turn.own(actor, append):
                return None  # the holder's own never waits, whoever else does
        self._entered += 1
        ticket = Ticket(place, handle, actor, append, now, self._entered, stands)
        self._queues.setdefault(place, OrderedDict())[ticket] = None
        if self._closes_circle(ticket, now):
            ticket.broken = True
            self._drop(ticket)
        return ticket

    def begin(
        self,
        place: PlaceT,
        handle: object,
        actor: Actor,
        append: bool,
        now: float,
        since: float | None = None,
    ) -> Turn[PlaceT] | None:
        """`handle` truncates or writes: its turn begins or goes on.

        Returns the turn that it takes part in. None: the turn on the place is
        another task's and goes on; the caller says so. `since`: it began earlier,
        and `now` is when it last wrote.
        """
        task = actor.task
        if task is None:
            return None
        turn = self._turns.get(place)
        if turn is None or now - turn.last_write >= self.lapse:
            if turn is not None:
                self._forget(turn)
            turn = self._turns[place] = Turn(place, append, now if since is None else since, now)
        elif turn.foreign(handle, actor, append):
            return None
        turn.last_write = max(turn.last_write, now)
        turn.append = turn.append and append
        if handle not in turn.handles:
            self._of_handle.setdefault(handle, []).append(turn)
        turn.join(handle, task, actor)
        return turn

    # -- endings --------------------------------------------------------------

    def left(self, handle: object, now: float) -> list[Ticket[PlaceT]]:
        """`handle` is released, its process may be dead; returns who comes next.

        Among them are those that go on without a turn (`broken`), because nobody
        is left who would give it to them.
        """
        granted: list[Ticket[PlaceT]] = []
        for turn in self._of_handle.pop(handle, ()):
            ended = turn.leave(handle)
            if not turn.handles:
                turn.over = True
                del self._turns[turn.place]
            if ended:
                granted += self._pump(turn.place, now, changed=True)
            if turn.handles and turn.place in self._queues:
                granted += self._break_circles(now)
        return granted

    def cancel(self, ticket: Ticket[PlaceT], now: float) -> list[Ticket[PlaceT]]:
        """The waiter was killed, interrupted, or waits no longer."""
        if ticket.granted:
            return self.left(ticket.handle, now)
        self._drop(ticket)
        return self._pump(ticket.place, now)

    def tick(self, place: PlaceT, now: float, joined: bool = False) -> list[Ticket[PlaceT]]:
        """Let the turn on `place` lapse, if it is time. `joined`: it has a further holder."""
        return self._pump(place, now, changed=joined)

    def forget_queues(self) -> None:
        """Nobody waits any more."""
        self._queues.clear()

    # -- inside ---------------------------------------------------------------

    def _forget(self, turn: Turn[PlaceT]) -> None:
        turn.over = True
        del self._turns[turn.place]
        for handle in turn.handles:
            turns = self._of_handle[handle]
            turns.remove(turn)
            if not turns:
                del self._of_handle[handle]

    def _pump(self, place: PlaceT, now: float, changed: bool = False) -> list[Ticket[PlaceT]]:
        """Give the turn to the head of the queue, and to those who share it.

        `changed`: one of several holders has gone, or has come.
        """
        granted: list[Ticket[PlaceT]] = []
        queue, turn = self._queues.get(place), self.running(place, now)
        while queue:
            head = next(iter(queue))
            if turn is not None and not turn.admits(head.actor, head.append):
                break
            granted.append(self._grant(head, now))
            turn = self.running(place, now)
        if queue and turn is not None and (granted or changed):
            # The holder's own do not wait for it, whoever stands before them.
            granted += [self._grant(t, now) for t in list(queue) if turn.own(t.actor, t.append)]
        return granted

    def _grant(self, ticket: Ticket[PlaceT], now: float) -> Ticket[PlaceT]:
        self.begin(ticket.place, ticket.handle, ticket.actor, ticket.append, now)
        ticket.granted = True
        self._drop(ticket)
        return ticket

    def _drop(self, ticket: Ticket[PlaceT]) -> None:
        queue = self._queues.get(ticket.place)
        if queue is not None and ticket in queue:
            del queue[ticket]
            if not queue:
                del self._queues[ticket.place]

    # -- circles --------------------------------------------------------------

    def _closes_circle(self, ticket: Ticket[PlaceT], now: float) -> bool:
        """True when those for whom `ticket` waits stand, in the end, because it waits."""
        mine = set(ticket.processes())
        if not any(
            writer.process in mine
            for place in self._queues
            if (turn := self.running(place, now)) is not None
            for writer in turn.writers()
        ):
            return False  # nobody waits for it
        return ticket in self._stuck(now)

    def _stuck(self, now: float, but: Ticket[PlaceT] | None = None) -> list[Ticket[PlaceT]]:
        """Those whom nothing but time can help.

        Whoever waits stands, and so does who has started it. Who waits for
        somebody that does not stand will get on: it is taken away, and so on
        until nobody can be. `but`: as if this one did not wait.
        """
        turns = {place: turn for place in self._queues if (turn := self.running(place, now)) is not None}
        waiting = [t for place in turns for t in self._queues[place] if t is not but]
        while True:
            standing = {process for t in waiting for process in t.processes()}
            stuck = [
                t
                for t in waiting
                if all(writer.process in standing for writer in turns[t.place].hindering(t))
            ]
            if len(stuck) == len(waiting):
                return stuck
            waiting = stuck

    def _break_circles(self, now: float) -> list[Ticket[PlaceT]]:
        """A writer has left a turn, those that remain may all stand; returns who goes on without one."""
        broken: list[Ticket[PlaceT]] = []
        while stuck := self._stuck(now):
            stuck.sort(key=lambda t: t.number, reverse=True)
            # Some only wait for those in the circle: without them nobody else gets on.
            in_circle = (t for t in stuck if len(self._stuck(now, but=t)) < len(stuck) - 1)
            youngest = next(in_circle, stuck[0])
            youngest.broken = True
            self._drop(youngest)
            broken.append(youngest)
        return broken
