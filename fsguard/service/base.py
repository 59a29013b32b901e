"""What all answers share: who asks, what it may say, and how things look in JSON."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any, TypeVar

from fsguard.attribution.resolver import Resolver
from fsguard.control.server import Peer
from fsguard.core.history import Entry
from fsguard.core.model import Actor, Footprint, Task, Warning
from fsguard.core.wording import rfc3339
from fsguard.dispatch import Dispatch
from fsguard.errors import RefusedError, UsageError

__all__ = [
    "Part",
    "argv_text",
    "entry_json",
    "footprint_json",
    "noted",
    "path_of",
    "show",
    "task_id",
    "warning_json",
    "when",
]

MAX_TASK_ID = 200


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
        "sibling_time": when(w.sibling_time),
        "read_time": when(w.read_time),
        "count": w.count,
        "paths": [show(x) for x in w.paths],
        "message": w.message,
    }


def when(t: float | None) -> str | None:
    return rfc3339(t) if t is not None else None


def task_id(name: str) -> str:
    if len(name) > MAX_TASK_ID:
        raise UsageError(f"a task ID has at most {MAX_TASK_ID} characters")
    if not name.isprintable():
        raise UsageError("a task ID has printable characters only")
    return name


def path_of(text: str) -> bytes:
    path = text.encode("utf-8", "surrogateescape")
    parts = path.split(b"/")
    if path.startswith(b"/") or b".." in parts:
        raise UsageError("paths are relative to the workspace")
    return b"/".join(x for x in parts if x not in (b"", b"."))


def entry_json(e: Entry) -> dict[str, Any]:
    """A line of the log."""
    item: dict[str, Any] = {
        "time": rfc3339(e.time),
        "began": rfc3339(e.began),
        "count": e.count,
        "op": e.op,
        "path": show(e.path),
        "task": e.task,
        "pid": e.pid,
        "command": e.command,
    }
    if e.target is not None:
        item["target"] = show(e.target)
    return item


def argv_text(argv: list[str]) -> str:
    return shlex.join(argv[:64])[:400]


def footprint_json(footprint: Footprint | None) -> dict[str, Any] | None:
    if footprint is None:
        return None
    return {
        "read": [show(x) for x in footprint.read],
        "written": [show(x) for x in footprint.written],
        "created": [show(x) for x in footprint.created],
        "deleted": [show(x) for x in footprint.deleted],
        "renamed": [[show(a), show(b)] for a, b in footprint.renamed],
    }


F = TypeVar("F", bound=Callable[..., Any])


def noted(method: F) -> F:
    """Mark what changes the guard's records, or asks who somebody is, in one go: it is put on the tape
    (`taping.note`), and done again where that is played back. Its arguments must be of marshal's types."""
    method.noted = True  # type: ignore[attr-defined]
    return method


class Part:
    """One group of answers; all of them share the guard's records."""

    def __init__(self, dispatch: Dispatch, resolver: Resolver) -> None:
        self._dispatch = dispatch
        self._guard = dispatch.guard
        self._resolver = resolver

    def _caller(self, peer: Peer) -> Actor:
        return self._who(peer.pid)

    @noted
    def _who(self, pid: int) -> Actor:
        return self._resolver.actor(pid)

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._dispatch.clock()

    @noted
    def settle(self) -> None:
        """What can be judged by now is."""
        self._guard.settle(self.now(), self._resolver.gone)

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
        return self._guard.tasks.get(name, self.now(), self._guard.ledger.version)

    def _known(self, name: str) -> Task:
        task = self._guard.tasks.find(name)
        if task is None:
            raise UsageError(f"there is no task {name!r}", "`fsguard task list` shows those there are.")
        return task
