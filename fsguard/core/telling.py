"""Putting warnings on record: who is told what, how severe it is, and what it does.

Sentences are made by functions of a module with their arguments bound, no closures: a
warning that may still grow goes to the next program (`fsguard restart`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from fsguard.core import wording
from fsguard.core.leases import Lease
from fsguard.core.model import (
    CONFLICT,
    NOTE,
    Act,
    Actor,
    Command,
    Kept,
    Kind,
    PathState,
    Process,
    Task,
    Warning,
    Write,
)
from fsguard.core.outbox import Outbox
from fsguard.core.policy import Patterns, Policies
from fsguard.core.rules import Finding

__all__ = ["Probe", "Teller"]


class Probe(Protocol):
    """Facts that only the outside knows; asked only when a warning is due."""

    def self_locking(self, path: bytes, file: object, act: Act) -> bool:
        """True when the programs that use this file lock it for themselves."""

    def git_ignored(self, path: bytes) -> bool:
        """True when the repository's own ignore files name the path."""


class Teller:
    """Makes warnings out of findings and puts them into the outbox."""

    def __init__(self, outbox: Outbox, probe: Probe, policies: Policies, ignored: Patterns) -> None:
        self._outbox = outbox
        self._probe = probe
        self._policies = policies
        self._ignored = ignored

    def severity(self, finding: Finding, path: bytes) -> str:
        """What the repository's own ignore files name gives notes at most."""
        severity = finding.kind.severity
        return NOTE if severity == CONFLICT and self._probe.git_ignored(path) else severity

    def found(
        self,
        state: PathState,
        actor: Actor,
        finding: Finding,
        now: float,
        waited: float | None = None,
        link: bool = False,
        late: bool = False,
    ) -> Warning:
        """What a rule found, to the task that is about to do it; `late`: too late to refuse it."""
        task = actor.task
        assert task is not None
        severity = self.severity(finding, state.path)
        refused = severity == CONFLICT and not late and self._policies.of(state.path, task.id) == "block"
        newest = finding.writes[0] if finding.writes else None
        path, text = state.path, actor.command.text
        return self._outbox.add(
            kind=finding.kind,
            severity=severity,
            task=task.id,
            pid=actor.process.pid,
            command=actor.command,
            sibling=newest.author if newest is not None else None,
            sibling_command=_command_of(newest),
            sibling_time=newest.time if newest is not None else None,
            read_time=finding.read_time,
            path=path,
            now=now,
            message=partial(
                wording.sentence, finding, path, text, refused, waited=waited, link=link, now=now
            ),
            refused=refused,
        )

    def collision(
        self, state: PathState, actor: Actor, act: Act, holder: Write, now: float, waited: float | None
    ) -> Warning:
        """`concurrent_write`, to both; returns what the second one is told.

        Once: while two write on at the same time, each write is not news.
        """
        assert actor.task is not None
        look, path = state.looks.get(actor.task), state.path
        said = self._outbox.recent(Kind.CONCURRENT_WRITE, actor.task.id, holder.author, path, now)
        if said is not None and self._policies.of(path, actor.task.id) != "block":
            return said
        read_time = look.time if look is not None else None
        warning = self.found(
            state, actor, Finding(Kind.CONCURRENT_WRITE, act, (holder,), read_time), now, waited
        )
        task = holder.task
        if warning.refused or task is None or self._policies.of(path, task.id) == "off":
            return warning
        mine = Write(actor.task, actor.process, actor.command, act, now, 0, 0)
        self._outbox.add(
            kind=Kind.CONCURRENT_WRITE,
            severity=warning.severity,
            task=task.id,
            pid=holder.process.pid,
            command=holder.command,
            sibling=actor.task.id,
            sibling_command=actor.command.text,
            sibling_time=now,
            read_time=None,
            path=path,
            now=now,
            message=partial(wording.collided, path, mine, holder),
        )
        return warning

    def victim(
        self,
        state: PathState,
        act: Write,
        actor: Actor,
        victim: Write,
        now: float,
        deleted: bool,
        kept: Kept | None = None,
    ) -> Warning | None:
        """`reverted`, to the one whose work was undone."""
        task = victim.task
        if task is None or actor.task is None or actor.disabled:
            return None
        if self._policies.of(state.path, task.id) == "off":
            return None
        path = state.path
        told = Write(act.task, act.process, act.command, act.act, act.time, act.version, act.first)
        severity = NOTE if self._probe.git_ignored(path) else CONFLICT
        look = state.looks.get(task)
        warning = self._outbox.add(
            kind=Kind.REVERTED,
            severity=severity,
            task=task.id,
            pid=victim.process.pid,
            command=victim.command,
            sibling=actor.task.id,
            sibling_command=act.command.text,
            sibling_time=act.time,
            read_time=look.time if look is not None else None,
            path=path,
            now=now,
            message=partial(wording.reverted, path, told, victim, deleted),
            group=act.command,
        )
        if kept is not None and not warning.tail:
            warning.tail = wording.remedy(path, kept)
        return warning

    def waited(self, actor: Actor, path: bytes, holder: Write, seconds: float, now: float) -> None:
        """A note: `actor`'s open waited for `holder`'s turn."""
        assert actor.task is not None
        text = actor.command.text
        self._note(
            actor.task,
            actor.process,
            actor.command,
            holder,
            path,
            partial(wording.waited, path, text, holder, seconds),
            now,
        )

    def leased(
        self, actor: Actor, path: bytes, lease: Lease, since: float, until: float, waited: float, now: float
    ) -> Warning:
        """`actor` is refused: another task's lease is on `path`."""
        assert actor.task is not None
        text = actor.command.text
        holder = Command(f"lease:{lease.id}", f"lease {lease.id}", lease.task)
        return self._note(
            actor.task,
            actor.process,
            actor.command,
            Write(lease.task, Process(0), holder, Act.WRITE, since, 0, 0),
            path,
            partial(wording.leased, path, text, lease, since, until, waited, now),
            now,
            refused=True,
        )

    def asked_for(self, lease: Lease, asker: str, reason: str, now: float) -> Warning:
        """Tell a lease's holder that another task would like to have its paths."""
        command = Command(f"lease request:{asker}:{now}", f"lease request --task {asker}")
        by = Write(Task(asker), Process(0), command, Act.WRITE, now, 0, 0)
        path = lease.patterns.lines[0].encode("utf-8", "surrogateescape")
        return self._note(
            lease.task,
            Process(0),
            command,
            by,
            path,
            partial(_as_it_is, wording.asked_for(lease, asker, reason)),
            now,
        )

    def _note(
        self,
        task: Task,
        process: Process,
        command: Command,
        by: Write,
        path: bytes,
        message: Callable[[int], str],
        now: float,
        refused: bool = False,
    ) -> Warning:
        return self._outbox.add(
            kind=Kind.WAITED,
            severity=NOTE,
            task=task.id,
            pid=process.pid,
            command=command,
            sibling=by.author,
            sibling_command=by.command.text,
            sibling_time=by.time,
            read_time=None,
            path=path,
            now=now,
            message=message,
            refused=refused,
        )

    def parent(self, parent: Task, child: Task, paths: Sequence[bytes], now: float) -> Warning | None:
        """`stale_read`: a child has ended, and changed what its parent had read."""
        command = Command(f"end:{child.id}:{now}", f"task end {child.id}")
        warning: Warning | None = None
        for path in paths:
            warning = self._outbox.add(
                kind=Kind.STALE_READ,
                severity=NOTE,
                task=parent.id,
                pid=0,
                command=command,
                sibling=child.id,
                sibling_command="",
                sibling_time=now,
                read_time=None,
                path=path,
                now=now,
                message=partial(_as_it_is, wording.reminder(child.id, paths)),
            )
        return warning


def _as_it_is(sentence: str, _more: int) -> str:
    return sentence


def _command_of(write: Write | None) -> str:
    return write.command.text if write is not None else ""
