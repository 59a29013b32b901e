"""fsguard run: a command as a task, untouched, then what it overwrote unseen.

Starts at every tool call of an agent: standard library only, and little of it.
"""

from __future__ import annotations

import argparse
import os
import signal

from fsguard.cli import cgroup, terminal, where
from fsguard.cli.base import Parser, task_id
from fsguard.cli.child import Child, Interruption, die
from fsguard.control.client import Client
from fsguard.errors import FsguardError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fsguard.control.registry import Mount

__all__ = ["main"]

FAILED = 125
"""Exit code when the command was not started, as env(1) and timeout(1) use it."""

_PATIENCE = 150.0
"""Seconds for the daemon to answer at the end: it waits, bounded, until all is on record."""


def main(argv: list[str]) -> int:
    try:
        return _run(argv)
    except FsguardError as error:
        terminal.complain(error)
        return FAILED


def _run(argv: list[str]) -> int:
    args, command = _arguments(argv)
    mount = where.locate(args.workspace)
    if args.report:
        parent = os.path.dirname(os.path.abspath(args.report))
        if not os.access(parent, os.W_OK | os.X_OK):
            raise UsageError(f"the report cannot be written to {args.report}")
    try:
        # A cwd older than an in-place mount stands on the covered directory; by its
        # path it leads through the mount, for the command and for us.
        os.chdir(os.getcwd())
    except OSError:
        pass  # removed, or not to be reached by path: stay where we are
    token = os.urandom(6).hex()
    group = cgroup.make(token)
    try:
        return _guarded(mount, args, command, token, group)
    finally:
        if group is not None:
            cgroup.remove(group)


def _guarded(mount: Mount, args: Any, command: list[str], token: str, group: str | None) -> int:
    child = Child(command, _environment(args.task, args.parent, token))
    joined = group if group is not None and cgroup.join(group, child.pid) else None

    def begin() -> Any:
        with Client(mount) as client:
            return client.call(
                "run.begin",
                token=token,
                task=args.task,
                parent=args.parent,
                name=args.name,
                intent=args.intent,
                argv=[word[:1000] for word in command[:64]],  # for sentences; a request has its limit
                pid=child.pid,
                cgroup=joined,
                footprint=args.report is not None,
                disabled=os.environ.get("FSGUARD_DISABLE") == "1",
            )

    try:
        child.interruptibly(begin)
    except Interruption as error:
        child.abandon()
        return die(error.number)
    except BaseException:
        child.abandon()
        raise
    code = os.waitstatus_to_exitcode(child.go())

    def end() -> Any:
        with Client(mount, timeout=_PATIENCE) as client:
            return client.call("run.end", token=token, code=code if code >= 0 else 128 - code)

    try:
        outcome = child.interruptibly(end)
        if not args.quiet:
            _tell(outcome["warnings"])
        if args.report:
            _report(args, command, code, outcome)
    except Interruption:
        pass  # who asks twice to end wants no more words; the warnings stay undelivered
    except FsguardError as error:
        terminal.complain(FsguardError(f"the command ended, but not on record: {error.message}", error.hint))
    if code < 0:
        if group is not None:
            cgroup.remove(group)  # nothing of ours runs after this
        return die(-code)
    return code


def _arguments(argv: list[str]) -> tuple[Any, list[str]]:
    parser = Parser(
        "run",
        "Run COMMAND as a task. Its input, output, signals and exit code pass through untouched; what it\n"
        "overwrote of others' work unseen is told on stderr when it has ended.",
        [
            "fsguard run --task A -- sed -i s/x/y/ src/app.py",
            "fsguard run --task A.1 --parent A --name 'fix tests' -- pytest -q",
            "fsguard run --task A --report /tmp/run.json -- make",
        ],
        [
            (0, "the command's own exit code, whatever it is; killed by a signal, by the same signal"),
            (FAILED, "fsguard could not start it (no mount, refused, a wrong flag)"),
            (126, "the command cannot be executed"),
            (127, "the command is not found"),
        ],
    )
    parser.usage = (
        "fsguard run --task ID [--parent ID] [--name TEXT] [--intent TEXT]"
        " [--workspace W] [--report FILE] [--quiet] -- COMMAND..."
    )
    parser.add_argument("--task", metavar="ID", required=True, type=task_id, help="the task that acts")
    parser.add_argument(
        "--parent", metavar="ID", type=task_id, help="the task that made it (default: whose run this is in)"
    )
    parser.add_argument("--name", metavar="TEXT", help="its role, as others are told")
    parser.add_argument("--intent", metavar="TEXT", help="what it is about, as others are told")
    parser.add_argument(
        "--report", metavar="FILE", help="write warnings and the exact footprint there, as JSON"
    )
    parser.add_argument(
        "--quiet", action="store_true", help="no warnings on stderr; they are delivered all the same"
    )
    parser.workspace_flag()
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    # Only the first -- is ours, and only if no command stands before it.
    mark = argv.index("--") if "--" in argv else len(argv)
    args = parser.parse_args(argv[:mark])
    command = [*args.command, *argv[mark:]] if args.command else argv[mark + 1 :]
    if not command or not command[0]:
        raise UsageError("no command to run", "fsguard run --task ID -- COMMAND...")
    return args, command


def _environment(task: str, parent: str | None, token: str) -> dict[str, str]:
    env = dict(os.environ)
    env.pop("FSGUARD_PARENT", None)  # an outer task's parent is not this one's
    env |= {"FSGUARD_TASK": task, "FSGUARD_RUN": token}
    if parent is not None:
        env["FSGUARD_PARENT"] = parent
    return env


def _tell(warnings: list[dict[str, Any]]) -> None:
    for warning in warnings:
        terminal.note(terminal.shown(warning["message"], lines=True))


def _report(args: Any, command: list[str], code: int, outcome: dict[str, Any]) -> None:
    import json

    report = {
        "task": args.task,
        "command": command,
        "exit_code": code if code >= 0 else 128 - code,
        "signal": signal.Signals(-code).name if code < 0 and -code in set(signal.Signals) else None,
        "warnings": outcome["warnings"],
        "footprint": outcome["footprint"],
    }
    try:
        with open(args.report, "w", encoding="ascii") as file:
            json.dump(report, file, indent=1)
            file.write("\n")
    except OSError as error:
        terminal.complain(FsguardError(f"cannot write the report {args.report}: {error.strerror}"))
