"""The tree of tasks, and the policies that hold for them."""

from __future__ import annotations

from collections import Counter
from heapq import nlargest
from typing import Any

from fsguard.control import params as p
from fsguard.control.server import Peer
from fsguard.core.model import Task
from fsguard.core.policy import POLICIES
from fsguard.core.wording import rfc3339
from fsguard.errors import RefusedError, UsageError
from fsguard.service.base import Part, show, warning_json, when

__all__ = ["Tasks"]

MAX_WAIT = 600.0  # as in the configuration


class Tasks(Part):
    def all(self) -> list[dict[str, Any]]:
        """Every task; what all of them share is counted once, there may be thousands."""
        pending = Counter(w.task for w in self._guard.outbox.pending())
        running = Counter(r.task.id for r in self._resolver.runs.values() if not r.ended)
        return [self._json(t, pending[t.id], running[t.id]) for t in self._guard.tasks]

    def at_work(self, most: int) -> list[dict[str, Any]]:
        """Those who run, then those who may again, then the ended; of each the youngest first."""
        pending = Counter(w.task for w in self._guard.outbox.pending())
        running = Counter(r.task.id for r in self._resolver.runs.values() if not r.ended)
        tasks = nlargest(
            most, self._guard.tasks, key=lambda t: (t.ended is None, running[t.id] > 0, t.started)
        )
        return [self._json(t, pending[t.id], running[t.id]) for t in tasks]

    def _one(self, task: Task) -> dict[str, Any]:
        running = sum(1 for r in self._resolver.runs.values() if r.task is task and not r.ended)
        return self._json(task, len(self._guard.outbox.pending(task.id)), running)

    @staticmethod
    def _json(task: Task, pending: int, running: int) -> dict[str, Any]:
        return {
            "task": task.id,
            "name": task.name,
            "intent": task.intent or task.doing,
            "parent": task.parent.id if task.parent is not None else None,
            "children": sorted(task.children),
            "state": "ended" if task.ended is not None else "running" if running else "idle",
            "started": rfc3339(task.started),
            "last_seen": rfc3339(task.last_seen),
            "ended": when(task.ended),
            "runs": task.runs,
            "running": running,
            "reads": task.reads,
            "writes": task.writes,
            "pending": pending,
        }

    async def task_list(self, peer: Peer, params: dict[str, Any]) -> list[dict[str, Any]]:
        """Every task. Takes nothing."""
        return self.all()

    async def task_show(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        """One `task`, with the paths that it read and others changed since."""
        task = self._known(p.text(params, "task"))
        stale = [show(x) for x in self._guard.stale_reads(task)]
        return {**self._one(task), "stale_reads": stale}

    async def task_end(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        """`task` is over; what its parent is told of it."""
        task = self._known(p.text(params, "task"))
        self._may_speak_for(peer, task)
        self._resolver.announced.drop(task)
        told = self._guard.task_ended(task, self.now())
        return {"task": task.id, "told": [warning_json(told)] if told is not None else []}

    async def policy_get(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        """The policies in force. Takes nothing."""
        policies = self._guard.policies
        paths = [{"pattern": k, "policy": v} for k, v in policies.paths.items()]
        return {"default": policies.default, "paths": paths, "tasks": dict(policies.tasks)}

    async def policy_set(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        """Set `policy` for all, for the pattern `path`, or for `task`; from outside of any task."""
        policy = p.text(params, "policy")
        if policy not in POLICIES:
            raise UsageError(f"a policy is one of {', '.join(POLICIES)}, not {policy!r}")
        task, path = p.optional_text(params, "task"), p.optional_text(params, "path")
        self._outside_of_tasks(peer)
        self._guard.policies.set(policy, path=path, task=task)
        return await self.policy_get(peer, {})

    async def turns_set(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        """How long an open waits for its turn at most, from the next one on."""
        wait = params.get("wait")
        if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait <= MAX_WAIT:
            raise UsageError(f"`wait` is a number of seconds from 0 to {MAX_WAIT:g}")
        self._outside_of_tasks(peer)
        self._dispatch.waiting.seconds = float(wait)
        return {"wait": float(wait)}

    def _outside_of_tasks(self, peer: Peer) -> None:
        own = self._caller(peer).task
        if own is not None:
            raise RefusedError(
                f"this process works for task {own.id!r}, which the policy is there for",
                "Set policies outside of any task.",
            )
