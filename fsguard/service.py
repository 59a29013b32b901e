"""What the control socket answers: the guard's records as JSON, and changes to them.

A caller is who the kernel says it is (SO_PEERCRED). One that works for a task
itself speaks for that task and those below it, and for no other: it may read
everything, but not end, acknowledge or note on behalf of a sibling.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import trio

from fsguard.attribution.resolver import Resolver, Run
from fsguard.control import params as p
from fsguard.control.server import Handler, Peer
from fsguard.core.guard import Change as Edit
from fsguard.core.model import Act, Actor, Command, Footprint, Task, Warning
from fsguard.core.policy import POLICIES
from fsguard.core.wording import rfc3339
from fsguard.dispatch import Dispatch
from fsguard.errors import RefusedError, UsageError

__all__ = ["Service", "warning_json"]

RELEASE_SECONDS = 2.0
# Who files warnings by time (a log beside a job's own) must be able to tell a
# command from the next one: a command that was warned ends this much later.
APART_SECONDS = 0.03
MAX_TASK_ID = 200
CLAIM_SECONDS = 10.0


def show(path: bytes) -> str:
    """A path for JSON: bytes that are not UTF-8 become lone surrogates (PEP 383)."""
    return path.decode("utf-8", "surrogateescape")


def warning_json(w: Warning) -> dict[str, Any]:
    """The stable form of a warning."""
    return {
        "id": w.id,
        "time": rfc3339(w.time),
        "kind": str(w.kind),
        "severity": w.severity,
        "task": w.task,
        "path": show(w.path),
        "pid": w.pid,
        "command": w.command,
        "sibling": w.sibling,
        "sibling_command": w.sibling_command,
        "sibling_time": _when(w.sibling_time),
        "read_time": _when(w.read_time),
        "count": w.count,
        "paths": [show(x) for x in w.paths],
        "message": w.message,
    }


def _when(t: float | None) -> str | None:
    return rfc3339(t) if t is not None else None


class Service:
    """:param status: facts that only the daemon knows, for `status`."""

    def __init__(
        self, dispatch: Dispatch, resolver: Resolver, status: Callable[[], Mapping[str, Any]]
    ) -> None:
        self._dispatch = dispatch
        self._guard = dispatch.guard
        self._resolver = resolver
        self._status = status
        self._numbers = itertools.count(1)
        self._began: dict[str, Peer] = {}

    def handlers(self) -> dict[str, Handler]:
        return {
            "status": self.status,
            "run.begin": self.run_begin,
            "run.end": self.run_end,
            "warnings": self.warnings,
            "warnings.follow": self.follow,
            "log": self.log,
            "who": self.who,
            "check": self.check,
            "note": self.note,
            "task.list": self.task_list,
            "task.show": self.task_show,
            "task.end": self.task_end,
            "policy.get": self.policy_get,
            "policy.set": self.policy_set,
        }

    # -- who asks -------------------------------------------------------------

    def _caller(self, peer: Peer) -> Actor:
        return self._resolver.actor(peer.pid)

    def _may_speak_for(self, peer: Peer, task: Task | None) -> None:
        own = self._caller(peer).task
        if own is None or (task is not None and task.below(own)):
            return
        other = task.id if task is not None else "all tasks"
        raise RefusedError(
            f"this process works for task {own.id!r} and cannot speak for {other!r}",
            "Run the command outside of any task, or for your own.",
        )

    def _task(self, name: str) -> Task:
        return self._guard.tasks.get(name, time.time(), self._guard.ledger.version)

    def _known(self, name: str) -> Task:
        task = self._guard.tasks.find(name)
        if task is None:
            raise UsageError(f"there is no task {name!r}", "`fsguard task list` shows those there are.")
        return task

    # -- runs -----------------------------------------------------------------

    async def run_begin(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        token, name = p.text(params, "token"), _task_id(p.text(params, "task"))
        pid = p.number(params, "pid", low=1)
        argv = p.texts(params, "argv")
        if token in self._resolver.runs:
            raise UsageError("this run is already registered")
        start = self._resolver.process_start(pid)
        if start is None or self._resolver.parent_of(pid) not in (peer.pid, None):
            raise RefusedError(f"process {pid} is not a child of the caller")
        now = time.time()
        caller = self._caller(peer).task
        parent_name = p.optional_text(params, "parent")
        known = self._guard.tasks.find(name)
        if known is not None:
            self._may_speak_for(peer, known)
        parent = self._task(_task_id(parent_name)) if parent_name else caller
        task = self._task(name)
        made = known is None and caller is not None
        if parent is not None and parent is not task and not self._guard.tasks.adopt(task, parent):
            above = task.parent.id if task.parent is not None else name
            raise UsageError(f"task {name!r} cannot become a child of {parent.id!r}: it is below {above!r}")
        task.name = p.optional_text(params, "name") or task.name
        task.ended = None
        task.runs += 1
        command = Command(token, _argv_text(argv), task, now)
        if p.flag(params, "footprint"):
            command.footprint = Footprint()
        run = Run(
            token=token,
            number=next(self._numbers),
            task=task,
            command=command,
            pid=pid,
            start=start,
            cgroup=p.optional_text(params, "cgroup"),
            made_task=made,
        )
        self._resolver.register(run)
        self._began[token] = peer
        return {"task": task.id, "parent": task.parent.id if task.parent is not None else None}

    async def run_end(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        token = p.text(params, "token")
        run = self._resolver.runs.get(token)
        began = self._began.pop(token, None)
        if run is None or began is None:
            raise UsageError("there is no such run")
        if (began.pid, began.uid) != (peer.pid, peer.uid):
            self._began[token] = began
            raise RefusedError("only the process that began a run may end it")
        waited = await self._released(run)
        latest = max((w.time for w in self._guard.outbox.pending(run.task.id) if w.run == token), default=0.0)
        await trio.sleep(max(0.0, min(APART_SECONDS, latest + APART_SECONDS - time.time())))
        now = time.time()
        run.ended, run.command.ended = True, now
        self._guard.settle(now, self._resolver.gone, run.command)
        told = None
        if run.made_task and not any(
            r.task is run.task and not r.ended for r in self._resolver.runs.values()
        ):
            told = self._guard.task_ended(run.task, now)
        warnings = self._of_run(run)
        self._guard.outbox.deliver(warnings)
        result = {
            "warnings": [warning_json(w) for w in warnings],
            "footprint": _footprint(run.command.footprint),
            "waited_ms": round(waited * 1000),
            "told_parent": warning_json(told) if told is not None else None,
        }
        run.command.footprint = None
        return result

    def _of_run(self, run: Run) -> list[Warning]:
        """What is pending for its task, but what belongs to another run that goes on."""
        running = {r.token for r in self._resolver.runs.values() if not r.ended}
        return [
            w for w in self._guard.outbox.pending(run.task.id) if w.run == run.token or w.run not in running
        ]

    async def _released(self, run: Run) -> float:
        """Wait until the handles of the command's dead processes are released; seconds waited.

        RELEASE comes after close(2) has returned. Handles that a living
        background process holds are not waited for.
        """
        began = trio.current_time()
        while trio.current_time() - began < RELEASE_SECONDS:
            if not any(
                f.actor.command is run.command and self._resolver.gone(f.actor)
                for f in self._dispatch.open_files
            ):
                break
            await trio.sleep(0.002)
        return trio.current_time() - began

    def forget_runs(self) -> None:
        """Drop the runs that have ended and left no process behind."""
        for run in list(self._resolver.runs.values()):
            if run.ended and (run.cgroup is None or not os.path.isdir(run.cgroup)):
                self._resolver.forget_run(run)
            elif not run.ended and self._resolver.process_start(run.pid) != run.start:
                starter = self._began.get(run.token)
                if starter is None or self._resolver.process_start(starter.pid) is None:
                    run.ended, run.command.ended = True, time.time()
                    self._began.pop(run.token, None)

    # -- warnings -------------------------------------------------------------

    async def warnings(self, peer: Peer, params: dict[str, Any]) -> list[dict[str, Any]]:
        name = p.optional_text(params, "task")
        outbox = self._guard.outbox
        self._guard.settle(time.time(), self._resolver.gone)
        if p.flag(params, "all"):
            found = [w for w in outbox if name is None or w.task == name]
        else:
            found = outbox.pending(name)
        if p.flag(params, "ack"):
            self._may_speak_for(peer, self._known(name) if name is not None else None)
            outbox.deliver(found)
        return [warning_json(w) for w in found]

    async def follow(self, peer: Peer, params: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        name = p.optional_text(params, "task")
        ack = p.flag(params, "ack")
        if ack:
            self._may_speak_for(peer, self._known(name) if name is not None else None)
        send, receive = trio.open_memory_channel[Warning](10_000)

        def listener(warning: Warning) -> None:
            if name is None or warning.task == name:
                try:
                    send.send_nowait(warning)
                except trio.WouldBlock:
                    pass  # a reader that slow reads the rest with `fsguard warnings`

        outbox = self._guard.outbox
        outbox.listeners.add(listener)
        try:
            for w in outbox.pending(name):
                if ack:
                    w.delivered = True
                yield warning_json(w)
            async for w in receive:
                if w.withdrawn:
                    continue
                if ack:
                    w.delivered = True
                yield warning_json(w)
        finally:
            outbox.listeners.discard(listener)

    # -- records --------------------------------------------------------------

    async def log(self, peer: Peer, params: dict[str, Any]) -> list[dict[str, Any]]:
        path = p.optional_text(params, "path")
        entries = self._guard.history.newest(
            _path(path) if path is not None else None,
            p.optional_text(params, "task"),
            p.number(params, "limit", 1000, high=1_000_000),
        )
        result = []
        for e in entries:
            item: dict[str, Any] = {
                "time": rfc3339(e.time),
                "op": e.op,
                "path": show(e.path),
                "task": e.task,
                "pid": e.pid,
                "command": e.command,
            }
            if e.target is not None:
                item["target"] = show(e.target)
            result.append(item)
        return result

    async def who(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        path = _path(p.text(params, "path"))
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
                    "ended": _when(w.task.ended) if w.task is not None else None,
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
                if not look.blind
            ],
            "open": [
                {
                    "task": f.actor.task.id if f.actor.task is not None else None,
                    "pid": f.actor.process.pid,
                    "command": f.actor.command.text,
                    "mode": ("r", "w", "rw", "?")[f.flags & os.O_ACCMODE],
                }
                for f in self._dispatch.open_files
                if f.file is not None and path in f.file.paths()
            ],
        }

    async def check(self, peer: Peer, params: dict[str, Any]) -> list[dict[str, Any]]:
        task = self._task(_task_id(p.text(params, "task")))
        result = []
        for name in p.texts(params, "paths"):
            found = self._guard.check(task, _path(name))
            newest = found[0].writes[0] if found is not None and found[0].writes else None
            result.append(
                {
                    "path": name,
                    "stale": found is not None,
                    "kind": str(found[0].kind) if found is not None else None,
                    "message": found[1] if found is not None else None,
                    "sibling": newest.author if newest is not None else None,
                    "sibling_command": newest.command.text if newest is not None else None,
                    "sibling_time": _when(newest.time) if newest is not None else None,
                    "read_time": _when(found[0].read_time) if found is not None else None,
                }
            )
        return result

    async def note(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        what, path = p.text(params, "what"), _path(p.text(params, "path"))
        if what not in ("read", "write"):
            raise UsageError(f"one notes a read or a write, not {what!r}")
        known = self._guard.tasks.find(p.text(params, "task"))
        if known is not None:
            self._may_speak_for(peer, known)
        task = known or self._task(_task_id(p.text(params, "task")))
        caller, now = self._caller(peer), time.time()
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

    # -- tasks ----------------------------------------------------------------

    def _task_json(self, task: Task) -> dict[str, Any]:
        running = sum(1 for r in self._resolver.runs.values() if r.task is task and not r.ended)
        return {
            "task": task.id,
            "name": task.name,
            "parent": task.parent.id if task.parent is not None else None,
            "children": sorted(task.children),
            "state": "ended" if task.ended is not None else "running" if running else "idle",
            "started": rfc3339(task.started),
            "last_seen": rfc3339(task.last_seen),
            "ended": _when(task.ended),
            "runs": task.runs,
            "running": running,
            "reads": task.reads,
            "writes": task.writes,
            "pending": len(self._guard.outbox.pending(task.id)),
        }

    async def task_list(self, peer: Peer, params: dict[str, Any]) -> list[dict[str, Any]]:
        return [self._task_json(t) for t in self._guard.tasks]

    async def task_show(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        task = self._known(p.text(params, "task"))
        stale = [show(x) for x in self._guard.stale_reads(task)]
        return {**self._task_json(task), "stale_reads": stale}

    async def task_end(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        task = self._known(p.text(params, "task"))
        self._may_speak_for(peer, task)
        told = self._guard.task_ended(task, time.time())
        return {"task": task.id, "told": [warning_json(told)] if told is not None else []}

    # -- policy and status ----------------------------------------------------

    async def policy_get(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        policies = self._guard.policies
        paths = [{"pattern": k, "policy": v} for k, v in policies.paths.items()]
        return {"default": policies.default, "paths": paths, "tasks": dict(policies.tasks)}

    async def policy_set(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        policy = p.text(params, "policy")
        if policy not in POLICIES:
            raise UsageError(f"a policy is one of {', '.join(POLICIES)}, not {policy!r}")
        task, path = p.optional_text(params, "task"), p.optional_text(params, "path")
        own = self._caller(peer).task
        if own is not None:
            raise RefusedError(
                f"this process works for task {own.id!r}, which the policy is there for",
                "Set policies outside of any task.",
            )
        self._guard.policies.set(policy, path=path, task=task)
        return await self.policy_get(peer, {})

    async def status(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        guard = self._guard
        return {
            **self._status(),
            "policy": guard.policies.default,
            "attribution": dict(self._resolver.means),
            "tasks": [self._task_json(t) for t in guard.tasks],
            "open_handles": len(self._dispatch.open_files),
            "pending": len(guard.outbox.pending()),
            "warnings_total": guard.outbox.total,
            "paths_known": len(guard.ledger),
            "queues": self._dispatch.waiting.queues(),
        }


def _task_id(name: str) -> str:
    if len(name) > MAX_TASK_ID:
        raise UsageError(f"a task ID has at most {MAX_TASK_ID} characters")
    if not name.isprintable():
        raise UsageError("a task ID has printable characters only")
    return name


def _path(text: str) -> bytes:
    path = text.encode("utf-8", "surrogateescape")
    parts = path.split(b"/")
    if path.startswith(b"/") or b".." in parts:
        raise UsageError("paths are relative to the workspace")
    return b"/".join(x for x in parts if x not in (b"", b"."))


def _argv_text(argv: list[str]) -> str:
    import shlex

    return shlex.join(argv[:64])[:400]


def _footprint(footprint: Footprint | None) -> dict[str, Any] | None:
    if footprint is None:
        return None
    return {
        "read": [show(x) for x in footprint.read],
        "written": [show(x) for x in footprint.written],
        "created": [show(x) for x in footprint.created],
        "deleted": [show(x) for x in footprint.deleted],
        "renamed": [[show(a), show(b)] for a, b in footprint.renamed],
    }
