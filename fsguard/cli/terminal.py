"""Words for people: what others wrote is made harmless, colours only where wanted.

File names, commands and task names come from other tasks. A name may hold
escape sequences that move the cursor, newlines that forge a line of ours, or
characters that turn the reading direction. They are shown by number, whether
or not the output is a terminal: what reads a pipe may be an agent.
"""

from __future__ import annotations

import io
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, TextIO

    from fsguard.errors import FsguardError

__all__ = ["complain", "cut", "note", "paint", "prepare", "print_json", "quoted", "shown", "table"]

_COLOURS = {"red": "31", "yellow": "33", "green": "32", "bold": "1", "dim": "2"}


def prepare() -> None:
    """Let stdout and stderr print anything in any locale."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def shown(text: object, *, lines: bool = False) -> str:
    """`text` with every character spelled out that does not simply print.

    Control and format characters (colours, direction, invisible ones), line ends
    and unassigned characters become ``\\n``, ``\\x1b`` or ``\\u202e``; a byte that
    is not UTF-8 becomes ``\\xe9``. With `lines`, newlines and tabs stay: for
    sentences of several lines that the daemon composed.
    """
    string = str(text)
    if string.isprintable() and not _tagged(string):
        return string
    return "".join(map(_shown_in_lines if lines else _shown, string))


def quoted(text: object, limit: int = 60) -> str:
    """Somebody else's words, marked as such and cut."""
    return f"“{cut(text, limit)}”"


def cut(text: object, limit: int = 60) -> str:
    """`shown`, at most `limit` characters, with … where something is missing."""
    string = shown(text)
    return string if len(string) <= limit else string[: limit - 1] + "…"


def paint(text: str, colour: str, stream: TextIO | None = None) -> str:
    """`text` in a colour if `stream` (default stdout) is a terminal that wants it.

    https://no-color.org: NO_COLOR, when not empty, means none.
    """
    out = stream or sys.stdout
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not out.isatty():
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def complain(error: FsguardError) -> None:
    """An error as users see it: the sentence, and a line that says what to do."""
    lines = [paint("fsguard:", "red", sys.stderr) + " " + shown(error.message, lines=True)]
    if error.hint:
        lines.append("  " + shown(error.hint, lines=True).replace("\n", "\n  "))
    _to_stderr("\n".join(lines))


def note(sentence: str) -> None:
    """A sentence on stderr that is no error."""
    _to_stderr(paint("fsguard:", "dim", sys.stderr) + " " + sentence)


def print_json(value: Any) -> None:
    """One JSON value on one line. ASCII: a byte that is not UTF-8 is \\udcXX (PEP 383)."""
    import json

    print(json.dumps(value, ensure_ascii=True), flush=True)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns with a heading; the cells are escaped here."""
    cells = [[cut(cell, 100) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in cells]
    title = "  ".join(f"{name:<{width}}" for name, width in zip(head, widths, strict=True))
    return "\n".join(line.rstrip() for line in [paint(title, "bold"), *lines])


def _to_stderr(text: str) -> None:
    try:
        print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass  # nobody listens; the exit code still says it


def _tagged(text: str) -> bool:
    # Variation selectors print nothing, can carry hidden text, and count as printable.
    return not text.isascii() and any("\U000e0000" <= character <= "\U000e0fff" for character in text)


def _shown_in_lines(character: str) -> str:
    return character if character in "\n\t" else _shown(character)


def _shown(character: str) -> str:
    if character.isprintable() and not _tagged(character):
        return character
    number = ord(character)
    if 0xDC80 <= number <= 0xDCFF:
        return f"\\x{number - 0xDC00:02x}"
    short = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(character)
    if short or number < 0x80:
        return short or f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
