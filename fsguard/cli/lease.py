"""fsguard lease: keep others off some paths for a while."""

from __future__ import annotations

import os

from fsguard.cli import terminal, where
from fsguard.cli.base import Parser, task_id
from fsguard.cli.warnings import clock
from fsguard.control.client import Client
from fsguard.errors import DaemonError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["main"]


def main(argv: list[str]) -> int:
    parser = Parser(
        "lease",
        "While a lease lives, other tasks' opens for writing of matching paths wait and are then refused\n"
        "(EBUSY); rename, unlink and making a file are refused at once. Parent and child tasks share it.\n"
        "It ends by release, with its task, or after --ttl seconds without a write by its holder.\n"
        "Patterns are those of .gitignore; quote them from the shell.",
        [
            "fsguard lease acquire 'src/api/' --task A --reason 'renaming the API'",
            "fsguard lease acquire schema.sql --task A --ttl 120 --wait 0",
            "fsguard lease list",
            "fsguard lease request 'src/api/' --task B --reason 'a one-line fix'",
            "fsguard lease release 3",
            "fsguard lease release --task A",
        ],
        [0, 2, 3, (4, "not granted in time: try again, the message says who holds it"), 6, 7],
    )
    parser.add_argument("what", choices=["acquire", "release", "list", "request"])
    parser.add_argument("patterns", metavar="PATTERN|ID", nargs="*")
    parser.add_argument("--task", metavar="ID", type=task_id, help="default: FSGUARD_TASK")
    parser.add_argument("--ttl", metavar="SECONDS", type=_seconds, default=600)
    parser.add_argument("--wait", metavar="SECONDS", type=_seconds, default=600)
    parser.add_argument("--reason", metavar="TEXT", default="")
    parser.add_argument("--force", action="store_true", help="release a lease of somebody else's")
    parser.workspace_flag()
    parser.json_flag()
    args = parser.parse(argv)
    task = args.task or os.environ.get("FSGUARD_TASK")
    if args.what in ("acquire", "request") and not (task and args.patterns):
        raise UsageError(f"`lease {args.what}` needs --task ID and a pattern")
    with Client(where.locate(args.workspace)) as client:
        if args.what == "acquire":
            return _acquire(client, args, task)
        if args.what == "request":
            answer = client.call("lease.request", task=task, patterns=args.patterns, reason=args.reason)
            text = [f"told task {terminal.shown(x['task'])} (lease {x['id']})" for x in answer["told"]]
            return _print(answer, args.json, "\n".join(text) or "nobody has a lease there")
        if args.what == "release":
            return _release(client, args)
        answer = client.call("lease.list")
    return _print(answer, args.json, _table(answer))


def _seconds(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 86_400:
        raise ValueError
    return value


def _acquire(client: Client, args: Any, task: str | None) -> int:
    lease = None
    for event in client.stream(
        "lease.acquire",
        task=task,
        patterns=args.patterns,
        ttl=args.ttl,
        wait=args.wait,
        reason=args.reason,
    ):
        if "waiting" in event:
            terminal.note(f"waiting for {terminal.shown(event['waiting'])} …")
        if (lease := event.get("lease")) is not None:
            break
    if lease is None:
        raise DaemonError("the daemon ended the wait without an answer")
    return _print(lease, args.json, f"lease {lease['id']}, until {clock(lease['until'])}")


def _release(client: Client, args: Any) -> int:
    if not args.patterns and not args.task:
        raise UsageError("which lease? name its id, or --task ID for all of a task")
    released: list[int] = []
    for text in args.patterns or [None]:
        if text is not None and not text.isdigit():
            raise UsageError(f"{text} is no lease id", "`fsguard lease list` shows them")
        number = int(text) if text is not None else None
        released += client.call("lease.release", id=number, task=args.task, force=args.force)["released"]
    shown = ", ".join(str(x) for x in released) or "nothing"
    return _print({"released": released}, args.json, f"released {shown}")


def _table(answer: dict[str, Any]) -> str:
    lines = []
    for lease in answer["leases"]:
        what = ", ".join(terminal.cut(x) for x in lease["patterns"])
        why = f" ({terminal.cut(lease['reason'])})" if lease["reason"] else ""
        asked = (
            f"; asked for by {', '.join(map(terminal.cut, lease['requests']))}" if lease["requests"] else ""
        )
        until = clock(lease["until"])
        lines.append(f"{lease['id']:>4}  {terminal.cut(lease['task'])}  {what}  until {until}{why}{asked}")
    for ticket in answer["waiting"]:
        what = ", ".join(terminal.cut(x) for x in ticket["patterns"])
        lines.append(f"wait  {terminal.cut(ticket['task'])}  {what}  for {terminal.shown(ticket['for'])}")
    return "\n".join(lines) or "no leases"


def _print(answer: Any, as_json: bool, text: str) -> int:
    if as_json:
        terminal.print_json(answer)
    else:
        print(text)
    return 0
