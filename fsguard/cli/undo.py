"""fsguard undo: everything that a task's commands destroyed, brought back."""

from __future__ import annotations

from fsguard.cli import kept, putback, terminal, where
from fsguard.cli.base import Parser, task_id
from fsguard.cli.restore import remarks, settled, undoing
from fsguard.control.client import Client
from fsguard.errors import FsguardError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fsguard.control.registry import Mount

__all__ = ["main", "moment"]

HEAD = ("PATH", "VERSION", "CONTENT OF", "SIZE", "NOW", "CHANGED SINCE BY")
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def main(argv: list[str]) -> int:
    parser = Parser(
        "undo",
        "Bring back everything that the commands of a task overwrote or deleted: of each path, what was\n"
        "there before the task first destroyed it. The plan is shown first; --yes carries it out, or an\n"
        "answer at a terminal. What is there now is kept before. What the task made anew stays.",
        [
            "fsguard undo --task A --dry-run",
            "fsguard undo --task A --since 10m",
            "fsguard undo --task A --since 14:30 --keep-changed --yes",
        ],
        [
            (0, "everything is back, or there was nothing to bring back"),
            (1, "something could not be brought back, or the answer was no"),
            (2, "--yes is missing, or a wrong flag"),
            3,
            6,
            7,
        ],
    )
    parser.add_argument("--task", metavar="ID", required=True, type=task_id, help="whose commands to undo")
    parser.add_argument(
        "--since", metavar="TIME", help="only what was destroyed since: 10m, 2h, 1d (ago), 14:30, or RFC 3339"
    )
    parser.add_argument(
        "--keep-changed", action="store_true", help="leave alone what somebody else has changed since"
    )
    parser.add_argument("--yes", action="store_true", help="do it without asking")
    parser.add_argument("--dry-run", action="store_true", help="show the plan, and do nothing")
    parser.workspace_flag()
    parser.json_flag()
    args = parser.parse(argv)
    if args.yes and args.dry_run:
        raise UsageError("--yes or --dry-run, not both")
    since = moment(args.since) if args.since is not None else None
    mount = where.locate(args.workspace)
    with Client(mount) as client:
        plan = client.call("versions.undo_plan", task=args.task, since=since)
        steps = [(row, _obstacle(row, args.keep_changed)) for row in plan]
        if not (args.json and args.yes):
            _show(steps, args.json)
        if not _agreed(steps, args):
            return 0 if args.dry_run or not plan else 1
        return _carry_out(client, mount, steps, args.json)


def _obstacle(row: Any, keep_changed: bool) -> str | None:
    """Why a path is left as it is."""
    if not row["kept"]:
        return f"not kept: {row['reason'] or 'no reason is on record'}"
    if keep_changed and row["changed_since_by"] is not None:
        return "changed since"
    return None


def _show(steps: list[tuple[Any, str | None]], as_json: bool) -> None:
    if as_json:
        for row, obstacle in steps:
            terminal.print_json({**row, "would_restore": obstacle is None, "why_not": obstacle})
        return
    if not steps:
        print("nothing to bring back")
        return
    rows = []
    for row, obstacle in steps:
        now = "as it is" if obstacle else "replaced" if row["present"] else "made again"
        changed = row["changed_since_by"]
        rows.append(
            (
                row["path"],
                row["version"],
                kept.author(row),
                kept.size(row["size"]) if row["kind"] == "file" else row["kind"],
                f"{now} ({obstacle})" if obstacle else now,
                "" if changed is None else changed,
            )
        )
    print(terminal.table(HEAD, rows))


def _agreed(steps: list[tuple[Any, str | None]], args: Any) -> bool:
    count = sum(obstacle is None for _, obstacle in steps)
    if args.dry_run or not steps:
        return False
    if args.yes:
        return True
    if not count:
        raise FsguardError("nothing of this can be brought back")
    answer = None if args.json else kept.ask(f"bring back {_files(count)}?")
    if answer is None:
        raise UsageError("nothing was done", "--yes does it without asking; --dry-run only shows the plan")
    if not answer:
        terminal.note("nothing was done")
    return answer


def _carry_out(client: Client, mount: Mount, steps: list[tuple[Any, str | None]], as_json: bool) -> int:
    back: list[Any] = []
    failed = 0
    for row, known_obstacle in steps:
        obstacle = known_obstacle
        outcome: dict[str, Any] | None = None
        if obstacle is None:
            try:
                outcome = putback.bring_back(client, mount.mountpoint, row, row["path"])
                back.append(row)
            except FsguardError as error:  # the others are not worse for it
                obstacle = error.message
                failed += 1
        elif not row["kept"]:
            failed += 1
        _say(mount, row, outcome, obstacle, as_json)
    settled(client, back)
    if not as_json:
        print(f"{_files(len(back))} brought back" + (f", {failed} not" if failed else ""))
    return 1 if failed else 0


def _say(mount: Mount, row: Any, outcome: dict[str, Any] | None, obstacle: str | None, as_json: bool) -> None:
    shown = kept.typed(mount, row["path"])
    name = terminal.shown(shown)
    undo = undoing(shown, outcome) if outcome is not None else None
    if as_json:
        before = outcome["before"] if outcome else None
        terminal.print_json(
            {
                **row,
                "restored": outcome is not None,
                "why_not": obstacle,
                "changed": outcome is not None and not outcome["same"],
                "before": before["version"] if before else None,
                "unrestored": outcome["unrestored"] if outcome else [],
                "undo": undo,
            }
        )
        return
    if outcome is None:
        terminal.note(f"{name} stays as it is: {terminal.shown(obstacle)}")
    elif outcome["same"]:
        print(f"{name} is as it was already")
    else:
        print(f"{name}: version {row['version']} is back; to undo: {undo}")
    for remark in remarks(outcome) if outcome else ():
        terminal.note(f"{name}: {remark}")


def _files(count: int) -> str:
    return f"{count} file{'' if count == 1 else 's'}"


def moment(text: str) -> float:
    """Seconds since the epoch of 10m, 2h or 1d (ago), HH:MM[:SS] today, or RFC 3339.

    UsageError: it is none of these, or still to come.
    """
    import time

    now = time.time()
    then = _ago(text, now)
    if then is None:
        then = _clock(text)
    if then is None:
        raise UsageError(
            f"{terminal.shown(text)} is no time", "10m, 2h, 1d, 14:30, or 2025-01-31T14:30:00+01:00"
        )
    if then > now:
        raise UsageError(f"{terminal.shown(text)} is still to come")
    return then


def _ago(text: str, now: float) -> float | None:
    span = text.strip().removesuffix("ago").strip()
    digits = span.rstrip("smindh ")
    unit = span[len(digits) :].strip()
    if digits.isascii() and digits.isdigit() and len(digits) < 10 and unit in _UNITS:
        return now - int(digits) * _UNITS[unit]
    return None


def _clock(text: str) -> float | None:
    from datetime import datetime, time

    try:
        if ":" in text and "-" not in text and "T" not in text:
            return datetime.combine(datetime.now().date(), time.fromisoformat(text)).timestamp()
        # Without an offset: by the clock of this machine.
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None
