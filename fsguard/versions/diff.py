"""A short diff for a warning: what the task had read against what is there now.

It is made while a process waits for its system call, and of files that anybody
may have written, so its cost has a bound: by Myers' algorithm ("An O(ND)
Difference Algorithm", 1986), which is quick when little has changed, and given up
after `MAX_EDITS` changed lines. Beyond that the whole part between the first and
the last difference is shown as replaced.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

__all__ = ["short_diff"]

MAX_LINES = 40
MAX_WIDTH = 200
MAX_EDITS = 400
CONTEXT = 2

#: A change: lines [a, b) of the old text became lines [c, d) of the new one.
Hunk = tuple[int, int, int, int]


def short_diff(old: bytes, new: bytes, old_name: str, new_name: str, max_lines: int = MAX_LINES) -> str:
    """A unified diff of text, capped to `max_lines` lines; empty for binary or equal content.

    Control characters are shown escaped: the text comes from somebody else. The
    last line says by how many lines the file has become longer or shorter.
    """
    if old == new or b"\0" in old or b"\0" in new:
        return ""
    before, after = _lines(old), _lines(new)
    changes = list(_changes(before, after))
    if not changes:
        return "(only the line break at the end differs)"
    lines = [f"--- {_safe(old_name)}", f"+++ {_safe(new_name)}"]
    for line in _unified(before, after, changes):
        if len(lines) >= max_lines:
            lines.append(f"… (cut after {max_lines} lines)")
            break
        lines.append(_safe(line))
    shift = len(after) - len(before)
    if shift:
        way = "longer" if shift > 0 else "shorter"
        lines.append(f"(the file is {abs(shift)} line{'s' if abs(shift) > 1 else ''} {way} now)")
    return "\n".join(lines)


def _lines(data: bytes) -> list[str]:
    lines = data.decode("utf-8", "replace").split("\n")
    if not lines[-1]:
        lines.pop()
    return lines


def _changes(a: Sequence[str], b: Sequence[str]) -> Iterator[Hunk]:
    """The differences, in order."""
    start, most = 0, min(len(a), len(b))
    while start < most and a[start] == b[start]:
        start += 1
    end = 0
    while end < most - start and a[-1 - end] == b[-1 - end]:
        end += 1
    a, b = a[start : len(a) - end], b[start : len(b) - end]
    edits = _myers(a, b)
    if edits is None:
        yield start, start + len(a), start, start + len(b)
        return
    # Single lines that are deleted (x, y, True) or inserted, joined to changes.
    hunk: Hunk | None = None
    for old_line, new_line, deleted in edits:
        x, y = old_line + start, new_line + start
        if hunk is not None and (hunk[1], hunk[3]) != (x, y):
            yield hunk
            hunk = None
        first = hunk or (x, x, y, y)
        hunk = (first[0], x + deleted, first[2], y + (not deleted))
    if hunk is not None:
        yield hunk


def _myers(a: Sequence[str], b: Sequence[str]) -> list[tuple[int, int, bool]] | None:
    """The fewest edits that make `b` of `a`; None when there are more than MAX_EDITS."""
    furthest = {1: 0}
    trace: list[dict[int, int]] = []
    for d in range(min(len(a) + len(b), MAX_EDITS) + 1):
        trace.append(dict(furthest))
        for k in range(-d, d + 1, 2):
            down = k == -d or (k != d and furthest[k - 1] < furthest[k + 1])
            x = furthest[k + 1] if down else furthest[k - 1] + 1
            y = x - k
            while x < len(a) and y < len(b) and a[x] == b[y]:
                x, y = x + 1, y + 1
            furthest[k] = x
            if x >= len(a) and y >= len(b):
                return _back(trace, x, y)
    return None


def _back(trace: list[dict[int, int]], x: int, y: int) -> list[tuple[int, int, bool]]:
    """The way that led to (x, y): (x, y, whether line x of the old text is deleted)."""
    edits = []
    for d in range(len(trace) - 1, 0, -1):
        furthest, k = trace[d], x - y
        down = k == -d or (k != d and furthest[k - 1] < furthest[k + 1])
        x = furthest[k + 1] if down else furthest[k - 1]
        y = x - (k + 1 if down else k - 1)
        edits.append((x, y, not down))
    return edits[::-1]


def _unified(a: Sequence[str], b: Sequence[str], changes: list[Hunk]) -> Iterator[str]:
    groups: list[list[Hunk]] = []
    for change in changes:
        if groups and change[0] - groups[-1][-1][1] <= 2 * CONTEXT:
            groups[-1].append(change)
        else:
            groups.append([change])
    for group in groups:
        lead = min(CONTEXT, group[0][0])
        trail = min(CONTEXT, len(a) - group[-1][1])
        yield (
            f"@@ -{_range(group[0][0] - lead, group[-1][1] + trail)}"
            f" +{_range(group[0][2] - lead, group[-1][3] + trail)} @@"
        )
        at = group[0][0] - lead
        for old_from, old_to, new_from, new_to in group:
            yield from (" " + line for line in a[at:old_from])
            yield from ("-" + line for line in a[old_from:old_to])
            yield from ("+" + line for line in b[new_from:new_to])
            at = old_to
        yield from (" " + line for line in a[at : at + trail])


def _range(first: int, end: int) -> str:
    count = end - first
    return f"{first + 1 if count else first},{count}" if count != 1 else f"{first + 1}"


def _safe(line: str) -> str:
    """As text that can neither move a cursor nor pass for something else; cut to MAX_WIDTH characters."""
    text = "".join(ch if _plain(ch) else _escape(ch) for ch in line[:MAX_WIDTH])
    return text if len(line) <= MAX_WIDTH else text + "…"


def _plain(ch: str) -> bool:
    return ch == "\t" or unicodedata.category(ch) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


def _escape(ch: str) -> str:
    code = ord(ch)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
