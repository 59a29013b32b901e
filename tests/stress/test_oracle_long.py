"""The oracles, for long: many seeds on a mount, many examples on the core.

FSGUARD_ORACLE_SEEDS (numbers, separated by commas) names the schedules, else
they are drawn anew and printed; FSGUARD_ORACLE_STEPS and FSGUARD_ORACLE_EXAMPLES
say how long they are.
"""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import settings

from tests.kit.mounting import Workspace
from tests.kit.oracle_schedule import Schedule
from tests.unit.test_core_oracle import CoreAgainstOracle

SEEDS = os.environ.get("FSGUARD_ORACLE_SEEDS")
STEPS = int(os.environ.get("FSGUARD_ORACLE_STEPS", "500"))
EXAMPLES = int(os.environ.get("FSGUARD_ORACLE_EXAMPLES", "2000"))


@pytest.mark.parametrize("seed", [int(s) for s in SEEDS.split(",")] if SEEDS else [None] * 4)
def test_long_schedules_of_real_commands(workspace: Workspace, seed: int | None) -> None:
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    print(f"seed {seed}, {STEPS} steps")
    schedule = Schedule(workspace, seed)
    try:
        schedule.prepare()
        schedule.run(STEPS)
    finally:
        schedule.close()
    print(f"{schedule.told} conflicts and {schedule.notes} notes, all told, and no others")
    assert schedule.told > STEPS / 10, "a schedule without conflicts proves nothing"


class LongCoreAgainstOracle(CoreAgainstOracle):
    """The same machine; it is the settings that differ."""


LongCoreAgainstOracle.TestCase.settings = settings(
    CoreAgainstOracle.TestCase.settings, max_examples=EXAMPLES, stateful_step_count=80
)
test_many_examples_on_the_core = LongCoreAgainstOracle.TestCase
