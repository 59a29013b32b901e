"""Who did what: the log, one path's authors and readers, and what tools tell us themselves."""

from __future__ import annotations

import os
from typing import Any

from fsguard.control import params as p
from fsguard.control.server import Peer
from fsguard.core.guard import Change as Edit
from fsguard.core.model import Act, Actor, Command, Task
from fsguard.core.wording import rfc3339
from fsguard.errors import UsageError
from fsguard.service.base import Part, entry_json, path_of, show, task_id, warning_json, when

__all__ = ["Records"]

CLAIM_SECONDS = 10.0


class Records(Part):
    async def log(self, peer: Peer, params: dict[str, Any]) -> list[dict[str, Any]]:
        """What was done, newest first, at most `limit`; of `path` only, by `task` only."""
        path = p.optional_text(params, "path")
        entries = self._guard.history.newest(
            path_of(path) if path is not None else None,
            p.optional_text(params, "task"),
            p.number(params, "limit", 1000, high=1_000_000),
        )
        return [entry_json(e) for e in entries]

    async def who(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        """Writers, readers and open handles of `path`."""
        path = path_of(p.text(params, "path"))
        state = self._guard.ledger.find(path)
        writers = [] if state is None else list(reversed(state.writers))
        looks = {} if state is None else state.looks
        version = 0 if state is None else state.version
        return {
            "path": show(path),
            "version": version,
            "absent": state is not None and state.absent,
            "writers": [
                {
                    "task": w.author,
                    "pid": w.process.pid,
                    "command": w.command.text,
                    "time": rfc3339(w.time),
                    "version": w.version,
                    "how": w.act.value,
                    "ended": when(w.task.ended) if w.task is not None else None,
                }
                for w in writers
            ],
            "readers": [
                {
                    "task": t.id,
                    "time": rfc3339(look.time),
                    "version": look.version,
                    "partial": look.partial,
                    "current": look.version >= version,
                }
                for t, look in looks.items()
                if not look.blind and self._guard.tasks.find(t.id) is t
            ],
            "open": [
                {
                    "task": f.actor.task.id if f.actor.task is not None else None,
                    "pid": f.actor.process.pid,
                    "command": f.actor.command.text,
                    "mode": ("r", "w", "rw", "?")[f.flags & os.O_ACCMODE],
                }
                for f in self._dispatch.opened()
                if path in f.paths
            ],
        }

    async def check(self, peer: Peer, params: dict[str, Any]) -> list[dict[str, Any]]:
        """Would a write by `task` to each of `paths` now be stale?"""
        asked = task_id(p.text(params, "task"))
        # A question makes no task: one that was never seen is judged as one that never read.
        task = self._guard.tasks.find(asked) or Task(asked)
        result = []
        for name in p.texts(params, "paths"):
            found = self._guard.check(task, path_of(name), self.now())
            newest = found[0].writes[0] if found is not None and found[0].writes else None
            result.append(
                {
                    "path": name,
                    "stale": found is not None,
                    "kind": str(found[0].kind) if found is not None else None,
                    "message": found[1] if found is not None else None,
                    "sibling": newest.author if newest is not None else None,
                    "sibling_command": newest.command.text if newest is not None else None,
                    "sibling_time": when(newest.time) if newest is not None else None,
                    "read_time": when(found[0].read_time) if found is not None else None,
                }
            )
        return result

    async def note(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        """`task` did `what` ("read" or "write") to `path`; a read may be `partial`."""
        what, path = p.text(params, "what"), path_of(p.text(params, "path"))
        if what not in ("read", "write"):
            raise UsageError(f"one notes a read or a write, not {what!r}")
        known = self._guard.tasks.find(p.text(params, "task"))
        if known is not None:
            self._may_speak_for(peer, known)
        task = known or self._task(task_id(p.text(params, "task")))
        caller, now = self._caller(peer), self.now()
        command = Command(f"note:{task.id}:{now}", f"note {what} {show(path)}", task, now, ended=now)
        actor = Actor(task, caller.process, command)
        if what == "read":
            self._guard.looked(actor, [path], now, p.flag(params, "partial"))
            return {"warnings": []}
        edit = Edit(actor)
        state = self._guard.ledger.find(path)
        last = state.writers[-1] if state is not None and state.writers else None
        if last is not None and last.task is None and now - last.time < CLAIM_SECONDS:
            # The write itself was seen, by a process that no task was known for.
            last.task, last.command = task, command
        self._guard.intend(edit, path, Act.TRUNCATE, now)
        self._guard.done(edit, path, Act.TRUNCATE, now)
        return {"warnings": [warning_json(w) for w, _ in edit.raised]}
