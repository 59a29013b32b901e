"""Questions to the guard that change nothing but who has been told."""

from __future__ import annotations

from fsguard.core import wording
from fsguard.core.ledger import Ledger
from fsguard.core.model import NOTE, Act, Actor, Command, Process, Task, Warning
from fsguard.core.policy import Patterns
from fsguard.core.rules import Finding, judge
from fsguard.core.telling import Teller

__all__ = ["Questions"]


class Questions:
    """The part of the guard that answers."""

    ledger: Ledger
    ignored: Patterns
    tell: Teller

    def check(self, task: Task, path: bytes, now: float | None = None) -> tuple[Finding, str] | None:
        """Would a write by `task` now be a conflict? The finding and its sentence."""
        state = self.ledger.find(path)
        if state is None or self.ignored(path):
            return None
        actor = Actor(task, Process(0), Command("check", "a write"))
        finding = judge(state, actor, Act.CREATE if state.absent else Act.TRUNCATE)
        if finding is None or self.tell.severity(finding, path) == NOTE:
            return None
        return finding, wording.sentence(finding, path, "", False, now=now)

    def stale_reads(self, task: Task, by: Task | None = None) -> list[bytes]:
        """Paths that `task` has read and others (or only `by` and below) changed since."""
        found = []
        for state in self.ledger:
            look = state.looks.get(task)
            if look is None or look.blind or look.version >= state.version:
                continue
            news = [w for w in state.writers if w.version > look.version and w.author != task.id]
            if by is not None:
                news = [w for w in news if w.task is not None and w.task.below(by)]
            if news:
                found.append(state.path)
        return found

    def task_ended(self, task: Task, now: float) -> Warning | None:
        """Mark `task` ended; its parent is told what changed of what it had read."""
        task.ended = now
        parent = task.parent
        if parent is None or not task.writes:
            return None
        paths = self.stale_reads(parent, by=task)
        if not paths:
            return None
        return self.tell.parent(parent, task, paths, now)
