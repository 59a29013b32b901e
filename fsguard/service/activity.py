"""What goes on right now: the source of `fsguard top`, asked once a second.

So it costs little: the newest lines of the log, not all of it, and so many of
each list as a person can look at.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from fsguard.attribution.resolver import Resolver
from fsguard.control import params as p
from fsguard.control.server import Peer
from fsguard.core.history import Entry
from fsguard.core.model import CONFLICT
from fsguard.core.wording import rfc3339
from fsguard.dispatch import Dispatch
from fsguard.service.base import Part, entry_json, show, warning_json
from fsguard.service.leases import LeaseRequests
from fsguard.service.tasks import Tasks

__all__ = ["Activity"]

LOOK_BACK = 2_000
"""Lines of the log that are looked at."""
NOW_SECONDS = 10.0
"""What was done in this time counts as going on."""
MOST = 200
MOST_PATHS = 20
MOST_OPEN = 2_000
MOST_RECENT = 50


class _Doing:
    """Paths, each once, in the order in which they are to be shown."""

    def __init__(self) -> None:
        self.reading: dict[str, None] = {}
        self.writing: dict[str, None] = {}

    def as_json(self) -> dict[str, list[str]]:
        return {"reading": list(self.reading)[:MOST_PATHS], "writing": list(self.writing)[:MOST_PATHS]}


class Activity(Part):
    """:param status: facts that only the daemon knows."""

    def __init__(
        self,
        dispatch: Dispatch,
        resolver: Resolver,
        status: Callable[[], Mapping[str, Any]],
        tasks: Tasks,
        leases: LeaseRequests,
    ) -> None:
        super().__init__(dispatch, resolver)
        self._status = status
        self._tasks = tasks
        self._leases = leases

    async def activity(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        """What goes on now. Takes `limit`, the most of each list (default 200)."""
        now = time.time()
        self.settle()
        most = p.number(params, "limit", MOST, low=1, high=10_000)
        outbox = self._guard.outbox
        recent = list(self._guard.history.newest(limit=LOOK_BACK))
        held = self._open()
        doing, idle = self._doing(recent, held, now), _Doing()
        tasks = self._tasks.at_work(most)
        status = self._status()
        names = (
            "workspace",
            "mountpoint",
            "version",
            "pid",
            "uptime",
            "disabled",
            "memory_bytes",
            "cpu_seconds",
        )
        return {
            **{name: status.get(name) for name in names},
            "time": rfc3339(now),
            "policy": self._guard.policies.default,
            "pending": len(outbox.pending()),
            "warnings_total": outbox.total,
            "tasks_total": len(self._guard.tasks),
            "tasks": [{**task, **doing.get(task["task"], idle).as_json()} for task in tasks],
            "external": doing.get(None, idle).as_json(),
            "open": held[:most],
            "open_total": self._dispatch.open_total(),
            "contended": self._contended(recent, most),
            "queues": self._dispatch.waiting.queues(),
            "leases": self._leases.all(),
            "warnings": [warning_json(w) for w in list(outbox)[-most:]][::-1],
            "recent": [entry_json(e) for e in recent[:MOST_RECENT]],
        }

    def _open(self) -> list[dict[str, Any]]:
        return [
            {
                "task": f.actor.task.id if f.actor.task is not None else None,
                "pid": f.actor.process.pid,
                "command": f.actor.command.text,
                "path": show(path),
                "mode": ("r", "w", "rw", "?")[f.flags & os.O_ACCMODE],
            }
            for f in islice(self._dispatch.opened(), MOST_OPEN)
            for path in f.paths[:1]
        ]

    @staticmethod
    def _doing(recent: list[Entry], held: list[dict[str, Any]], now: float) -> dict[str | None, _Doing]:
        """What each task (None: no task) has open, and read and wrote in the last seconds."""
        found: dict[str | None, _Doing] = {}
        for f in held:
            doing = found.setdefault(f["task"], _Doing())
            if "r" in f["mode"]:
                doing.reading.setdefault(f["path"])
            if "w" in f["mode"]:
                doing.writing.setdefault(f["path"])
        for e in recent:
            if now - e.time > NOW_SECONDS:
                break
            doing = found.setdefault(e.task, _Doing())
            (doing.reading if e.op == "read" else doing.writing).setdefault(show(e.target or e.path))
        return found

    def _contended(self, recent: list[Entry], most: int) -> list[dict[str, Any]]:
        """Paths that two touched lately, one of them writing; the last touched first."""
        found: dict[bytes, dict[str, Any]] = {}
        for e in recent:
            for path in (e.path,) if e.target is None else (e.path, e.target):
                item = found.setdefault(path, {"time": e.time, "who": {}, "writers": {}})
                item["who"].setdefault(e.task)
                if e.op != "read":
                    item["writers"].setdefault(e.task)
        conflicts: dict[bytes, int] = {}
        for w in self._guard.outbox:
            if w.severity == CONFLICT:
                for path in islice(w.paths, MOST):
                    conflicts[path] = conflicts.get(path, 0) + 1
        chosen = [
            {
                "path": show(path),
                "time": rfc3339(item["time"]),
                "tasks": [t for t in item["who"] if t is not None],
                "writers": [t for t in item["writers"] if t is not None],
                "external": None in item["who"],
                "conflicts": conflicts.get(path, 0),
            }
            for path, item in found.items()
            if (len(item["who"]) > 1 and item["writers"]) or path in conflicts
        ]
        return chosen[:most]
