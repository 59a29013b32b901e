"""A task as an orchestrator names it, and the calls that it announces; for both kinds of clients."""

from __future__ import annotations

import os
from collections.abc import Sequence

from fsguard.api import asks, command
from fsguard.api.asks import Ask
from fsguard.api.values import GuardWarning

__all__ = ["Call", "Named"]


class Named:
    """`name` is its role and `intent` what it is about: siblings are told both."""

    def __init__(
        self, id: str, parent: str | None = None, name: str | None = None, intent: str | None = None
    ) -> None:
        self.id = id
        self.parent = parent
        self.name = name
        self.intent = intent
        self._calls = 0

    def environment(self) -> dict[str, str]:
        """Variables that make a process, and what it starts, work for the task.

        For what `run` cannot start; `run` needs none of it.
        """
        found = {"FSGUARD_TASK": self.id, "FSGUARD_PARENT": self.parent, "FSGUARD_INTENT": self.intent}
        return {name: value for name, value in found.items() if value}

    def _words(self, mountpoint: str, argv: Sequence[str], report: command.Report) -> list[str]:
        return command.words(mountpoint, argv, report, self.id, self.parent, self.name, self.intent)

    def _start(self) -> Ask[None]:
        return asks.start(self.id, self.parent, self.name, self.intent)

    def _begin(self, what: str, path: str, partial: bool) -> tuple[str, Ask[asks.Begun]]:
        """(name of the call, the announcement): a file tool of this very process."""
        self._calls += 1
        name = f"{self.id}/{os.getpid()}.{id(self)}.{self._calls}"[-200:]
        start = self._start().params
        return name, asks.begin(name, start, what, path, os.getpid(), partial)


class Call:
    """A file tool of the calling process, announced for a task: a context manager.

    For agents that live in one process, so that no process tells them apart. What
    the process opens of this path while it is entered is the task's; so two tasks
    of one process should not be in the same file at once. On entering, `stale`,
    `refused` (by the policy `block`) and `message` say whether a write would
    overwrite something unseen; the body decides. After it, `warnings` is what the
    task is told, and that counts as delivered.
    """

    def __init__(self) -> None:
        self.stale = False
        self.refused = False
        self.message: str | None = None
        self.warnings: list[GuardWarning] = []

    def _begun(self, answer: asks.Begun) -> None:
        self.stale, self.refused, self.message = answer
