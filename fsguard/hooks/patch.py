"""The files that an apply_patch text names."""

from __future__ import annotations

__all__ = ["BEGIN", "patched"]

BEGIN = "*** Begin Patch"
_MARKS = ("*** Add File: ", "*** Update File: ", "*** Delete File: ", "*** Move to: ")


def patched(text: str) -> list[tuple[str, bool]]:
    """(path, follow a link at its end?) of each file, in order, each once."""
    found: dict[str, bool] = {}
    for line in text.split("\n"):
        for mark in _MARKS:
            # Content lines begin with a space, + or -, so a mark at the start is one.
            path = line[len(mark) :].strip() if line.startswith(mark) else ""
            if path and path not in found:
                found[path] = mark != _MARKS[2]
    return list(found.items())
