"""fsguard show: the bytes of a kept version."""

from __future__ import annotations

import sys

from fsguard.cli import kept, terminal
from fsguard.cli.base import Parser
from fsguard.control.client import Client
from fsguard.errors import UsageError

__all__ = ["main"]


def main(argv: list[str]) -> int:
    parser = Parser(
        "show",
        "The bytes of a kept version on stdout, as they are; of a symlink, its target.",
        [
            "fsguard show src/app.py@812",
            "fsguard show src/app.py@812 > old.py",
            "fsguard show --version 3 odd@1",
        ],
        [0, (1, "that version was not kept, and why"), (2, "no such version, or a wrong flag"), 3, 6, 7],
    )
    parser.add_argument("what", metavar="PATH@VERSION", help="`fsguard versions PATH` lists the versions")
    kept.version_flag(parser)
    parser.workspace_flag()
    parser.json_flag()
    args = parser.parse(argv)
    path, version = kept.split(args.what, args.version)
    if version is None:
        raise UsageError(f"which version? PATH@VERSION; {kept.command('versions', path)} lists them")
    place = kept.Place(args.workspace, path)
    with Client(place.mount) as client:
        row = kept.find(client, place, version)
        if args.json:
            import binascii

            data = kept.content(client, row)
            terminal.print_json({**row, "data": binascii.b2a_base64(data, newline=False).decode()})
            return 0
        first = True
        for data in kept.chunks(client, row):
            if first and sys.stdout.isatty() and b"\0" in data[:8000]:
                raise UsageError("it is binary, and would garble the terminal", "send it to a file: > FILE")
            first = False
            kept.write_out(data)
    return 0
