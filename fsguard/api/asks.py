"""What is asked of the daemon, and how its answer is read; pure, for both kinds of clients.

`paths` are as the daemon knows them: relative to the workspace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from fsguard.api import values
from fsguard.api.values import Check, GuardWarning, Lease, TaskInfo, Version

__all__ = ["Ask", "Begun"]

Answer = TypeVar("Answer")


class Ask(NamedTuple, Generic[Answer]):
    method: str
    params: Mapping[str, Any]
    read: Callable[[Any], Answer]


class Begun(NamedTuple):
    """What a tool call that is about to write is told."""

    stale: bool
    refused: bool
    message: str | None


def status() -> Ask[dict[str, Any]]:
    return Ask("status", {}, dict)


def tasks() -> Ask[list[TaskInfo]]:
    return Ask("task.list", {}, lambda answer: [values.read(TaskInfo, x) for x in answer])


def start(
    task: str, parent: str | None = None, name: str | None = None, intent: str | None = None
) -> Ask[None]:
    params = {"task": task, "parent": parent, "name": name, "intent": intent}
    return Ask("task.start", params, _nothing)


def end(task: str) -> Ask[list[GuardWarning]]:
    return Ask("task.end", {"task": task}, lambda answer: _warnings(answer["told"]))


def check(task: str, paths: Sequence[str]) -> Ask[list[Check]]:
    params = {"task": task, "paths": list(paths)}
    return Ask("check", params, lambda answer: [values.read(Check, x) for x in answer])


def warnings(task: str | None, everything: bool, acknowledge: bool) -> Ask[list[GuardWarning]]:
    return Ask("warnings", {"task": task, "all": everything, "ack": acknowledge}, _warnings)


def follow(task: str | None, acknowledge: bool) -> Ask[GuardWarning]:
    params = {"task": task, "ack": acknowledge}
    return Ask("warnings.follow", params, lambda answer: values.read(GuardWarning, answer))


def who(path: str) -> Ask[dict[str, Any]]:
    return Ask("who", {"path": path}, dict)


def versions(path: str, limit: int) -> Ask[list[Version]]:
    params = {"path": path, "limit": limit}
    return Ask("versions.list", params, lambda answer: [values.read(Version, x) for x in answer])


def leases() -> Ask[list[Lease]]:
    return Ask("lease.list", {}, lambda answer: [values.read(Lease, x) for x in answer["leases"]])


def acquire(task: str, patterns: Sequence[str], ttl: float, wait: float, reason: str) -> Ask[Lease | None]:
    """A stream: None while something is in the way."""
    params = {
        "task": task,
        "patterns": list(patterns),
        "ttl": round(ttl),
        "wait": round(wait),
        "reason": reason,
    }
    return Ask(
        "lease.acquire",
        params,
        lambda event: values.read(Lease, event["lease"]) if "lease" in event else None,
    )


def release(lease: Lease) -> Ask[None]:
    return Ask("lease.release", {"id": lease.id, "task": lease.task}, _nothing)


def begin(call: str, who: Mapping[str, Any], what: str, path: str, pid: int, partial: bool) -> Ask[Begun]:
    params = {"tool_use_id": call, **who, "what": what, "path": path, "pid": pid, "partial": partial}
    return Ask("tool.begin", params, lambda x: Begun(bool(x["stale"]), bool(x["refused"]), x["message"]))


def finish(call: str) -> Ask[list[GuardWarning]]:
    return Ask("tool.end", {"tool_use_id": call}, lambda answer: _warnings(answer["warnings"]))


def _warnings(answer: Any) -> list[GuardWarning]:
    return [values.read(GuardWarning, item) for item in answer]


def _nothing(answer: Any) -> None:
    return None
