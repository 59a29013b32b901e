"""`fsguard run`: beginning and ending a command of a task."""

from __future__ import annotations

import itertools
import os
from typing import Any

import trio

from fsguard.attribution.resolver import Resolver, Run
from fsguard.control import params as p
from fsguard.control.server import Peer
from fsguard.core.model import Command, Footprint, Warning
from fsguard.dispatch import Dispatch
from fsguard.errors import RefusedError, UsageError
from fsguard.service.base import Part, argv_text, footprint_json, noted, task_id, warning_json

__all__ = ["Runs"]

RELEASE_SECONDS = 2.0
# Who files warnings by time (a log beside a job's own) must be able to tell a
# command from the next one: a command that was warned ends this much later.
APART_SECONDS = 0.03


class Runs(Part):
    def __init__(self, dispatch: Dispatch, resolver: Resolver) -> None:
        super().__init__(dispatch, resolver)
        self._numbers = itertools.count(1)
        self._began: dict[str, Peer] = {}
        self._ending: set[str] = set()
        self.removed = _removed  # see `taping.note`

    async def run_begin(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        """Process `pid`, a child of the caller, is the command `argv` of `task`, in control group `cgroup`.

        `token` names the run; `parent`, `name` and `intent` are the task's; with `footprint` it is recorded
        what the command does.
        """
        token, name = p.text(params, "token"), task_id(p.text(params, "task"))
        pid = p.number(params, "pid", low=1)
        argv = p.texts(params, "argv")
        if token in self._resolver.runs:
            raise UsageError("this run is already registered")
        start = self._resolver.process_start(pid)
        if start is None or self._resolver.parent_of(pid) not in (peer.pid, None):
            raise RefusedError(f"process {pid} is not a child of the caller")
        now = self.now()
        caller = self._caller(peer).task
        parent_name = p.optional_text(params, "parent")
        known = self._guard.tasks.find(name)
        if known is not None:
            self._may_speak_for(peer, known)
        above = self._guard.tasks.find(parent_name) if parent_name else None
        if above is not None and not (known is not None and known.parent is above):
            self._may_speak_for(peer, above)  # its turns and leases would be shared
        parent = self._task(task_id(parent_name)) if parent_name else caller
        task = self._task(name)
        made = known is None and caller is not None
        if parent is not None and parent is not task and not self._guard.tasks.adopt(task, parent):
            over = task.parent.id if task.parent is not None else name
            raise UsageError(f"task {name!r} cannot become a child of {parent.id!r}: it is below {over!r}")
        task.name = p.optional_text(params, "name") or task.name
        task.intent = (p.optional_text(params, "intent") or task.intent or "")[:400] or None
        task.ended = None
        task.runs += 1
        command = Command(token, argv_text(argv), task, now)
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
        """The command of run `token` has ended: its warnings, which count as delivered, and its footprint."""
        token = p.text(params, "token")
        run = self._resolver.runs.get(token)
        began = self._began.get(token)
        if run is None or began is None or token in self._ending:
            raise UsageError("there is no such run")
        if (began.pid, began.uid) != (peer.pid, peer.uid):
            raise RefusedError("only the process that began a run may end it")
        self._ending.add(token)
        try:
            waited = await self._released(run)
            pending = self._guard.outbox.pending(run.task.id)
            latest = max((w.time for w in pending if w.run == token), default=0.0)
            await trio.sleep(max(0.0, min(APART_SECONDS, latest + APART_SECONDS - self.now())))
            return self._end(token, waited)
        finally:
            self._ending.discard(token)

    @noted
    def _end(self, token: str, waited: float) -> dict[str, Any]:
        self._began.pop(token, None)
        run, now = self._resolver.runs[token], self.now()
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
            "footprint": footprint_json(run.command.footprint),
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

    @noted
    def forget_runs(self) -> None:
        """Drop the runs that have ended and left no process behind."""
        for run in list(self._resolver.runs.values()):
            if run.ended and (run.cgroup is None or self.removed(run.cgroup)):
                self._resolver.forget_run(run)
            elif not run.ended and self._resolver.process_start(run.pid) != run.start:
                starter = self._began.get(run.token)
                if starter is None or self._resolver.process_start(starter.pid) is None:
                    run.ended, run.command.ended = True, self.now()
                    self._began.pop(run.token, None)


def _removed(cgroup: str) -> bool:
    """True when the control group is gone, now that no process is left in it."""
    path = os.path.normpath(cgroup)
    if not path.startswith("/sys/fs/cgroup/") or not os.path.basename(path).startswith("fsguard-"):
        return not os.path.isdir(cgroup)  # named by the caller: not ours to remove
    try:
        os.rmdir(cgroup)
    except FileNotFoundError:
        return True
    except OSError:
        return False  # background processes live on in it
    return True
