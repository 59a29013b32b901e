"""fsguard note: a look or a write that no process of the task's shows."""

from __future__ import annotations

from fsguard.cli import terminal, where
from fsguard.cli.base import Parser, task_id
from fsguard.control.client import Client

__all__ = ["main"]


def main(argv: list[str]) -> int:
    parser = Parser(
        "note",
        "Say that a task has read PATH, or has written it, for tools that act inside another process (an\n"
        "editor, an agent's own file tool). Warnings that follow from it are printed on stderr.",
        ["fsguard note read --task A src/app.py", "fsguard note write --task A src/app.py"],
        [0, 2, 3, 6, 7],
    )
    parser.add_argument("what", choices=["read", "write"])
    parser.add_argument("path", metavar="PATH")
    parser.add_argument("--task", metavar="ID", required=True, type=task_id)
    parser.add_argument("--partial", action="store_true", help="only a part of it was read")
    parser.workspace_flag()
    parser.json_flag()
    args = parser.parse(argv)
    mount, path = where.locate_for(args.workspace, args.path)
    with Client(mount) as client:
        answer = client.call("note", what=args.what, task=args.task, path=path, partial=args.partial)
    if args.json:
        terminal.print_json(answer)
    else:
        for warning in answer["warnings"]:
            terminal.note(terminal.shown(warning["message"], lines=True))
    return 0
