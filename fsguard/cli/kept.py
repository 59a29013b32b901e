"""What the commands about kept versions share: PATH@VERSION, rows, bytes, and words for them.

A row is what `versions.list` answers: `task` destroyed, with `command`, what
`sibling` had written (either may be none: no task). Versions are numbers of
one counter for the whole workspace, so a number names one content.
"""

from __future__ import annotations

import os

from fsguard.cli import terminal, where
from fsguard.errors import DaemonError, FsguardError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from fsguard.cli.base import Parser
    from fsguard.control.client import Client
    from fsguard.control.registry import Mount

__all__ = [
    "Place",
    "ask",
    "author",
    "by",
    "chunks",
    "command",
    "content",
    "find",
    "need_kept",
    "number",
    "shell",
    "size",
    "split",
    "split_span",
    "typed",
    "version_flag",
    "write_out",
]


class Place:
    """A path of a workspace, as the user gave it (`given`) and as the daemon knows it."""

    def __init__(self, workspace: str | None, given: str) -> None:
        self.given = given
        if workspace is not None and not os.path.isabs(given):
            # From outside, a path is meant from the workspace's top.
            self.mount = where.locate(workspace)
            outside = self.mount.relative(os.path.realpath(where.here())) is None
            path = os.path.join(self.mount.mountpoint, given) if outside else given
            self.path = where.relative(self.mount, path)
        else:
            self.mount, self.path = where.locate_for(workspace, given)

    def from_top(self) -> str | None:
        """What `given` means at the workspace's top, if that is something else: the
        paths in sentences are written from there."""
        if os.path.isabs(self.given):
            return None
        try:
            path = where.relative(self.mount, os.path.join(self.mount.mountpoint, self.given))
        except UsageError:
            return None
        return path if path != self.path else None

    @property
    def typed(self) -> str:
        return typed(self.mount, self.path)


# ---- PATH@VERSION ----------------------------------------------------------------------------


def version_flag(parser: Parser, *, span: bool = False) -> None:
    metavar = "N[..M]" if span else "N"
    parser.add_argument(
        "--version",
        metavar=metavar,
        help="the version; then PATH is all path, whatever it has of @ in it",
    )


def split(text: str, version: str | None) -> tuple[str, int | None]:
    """(path, version) of PATH@VERSION: what follows the last @, when it is a number.

    With `version` (--version) the whole text is the path.
    """
    if version is not None:
        return text, number(version)
    path, at, digits = text.rpartition("@")
    return (path, number(digits)) if at and path and _digits(digits) else (text, None)


def split_span(text: str, version: str | None) -> tuple[str, int | None, int | None]:
    """(path, V1, V2) of PATH[@V1[..V2]]."""
    path, digits = text, version
    if version is None:
        head, _, tail = text.rpartition("@")
        if head and all(map(_digits, tail.split("..", 1))):
            path, digits = head, tail
    if digits is None:
        return path, None, None
    first, _, second = digits.partition("..")
    return path, number(first), number(second) if second else None


def number(text: str) -> int:
    if not _digits(text) or int(text) >= 1 << 53:
        raise UsageError(f"{text} is no version number", "`fsguard versions PATH` lists them")
    return int(text)


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20


def find(client: Client, place: Place, version: int | None) -> Any:
    """The row of this version of the path (None: the newest one that was kept).

    A path that has no such version here, but has it when read from the workspace's
    top, is meant from there: so it stands in warnings.
    """
    try:
        return _find(client, place.path, version)
    except UsageError:
        other = place.from_top()
        if other is None:
            raise
        try:
            row = _find(client, other, version)
        except UsageError:
            pass
        else:
            terminal.note(f"{terminal.shown(place.given)} is taken from the workspace's top")
            place.path = other
            return row
        raise


def _find(client: Client, path: str, version: int | None) -> Any:
    if version is not None:
        return client.call("versions.find", path=path, version=version)
    rows = client.call("versions.list", path=path, limit=100)
    kept = [row for row in rows if row["kept"]]
    if not kept:
        raise UsageError(
            f"no version of {terminal.shown(path)} is kept", "`fsguard conflicts --all` shows all"
        )
    return kept[0]


# ---- bytes -----------------------------------------------------------------------------------


def need_kept(row: Any) -> None:
    if not row["kept"]:
        name = f"version {row['version']} of {terminal.shown(row['path'])}"
        raise FsguardError(
            f"{name} was not kept: {row['reason'] or 'no reason is on record'}",
            f"other versions: {command('versions', row['path'])}",
        )


def chunks(client: Client, row: Any) -> Iterator[bytes]:
    """The bytes of a kept version, piece by piece; of a symlink, its target.

    DaemonError: they are not as many as they should be. Nothing is to be put in
    anybody's place before the end was reached.
    """
    import binascii

    need_kept(row)
    if row["kind"] == "symlink":
        yield os.fsencode(row["target"])
        return
    offset = 0
    while True:
        part = client.call("versions.read", id=row["id"], offset=offset)
        data = binascii.a2b_base64(part["data"])
        if data:
            yield data
        offset += len(data)
        if part["eof"]:
            break
        if not data:
            raise DaemonError(f"the kept bytes of {terminal.shown(row['path'])} stop at {offset}")
    if offset != part["size"]:
        raise DaemonError(f"{offset} bytes came of {terminal.shown(row['path'])}, not {part['size']}")


def content(client: Client, row: Any) -> bytes:
    return b"".join(chunks(client, row))


def write_out(data: bytes) -> None:
    """Bytes to stdout, after whatever was printed."""
    import sys

    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


# ---- words -----------------------------------------------------------------------------------


def typed(mount: Mount, path: str) -> str:
    """`path` (relative to the workspace) as it can be given from where the user stands."""
    start = mount.relative(os.path.realpath(where.here()))
    if start is not None:
        near = os.path.relpath("/" + path, "/" + start)
        if not near.startswith("../"):
            return near if not near.startswith("-") else f"./{near}"
    return f"{mount.mountpoint}/{path}"


def command(name: str, path: str, version: int | None = None, *more: str) -> str:
    """A command of ours about a path, to be pasted into a shell."""
    return shell("fsguard", name, path if version is None else f"{path}@{version}", *more)


def shell(*words: str) -> str:
    """A command line in which every word stays one, whatever is in it."""
    return " ".join(map(_word, words))


def _word(text: str) -> str:
    import shlex

    if terminal.shown(text) == text:
        return shlex.quote(text)
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{terminal.shown(escaped)}'"


def author(row: Any) -> str:
    """Whose content it is."""
    return terminal.cut(row["sibling"], 40) if row["sibling"] is not None else "no task"


def by(row: Any) -> str:
    """Who destroyed it, and with what."""
    name = terminal.cut(row["task"], 40) if row["task"] is not None else "no task"
    return f"{name} {terminal.quoted(row['command'])}" if row["command"] else name


def size(count: int | None) -> str:
    if count is None:
        return "?"
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def ask(question: str) -> bool | None:
    """yes or no, from a person at a terminal; None when there is nobody to ask."""
    import sys

    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    sys.stdout.flush()
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
