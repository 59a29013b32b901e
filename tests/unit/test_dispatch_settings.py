"""What the dispatch is given is what it uses: an empty container is false, and no default for that."""

from __future__ import annotations

import pytest

from fsguard.core.turns import Turns
from fsguard.dispatch import Dispatch
from tests.kit.oracle_world import World


@pytest.mark.parametrize("lapse", [0.05, 60.0])
def test_turns_last_as_long_as_is_configured(lapse: float) -> None:
    world = World()
    turns = Turns(lapse)
    assert not len(turns)
    assert Dispatch(world.guard, world, turns=turns).waiting.turns is turns  # type: ignore[arg-type]
