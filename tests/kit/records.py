"""What the lane has to tell, taken and told at once."""

from __future__ import annotations

from typing import Any

from fsguard.lane import engine

__all__ = ["told"]


def told() -> list[tuple[Any, ...]]:
    records = engine.take_records()
    engine.records_told()
    return [record[:7] for record in records]
