"""Leases: a task asks that others keep off some paths for a while. Opt-in.

While a lease lives, other tasks' opens for writing of matching paths wait
behind it and are then refused; rename and unlink are refused at once. Parent
and child share. It ends by release, with its task, or after `ttl` seconds
without a write by its holder. Both directions hold: none is granted over a path
that another task is writing right now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count

from fsguard.core.model import Task
from fsguard.core.policy import Patterns

__all__ = ["Lease", "LeaseTicket", "Leases"]


@dataclass(slots=True, eq=False)
class Lease:
    """What `task` holds; times in seconds since the epoch, `ttl` in seconds."""

    id: int
    task: Task
    patterns: Patterns
    since: float
    ttl: float
    active: float
    reason: str = ""
    requests: dict[str, float] = field(default_factory=dict)

    @property
    def until(self) -> float:
        return self.active + self.ttl

    def covers_below(self, directory: bytes) -> bool:
        """True for a directory that the lease is on, or that has something in it that the lease names."""
        prefix = directory + b"/"
        return self.patterns(prefix + b"x") or any(
            _as_path(p).startswith(prefix) for p in self.patterns.lines
        )

    def alive(self, now: float) -> bool:
        return now < self.until and self.task.ended is None


@dataclass(slots=True, eq=False)
class LeaseTicket:
    """Somebody who waits for a lease; `lease` is set when it is granted."""

    task: Task
    patterns: Patterns
    ttl: float
    reason: str
    since: float
    lease: Lease | None = None
    blocker: str = ""


Writing = Callable[[Patterns, Task], "str | None"]


class Leases:
    """All leases of a workspace, oldest first, and who waits for one.

    :param writing: says which other task is writing a matching path right now.
    """

    def __init__(self, writing: Writing) -> None:
        self._writing = writing
        self._leases: dict[int, Lease] = {}
        self._queue: list[LeaseTicket] = []
        self._ids = count(1)

    def __len__(self) -> int:
        return len(self._leases)

    def all(self, now: float) -> list[Lease]:
        self._expire(now)
        return list(self._leases.values())

    def waiting(self) -> list[LeaseTicket]:
        return list(self._queue)

    def find(self, lease_id: int, now: float) -> Lease | None:
        self._expire(now)
        return self._leases.get(lease_id)

    def over(self, path: bytes, task: Task | None, now: float) -> Lease | None:
        """The oldest lease that keeps `task` from writing `path`."""
        if not self._leases or task is None:
            return None
        for lease in self._leases.values():
            if lease.alive(now) and lease.patterns(path):
                # The oldest decides: two that overlap must not shut each other out.
                return None if lease.task.related(task) else lease
        return None

    def over_tree(self, directory: bytes, task: Task | None, now: float) -> Lease | None:
        """The oldest lease that keeps `task` from moving `directory`, with whatever is below it."""
        if task is None:
            return None
        for lease in self._leases.values():
            if lease.alive(now) and lease.covers_below(directory):
                return None if lease.task.related(task) else lease
        return None

    def in_the_way(self, task: Task, patterns: Iterable[str], now: float) -> list[Lease]:
        """The leases of others that clash with what `task` would like to have."""
        wanted = LeaseTicket(task, Patterns(patterns), 0.0, "", now)
        return [lease for lease in self.all(now) if self._clash(lease, wanted)]

    def wrote(self, path: bytes, task: Task | None, now: float) -> None:
        """A write by the holder keeps its lease alive."""
        if task is None:
            return
        for lease in self._leases.values():
            if lease.task.related(task) and lease.patterns(path):
                lease.active = now

    def ask(self, task: Task, patterns: Iterable[str], ttl: float, reason: str, now: float) -> LeaseTicket:
        """Ask for a lease; it is granted at once when nothing is in the way."""
        ticket = LeaseTicket(task, Patterns(patterns), ttl, reason, now)
        self._queue.append(ticket)
        self.pump(now)
        return ticket

    def cancel(self, ticket: LeaseTicket, now: float) -> None:
        """The asker waits no longer; whoever stood behind it may come next."""
        if ticket in self._queue:
            self._queue.remove(ticket)
            self.pump(now)

    def release(self, lease: Lease, now: float) -> None:
        self._leases.pop(lease.id, None)
        self.pump(now)

    def pump(self, now: float) -> list[LeaseTicket]:
        """Grant what can be granted, first come, first served; returns those granted."""
        self._expire(now)
        granted: list[LeaseTicket] = []
        for i, ticket in enumerate(self._queue):
            earlier = [t for t in self._queue[:i] if t.lease is None and self._clash(t, ticket)]
            holder = next((le for le in self._leases.values() if self._clash(le, ticket)), None)
            if earlier:
                ticket.blocker = f"task {earlier[0].task.id!r}, which waits for it too"
            elif holder is not None:
                ticket.blocker = f"the lease {holder.id} of task {holder.task.id!r}"
            elif (writer := self._writing(ticket.patterns, ticket.task)) is not None:
                ticket.blocker = f"task {writer!r}, which is writing there"
            else:
                lease = Lease(
                    next(self._ids), ticket.task, ticket.patterns, now, ticket.ttl, now, ticket.reason
                )
                self._leases[lease.id] = ticket.lease = lease
                granted.append(ticket)
        self._queue = [t for t in self._queue if t.lease is None]
        return granted

    def _expire(self, now: float) -> None:
        for lease in [le for le in self._leases.values() if not le.alive(now)]:
            del self._leases[lease.id]

    @staticmethod
    def _clash(one: Lease | LeaseTicket, other: LeaseTicket) -> bool:
        """Can a path match both? A pattern is tried as if it were a path of the other's."""
        if one.task.related(other.task):
            return False
        mine, theirs = one.patterns, other.patterns
        if set(mine.lines) & set(theirs.lines):
            return True
        return any(theirs(_as_path(p)) for p in mine.lines) or any(mine(_as_path(p)) for p in theirs.lines)


def _as_path(pattern: str) -> bytes:
    return pattern.strip("/").encode("utf-8", "surrogateescape")
