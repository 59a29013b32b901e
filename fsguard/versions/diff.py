"""A short diff for a warning: what the task had read against what is there now."""

from __future__ import annotations

import difflib
import unicodedata

__all__ = ["short_diff"]

MAX_LINES = 40
MAX_WIDTH = 200
MAX_INPUT_LINES = 20_000


def short_diff(old: bytes, new: bytes, old_name: str, new_name: str, max_lines: int = MAX_LINES) -> str:
    """A unified diff of text, capped to `max_lines` lines; empty for binary or equal content.

    Control characters are shown escaped: the text comes from somebody else. The
    first line says by how many lines the end of the file has moved.
    """
    if old == new or b"\0" in old or b"\0" in new:
        return ""
    before = old.decode("utf-8", "replace").splitlines()
    after = new.decode("utf-8", "replace").splitlines()
    if len(before) + len(after) > MAX_INPUT_LINES:
        return ""
    lines: list[str] = []
    cut = False
    for line in difflib.unified_diff(before, after, old_name, new_name, lineterm="", n=2):
        if len(lines) >= max_lines:
            cut = True
            break
        lines.append(_safe(line))
    if cut:
        lines.append(f"… (cut after {max_lines} lines)")
    shift = len(after) - len(before)
    if shift:
        lines.append(f"(the file is {abs(shift)} line{'s' if abs(shift) > 1 else ''} {_way(shift)} now)")
    return "\n".join(lines)


def _way(shift: int) -> str:
    return "longer" if shift > 0 else "shorter"


def _safe(line: str) -> str:
    text = "".join(
        ch
        if ch == "\t" or unicodedata.category(ch) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
        else _escape(ch)
        for ch in line[: MAX_WIDTH + 1]
    )
    return text if len(line) <= MAX_WIDTH else text[:MAX_WIDTH] + "…"


def _plain(ch: str) -> bool:
    return ch == "\t" or unicodedata.category(ch) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


def _escape(ch: str) -> str:
    return f"\\x{ord(ch):02x}" if ord(ch) < 0x100 else f"\\u{ord(ch):04x}"
