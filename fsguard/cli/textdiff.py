"""Unified diffs of bytes, for people and for `patch`.

difflib takes time with the square of what differs, so the equal lines at both
ends are set aside first, and what is still too much becomes one block: less
fine, never wrong.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["binary", "show", "unified"]

_CONTEXT = 3
_MOST = 16_000_000
"""Pairs of lines to compare; a few seconds."""


def binary(data: bytes) -> bool:
    """As git sees it: a zero byte near the beginning."""
    return b"\0" in data[:8000]


def unified(old: bytes, new: bytes, old_name: str, new_name: str) -> list[bytes]:
    """The lines of the diff, with their ends; none when the two are equal.

    The names are printed as they are: harmless and without line ends.
    """
    if old == new:
        return []
    lines = [f"--- {old_name}\n".encode(), f"+++ {new_name}\n".encode()]
    before, after = _lines(old), _lines(new)
    for group in _groups(before, after):
        first, last = group[0], group[-1]
        where = f"@@ -{_range(first[1], last[2])} +{_range(first[3], last[4])} @@\n"
        lines.append(where.encode())
        for tag, a, a_end, b, b_end in group:
            if tag == "equal":
                lines += [_ended(b" " + line) for line in before[a:a_end]]
            else:
                lines += [_ended(b"-" + line) for line in before[a:a_end]]
                lines += [_ended(b"+" + line) for line in after[b:b_end]]
    return lines


def show(lines: Sequence[bytes]) -> None:
    """Print a diff: to a terminal in colours and with every control character spelled
    out, elsewhere byte by byte."""
    from fsguard.cli import kept, terminal

    if not sys.stdout.isatty():
        kept.write_out(b"".join(lines))
        return
    colours = {b"-": "red", b"+": "green", b"@": "dim"}
    for number, line in enumerate(lines):
        text = terminal.shown(line.decode("utf-8", "surrogateescape").removesuffix("\n"), lines=True)
        colour = "bold" if number < 2 else colours.get(line[:1])
        print(terminal.paint(text, colour) if colour else text)


def _lines(data: bytes) -> list[bytes]:
    *whole, rest = data.split(b"\n")
    lines = [line + b"\n" for line in whole]
    return [*lines, rest] if rest else lines


def _ended(line: bytes) -> bytes:
    return line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"


def _range(start: int, end: int) -> str:
    """As in difflib and diff(1): an empty range is named by the line before it."""
    length = end - start
    if length == 1:
        return str(start + 1)
    return f"{start + 1 if length else start},{length}"


def _groups(
    before: Sequence[bytes], after: Sequence[bytes]
) -> Iterator[list[tuple[str, int, int, int, int]]]:
    """Hunks, as SequenceMatcher.get_grouped_opcodes gives them."""
    shorter = min(len(before), len(after))
    head = 0
    while head < shorter and before[head] == after[head]:
        head += 1
    tail = 0
    while tail < shorter - head and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    start = max(0, head - _CONTEXT)
    rest = max(0, tail - _CONTEXT)
    a, b = before[start : len(before) - rest], after[start : len(after) - rest]
    if len(a) * len(b) > _MOST:
        a_end, b_end = len(before) - tail, len(after) - tail
        yield [
            ("equal", start, head, start, head),
            ("replace", head, a_end, head, b_end),
            ("equal", a_end, len(before) - rest, b_end, len(after) - rest),
        ]
        return
    from difflib import SequenceMatcher

    for group in SequenceMatcher(None, a, b, autojunk=False).get_grouped_opcodes(_CONTEXT):
        yield [(tag, i + start, i_end + start, j + start, j_end + start) for tag, i, i_end, j, j_end in group]
