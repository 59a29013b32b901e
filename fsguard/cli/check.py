"""fsguard check: would a write now, or a commit, overwrite something that the task has not seen?"""

from __future__ import annotations

import os

from fsguard.cli import terminal, where
from fsguard.cli.base import Parser, task_id
from fsguard.control.client import Client
from fsguard.errors import NotMountedError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["main"]


def main(argv: list[str]) -> int:
    parser = Parser(
        "check",
        "Ask whether a write to PATH by the task would be stale. Nothing is changed or marked.\n"
        "With --staged: whether a commit of what is staged would carry, or make final, what it has not\n"
        "seen of others' work (`fsguard hooks install git` asks that before each commit).",
        [
            "fsguard check --task A src/app.py",
            "fsguard check --task A --json *.py",
            "fsguard check --task A --staged",
        ],
        [(0, "no: the task has seen what is there"), (1, "yes, with the sentence"), 2, 3, 6, 7],
    )
    parser.add_argument(
        "--task", metavar="ID", type=task_id, help="the task that would write (default: FSGUARD_TASK)"
    )
    parser.add_argument("--staged", action="store_true", help="what the next git commit would change")
    parser.add_argument("paths", metavar="PATH", nargs="*")
    parser.workspace_flag()
    parser.json_flag()
    args = parser.parse(argv)
    task = args.task or os.environ.get("FSGUARD_TASK")
    if not task:
        raise UsageError("which task? --task ID, or FSGUARD_TASK", "see `fsguard check --help`")
    if args.staged == bool(args.paths):
        raise UsageError(
            "--staged names the paths by itself" if args.staged else "which PATH? or --staged",
            "see `fsguard check --help`",
        )
    answers = _staged(task) if args.staged else _asked(args, task)
    for answer in answers:
        if args.json:
            terminal.print_json(answer)
        elif answer["stale"]:
            print((f"{terminal.shown(answer['path'])}: " if args.staged else "") + _sentence(answer))
    return 1 if any(answer["stale"] for answer in answers) else 0


def _sentence(answer: Any) -> str:
    return terminal.shown(answer["message"], lines=True)


def _asked(args: Any, task: str) -> list[Any]:
    mount, first = where.locate_for(args.workspace, args.paths[0])
    paths = [first, *(where.relative(mount, path) for path in args.paths[1:])]
    with Client(mount) as client:
        return list(client.call("check", task=task, paths=paths))


def _staged(task: str) -> list[Any]:
    """One answer for each path that the commit would change."""
    from fsguard.hooks import precommit

    staged = precommit.staged()
    mounts = precommit.by_mount(staged)
    if staged and not mounts:
        raise NotMountedError(
            "this work tree is in no guarded workspace", "mount it: `fsguard mount WORKSPACE`"
        )
    answers = []
    for mount, paths in mounts:
        with Client(mount) as client:
            found = dict(precommit.Commit(client, task, paths).findings())
        answers += [{"path": path, "stale": path in found, "message": found.get(path)} for path in paths]
    return answers
