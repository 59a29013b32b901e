"""Records as a daemon gives them, made by hand: for what `fsguard report` makes of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fsguard.cli.reports.records import Records

__all__ = ["NOON", "entry", "records", "row", "task", "warning"]

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()


def at(seconds: float) -> str:
    return datetime.fromtimestamp(NOON + seconds).astimezone().isoformat(timespec="microseconds")


def entry(seconds: float, task: str | None, op: str, path: str, **more: Any) -> dict[str, Any]:
    """A line of the log, `seconds` after noon."""
    facts = {"pid": 4711, "command": f"{op} {path}", "count": 1, "began": at(seconds), **more}
    return {"time": at(seconds), "op": op, "path": path, "task": task, **facts}


def warning(number: int, seconds: float, kind: str, task: str, path: str, **more: Any) -> dict[str, Any]:
    note = kind in ("stale_view", "stale_read", "partial_view", "waited")
    return {
        "id": number,
        "time": at(seconds),
        "kind": kind,
        "severity": "note" if note else "conflict",
        "task": task,
        "path": path,
        "pid": 4711,
        "command": "cp old x",
        "sibling": "B",
        "sibling_command": "sed -i x",
        "sibling_time": at(seconds - 1),
        "read_time": None,
        "count": 1,
        "paths": [path],
        "message": f'task "B" replaced {path}. Again.\n--- what you read\n+++ what is there now\n-a\n+b',
        **more,
    }


def row(warning: int | None, seconds: float, path: str, **more: Any) -> dict[str, Any]:
    """A kept version that was destroyed unseen."""
    facts = {"task": "A", "sibling": "B", "command": "cp old x", "cause": "truncate", "size": 3, "kept": True}
    facts |= {"id": 1, "version": 7, "reason": None, "kind": "file", "conflict": True, "resolved": False}
    facts |= {"secret": False, "diff": "--- @7 by B\n+++ now\n@@ -3 +5 @@\n-was\n+is", "message": None}
    return {**facts, "path": path, "time": at(seconds), "warning": warning, **more}


def task(task_id: str, **more: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": None, "intent": None, "parent": None, "children": [], "state": "idle"}
    facts |= {"started": at(0), "last_seen": at(9), "ended": None, "runs": 1, "running": 0}
    return {"task": task_id, **facts, "reads": 1, "writes": 1, "pending": 0, **more}


def records(
    log: list[dict[str, Any]] | None = None,
    warnings: list[dict[str, Any]] | None = None,
    conflicts: list[dict[str, Any]] | None = None,
    tasks: list[dict[str, Any]] | None = None,
) -> Records:
    made = Records(live=False)
    mount = {"version": "0", "workspace": "/srv/w", "mountpoint": "/srv/w", "disabled": False}
    made.add({"mount": {**mount, "began": at(0), "now": at(100)}})
    made.add({"log": log or []})
    made.add({"warnings": warnings or []})
    made.add({"conflicts": conflicts or []})
    made.add({"tasks": tasks or []})
    made.add({"end": True})
    return made.join()
