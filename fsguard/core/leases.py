"""Leases: a task asks that others keep off some paths for a while. Opt-in.

While a lease lives, other tasks' opens for writing of matching paths wait
behind it and are then refused; rename and unlink are refused at once. Parent
and child share. It ends by release, with its task, or after `ttl` seconds
without a write by its holder. Both directions hold: none is granted over a path
that another task is writing right now.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count

from fsguard.core.model import Task
from fsguard.core.policy import Patterns

__all__ = ["Lease", "LeaseTicket", "Leases", "as_path"]


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

    def alive(self, now: float) -> bool:
        return now < self.until and self.task.ended is None

    def meets(self, directory: bytes) -> bool:
        """True when a pattern covers something in `directory`."""
        names = directory.decode("utf-8", "surrogateescape").split("/")
        inside = (*(tuple(name) for name in names), ANY_DEPTH)
        return any(_meet(_segments(line, _is_name(line)), inside) for line in self.patterns.lines)


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
    """All leases of a workspace, and who waits for one.

    `held`: by id, oldest first; some may have ended.

    :param writing: says which other task is writing a matching path right now.
    :param ended: told when a lease has ended.
    """

    def __init__(self, writing: Writing, ended: Callable[[], None] = lambda: None) -> None:
        self._writing = writing
        self._ended = ended
        # Called before anything is granted: others may be writing past us, see `fuse/lane.py`.
        self.before_granting: Callable[[], object] = lambda: None
        self.held: dict[int, Lease] = {}
        self._queue: list[LeaseTicket] = []
        self._ids = count(1)

    def all(self, now: float) -> list[Lease]:
        self._expire(now)
        return list(self.held.values())

    def waiting(self) -> list[LeaseTicket]:
        return list(self._queue)

    def find(self, lease_id: int, now: float) -> Lease | None:
        self._expire(now)
        return self.held.get(lease_id)

    def over(self, path: bytes, task: Task | None, now: float) -> Lease | None:
        """The oldest lease that keeps `task` from writing `path`."""
        if not self.held or task is None:
            return None
        for lease in self.held.values():
            if lease.alive(now) and lease.patterns(path):
                # The oldest decides: two that overlap must not shut each other out.
                return None if lease.task.related(task) else lease
        return None

    def below(self, directory: bytes, task: Task, now: float) -> Lease | None:
        """The oldest lease of others on something in `directory`, or on all of it."""
        for lease in self.held.values():
            if lease.alive(now) and not lease.task.related(task) and lease.meets(directory):
                return lease
        return None

    def in_the_way(self, task: Task, patterns: Iterable[str], now: float) -> list[Lease]:
        """The leases of others that clash with what `task` would like to have."""
        wanted = LeaseTicket(task, Patterns(patterns), 0.0, "", now)
        return [lease for lease in self.all(now) if self._clash(lease, wanted)]

    def wrote(self, paths: Iterable[bytes], task: Task | None, now: float) -> None:
        """A write by the holder keeps its lease alive."""
        if task is None:
            return
        for lease in self.held.values():
            if lease.alive(now) and lease.task.related(task) and any(map(lease.patterns, paths)):
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
        if self.held.pop(lease.id, None) is not None:
            self._ended()
        self.pump(now)

    def pump(self, now: float) -> list[LeaseTicket]:
        """Grant what can be granted, first come, first served; returns those granted."""
        self._expire(now)
        granted: list[LeaseTicket] = []
        self._queue = [t for t in self._queue if t.task.ended is None]
        if self._queue:
            self.before_granting()
        for i, ticket in enumerate(self._queue):
            holder = next((le for le in self.held.values() if self._clash(le, ticket)), None)
            if holder is not None:
                ticket.blocker = f"the lease {holder.id} of task {holder.task.id!r}"
            elif (earlier := self._earlier(i, ticket)) is not None:
                ticket.blocker = f"task {earlier.task.id!r}, which waits for it too"
            elif (writer := self._writing(ticket.patterns, ticket.task)) is not None:
                ticket.blocker = f"task {writer!r}, which is writing there"
            else:
                lease = Lease(
                    next(self._ids), ticket.task, ticket.patterns, now, ticket.ttl, now, ticket.reason
                )
                self.held[lease.id] = ticket.lease = lease
                granted.append(ticket)
        self._queue = [t for t in self._queue if t.lease is None]
        return granted

    def _earlier(self, place: int, ticket: LeaseTicket) -> LeaseTicket | None:
        return next((t for t in self._queue[:place] if t.lease is None and self._clash(t, ticket)), None)

    def _expire(self, now: float) -> None:
        over = [le for le in self.held.values() if not le.alive(now)]
        for lease in over:
            del self.held[lease.id]
        if over:
            self._ended()

    @staticmethod
    def _clash(one: Lease | LeaseTicket, other: LeaseTicket) -> bool:
        """Can a path match both?"""
        if one.task.related(other.task):
            return False
        mine, theirs = one.patterns.lines, other.patterns.lines
        return any(_overlap(a, b) for a in mine for b in theirs)


def as_path(pattern: str) -> bytes:
    """A pattern taken for a path that it could match; `src/` is something in src."""
    path = pattern.strip("/")
    return (path + "/x" if pattern.endswith("/") else path).encode("utf-8", "surrogateescape")


# A component of a pattern is a tuple of characters, ANY and MANY; ANY_DEPTH is `**`.
ANY, MANY = "any", "many"
ANY_DEPTH = ("any depth",)

Segment = tuple[str, ...]


@lru_cache(4096)
def _overlap(one: str, other: str) -> bool:
    """Can a path match both patterns?

    A bare name (`src/`) matches at any depth, but means the one at the top: nobody
    expects `src/` and `docs/` to be in each other's way for a `src/docs/`.
    """
    names = [_is_name(one), _is_name(other)]
    if _meet(_segments(one, names[0]), _segments(other, names[1])):
        return True
    return any(
        bare and _tokens(a.strip("/")) in _segments(b)
        for bare, a, b in ((names[0], one, other), (names[1], other, one))
    )


def _is_name(pattern: str) -> bool:
    return "/" not in pattern.rstrip("/") and not set(pattern) & set("*?[\\")


@lru_cache(4096)
def _segments(pattern: str, anchored: bool = False) -> tuple[Segment, ...]:
    """A .gitignore line in components; what it matches, it matches with all that is inside.

    Only a name that ends as files do (`*.py`, `schema.sql`) is taken to mean no directory.
    """
    parts = pattern.strip("/").split("/")
    anchored = anchored or "/" in pattern.rstrip("/")
    names = [ANY_DEPTH if part == "**" else _tokens(part) for part in parts]
    files = re.search(r"\.[A-Za-z]\w*$", pattern) is not None
    return (*(() if anchored else (ANY_DEPTH,)), *names, *(() if files else (ANY_DEPTH,)))


def _tokens(part: str) -> Segment:
    found = re.findall(r"\\(.)|(\*+)|(\?|\[[!^]?\]?[^]]*\])|(.)", part, re.DOTALL)
    return tuple(escaped or plain or (MANY if many else ANY) for escaped, many, _, plain in found)


@lru_cache(4096)
def _meet(one: tuple[Segment, ...], other: tuple[Segment, ...]) -> bool:
    """Can a path match both? A set like `[a-z]` counts as any character."""
    if not one or not other:
        return all(segment == ANY_DEPTH for segment in one or other)
    if one[0] == ANY_DEPTH:
        return _meet(one[1:], other) or _meet(one, other[1:])
    if other[0] == ANY_DEPTH:
        return _meet(one, other[1:]) or _meet(one[1:], other)
    return _names_meet(one[0], other[0]) and _meet(one[1:], other[1:])


@lru_cache(4096)
def _names_meet(one: Segment, other: Segment) -> bool:
    if not one or not other:
        return all(token == MANY for token in one or other)
    if one[0] == MANY:
        return _names_meet(one[1:], other) or _names_meet(one, other[1:])
    if other[0] == MANY:
        return _names_meet(one, other[1:]) or _names_meet(one[1:], other)
    same = one[0] == other[0] or ANY in (one[0], other[0])
    return same and _names_meet(one[1:], other[1:])
