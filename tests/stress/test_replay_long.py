"""Processes of ours that are killed, in thousands of random histories (see `tests.unit.test_replay`)."""

from __future__ import annotations

import pytest

from tests.unit.test_replay import check


@pytest.mark.parametrize("first", range(10_000, 15_000, 50))
def test_what_goes_on_is_what_there_was(first: int) -> None:
    assert sum(check(seed, steps=200) for seed in range(first, first + 50)) > 100
