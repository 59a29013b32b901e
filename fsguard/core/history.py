"""Who read and wrote what, newest last, bounded: the source of `fsguard log`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from fsguard.core.model import Actor

__all__ = ["Entry", "History"]


@dataclass(slots=True)
class Entry:
    """`count` times the same, one after the other, from `began` to `time` (seconds since the epoch)."""

    time: float
    op: str
    path: bytes
    task: str | None
    pid: int
    command: str
    target: bytes | None = None
    began: float = 0.0
    count: int = 1


class History:
    """:param limit: how many entries are kept."""

    def __init__(self, limit: int = 50_000) -> None:
        self._entries: deque[Entry] = deque(maxlen=limit)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, time: float, op: str, path: bytes, actor: Actor, target: bytes | None = None) -> None:
        """Record it; the same again by the same process only moves the time."""
        task = actor.task.id if actor.task is not None else None
        pid = actor.process.pid
        last = self._entries[-1] if self._entries else None
        if last is not None and last.path == path and last.op == op and last.pid == pid and last.task == task:
            last.time = time
            last.count += 1
            return
        self._entries.append(Entry(time, op, path, task, pid, actor.command.text, target, time))

    def all(self) -> list[Entry]:
        """Every entry, oldest first."""
        return list(self._entries)

    def newest(
        self, path: bytes | None = None, task: str | None = None, limit: int = 1000
    ) -> Iterator[Entry]:
        """Newest first; of `path` (or what lies below it), of `task`, or all."""
        prefix = path + b"/" if path else None
        left = limit
        for e in reversed(self._entries):
            if left <= 0:
                return
            if task is not None and e.task != task:
                continue
            if path is not None and not (
                e.path == path
                or e.target == path
                or (prefix is not None and e.path.startswith(prefix))
                or path == b""
            ):
                continue
            left -= 1
            yield e
