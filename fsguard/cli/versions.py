"""fsguard versions: what is kept of a path, newest first."""

from __future__ import annotations

from fsguard.cli import kept, terminal
from fsguard.cli.base import Parser
from fsguard.cli.warnings import clock
from fsguard.control.client import Client
from fsguard.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["main"]

HEAD = ("VERSION", "TIME", "CONTENT OF", "SIZE", "DESTROYED BY", "CAUSE", "KEPT")


def main(argv: list[str]) -> int:
    parser = Parser(
        "versions",
        "The versions of PATH that were destroyed, newest first: whose content it was, who destroyed it\n"
        "with which command, and whether its bytes are kept. PATH need not exist any more.",
        [
            "fsguard versions src/app.py",
            "fsguard versions --limit 1 --json src/app.py | jq .version",
            "fsguard show src/app.py@812",
        ],
        [(0, "done, also when nothing is kept"), 2, 3, 6, 7],
    )
    parser.add_argument("path", metavar="PATH")
    parser.add_argument("--limit", metavar="N", type=int, default=100, help="at most so many (default 100)")
    parser.workspace_flag()
    parser.json_flag()
    args = parser.parse(argv)
    if args.limit < 1:
        raise UsageError("--limit is at least 1")
    place = kept.Place(args.workspace, args.path)
    with Client(place.mount) as client:
        rows = client.call("versions.list", path=place.path, limit=args.limit)
        other = place.from_top()
        if not rows and other is not None:
            rows = client.call("versions.list", path=other, limit=args.limit)
            if rows:
                terminal.note(f"{terminal.shown(args.path)} is taken from the workspace's top")
                place.path = other
    if args.json:
        for row in rows:
            terminal.print_json(row)
    elif not rows:
        print(f"no version of {terminal.shown(place.path)} was kept")
    else:
        print(terminal.table(HEAD, map(_cells, rows)))
        if len(rows) == args.limit:
            terminal.note(f"these are the newest {args.limit}; --limit shows more")
    return 0


def _cells(row: Any) -> tuple[object, ...]:
    known = "yes" if row["kept"] else f"no: {row['reason'] or 'no reason is on record'}"
    if row["conflict"]:
        known += ", conflict" + (" (resolved)" if row["resolved"] else "")
    what = kept.size(row["size"]) if row["kind"] == "file" else row["kind"]
    return row["version"], clock(row["time"]), kept.author(row), what, kept.by(row), row["cause"], known
