"""Tool calls of agents: announced before and after, by their hooks."""

from __future__ import annotations

from typing import Any

from fsguard.attribution.resolver import Resolver
from fsguard.below import PathSource
from fsguard.control import params as p
from fsguard.control.server import Peer
from fsguard.core.model import Command, Kept, Process, Task
from fsguard.dispatch import Dispatch
from fsguard.errors import UsageError
from fsguard.keeping import StoreKeeper
from fsguard.service.base import Part, path_of, show, task_id, warning_json

__all__ = ["Tools"]


class Tools(Part):
    """:param root: descriptor of the backing directory."""

    def __init__(self, dispatch: Dispatch, resolver: Resolver, keeper: StoreKeeper | None, root: int) -> None:
        super().__init__(dispatch, resolver)
        self._keeper = keeper
        self._root = root
        self.diff = self._diff  # see `taping.note`

    async def task_start(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        """Make `task` known, below `parent`, with its role `name` and its `intent`; it has not ended.

        `doing` says what its latest call is for: it stands in where no intent is known. `idle`: none of
        its announced calls is under way any more (an agent tells us nothing of a call that its user denied).
        """
        task = self._begin(peer, params)
        if p.flag(params, "idle"):
            self._resolver.announced.drop(task)
        return {"task": task.id, "parent": task.parent.id if task.parent is not None else None}

    def _begin(self, peer: Peer, params: dict[str, Any]) -> Task:
        """The task that is named, with its parent, role and intent."""
        name = task_id(p.text(params, "task"))
        known = self._guard.tasks.find(name)
        if known is not None:
            self._may_speak_for(peer, known)
        task = known or self._task(name)
        task.ended = None
        parent, own = p.optional_text(params, "parent"), self._caller(peer).task
        above = self._guard.tasks.find(parent) if parent else None
        if above is not None and task.parent is not above:
            self._may_speak_for(peer, above)
        if parent and parent != name:
            self._guard.tasks.adopt(task, self._task(task_id(parent)))
        if own is not None and own is not task:
            # The agent itself runs as a task: what it announces is below that.
            top = task
            while top.parent is not None:
                top = top.parent
            self._guard.tasks.adopt(top, own)
        role, intent = p.optional_text(params, "name"), p.optional_text(params, "intent")
        doing = p.optional_text(params, "doing")
        # A subagent's calls may not say what its start did: of a role, the first is kept.
        task.name = task.name or (role or "")[:200] or None
        task.intent = (intent or task.intent or "")[:400] or None
        task.doing = (doing or task.doing or "")[:400] or None
        return task

    async def tool_begin(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        """A file tool is about to read or write `path`, in process `pid` (an ancestor of the caller)."""
        what, path = p.text(params, "what"), path_of(p.text(params, "path"))
        if what not in ("read", "write"):
            raise UsageError(f"a tool reads or writes, not {what!r}")
        name = p.text(params, "tool_use_id")[:200]
        task = self._begin(peer, params)
        pid = p.number(params, "pid", 0)
        process = self._resolver.actor(pid or peer.pid).process
        if pid and not self._caller(peer).process.below(process):
            process = self._caller(peer).process  # not an ancestor: not the caller's to speak for
        # Judged by what this very call reads: other calls, of other subagents, run in the same process.
        process = Process(process.pid, process.start, process.name, process)
        now = self.now()
        command = Command(
            f"tool:{name}", f"{what} {show(path)}", task, now, partial=p.flag(params, "partial")
        )
        call = self._resolver.announced.begin(name, task, process, command, path, what == "write", now)
        if what == "read":
            return {"stale": False, "refused": False, "message": None}
        found = self._guard.check(task, path, now)
        base = self._guard.base_of(call.actor, path) if found is not None else None
        refused = found is not None and self._guard.policies.of(path, task.id) == "block"
        return {
            "stale": found is not None,
            "refused": refused,
            "message": found[1] + self.diff(path, base) if found is not None else None,
        }

    def _diff(self, path: bytes, base: Kept | None) -> str:
        if self._keeper is None:
            return ""
        try:
            with PathSource(self._root, path) as file:
                return self._keeper.diff(path, base, file)
        except OSError:
            return ""  # nothing is there

    async def tool_end(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        """The call `tool_use_id` is over; what its task is to be told, which counts as delivered."""
        name = p.text(params, "tool_use_id")[:200]
        call = self._resolver.announced.get(name)
        if call is None:
            return {"warnings": []}
        self._may_speak_for(peer, call.task)
        self._resolver.announced.end(name)
        now = self.now()
        call.actor.command.ended = now
        self._guard.settle(now, self._resolver.gone, call.actor.command)
        pending = self._guard.outbox.pending(call.task.id)
        self._guard.outbox.deliver(pending)
        return {"warnings": [warning_json(w) for w in pending]}
