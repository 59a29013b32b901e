"""Turns: one task at a time writes a path, first come, first served.

A state machine without waiting: `enter` says whether an open for writing may
go on or gives it a `Ticket`; every other call returns the tickets whose turn
has come. Who waits, and how long at most, is the caller's business.

A turn begins with a truncating open or with the first write on a handle, and
ends when the last handle that took part is released, or after `lapse` seconds
without a write: an open log file or database handle holds no turn.

    nobody      --begin/wrote-->   held
    held        --left (last)-->   nobody, or held by the next in line
    held        --lapse------->    the same, as soon as somebody waits
    held        --wrote (other)->  held, and the other is told: concurrent
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from fsguard.core.model import Actor, Process, Task

__all__ = ["LAPSE_SECONDS", "Ticket", "Turn", "Turns"]

LAPSE_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class Turn:
    """The right to write a path, held by a task with its children.

    `append`: all of it is appending, which commutes; then several tasks share it.
    `handles` are the open files that take part, with who writes through them.
    """

    path: bytes
    tasks: dict[Task, None]
    append: bool
    since: float
    last_write: float
    handles: dict[object, Actor] = field(default_factory=dict)

    def admits(self, actor: Actor, append: bool) -> bool:
        """True for the holder, its children, and an append among appends."""
        task = actor.task
        if task is None or (append and self.append):
            return True
        return any(task.below(holder) for holder in self.tasks)


@dataclass(slots=True, eq=False)
class Ticket:
    """A place in the queue of a path."""

    path: bytes
    handle: object
    actor: Actor
    append: bool
    since: float
    granted: bool = False
    broken: bool = False  # waiting would close a circle: goes on without a turn

    @property
    def ready(self) -> bool:
        return self.granted or self.broken


class Turns:
    """:param lapse: seconds without a write after which a turn is over."""

    def __init__(self, lapse: float = LAPSE_SECONDS) -> None:
        self.lapse = lapse
        self._turns: dict[bytes, Turn] = {}
        self._queues: dict[bytes, deque[Ticket]] = {}
        self._of_handle: dict[object, list[bytes]] = {}
        self._waiting: dict[Process, dict[Ticket, None]] = {}

    def __len__(self) -> int:
        return len(self._turns)

    # -- questions ------------------------------------------------------------

    def running(self, path: bytes, now: float) -> Turn | None:
        """The turn on `path`, unless it has lapsed."""
        turn = self._turns.get(path)
        return turn if turn is not None and now - turn.last_write < self.lapse else None

    def busy(self, path: bytes) -> bool:
        """True when there is a turn or a queue on `path`, lapsed or not."""
        return path in self._turns or path in self._queues

    def all(self) -> list[Turn]:
        return list(self._turns.values())

    def turn(self, path: bytes) -> Turn | None:
        """The turn on `path`, lapsed or not."""
        return self._turns.get(path)

    def foreign(self, path: bytes, actor: Actor, append: bool, now: float) -> Turn | None:
        """A running turn that is not `actor`'s to write in."""
        if actor.task is None or not self._turns:
            return None
        turn = self.running(path, now)
        return turn if turn is not None and not turn.admits(actor, append) else None

    def queue(self, path: bytes) -> tuple[Ticket, ...]:
        return tuple(self._queues.get(path, ()))

    def contended(self) -> list[bytes]:
        return list(self._queues)

    def deadline(self, path: bytes) -> float | None:
        """When the turn on `path` lapses if nothing is written until then."""
        turn = self._turns.get(path)
        return turn.last_write + self.lapse if turn is not None else None

    # -- opens ----------------------------------------------------------------

    def enter(self, path: bytes, handle: object, actor: Actor, append: bool, now: float) -> Ticket | None:
        """An open for writing arrives; None: it may go on at once.

        A ticket that comes back `broken` must not wait: the holder waits,
        directly or through others, for something that the caller holds.
        """
        if actor.task is None:
            return None
        turn, queue = self.running(path, now), self._queues.get(path)
        if not queue and (turn is None or turn.admits(actor, append)):
            return None
        if turn is not None and turn.admits(actor, False):
            return None  # the holder's own never waits, whoever else does
        ticket = Ticket(path, handle, actor, append, now)
        self._queues.setdefault(path, deque()).append(ticket)
        self._index(ticket, True)
        if self._stuck(ticket, frozenset()):
            ticket.broken = True
            self._drop(ticket)
        return ticket

    def begin(self, path: bytes, handle: object, actor: Actor, append: bool, now: float) -> Turn | None:
        """`handle` truncates or writes: its turn begins or goes on.

        Returns the running turn of another task when there is one; the caller
        says so, and the other's turn goes on.
        """
        task = actor.task
        if task is None:
            return None
        turn = self.running(path, now)
        if turn is None:
            old = self._turns.get(path)
            if old is not None:
                self._forget(old)
            turn = self._turns[path] = Turn(path, {task: None}, append, now, now)
        elif not turn.admits(actor, append):
            return turn
        turn.last_write = now
        turn.append = turn.append and append
        turn.tasks[task] = None
        if handle not in turn.handles:
            turn.handles[handle] = actor
            self._of_handle.setdefault(handle, []).append(path)
        return None

    wrote = begin

    # -- endings --------------------------------------------------------------

    def left(self, handle: object, now: float) -> list[Ticket]:
        """`handle` is released, its process may be dead; returns who comes next."""
        granted: list[Ticket] = []
        for path in self._of_handle.pop(handle, ()):
            turn = self._turns.get(path)
            if turn is None or handle not in turn.handles:
                continue
            del turn.handles[handle]
            if not turn.handles:
                granted += self._end(turn, now)
        return granted

    def cancel(self, ticket: Ticket, now: float) -> list[Ticket]:
        """The waiter was killed, interrupted, or waits no longer."""
        if ticket.granted:
            return self.left(ticket.handle, now)
        self._drop(ticket)
        return self._pump(ticket.path, now)

    def tick(self, path: bytes, now: float) -> list[Ticket]:
        """Let the turn on `path` lapse, if it is time."""
        return self._pump(path, now)

    def moved(self, path: bytes, now: float) -> list[Ticket]:
        """The file of a running turn lost this name: its turn here is over."""
        turn = self._turns.get(path)
        return self._end(turn, now) if turn is not None else []

    # -- inside ---------------------------------------------------------------

    def _forget(self, turn: Turn) -> None:
        self._turns.pop(turn.path, None)
        for handle in turn.handles:
            paths = self._of_handle.get(handle)
            if paths is not None and turn.path in paths:
                paths.remove(turn.path)
                if not paths:
                    del self._of_handle[handle]

    def _end(self, turn: Turn, now: float) -> list[Ticket]:
        self._forget(turn)
        return self._pump(turn.path, now)

    def _pump(self, path: bytes, now: float) -> list[Ticket]:
        """Give the turn to the head of the queue, and to those who share it."""
        granted: list[Ticket] = []
        queue = self._queues.get(path)
        while queue:
            head = queue[0]
            turn = self.running(path, now)
            if turn is not None and not turn.admits(head.actor, head.append):
                break
            self.begin(path, head.handle, head.actor, head.append, now)
            head.granted = True
            granted.append(queue.popleft())
            self._index(head, False)
        if queue is not None and not queue:
            self._queues.pop(path, None)
        return granted

    def _drop(self, ticket: Ticket) -> None:
        queue = self._queues.get(ticket.path)
        if queue is not None and ticket in queue:
            queue.remove(ticket)
            self._index(ticket, False)
            if not queue:
                del self._queues[ticket.path]

    def _index(self, ticket: Ticket, waits: bool) -> None:
        """A process waits when it, or a child it has started, is in a queue."""
        process: Process | None = ticket.actor.process
        for _ in range(256):
            if process is None:
                return
            if waits:
                self._waiting.setdefault(process, {})[ticket] = None
            else:
                below = self._waiting.get(process, {})
                below.pop(ticket, None)
                if not below:
                    self._waiting.pop(process, None)
            process = process.parent

    def _stuck(self, ticket: Ticket, seen: frozenset[Ticket]) -> bool:
        """True when every process of the holder waits, in the end, for `ticket`'s own."""
        if ticket in seen:
            return True
        turn = self._turns.get(ticket.path)
        if turn is None or not turn.handles or len(seen) > 64:
            return False
        seen |= {ticket}
        return all(
            any(self._stuck(t, seen) for t in self._waiting.get(actor.process, ()))
            for actor in turn.handles.values()
        )
