"""fsguard diff: a kept version against another one, or against what is there now."""

from __future__ import annotations

from fsguard.cli import kept, putback, terminal, textdiff
from fsguard.cli.base import Parser
from fsguard.cli.warnings import clock
from fsguard.control.client import Client
from fsguard.errors import FsguardError, RefusedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fsguard.control.registry import Mount

__all__ = ["Side", "compared", "facts", "main"]

LIMIT = 64 << 20
"""Bytes of a side that are compared line by line."""


class Side:
    """One of the two: `data` None means that nothing is there."""

    def __init__(self, name: str, kind: str, mode: int, data: bytes | None) -> None:
        self.name = name
        self.kind = kind
        self.mode = f"{0o120000 if kind == 'symlink' else 0o100000 | mode & 0o7777:06o}"
        self.data = data


def main(argv: list[str]) -> int:
    parser = Parser(
        "diff",
        "What a kept version of PATH had, against a second one, or against the file as it is now. Without a\n"
        "version: the newest one that was kept. Files that look like secrets are shown with --secrets only.",
        [
            "fsguard diff src/app.py",
            "fsguard diff src/app.py@812",
            "fsguard diff src/app.py@812..840",
            "fsguard diff src/app.py@812 | patch -R -p0",
        ],
        [
            (0, "done, whether they differ or not"),
            (1, "a version was not kept, or the file can't be read"),
            (2, "no such version, or a wrong flag"),
            3,
            (6, "it looks like a secret, or the caller may not do that"),
            7,
        ],
    )
    parser.add_argument("what", metavar="PATH[@V1[..V2]]")
    kept.version_flag(parser, span=True)
    parser.add_argument("--secrets", action="store_true", help="also files that look like secrets")
    parser.workspace_flag()
    parser.json_flag()
    args = parser.parse(argv)
    path, first, second = kept.split_span(args.what, args.version)
    place = kept.Place(args.workspace, path)
    with Client(place.mount) as client:
        row, other, old, new = compared(client, place, first, second, secrets=args.secrets)
    if args.json:
        terminal.print_json({**row, "against": other, **facts(old, new)})
    else:
        _print(place.path, old, new)
    return 0


def compared(
    client: Client, place: kept.Place, first: int | None, second: int | None, *, secrets: bool = False
) -> tuple[Any, Any, Side, Side]:
    """(row, row of the second version or None, and what each holds).

    `first` None: the newest one kept; `second` None: the file as it is now.
    RefusedError: it looks like a secret, and `secrets` were not asked for.
    """
    row = kept.find(client, place, first)
    if not secrets and client.call("versions.diffable", path=place.path)["secret"]:
        raise RefusedError(
            f"{terminal.shown(place.path)} looks like a secret", "--secrets shows it all the same"
        )
    old = _kept(client, row)
    other = kept.find(client, place, second) if second is not None else None
    new = _present(place.mount, place.path) if other is None else _kept(client, other)
    return row, other, old, new


def _kept(client: Client, row: Any) -> Side:
    if row["kept"] and row["size"] > LIMIT:
        raise _too_large(row["path"], row["size"])
    name = f"{terminal.shown(row['path'])}\t@{row['version']}, {kept.author(row)}, {clock(row['time'])}"
    return Side(name, row["kind"], row["mode"], kept.content(client, row))


def _present(mount: Mount, path: str) -> Side:
    with putback.Present(mount.mountpoint, path) as present:
        if present.kind == "absent" or present.stat is None:
            return Side("/dev/null", "absent", 0, None)
        if present.kind not in ("file", "symlink"):
            raise FsguardError(f"{terminal.shown(path)} is no file now", "name two versions: PATH@V1..V2")
        if present.stat.st_size > LIMIT:
            raise _too_large(path, present.stat.st_size)
        return Side(f"{terminal.shown(path)}\tnow", present.kind, present.stat.st_mode, present.read())


def _too_large(path: str, size: int) -> FsguardError:
    return FsguardError(
        f"{terminal.shown(path)} is too large to be compared here ({kept.size(size)})",
        "`fsguard show PATH@VERSION > FILE`, then compare with a tool of your own",
    )


def _binary(old: Side, new: Side) -> bool:
    return any(side.kind == "file" and textdiff.binary(side.data or b"") for side in (old, new))


def _lines(old: Side, new: Side) -> list[bytes]:
    return textdiff.unified(old.data or b"", new.data or b"", old.name, new.name)


def facts(old: Side, new: Side) -> dict[str, Any]:
    """What differs, as `--json` has it: `diff` is None for bytes that are no text."""
    binary = _binary(old, new)
    diff = None if binary else b"".join(_lines(old, new)).decode("utf-8", "surrogateescape")
    same = old.kind == new.kind and old.data == new.data
    return {"identical": same, "present": new.data is not None, "binary": binary, "diff": diff}


def _print(path: str, old: Side, new: Side) -> None:
    name = terminal.shown(path)
    if new.data is None:
        print(f"deleted {name} ({old.mode})")
    elif old.mode != new.mode:
        print(f"old mode {old.mode}\nnew mode {new.mode}")
    elif old.data == new.data:
        terminal.note(f"{name}: no difference")
    if not _binary(old, new):
        textdiff.show(_lines(old, new))
    elif old.data != new.data:
        sizes = f"{kept.size(len(old.data or b''))} and {kept.size(len(new.data or b''))}"
        print(f"binary files differ: {name} ({sizes})")
