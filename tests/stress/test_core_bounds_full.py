"""The memory bound at full size: a million paths, 10,000 tasks; a quarter of an hour, as memory is traced."""

from __future__ import annotations

from tests.unit.test_core_bounds import go_through


def test_a_million_paths_and_ten_thousand_tasks_need_no_more_than_a_tenth_of_them() -> None:
    go_through(1_000_000, 10_000)
