"""fsguard check: would a write now overwrite something that the task has not seen?"""

from __future__ import annotations

from fsguard.cli import terminal, where
from fsguard.cli.base import Parser, task_id
from fsguard.control.client import Client


def main(argv: list[str]) -> int:
    parser = Parser(
        "check",
        "Ask whether a write to PATH by the task would be stale. Nothing is changed or marked.",
        ["fsguard check --task A src/app.py", "fsguard check --task A --json *.py"],
        [(0, "no: the task has seen what is there"), (1, "yes, with the sentence"), 2, 3, 6, 7],
    )
    parser.add_argument("--task", metavar="ID", required=True, type=task_id, help="the task that would write")
    parser.add_argument("paths", metavar="PATH", nargs="+")
    parser.workspace_flag()
    parser.json_flag()
    args = parser.parse(argv)
    mount, first = where.locate_for(args.workspace, args.paths[0])
    paths = [first, *(where.relative(mount, path) for path in args.paths[1:])]
    with Client(mount) as client:
        answers = client.call("check", task=args.task, paths=paths)
    for answer in answers:
        if args.json:
            terminal.print_json(answer)
        elif answer["stale"]:
            print(terminal.shown(answer["message"], lines=True))
    return 1 if any(answer["stale"] for answer in answers) else 0
