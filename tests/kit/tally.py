"""What the long runs did, as a table that can be pasted: tool, where, operations, failures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = ["note", "table"]

_rows: dict[tuple[str, str], tuple[int, int]] = {}


def note(tool: str, where: str, operations: int, failures: int) -> None:
    """Add to a row; it is there from its first note on, whether or not the test goes on to fail."""
    before = _rows.get((tool, where), (0, 0))
    _rows[tool, where] = before[0] + operations, before[1] + failures


def table() -> Sequence[str]:
    return list(_lines()) if _rows else []


def _lines() -> Iterator[str]:
    yield "| tool | where | operations | failures |"
    yield "| --- | --- | --- | --- |"
    for (tool, where), (operations, failures) in _rows.items():
        yield f"| {tool} | {where} | {operations:,} | {failures:,} |"
