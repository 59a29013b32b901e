"""fsguard top: what goes on now, as a live screen, once as text, or as JSON."""

from __future__ import annotations

import os
import sys
import time

from fsguard.cli import terminal, where
from fsguard.cli.base import Parser
from fsguard.control.client import Client
from fsguard.errors import MissingError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fsguard.control.registry import Mount

__all__ = ["main"]


def main(argv: list[str]) -> int:
    parser = Parser(
        "top",
        "What goes on in a workspace: tasks and what each reads and writes now, contended paths, who waits\n"
        "for whom, and warnings. Enter inspects what the cursor is on, d shows what a file lost, e ends a\n"
        "task, Tab goes to the next list, p pauses, q quits. A lost daemon is looked for until it is back.",
        [
            "fsguard top",
            "fsguard top project --interval 0.5",
            "fsguard top --once",
            "fsguard top --json | jq -c '[.open_total, .pending]'",
        ],
        [
            0,
            2,
            3,
            (5, "the screen needs textual, which is not installed"),
            6,
            7,
            (130, "--json was ended by Ctrl-C"),
        ],
    )
    parser.workspace_argument()
    parser.add_argument("--interval", metavar="SECONDS", type=float, default=1.0, help="default: 1")
    parser.add_argument(
        "--once", action="store_true", help="print it once (default when stdout is no terminal)"
    )
    parser.add_argument(
        "--json", action="store_true", help="an object a line, each interval; with --once, one"
    )
    args = parser.parse(argv)
    if not 0.1 <= args.interval <= 3600:
        raise UsageError("--interval is 0.1 to 3600 seconds")
    mount = where.locate(args.place, args.workspace)
    if args.json:
        return _stream(mount, args.interval, args.once)
    if args.once or not (sys.stdout.isatty() and sys.stdin.isatty()):
        _print(_ask(mount))
        return 0
    return _screen(mount, args.interval)


def _ask(mount: Mount) -> dict[str, Any]:
    with Client(mount) as client:
        answer: dict[str, Any] = client.call("activity")
        return answer


def _stream(mount: Mount, interval: float, once: bool) -> int:
    os.chdir("/")  # standing in the workspace would keep it from being unmounted
    while True:
        terminal.print_json(_ask(mount))
        if once:
            return 0
        time.sleep(interval)


def _print(facts: dict[str, Any]) -> None:
    from fsguard.cli.screen.rows import HEADS, TITLES, head, rows

    print(head(facts))
    for name, title in TITLES.items():
        found = rows(name, facts)
        print()
        print(terminal.paint(title, "bold") + ("" if found else ": none"))
        if found:
            print(terminal.table(HEADS[name], [cells for _, cells, _ in found]))


def _screen(mount: Mount, interval: float) -> int:
    try:
        from fsguard.cli.screen.app import Top
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("textual", "rich"):
            raise
        hint = "pip install 'fsguard[top]'; without it: `fsguard top --once`, or --json"
        raise MissingError("the live screen needs the package textual", hint) from None
    from fsguard.cli.screen.source import Source

    _ask(mount)  # what is wrong from the start is said in words
    os.chdir("/")
    Top(Source(mount), interval).run()
    return 0
