"""`fsguard lease`: asking that others keep off some paths for a while."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any

import trio

from fsguard.attribution.resolver import Resolver
from fsguard.control import params as p
from fsguard.control.server import Peer
from fsguard.core.leases import Lease, LeaseTicket
from fsguard.core.model import Task
from fsguard.core.wording import rfc3339
from fsguard.dispatch import Dispatch
from fsguard.errors import BusyError, RefusedError, UsageError
from fsguard.service.base import Part, noted, task_id

__all__ = ["LeaseRequests"]

MAX_SECONDS = 86_400
POLL_SECONDS = 0.05  # a write that ends tells nobody


class LeaseRequests(Part):
    def __init__(self, dispatch: Dispatch, resolver: Resolver) -> None:
        super().__init__(dispatch, resolver)
        self._pumped = 0.0
        self._numbers = itertools.count(1)
        self._askers: dict[int, LeaseTicket] = {}  # who waits, or has not heard yet

    @property
    def _leases(self) -> Any:
        return self._dispatch.waiting.leases

    def _now(self) -> float:
        return self._dispatch.waiting.now()

    def _json(self, lease: Lease) -> dict[str, Any]:
        ahead = self.now() - self._now()
        return {
            "id": lease.id,
            "task": lease.task.id,
            "patterns": list(lease.patterns.lines),
            "since": rfc3339(lease.since + ahead),
            "until": rfc3339(lease.until + ahead),
            "ttl": lease.ttl,
            "reason": lease.reason,
            "requests": sorted(lease.requests),
        }

    @noted
    def all(self) -> list[dict[str, Any]]:
        return [self._json(lease) for lease in self._leases.all(self._now())]

    async def list(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        """All leases, and who waits for one. Takes nothing."""
        waiting = [
            {
                "task": t.task.id,
                "patterns": list(t.patterns.lines),
                "waiting": round(self._now() - t.since, 3),
                "for": t.blocker,
            }
            for t in self._leases.waiting()
        ]
        return {"leases": self.all(), "waiting": waiting}

    async def acquire(self, peer: Peer, params: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Yields {"waiting": …} while something is in the way, at last {"lease": …}.

        A client that goes away leaves the queue: the stream is closed then.
        """
        patterns = [_pattern(x) for x in p.texts(params, "patterns")]
        if not patterns:
            raise UsageError("a lease needs at least one pattern")
        known = self._guard.tasks.find(p.text(params, "task"))
        if known is not None:
            self._may_speak_for(peer, known)
        name = task_id(p.text(params, "task"))
        ttl = p.number(params, "ttl", 600, low=1, high=MAX_SECONDS)
        wait = p.number(params, "wait", 600, low=0, high=MAX_SECONDS)
        reason = (p.optional_text(params, "reason") or "")[:400]
        began = self._now()
        number = self._ask(name, patterns, float(ttl), reason)
        ticket = self._askers[number]
        task, said = ticket.task, ""
        try:
            while ticket.lease is None:
                if task.ended is not None:
                    raise BusyError(f"no lease on {', '.join(patterns)}: task {task.id!r} has ended")
                if ticket.blocker != said:
                    said = ticket.blocker
                    yield {"waiting": said}
                if self._now() - began >= wait:
                    raise BusyError(
                        f"no lease on {', '.join(patterns)}: after {wait} s it is still held by {said}",
                        "Try again, or ask for it: `fsguard lease request PATTERN --task ID`.",
                    )
                await trio.sleep(POLL_SECONDS)
                self._pump()
            yield {"lease": self._json(ticket.lease)}
        except BaseException:  # granted while it slept, perhaps, and nobody is there to hear of it
            self._gone(number)
            raise
        self._heard(number)

    @noted
    def _ask(self, name: str, patterns: Sequence[str], ttl: float, reason: str) -> int:
        task = self._guard.tasks.find(name) or self._task(name)
        task.ended = None
        number = next(self._numbers)
        self._askers[number] = self._leases.ask(task, patterns, ttl, reason, self._now())
        return number

    @noted
    def _heard(self, number: int) -> None:
        del self._askers[number]

    @noted
    def _gone(self, number: int) -> None:
        ticket = self._askers.pop(number)
        if ticket.lease is not None:
            self._leases.release(ticket.lease, self._now())
        self._leases.cancel(ticket, self._now())

    def forget_askers(self) -> None:
        """Those of a process that has ended: nobody can tell them, and they ask again."""
        for number in list(self._askers):
            self._gone(number)

    def _pump(self) -> None:
        """One of those who wait looks for all of them."""
        now = self._now()
        if now - self._pumped >= POLL_SECONDS:
            self._pumped = now
            self._pump_all()

    @noted
    def _pump_all(self) -> None:
        self._leases.pump(self._now())

    async def release(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        """By id, or all of a task; another task's only with `force`, and from outside of any task."""
        force = p.flag(params, "force")
        number, name = params.get("id"), p.optional_text(params, "task")
        if number is None and name is None:
            raise UsageError("which lease? name its id, or a task")
        if number is not None:
            lease = self._leases.find(p.number(params, "id", low=1), self._now())
            if lease is None:
                raise UsageError(f"there is no lease {number}", "`fsguard lease list` shows those there are.")
            found = [lease]
        else:
            found = [le for le in self._leases.all(self._now()) if le.task.id == name]
        for lease in found:
            if lease.task.id != name and not force and not self._is_own(peer, lease.task):
                raise RefusedError(
                    f"lease {lease.id} belongs to task {lease.task.id!r}",
                    "Name that task with --task, or take it with --force.",
                )
            self._may_speak_for(peer, lease.task)
            self._leases.release(lease, self._now())
        return {"released": [lease.id for lease in found]}

    def _is_own(self, peer: Peer, holder: Task) -> bool:
        own = self._caller(peer).task
        return own is not None and holder.below(own)

    async def request(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        """Ask the holders of what is in the way to let go: they are told, nothing is taken."""
        name = task_id(p.text(params, "task"))
        asking = self._guard.tasks.find(name)
        if asking is not None:
            self._may_speak_for(peer, asking)
        patterns = [_pattern(x) for x in p.texts(params, "patterns")]
        reason = (p.optional_text(params, "reason") or "")[:400]
        told = []
        for lease in self._leases.in_the_way(self._task(name), patterns, self._now()):
            lease.requests[name] = self._now()
            self._guard.tell.asked_for(lease, name, reason, self.now())
            told.append(self._json(lease))
        return {"told": told}


def _pattern(text: str) -> str:
    if not text or len(text) > 4096 or "\n" in text:
        raise UsageError("a pattern is a path or a glob, as in .gitignore")
    return text.lstrip("!")
