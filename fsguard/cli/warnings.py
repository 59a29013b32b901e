"""fsguard warnings: what was told to the tasks, or waits to be told."""

from __future__ import annotations

from fsguard.cli import terminal, where
from fsguard.cli.base import Parser, task_id
from fsguard.control.client import Client
from fsguard.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["main"]


def main(argv: list[str]) -> int:
    parser = Parser(
        "warnings",
        "The warnings not yet delivered, oldest first. What `fsguard run` printed is delivered.",
        [
            "fsguard warnings",
            "fsguard warnings --task A --ack",
            "fsguard warnings --all --json project | jq -r .kind",
            "fsguard warnings --follow",
        ],
        [0, 2, 3, 6, 7, (130, "--follow was ended by Ctrl-C")],
    )
    parser.workspace_argument()
    parser.add_argument("--task", metavar="ID", type=task_id, help="only those told to this task")
    parser.add_argument("--all", action="store_true", help="every one on record, delivered or not")
    parser.add_argument("--follow", action="store_true", help="go on, with each as it is raised")
    parser.add_argument("--ack", action="store_true", help="and mark them as delivered")
    parser.json_flag()
    args = parser.parse(argv)
    if args.follow and args.all:
        raise UsageError("--follow tells what is new; --all is for what was")
    mount = where.locate(args.place, args.workspace)
    with Client(mount) as client:
        if args.follow:
            told: set[int] = set()
            for warning in client.stream("warnings.follow", task=args.task, ack=args.ack):
                if warning["id"] not in told:  # again after a restart
                    told.add(warning["id"])
                    _print(warning, args.json)
        else:
            for warning in client.call("warnings", task=args.task, all=args.all, ack=args.ack):
                _print(warning, args.json)
    return 0


def _print(warning: dict[str, Any], as_json: bool) -> None:
    if as_json:
        terminal.print_json(warning)
        return
    colour = "yellow" if warning["severity"] == "conflict" else "dim"
    head = f"{clock(warning['time'])} {terminal.cut(warning['task'])} {terminal.shown(warning['kind'])}"
    body = terminal.shown(warning["message"], lines=True).replace("\n", "\n  ")
    print(f"{terminal.paint(head, colour)}\n  {body}", flush=True)


def clock(time: str) -> str:
    """A time of the daemon's (RFC 3339) as the local clock shows it; the date unless
    it is today's. What is no time is shown as it is."""
    from datetime import datetime

    try:
        local = datetime.fromisoformat(time).astimezone()
    except (ValueError, TypeError):
        return terminal.cut(time)
    today = local.date() == datetime.now().date()
    return f"{local:%H:%M:%S}" if today else f"{local:%Y-%m-%d %H:%M:%S}"
