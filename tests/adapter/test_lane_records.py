"""What the lane reports is told one by one: a fault costs one record, not the others."""

from __future__ import annotations

import os
from collections.abc import Hashable
from pathlib import Path
from typing import Any, cast

import pytest

from fsguard.fuse.filesystem import Filesystem
from fsguard.fuse.lane import Lane, Record
from fsguard.observer import NullObserver


class Faulty(NullObserver):
    def __init__(self) -> None:
        self.told: list[bytes] = []

    def removed(self, who: Hashable | None, path: bytes, at: float) -> None:
        if path == b"bad":
            raise ValueError("a mistake of ours")
        self.told.append(path)


class Silent:
    """A lane with these records, and with changes from behind that cannot be read."""

    def __init__(self, *names: bytes) -> None:
        self.records = [Record("removed", None, (n,), 1.0, 0, 0, False, i) for i, n in enumerate(names, 1)]

    def take_records(self) -> list[Record]:
        return self.records

    def take_changes(self) -> Any:
        raise ValueError("garbage")

    def told(self) -> None:
        pass


def test_a_fault_costs_one_record(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    try:
        observer = Faulty()
        filesystem = Filesystem(root, observer)
        filesystem.lane = cast(Lane, Silent(b"a", b"bad", b"b"))
        filesystem.take_records()
        assert observer.told == [b"a", b"b"]
        assert "a mistake of ours" in caplog.text and "garbage" in caplog.text
    finally:
        os.close(root)
