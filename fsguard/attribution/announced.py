"""Tool calls that an agent announces: whose they are although one process does them all.

Subagents live in their parent's process; neither pid nor control group tells
them apart. So the agent says before a file tool runs which task is about to
read or write which path, and the opens of its own process until it says that
the call is over belong to that task.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fsguard.core.model import Actor, Command, Process, Task

__all__ = ["Announced", "Announcement"]

MAX_SECONDS = 600.0
MAX_CALLS = 10_000


@dataclass(slots=True, eq=False)
class Announcement:
    """One announced tool call; it is a command of its own."""

    id: str
    actor: Actor
    path: bytes
    writes: bool
    since: float

    @property
    def task(self) -> Task:
        assert self.actor.task is not None
        return self.actor.task

    def covers(self, process: Process, paths: Sequence[bytes]) -> bool:
        """True for the announcer's own process, or the agent above it, and this very path.

        A temporary name in the same directory that contains the file's own is
        part of the call: that is how tools save.
        """
        if self.actor.process is not process and not self.actor.process.below(process):
            return False
        directory, _, name = self.path.rpartition(b"/")
        for path in paths:
            if path == self.path:
                return True
            above, _, other = path.rpartition(b"/")
            if above == directory and name in other:
                return True
        return False


class Announced:
    """The calls that are under way; one that never ends is forgotten.

    :param changed: called when another one begins.
    """

    def __init__(self, changed: Callable[[], object] = lambda: None) -> None:
        self._changed = changed
        self._calls: OrderedDict[str, Announcement] = OrderedDict()

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[Announcement]:
        return iter(self._calls.values())

    def begin(
        self,
        call_id: str,
        task: Task,
        process: Process,
        command: Command,
        path: bytes,
        writes: bool,
        now: float,
    ) -> Announcement:
        call = Announcement(call_id, Actor(task, process, command), path, writes, now)
        self._calls[call_id] = call
        self._changed()
        self._expire(now)
        return call

    def get(self, call_id: str) -> Announcement | None:
        return self._calls.get(call_id)

    def end(self, call_id: str) -> Announcement | None:
        return self._calls.pop(call_id, None)

    def drop(self, task: Task) -> None:
        """None of this task's calls is under way any more: it has ended, or turned to something else."""
        for call in [call for call in self._calls.values() if call.task is task]:
            del self._calls[call.id]

    def find(self, process: Process, paths: Sequence[bytes], now: float) -> Actor | None:
        """Whose call it is, the latest first, when `process` touches `paths`."""
        self._expire(now)
        for call in reversed(self._calls.values()):
            if call.covers(process, paths):
                return call.actor
        return None

    def _expire(self, now: float) -> None:
        while self._calls:
            oldest = next(iter(self._calls.values()))
            if now - oldest.since <= MAX_SECONDS and len(self._calls) <= MAX_CALLS:
                return
            del self._calls[oldest.id]
