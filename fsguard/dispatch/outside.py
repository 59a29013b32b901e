"""What others change on the backing directory, past the mount: it is heard of, never asked about.

It has happened by then, so nothing is refused and nothing can be put by; the
version moves, and who has read the file is told when it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

from fsguard.core.guard import Change as Edit
from fsguard.core.guard import Guard
from fsguard.core.model import Act, Actor, Command, Process
from fsguard.dispatch.ports import Processes
from fsguard.observer import Outside

__all__ = ["Outsiders"]

AUTHOR_SECONDS = 0.5
"""For so long the author of many changes is not asked for anew."""


class Outsiders:
    """:param misses: whether somebody may look at a path where there is nothing now."""

    def __init__(self, guard: Guard, processes: Processes, misses: Callable[[bytes], bool]) -> None:
        self._guard = guard
        self._processes = processes
        self._misses = misses
        self._last: tuple[int, Mapping[str, bytes], float, Actor] | None = None
        self.overflows = 0
        """How often changes were not heard of because there were too many at once."""

    def happened(self, change: Outside) -> AbstractSet[bytes]:
        """Put it on record; returns paths whose absence somebody may look at from now on."""
        if "lost" in change.kinds:
            self.overflows += 1
            return frozenset()
        actor = self._author(change)
        for kind in change.kinds:
            if kind == "rename":
                self._renamed(Edit(actor), change)
            elif change.path is not None:
                self._one(Edit(actor), kind, change.path, change)
        return {p for p in (change.path,) if p is not None and self._misses(p)}

    def _author(self, change: Outside) -> Actor:
        last = self._last
        if (
            last is not None
            and last[0] == change.pid
            and last[1] == change.author
            and 0 <= change.at - last[2] < AUTHOR_SECONDS
            and self._processes.steady()
        ):
            return last[3]
        actor = self._asked(change)
        self._last = (change.pid, change.author, change.at, actor) if change.author else None
        return actor

    def _asked(self, change: Outside) -> Actor:
        paths = [p for p in (change.target, change.path) if p is not None]
        actor = self._processes.author(change.pid, change.author, paths)
        if actor.process.pid or not change.pid:
            return actor
        # It has ended already; its number is all that is left of it.
        return Actor(
            None,
            Process(change.pid, 0, "?"),
            Command(f"p{change.pid}", f"a process that has ended (pid {change.pid})"),
        )

    def _one(self, edit: Edit, kind: str, path: bytes, change: Outside) -> None:
        if change.directory or kind == "attributes":
            if not self._guard.ignored(path):
                words = {"create": "mkdir", "delete": "rmdir"}
                self._guard.history.add(change.at, words.get(kind, kind), path, edit.actor)
            return
        act = {"create": Act.CREATE, "delete": Act.DELETE}.get(kind, Act.WRITE)
        self._done(edit, path, act, change.at)

    def _done(self, edit: Edit, path: bytes, act: Act, at: float) -> None:
        self._guard.intend(edit, path, act, at, late=True)
        self._guard.done(edit, path, act, at)

    def _renamed(self, edit: Edit, change: Outside) -> None:
        source, target, at, guard = change.path, change.target, change.at, self._guard
        if source is not None and target is not None:
            there = guard.ledger.find(target)
            free = there is None or there.absent
            if not change.directory:
                guard.intend(edit, target, Act.CREATE if free else Act.REPLACE, at, late=True)
                guard.intend(edit, source, Act.MOVE_AWAY, at, late=True)
            guard.renamed(edit, source, target, at, directory=change.directory, free=free)
        elif source is not None:
            # To where nobody looks: outside of the workspace, mostly.
            moved = [source]
            if change.directory:
                moved = [s.path for s in guard.ledger.below(source) if not s.absent]
            for path in moved:
                self._done(edit, path, Act.MOVE_AWAY, at)
        elif target is not None and not change.directory:
            there = guard.ledger.find(target)
            self._done(edit, target, Act.CREATE if there is None or there.absent else Act.REPLACE, at)
        elif target is not None and not guard.ignored(target):
            guard.history.add(at, "mkdir", target, edit.actor)
