"""What the screen's lists say: from the daemon's facts to cells of text. Pure; also for `--once`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fsguard.cli import terminal
from fsguard.cli.status import duration
from fsguard.cli.warnings import clock

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["HEADS", "TITLES", "head", "paths_text", "rows"]

TITLES = {
    "tasks": "Tasks",
    "contended": "Contended paths",
    "queue": "Queue and leases",
    "warnings": "Warnings",
}
HEADS = {
    "tasks": ("TASK", "STATE", "PENDING", "WRITES NOW", "READS NOW", "ABOUT"),
    "contended": ("PATH", "CONFLICTS", "LAST", "WRITTEN BY", "ALSO READ BY"),
    "queue": ("PATH", "HELD BY", "FOR", "WAITING"),
    "warnings": ("TIME", "KIND", "TOLD", "BY", "PATH"),
}

Row = tuple[str, tuple[str, ...], str]
"""(what the row is about: a task ID or a path; its cells; "bad", "dim" or "")"""


def head(facts: dict[str, Any]) -> str:
    """The line above all."""
    policy = "off (disabled)" if facts["disabled"] else facts["policy"]
    parts = [
        terminal.cut(facts["workspace"], 60),
        f"policy {terminal.cut(policy, 10)}",
        f"up {duration(facts['uptime'] or 0)}",
        f"{facts['tasks_total']} tasks",
        f"{facts['open_total']} open",
        f"{facts['warnings_total']} warnings, {facts['pending']} pending",
        f"{(facts['memory_bytes'] or 0) / 1048576:.0f} MiB",
    ]
    return "  ·  ".join(parts)


def rows(name: str, facts: dict[str, Any]) -> list[Row]:
    return {"tasks": _tasks, "contended": _contended, "queue": _queue, "warnings": _warnings}[name](facts)


def _tasks(facts: dict[str, Any]) -> list[Row]:
    found: list[Row] = []
    for t in facts["tasks"]:
        name = terminal.cut(t["task"], 30) + (f" of {terminal.cut(t['parent'], 20)}" if t["parent"] else "")
        about = ": ".join(terminal.cut(t[k], 60) for k in ("name", "intent") if t.get(k))
        cells = (
            name,
            terminal.cut(t["state"], 10),
            str(t["pending"] or ""),
            paths_text(t["writing"]),
            paths_text(t["reading"]),
            about,
        )
        found.append((t["task"], cells, "bad" if t["pending"] else "dim" if t["state"] == "ended" else ""))
    other = facts["external"]
    if other["reading"] or other["writing"]:
        cells = ("(no task)", "", "", paths_text(other["writing"]), paths_text(other["reading"]), "")
        found.append(("", cells, "dim"))
    return found


def _contended(facts: dict[str, Any]) -> list[Row]:
    found: list[Row] = []
    for c in facts["contended"]:
        readers = [t for t in c["tasks"] if t not in c["writers"]]
        writers = [*c["writers"], *(["(no task)"] if c["external"] else [])]
        cells = (
            terminal.cut(c["path"], 40),
            str(c["conflicts"] or ""),
            clock(c["time"]),
            _names(writers),
            _names(readers),
        )
        found.append((c["path"], cells, "bad" if c["conflicts"] else ""))
    return found


def _queue(facts: dict[str, Any]) -> list[Row]:
    found: list[Row] = []
    for q in facts["queues"]:
        waiting = [f"{terminal.cut(w['task'] or 'no task', 20)} {w['waiting']:.1f} s" for w in q["queue"]]
        since = f"{q['since']:.1f} s" if q["since"] is not None else ""
        cells = (terminal.cut(q["path"], 40), _names(q["holder"]), since, ", ".join(waiting[:6]))
        found.append((q["path"], cells, ""))
    for lease in facts["leases"]:
        what = ", ".join(terminal.cut(x, 40) for x in lease["patterns"][:4])
        asked = (
            f"asked for by {_names(lease['requests'])}"
            if lease["requests"]
            else terminal.cut(lease["reason"], 60)
        )
        cells = (what, f"lease of {terminal.cut(lease['task'], 20)}", f"until {clock(lease['until'])}", asked)
        found.append((lease["patterns"][0] if lease["patterns"] else "", cells, ""))
    return found


def _warnings(facts: dict[str, Any]) -> list[Row]:
    found: list[Row] = []
    for w in facts["warnings"]:
        path = terminal.cut(w["path"], 60) + (f" and {w['count'] - 1} more" if w["count"] > 1 else "")
        by = terminal.cut(w["sibling"], 24) if w["sibling"] else "(no task)"
        cells = (clock(w["time"]), w["kind"], terminal.cut(w["task"], 24), by, path)
        found.append((w["path"], cells, "bad" if w["severity"] == "conflict" else ""))
    return found


def paths_text(paths: list[str], most: int = 2) -> str:
    shown = ", ".join(terminal.cut(path, 40) for path in paths[:most])
    return f"{shown} +{len(paths) - most}" if len(paths) > most else shown


def _names(names: Iterable[str]) -> str:
    some = list(names)
    shown = ", ".join(terminal.cut(name, 20) for name in some[:4])
    return f"{shown} +{len(some) - 4}" if len(some) > 4 else shown
