"""fsguard conflicts: whose work was destroyed unseen, and how to get it back."""

from __future__ import annotations

from fsguard.cli import kept, terminal, where
from fsguard.cli.base import Parser, task_id
from fsguard.cli.warnings import clock
from fsguard.control.client import Client
from fsguard.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fsguard.control.registry import Mount

__all__ = ["main"]


def main(argv: list[str]) -> int:
    parser = Parser(
        "conflicts",
        "What was destroyed by somebody who had not seen it, and is not resolved yet; newest first, with\n"
        "the command that brings it back. Restoring it or `fsguard resolve` resolves a conflict.",
        [
            "fsguard conflicts",
            "fsguard conflicts --task A --json project | jq -r .path",
            "fsguard resolve src/app.py",
        ],
        [(0, "done, also when there are none"), 2, 3, 6, 7],
    )
    parser.add_argument("--task", metavar="ID", type=task_id, help="only those of this task")
    parser.add_argument("--all", action="store_true", help="the resolved ones too")
    parser.add_argument("--limit", metavar="N", type=int, default=100, help="at most so many (default 100)")
    parser.workspace_argument()
    parser.json_flag()
    args = parser.parse(argv)
    if args.limit < 1:
        raise UsageError("--limit is at least 1")
    mount = where.locate(args.place, args.workspace)
    with Client(mount) as client:
        rows = client.call("versions.conflicts", task=args.task, all=args.all, limit=args.limit)
    for row in rows:
        if args.json:
            terminal.print_json(row)
        else:
            _print(mount, row)
    if not rows and not args.json:
        print("no conflicts" if args.all else "no unresolved conflicts")
    elif len(rows) == args.limit:
        terminal.note(f"these are the newest {args.limit}; --limit shows more")
    return 0


def _print(mount: Mount, row: Any) -> None:
    path = terminal.shown(f"{row['path']}@{row['version']}")
    state = " (resolved)" if row["resolved"] else ""
    head = f"{clock(row['time'])} {path}{state}"
    print(terminal.paint(head, "dim" if row["resolved"] else "yellow"))
    message = row["message"] or f"What {kept.author(row)} had written was destroyed by {kept.by(row)}."
    print("  " + terminal.shown(message, lines=True).replace("\n", "\n  "))
    typed = kept.typed(mount, row["path"])
    if row["kept"]:
        print(f"  to bring it back: {kept.command('restore', typed, row['version'])}")
        if not row["resolved"]:
            print(f"  to merge the two: {kept.command('resolve', typed, row['version'])}")
    else:
        print(f"  its bytes were not kept: {terminal.shown(row['reason'] or 'no reason is on record')}")
