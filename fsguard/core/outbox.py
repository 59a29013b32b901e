"""Warnings on record: grouped, bounded, delivered once, withdrawn when untrue."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from itertools import count, islice

from fsguard.core.model import Command, Kind, Warning

__all__ = ["MAX_LISTED", "Outbox"]

MAX_LISTED = 1_000
GROUP_SECONDS = 10.0

Rebuild = Callable[[int], str]


class Outbox:
    """All warnings of a mount, oldest first.

    One command that overwrites many files gives one warning that grows: same
    task, command that brings it about, kind and sibling, no more than `GROUP_SECONDS` apart.
    `total` are those that hold; `raised` and `withdrawn` count by kind and never go down.
    """

    def __init__(self, limit: int = 10_000) -> None:
        self.limit = limit
        self.total = 0
        self.raised: Counter[str] = Counter()
        self.withdrawn: Counter[str] = Counter()
        self.listeners: set[Callable[[Warning], None]] = set()
        self._ids = count(1)
        self._all: OrderedDict[int, Warning] = OrderedDict()
        self._open: dict[tuple[object, ...], Warning] = {}
        self._rebuild: dict[int, Rebuild] = {}

    def __iter__(self) -> Iterator[Warning]:
        return (w for w in self._all.values() if not w.withdrawn)

    def find(self, warning_id: int) -> Warning | None:
        return self._all.get(warning_id)

    def add(
        self,
        *,
        kind: Kind,
        severity: str,
        task: str,
        pid: int,
        command: Command,
        sibling: str | None,
        sibling_command: str,
        sibling_time: float | None,
        read_time: float | None,
        path: bytes,
        now: float,
        message: Rebuild,
        refused: bool = False,
        group: Command | None = None,
    ) -> Warning:
        """Put a warning on record, or add `path` to the open one of its group.

        `message` makes the sentence for a number of further paths; `group` is
        the command that brings it about, where that is not `command`.
        """
        key = (task, (group or command).key, kind, severity, sibling, refused)
        old = self._open.get(key)
        if old is not None and not old.delivered and not old.withdrawn and now - old.touched <= GROUP_SECONDS:
            old.touched = now
            if path not in old.paths:
                old.count += 1
                if len(old.paths) < MAX_LISTED:
                    old.paths[path] = None
                old.body = self._rebuild[old.id](old.count - 1)
            return old
        warning = Warning(
            id=next(self._ids),
            time=now,
            kind=kind,
            severity=severity,
            task=task,
            pid=pid,
            command=command.text,
            sibling=sibling,
            sibling_command=sibling_command,
            sibling_time=sibling_time,
            read_time=read_time,
            paths={path: None},
            count=1,
            body=message(0),
            refused=refused,
            run=command.key,
            touched=now,
        )
        self._open[key] = warning
        self._rebuild[warning.id] = message
        self._all[warning.id] = warning
        self.total += 1
        self.raised[kind] += 1
        if len(self._all) > self.limit:
            dropped, _ = self._all.popitem(last=False)
            self._rebuild.pop(dropped, None)
        if len(self._open) > self.limit:
            self._open.clear()
        for listener in tuple(self.listeners):
            listener(warning)
        return warning

    def recent(self, kind: Kind, task: str, sibling: str | None, path: bytes, now: float) -> Warning | None:
        """The same already said within the last `GROUP_SECONDS`, delivered or not."""
        for warning in islice(reversed(self._all.values()), 100):
            if now - warning.touched > GROUP_SECONDS:
                break
            if (warning.kind, warning.task, warning.sibling) == (
                kind,
                task,
                sibling,
            ) and path in warning.paths:
                return None if warning.withdrawn or warning.refused else warning
        return None

    def withdraw(self, warning: Warning, path: bytes) -> None:
        """`path` turned out not to belong into `warning` after all."""
        if warning.withdrawn or (path not in warning.paths and warning.count == len(warning.paths)):
            return
        if warning.count == 1:
            warning.withdrawn = True
            self.total -= 1
            self.withdrawn[warning.kind] += 1
            return
        if len(warning.paths) > 1:  # the last one listed stays, to stand for those that are not
            warning.paths.pop(path, None)
        warning.count -= 1
        rebuild = self._rebuild.get(warning.id)
        if rebuild is not None:
            warning.body = rebuild(warning.count - 1)

    def pending(self, task: str | None = None) -> list[Warning]:
        """Not yet delivered, oldest first; of one task or of all."""
        return [w for w in self if not w.delivered and (task is None or w.task == task)]

    @staticmethod
    def deliver(warnings: list[Warning]) -> None:
        for w in warnings:
            w.delivered = True
