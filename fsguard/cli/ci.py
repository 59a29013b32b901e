"""fsguard ci: a runner's job. Mounts its workspace, runs steps as tasks, ends with a report.

What has to be known from one call to the next is a small file in the runtime
directory (`fsguard.cli.cijob`); the rest is `mount`, `run`, `report` and `unmount`.
"""

from __future__ import annotations

import os
import time

from fsguard.cli import cijob, terminal
from fsguard.cli.base import Parser, task_id
from fsguard.errors import (
    BusyError,
    DaemonError,
    FsguardError,
    MissingError,
    NotMountedError,
    RefusedError,
    UsageError,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fsguard.cli.cijob import Job

__all__ = ["main"]

FAILED = 125  # as `fsguard run`: the step was not started
_ENDING = 2.0
"""Seconds in which what the job started may still end, before `end` says that it does not."""

FORMATS = {".html": "html", ".json": "json", ".sarif": "sarif", ".xml": "junit"}

_EXAMPLES = [
    "fsguard ci begin",
    "fsguard ci run --task lint -- make lint & fsguard ci run --task test -- make test & wait",
    "fsguard ci end --report fsguard.html --report fsguard.xml --fail-on conflict",
]
_EXITS: list[int | tuple[int, str]] = [
    (0, "done; for `run`: what the step ended with"),
    (1, "for `end`: there is something of what --fail-on names"),
    2,
    3,
    (4, "for `end`: processes of the job still work in the workspace; they are listed"),
    5,
    6,
    7,
    (FAILED, "for `run`: the step was not started"),
]


def main(argv: list[str]) -> int:
    actions = {"begin": _begin, "run": _run, "end": _end, "status": _status}
    action = argv[0] if argv else ""
    if action in actions:
        return actions[action](argv[1:])
    parser = Parser(
        "ci",
        "A CI job on a workspace that steps, matrix legs or other jobs share. `begin` mounts it, `run` runs\n"
        "a step as a task of its own, in parallel with others, `end` writes the report, unmounts, and ends\n"
        "with 1 if there is something to fail on. Each has --help. Where the workspace is mounted already\n"
        "(by a unit or fstab), the job works in that mount and leaves it.",
        _EXAMPLES,
        _EXITS,
    )
    parser.usage = "fsguard ci begin|run|end|status [ARGUMENTS]"
    parser.add_argument("action", nargs="?", choices=list(actions))
    parser.parse(argv[:1])
    raise UsageError("what shall be done? begin, run, end or status", "see `fsguard ci --help`")


# ---- begin -------------------------------------------------------------------------------


def _begin(argv: list[str]) -> int:
    parser = Parser(
        "ci begin",
        "Mount the job's workspace: the one named, else $GITHUB_WORKSPACE, $CI_PROJECT_DIR (GitLab),\n"
        "$WORKSPACE (Jenkins), else where you stand. A mount that an earlier job left is ended first.\n"
        'A shell that stands in there enters the mount with: cd "$PWD"',
        ["fsguard ci begin", "fsguard ci begin --policy block --or-unguarded checkout"],
        [0, 2, 4, (5, "no mount can be made on this machine (--or-unguarded: then go on without)"), 6, 7],
    )
    parser.add_argument("workspace", metavar="WORKSPACE", nargs="?", help="default: as the CI system says")
    parser.add_argument("--job", metavar="NAME", type=task_id, help="default: as the CI system says")
    parser.add_argument("--policy", choices=["warn", "block", "off"], help="default: as configured")
    parser.add_argument("--config", metavar="FILE", help="default: fsguard.toml in the workspace, if there")
    parser.add_argument("--state-dir", metavar="DIR", help="default: below $XDG_STATE_HOME/fsguard")
    parser.add_argument(
        "--or-unguarded", action="store_true", help="where no mount can be made, let the steps run without"
    )
    parser.json_flag()
    args = parser.parse(argv)
    workspace = os.path.realpath(args.workspace or cijob.workspace(os.environ))
    if not os.path.isdir(workspace):
        raise UsageError(f"no such directory: {workspace}")
    job = cijob.Job(workspace, args.job or cijob.name(os.environ))
    _end_what_was_left(workspace)
    try:
        if not _is_mounted(workspace):
            _mount(workspace, args)
            job.mounted = True
    except _CannotMountError as error:
        if not args.or_unguarded:
            raise error.why from None
        job.guarded = False
        terminal.note(f"the steps run unguarded: {terminal.shown(error.message)}")
    else:
        _start_task(job)
    job.save()
    if args.json:
        terminal.print_json(job.as_dict())
    else:
        how = "mounted" if job.mounted else "mounted already" if job.guarded else "not mounted"
        print(f"job {terminal.shown(job.name)} begins: {terminal.shown(workspace)} is {how}")
    return 0


class _CannotMountError(Exception):
    """This machine, or this user, can't: a reason for --or-unguarded to go on without."""

    def __init__(self, why: FsguardError) -> None:
        super().__init__(why.message)
        self.message = why.message
        self.why = why


def _is_mounted(workspace: str) -> bool:
    """Is it mounted already, by somebody who lets us use it? RefusedError: we may not."""
    from fsguard.control import registry
    from fsguard.control.client import Client

    there = registry.find(workspace)
    if there is None or workspace not in (there.workspace, there.mountpoint):
        return False
    with Client(there) as client:
        client.call("policy.get")
    return True


def _mount(workspace: str, args: Any) -> None:
    from fsguard.cli import mount, site

    place = site.choose(workspace, None, args.state_dir)
    try:
        answer, _ = mount.begin(place, mount.Wish(policy=args.policy, config=args.config))
    except (MissingError, RefusedError) as error:
        raise _CannotMountError(error) from None
    # The job's own shells enter by `cd "$PWD"`, as the help says.
    strangers = [held for held in answer["standing"] if held["pid"] not in cijob.ancestors()]
    for line in mount.about_standing(strangers):
        terminal.note(line)


def _start_task(job: Job) -> None:
    """The job's own task, above its steps. Who calls may work for a task already (a control group's
    pattern says so of a runner's unit): then it is below that, and the caller may speak for it."""
    from fsguard.cli import where
    from fsguard.control.client import Client

    with Client(where.locate(job.workspace)) as client:
        client.call("task.start", task=job.name, intent="CI job")


def _end_what_was_left(workspace: str) -> None:
    """A job that was killed could not end its mount."""
    old = cijob.load(workspace)
    if old is None:
        return
    if old.mounted:
        terminal.note(f"job {terminal.quoted(old.name)} did not end; its mount is ended now")
        try:
            _unmount(old)
        except NotMountedError:
            pass
    old.forget()


# ---- run ---------------------------------------------------------------------------------


def _run(argv: list[str]) -> int:
    from fsguard.cli import run

    try:
        words = _run_words(argv)
    except FsguardError as error:
        terminal.complain(error)
        return FAILED
    if isinstance(words, list):
        return run.main(words)
    return words.unguarded()


def _run_words(argv: list[str]) -> list[str] | _Step:
    parser = Parser(
        "ci run",
        "Run COMMAND as a task of the job, in parallel with others: `fsguard run`, below the job's task.\n"
        "In a mount that other jobs use as well, its task ID is JOB/ID.",
        [*_EXAMPLES[1:2], "fsguard ci run --task 'test (3.12)' --name 'matrix leg' -- pytest -q"],
        [
            (0, "the command's own exit code, whatever it is"),
            (FAILED, "the step was not started"),
            (126, "the command cannot be executed"),
            (127, "the command is not found"),
        ],
    )
    parser.usage = "fsguard ci run --task ID [--name TEXT] [--intent TEXT] [--report FILE] -- COMMAND..."
    parser.add_argument("--task", metavar="ID", required=True, type=task_id, help="the step or matrix leg")
    parser.add_argument("--name", metavar="TEXT", help="its role, as others are told")
    parser.add_argument("--intent", metavar="TEXT", help="what it is about, as others are told")
    parser.add_argument(
        "--report", metavar="FILE", help="as for `fsguard run`: this step's warnings and files"
    )
    parser.workspace_flag()
    mark = argv.index("--") if "--" in argv else len(argv)
    args, command = parser.parse(argv[:mark]), argv[mark + 1 :]
    if not command or not command[0]:
        raise UsageError("no command to run", "fsguard ci run --task ID -- COMMAND...")
    job = cijob.current(args.workspace)
    if job is None:
        raise NotMountedError("no job has begun here", "`fsguard ci begin` first")
    task = job.task(args.task)
    if not job.guarded:
        return _Step(task, command)
    words = ["--task", task, "--parent", job.name, "--workspace", job.workspace]
    for flag in ("name", "intent", "report"):
        value = getattr(args, flag)
        if value is not None:
            words += [f"--{flag}", value]
    return [*words, "--", *command]


class _Step:
    """A step that nobody watches."""

    def __init__(self, task: str, command: list[str]) -> None:
        self._task = task
        self._command = command

    def unguarded(self) -> int:
        """Becomes the command; returns only if that cannot be."""
        terminal.note(f"{terminal.quoted(self._task)} runs unguarded")
        try:
            os.execvpe(self._command[0], self._command, {**os.environ, "FSGUARD_TASK": self._task})
        except FileNotFoundError as error:
            code, why = 127, error.strerror
        except OSError as error:
            code, why = 126, error.strerror
        terminal.complain(FsguardError(f"{self._command[0]}: {why}"))
        return code


# ---- end ---------------------------------------------------------------------------------


def _end(argv: list[str]) -> int:
    parser = Parser(
        "ci end",
        "Write the reports, unmount, and say what happened. Nothing is lost if that fails: call it again.",
        [_EXAMPLES[2], "fsguard ci end --report report.sarif --fail-on stale_write,lost_update"],
        _EXITS[:-1],
    )
    parser.add_argument(
        "--report",
        metavar="FILE",
        action="append",
        default=[],
        help="its name says what is in it: .html, .json, .sarif, .xml (JUnit); may be given several times",
    )
    parser.add_argument(
        "--fail-on",
        metavar="KIND[,KIND]",
        action="append",
        default=[],
        help="end with 1 if there was this: conflict, note, or kinds as in `fsguard report --help`",
    )
    parser.workspace_flag()
    parser.json_flag()
    args = parser.parse(argv)
    files = [(file, _format_of(file)) for file in args.report]
    job = cijob.current(args.workspace)
    if job is None:
        raise NotMountedError("no job has begun here", "`fsguard ci begin` first")
    if not job.guarded:
        job.forget()
        terminal.note("the job ran unguarded: there is nothing to report")
        return 0
    warnings, code = _report(job, files, args.fail_on)
    if job.mounted:
        _unmount(job)
    job.forget()
    _say(job, warnings, code, args.json)
    return code


def _format_of(file: str) -> str:
    suffix = os.path.splitext(file)[1].lower()
    if suffix not in FORMATS:
        raise UsageError(f"what kind of report is {file}?", f"its name ends in {', '.join(FORMATS)}")
    return FORMATS[suffix]


def _report(job: Job, files: list[tuple[str, str]], fail_on: list[str]) -> tuple[list[dict[str, Any]], int]:
    """Everything on record since the job began, after it is written to the files."""
    import contextlib
    import io
    import json

    from fsguard.cli import report

    words = [job.workspace, "--since", job.began]
    text = io.StringIO()
    kinds = [word for kind in fail_on for word in ("--fail-on", kind)]
    with contextlib.redirect_stdout(text):
        code = report.main([*words, "--format", "json", *kinds])
    try:
        warnings = json.loads(text.getvalue())["warnings"]
    except (ValueError, KeyError, TypeError):
        raise DaemonError("the report of this job cannot be read") from None
    for file, kind in files:
        report.main([*words, "--format", kind, "--output", file])
    if os.environ.get("GITHUB_ACTIONS") == "true":
        report.main([*words, "--format", "github"])  # annotations, which GitHub reads from the log
    return warnings, code


def _unmount(job: Job) -> None:
    """Strictly; but who called us may stand in there: the mount goes with that shell."""
    from fsguard.cli import detach, unmount

    os.chdir("/")  # we may be the one who stands in there
    mountpoint, notes = unmount.target(job.workspace)
    deadline = time.monotonic() + _ENDING
    while True:
        try:
            unmount.strictly(mountpoint, besides=cijob.ancestors())
        except BusyError as error:
            if error.hint is None:
                detach.unmount(mountpoint, lazy=True)
                return
            if time.monotonic() < deadline:  # a process of the job may be about to end
                time.sleep(0.1)
                continue
            raise BusyError(error.message, f"{error.hint}\nend them, then: fsguard ci end") from None
        break
    unmount.finish(notes)


def _say(job: Job, warnings: list[dict[str, Any]], code: int, as_json: bool) -> None:
    conflicts = [w for w in warnings if w["severity"] == "conflict"]
    if as_json:
        terminal.print_json({**job.as_dict(), "warnings": warnings, "failed": code != 0})
        return
    for warning in conflicts:
        told = terminal.shown(warning["message"], lines=True).replace("\n", "\n  ")
        print(f"{terminal.paint(terminal.cut(warning['task']), 'bold')}\n  {told}")
    noted = len(warnings) - len(conflicts)
    print(f"job {terminal.shown(job.name)} ends: {len(conflicts)} conflicts, {noted} notes")


# ---- status ------------------------------------------------------------------------------


def _status(argv: list[str]) -> int:
    parser = Parser(
        "ci status",
        "The jobs that have begun, and not ended.",
        ["fsguard ci status --json"],
        [(0, "a job has begun here"), 2, (3, "none has")],
    )
    parser.workspace_flag()
    parser.json_flag()
    args = parser.parse(argv)
    job = cijob.current(args.workspace)
    if job is None:
        raise NotMountedError("no job has begun here", "`fsguard ci begin` first")
    if args.json:
        terminal.print_json(job.as_dict())
    else:
        print(f"job {terminal.shown(job.name)} in {terminal.shown(job.workspace)} since {job.began}")
    return 0
