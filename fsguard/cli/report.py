"""fsguard report: what happened, for people, for programs and for CI jobs."""

from __future__ import annotations

import sys

from fsguard.cli import terminal, where
from fsguard.cli.base import Parser
from fsguard.core.model import Kind
from fsguard.errors import FsguardError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fsguard.cli.reports.records import Records

__all__ = ["main"]

FORMATS = ("html", "json", "github", "sarif", "junit")
KINDS = tuple(kind.value for kind in Kind)
SEVERITIES = ("conflict", "note")


def main(argv: list[str]) -> int:
    args = _parser().parse(argv)
    fail_on = _kinds(args.fail_on)
    since = None
    if args.since is not None:
        from fsguard.cli.undo import moment

        since = moment(args.since)
    from fsguard.cli.reports.records import load

    place = where.named(args.place, args.workspace)
    if args.format == "html" and args.output is None and sys.stdout.isatty():
        raise UsageError(
            "the page is for a browser, not for a terminal", "fsguard report --output report.html"
        )
    records = load(place, args.state_dir)
    if since is not None:
        records.since(since)
    failing = [w for w in records.warnings if not w["resolved"] and fail_on & {w["kind"], w["severity"]}]
    _write(args.output, _format(args.format)(records, fail_on))
    if args.output not in (None, "-"):
        what = terminal.shown(args.output)
        terminal.note(f"{what}: {len(records.warnings)} warnings, {len(records.log)} lines of the log")
    if failing:
        kinds = sorted({w["kind"] for w in failing})
        terminal.note(f"{len(failing)} of what --fail-on asks for: {', '.join(kinds)}")
    return 1 if failing else 0


def _parser() -> Parser:
    parser = Parser(
        "report",
        "What happened since the mount began: a page with a timeline of tasks against contended files and\n"
        "all conflicts with their differences (html), everything on record (json), or what a CI job shows\n"
        "(github, sarif, junit). After `unmount` it tells of the last mount, from its state directory.",
        [
            "fsguard report --output report.html",
            "fsguard report project --format json | jq '.warnings[].kind'",
            "fsguard report --format github --fail-on conflict",
            "fsguard report --format junit --fail-on stale_write,reverted --since 10m --output fsguard.xml",
        ],
        [0, (1, "--fail-on: there is one of these, and it is not resolved"), 2, 3, 6, 7],
    )
    parser.workspace_argument()
    parser.add_argument("--format", choices=FORMATS, default="html", help="default: html")
    parser.add_argument("--output", metavar="FILE", help="default: stdout")
    parser.add_argument(
        "--fail-on",
        metavar="KIND[,KIND]",
        action="append",
        help=f"end with 1 when there is such a warning: {', '.join(SEVERITIES)} or {', '.join(KINDS)}",
    )
    parser.add_argument("--since", metavar="TIME", help="10m, 2h, 1d (ago), 14:30, or RFC 3339")
    parser.add_argument("--state-dir", metavar="DIR", help="after unmount: as it was given to `mount`")
    return parser


def _kinds(given: list[str] | None) -> set[str]:
    found = {word.strip() for words in given or () for word in words.split(",") if word.strip()}
    known = (*SEVERITIES, *KINDS)
    for word in sorted(found):
        if word not in known:
            import difflib

            near = difflib.get_close_matches(word, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(known)}"
            raise UsageError(f"--fail-on: there is no kind {terminal.shown(word)}", hint)
    return found


def _format(name: str) -> Callable[[Records, set[str]], Iterable[str]]:
    if name == "html":
        from fsguard.cli.reports.html import page

        return lambda records, fail_on: page(records)
    from fsguard.cli.reports import plain

    return {"json": plain.as_json, "github": plain.github, "sarif": plain.sarif, "junit": plain.junit}[name]


def _write(output: str | None, pieces: Iterable[str]) -> None:
    """To a file all at once: nobody finds half a report, and an older one stays if this fails."""
    if output in (None, "-"):
        for piece in pieces:
            sys.stdout.write(piece)
        return
    import os

    draft = f"{output}.{os.getpid()}.tmp"
    try:
        with open(draft, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(pieces)
        os.replace(draft, output)
    except OSError as error:
        try:
            os.unlink(draft)
        except OSError:
            pass
        raise FsguardError(f"cannot write {terminal.shown(output)}: {error.strerror}") from None
