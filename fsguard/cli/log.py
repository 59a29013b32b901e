"""fsguard log: who read and wrote, newest first."""

from __future__ import annotations

from fsguard.cli import terminal, where
from fsguard.cli.base import Parser, task_id
from fsguard.cli.warnings import clock
from fsguard.control.client import Client

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["main"]


def main(argv: list[str]) -> int:
    parser = Parser(
        "log",
        "Who read and wrote, newest first; of PATH only, if given (a directory: what is below).",
        ["fsguard log", "fsguard log src/app.py", "fsguard log --task A --limit 20 --json"],
        [0, 2, 3, 6, 7],
    )
    parser.add_argument("path", metavar="PATH", nargs="?")
    parser.add_argument("--task", metavar="ID", type=task_id, help="only what this task did")
    parser.add_argument("--limit", metavar="N", type=int, default=100, help="at most so many (default 100)")
    parser.workspace_flag()
    parser.json_flag()
    args = parser.parse(argv)
    if args.path is None:
        mount, path = where.locate(args.workspace), None
    else:
        mount, path = where.locate_for(args.workspace, args.path, whole=True)
    with Client(mount) as client:
        entries = client.call("log", path=path, task=args.task, limit=max(1, args.limit))
    for entry in entries:
        if args.json:
            terminal.print_json(entry)
        else:
            _print(entry)
    return 0


def _print(entry: dict[str, Any]) -> None:
    target = f" → {terminal.shown(entry['target'])}" if entry.get("target") else ""
    who = terminal.cut(entry["task"] or "external")
    command = terminal.quoted(entry["command"]) if entry.get("command") else ""
    what = f"{terminal.shown(entry['op']):<8} {terminal.shown(entry['path'])}{target}"
    pid = f"pid {entry['pid']}" if entry.get("pid") else ""
    by = terminal.paint(f"{command} {pid}".strip(), "dim")
    print(f"{clock(entry['time'])}  {who:<12} {what}  {by}".rstrip())
