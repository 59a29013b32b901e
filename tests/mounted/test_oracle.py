"""A random schedule of real commands: the conflicts that are told are exactly those that have to be.

FSGUARD_ORACLE_SEEDS (numbers, separated by commas) and FSGUARD_ORACLE_STEPS
choose other schedules; the long run is in `tests/stress`.
"""

from __future__ import annotations

import os

import pytest

from tests.kit.mounting import Workspace
from tests.kit.oracle_schedule import Schedule

SEEDS = [int(s) for s in os.environ.get("FSGUARD_ORACLE_SEEDS", "1,2").split(",")]
STEPS = int(os.environ.get("FSGUARD_ORACLE_STEPS", "90"))


@pytest.mark.parametrize("seed", SEEDS)
def test_told_is_what_has_to_be_told_and_nothing_else(workspace: Workspace, seed: int) -> None:
    print(f"seed {seed}, {STEPS} steps")
    schedule = Schedule(workspace, seed)
    try:
        schedule.prepare()
        schedule.run(STEPS)
    finally:
        schedule.close()
    print(f"{schedule.told} conflicts and {schedule.notes} notes, all told, and no others")
    assert schedule.told > STEPS / 10, "a schedule without conflicts proves nothing"
