"""fsguard task: list, show and end tasks."""

from __future__ import annotations

from argparse import ArgumentTypeError

from fsguard.cli import terminal, where
from fsguard.cli.base import Parser, task_id
from fsguard.cli.status import tasks_table
from fsguard.cli.warnings import clock
from fsguard.control.client import Client
from fsguard.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["main"]


def main(argv: list[str]) -> int:
    parser = Parser(
        "task",
        "The tasks of a workspace. `end` says that a task is over: its parent is told which files that the\n"
        "parent had read it changed, and what others say about it from now on says that it has ended.",
        ["fsguard task list", "fsguard task list project", "fsguard task show A", "fsguard task end A.1"],
        [0, (2, "no such task, or a wrong flag"), 3, 6, 7],
    )
    parser.add_argument("what", choices=["list", "show", "end"])
    parser.add_argument("task", metavar="ID", nargs="?", help="for show and end")
    parser.workspace_argument()
    parser.json_flag()
    args = parser.parse(argv)
    if args.what == "list":
        if args.place is not None:
            raise UsageError(
                "`task list` takes no task, only a workspace", "`fsguard task show ID` shows one"
            )
        args.place, args.task = args.task, None
    elif args.task is None:
        raise UsageError(f"`task {args.what}` needs a task ID")
    else:
        args.task = _task(args.task)
    mount = where.locate(args.place, args.workspace)
    with Client(mount) as client:
        if args.what == "end":
            _ended(client.call("task.end", task=args.task), args.json)
            return 0
        if args.what == "show":
            _show(client.call("task.show", task=args.task), args.json)
            return 0
        tasks = client.call("task.list")
    if args.json:
        for task in tasks:
            terminal.print_json(task)
    else:
        print(tasks_table(tasks) if tasks else "no tasks yet")
    return 0


def _task(text: str) -> str:
    try:
        return task_id(text)
    except ArgumentTypeError as error:
        raise UsageError(str(error), "see `fsguard task --help`") from None


def _ended(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        terminal.print_json(answer)
        return
    print(f"ended {terminal.shown(answer['task'])}")
    for told in answer["told"]:
        message = told.get("message", told) if isinstance(told, dict) else told
        print("  told " + terminal.shown(message, lines=True).replace("\n", "\n  "))


def _show(task: dict[str, Any], as_json: bool) -> None:
    if as_json:
        terminal.print_json(task)
        return
    for name, value in task.items():
        if name in ("started", "ended", "last_seen") and value is not None:
            text = clock(value)
        elif isinstance(value, list):
            text = ", ".join(terminal.cut(item) for item in value)
        else:
            text = "" if value is None else terminal.shown(value)
        print(f"{terminal.shown(name).replace('_', ' ') + ':':<13}{text}".rstrip())
