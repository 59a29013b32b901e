"""fsguard policy: warn, block or off, live; for all, for a pattern, for a task."""

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
        "policy",
        "Without an argument: the policies in force. With one, it counts from now on, until the unmount.\n"
        "warn: everything lands, with a warning. block: a conflict is refused (EBUSY) before a byte\n"
        "changes. off: no checks.",
        [
            "fsguard policy",
            "fsguard policy block",
            "fsguard policy block --path 'src/**/*.py'",
            "fsguard policy off --task importer",
        ],
        [0, 2, 3, 6, 7],
    )
    parser.add_argument("policy", nargs="?", choices=["warn", "block", "off"])
    parser.add_argument("--path", metavar="PATTERN", help="only for paths like this (as in .gitignore)")
    parser.add_argument("--task", metavar="ID", type=task_id, help="only for this task")
    parser.workspace_flag()
    parser.json_flag()
    args = parser.parse(argv)
    if args.policy is None and (args.path or args.task):
        raise UsageError("which policy? warn, block or off", "fsguard policy block --path PATTERN")
    mount = where.locate(args.workspace)
    with Client(mount) as client:
        if args.policy is not None:
            client.call("policy.set", policy=args.policy, path=args.path, task=args.task)
        policies = client.call("policy.get")
    if args.json:
        terminal.print_json(policies)
    else:
        _print(policies)
    return 0


def _print(policies: dict[str, Any]) -> None:
    rest = "everything else" if policies["paths"] or policies["tasks"] else "everything"
    rows = [(rest, policies["default"])]
    rows[:0] = [(f"task {terminal.cut(task)}", policy) for task, policy in policies["tasks"].items()]
    rows[:0] = [(terminal.cut(entry["pattern"]), entry["policy"]) for entry in policies["paths"]]
    for what, policy in rows:
        print(f"{terminal.shown(policy):<6} {what}")
