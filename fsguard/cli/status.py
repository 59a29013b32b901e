"""fsguard status: one mount in full, or all mounts in a line each."""

from __future__ import annotations

from fsguard.cli import terminal, where
from fsguard.cli.base import Parser
from fsguard.control import registry
from fsguard.control.client import Client
from fsguard.errors import FsguardError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fsguard.control.registry import Mount

__all__ = ["main"]

MAX_WAITING = 20  # of one path's queue; --json has them all


def main(argv: list[str]) -> int:
    parser = Parser(
        "status",
        "Tasks, counters, open handles and pending warnings of the mount that WORKSPACE belongs to. Outside\n"
        "of any mount, and without WORKSPACE: all mounts of yours.",
        ["fsguard status", "fsguard status project", "fsguard status --json"],
        [0, 2, 3, 6, 7],
    )
    parser.workspace_argument()
    parser.json_flag()
    args = parser.parse(argv)
    if not args.place and not args.workspace and registry.find(where.here()) is None:
        return _all(args.json)
    mount = where.locate(args.place, args.workspace)
    with Client(mount) as client:
        status = client.call("status")
    if args.json:
        terminal.print_json(status)
    else:
        _print(status)
    return 0


def _all(as_json: bool) -> int:
    mounts = registry.live()
    states = [_state(mount) for mount in mounts]
    if as_json:
        pairs = zip(mounts, states, strict=True)
        terminal.print_json([{**mount.as_dict(), "status": state} for mount, state in pairs])
        return 0
    if not mounts:
        print("nothing is mounted")
        return 0
    rows = [
        (m.mountpoint, "in place" if m.mountpoint == m.workspace else m.workspace, m.pid, *_brief(state))
        for m, state in zip(mounts, states, strict=True)
    ]
    print(terminal.table(("MOUNTPOINT", "WORKSPACE", "PID", "POLICY", "TASKS", "PENDING"), rows))
    return 0


def _state(mount: Mount) -> dict[str, Any] | None:
    """None from a daemon that does not answer: the others are still worth listing."""
    try:
        with Client(mount, timeout=3) as client:
            answer: dict[str, Any] = client.call("status")
            return answer
    except FsguardError:
        return None


def _brief(state: dict[str, Any] | None) -> tuple[object, object, object]:
    if state is None:
        return "?", "?", "no answer"
    return "off" if state["disabled"] else state["policy"], len(state["tasks"]), state["pending"]


def _print(status: dict[str, Any]) -> None:
    shown = terminal.shown
    in_place = status["mountpoint"] == status["workspace"]
    policy = "off: mounted with FSGUARD_DISABLE=1" if status["disabled"] else status["policy"]
    lines = {
        "workspace": status["workspace"],
        "mountpoint": "in place" if in_place else status["mountpoint"],
        "daemon": f"pid {status['pid']}, up {duration(status['uptime'])}, {_size(status['memory_bytes'])}",
        "if it dies": _keeper(status),
        "policy": policy,
        "io": ": ".join(filter(None, (status["io"], status.get("io_reason")))),
        "cache": _cache(status.get("cache")),
        "features": _features(status["features"]),
        "open handles": status["open_handles"],
        "paths known": status["paths_known"],
        "warnings": f"{status['warnings_total']} in all, {status['pending']} not yet delivered",
        "requests": _counts(status["requests"]),
        "attributed by": _counts(status["attribution"]),
    }
    for name, value in lines.items():
        print(f"{name + ':':<15}{shown(value)}")
    if status["tasks"]:
        print()
        print(tasks_table(status["tasks"]))
    for queue in status["queues"]:
        print()
        print(queue_text(queue))
    if status["leases"]:
        print()
        print("leases (`fsguard lease list` shows them in full):")
        for lease in status["leases"]:
            what = ", ".join(terminal.cut(x) for x in lease["patterns"])
            print(f"  {lease['id']}  {terminal.cut(lease['task'])}  {what}")


def _keeper(status: dict[str, Any]) -> str:
    keeper = status.get("keeper_pid")
    if keeper is None:
        return f"its mount does, too: {status.get('keeper_reason') or 'there is no keeper'}"
    times = status["takeovers"]
    done = f"; so it was {times} time{'s' if times != 1 else ''}" if times else ""
    return f"another worker (now pid {status['worker_pid']}) takes over{done}"


def queue_text(queue: dict[str, Any]) -> str:
    """Who holds the turn on one path, and who waits for it, in the order in which they come."""
    shown = terminal.shown
    holder = "nobody"
    if queue["holder"]:
        holder = f"{', '.join(map(terminal.cut, queue['holder']))}, for {queue['since']:.1f} s"
        if queue["command"]:
            holder += f", with {terminal.cut(queue['command'])}"
    waiting = queue["queue"]
    held = f"lease {queue['lease']} of" if queue["lease"] else "written by"
    lines = [f"{shown(queue['path'])}: {held} {holder}; {len(waiting)} waiting"]
    for ticket in waiting[:MAX_WAITING]:
        who = f"{terminal.cut(ticket['task'])} (pid {ticket['pid']}, {terminal.cut(ticket['command'])})"
        lines.append(f"  {ticket['waiting']:6.1f} s  {who}{', next in line' if ticket['next'] else ''}")
    if len(waiting) > MAX_WAITING:
        lines.append(f"  … and {len(waiting) - MAX_WAITING} more")
    return "\n".join(lines)


def tasks_table(tasks: list[dict[str, Any]]) -> str:
    """A list of tasks as `task.list` answers it."""
    head = ("TASK", "PARENT", "STATE", "RUNS", "READS", "WRITES", "PENDING", "NAME")
    names = ("task", "parent", "state", "runs", "reads", "writes", "pending", "name")
    rows = [["" if task.get(name) is None else task[name] for name in names] for task in tasks]
    return terminal.table(head, rows)


def duration(seconds: float) -> str:
    """A span of time in its two greatest units."""
    left = int(seconds)
    parts: list[str] = []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if left >= length or (unit == "s" and not parts):
            parts.append(f"{left // length} {unit}")
            left %= length
    return " ".join(parts[:2])


def _cache(cache: dict[str, Any] | None) -> str:
    if cache is None:
        return "?"
    seconds = f"{cache['seconds']:g} s" if cache["seconds"] else "nothing"
    lost = cache["heard"].get("overflows")
    more = f"; {lost} times there were too many to hear of each, and all was asked anew" if lost else ""
    return f"{seconds}: {cache['reason']}{more}"


def _size(count: int) -> str:
    return f"{count / 1048576:.1f} MiB"


def _features(features: dict[str, Any]) -> str:
    on = [name for name, value in features.items() if value is True]
    on += [f"{name} {value}" for name, value in features.items() if type(value) in (int, float, str)]
    off = [name for name, value in features.items() if value is False]
    return ", ".join(on) + (f" (not: {', '.join(off)})" if off else "")


def _counts(counts: dict[str, int]) -> str:
    greatest = sorted(counts.items(), key=lambda item: -item[1])
    parts = [f"{name} {number}" for name, number in greatest if number]
    return ", ".join(parts) or "none"
