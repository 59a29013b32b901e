"""Random calls on a few files by processes of two tasks, each answer compared with a model in memory.

FSGUARD_EXERCISE_SEEDS (numbers, separated by commas) and FSGUARD_EXERCISE_OPERATIONS
choose other runs; the long one is in `tests/stress`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.agents import until
from tests.kit.exerciser import HAND, Exerciser
from tests.kit.mounting import Workspace

SEEDS = [int(s) for s in os.environ.get("FSGUARD_EXERCISE_SEEDS", "1").split(",")]
OPERATIONS = int(os.environ.get("FSGUARD_EXERCISE_OPERATIONS", "4000"))
# Calls come one at a time here: nobody has to wait for anybody's turn.
CONFIG = "[turns]\nwait = 0\n"


@pytest.mark.parametrize("seed", SEEDS)
def test_the_model_is_right_about_a_plain_directory(tmp_path: Path, seed: int) -> None:
    with Exerciser(tmp_path, seed, [[sys.executable, HAND]] * 2) as exerciser:
        exerciser.run(OPERATIONS)


@pytest.mark.parametrize("seed", SEEDS)
def test_two_tasks_on_the_same_files(make_workspace: Callable[..., Workspace], seed: int) -> None:
    workspace = make_workspace(mount=False)
    (workspace.root / "fsguard.toml").write_text(CONFIG)
    workspace.mount()
    files = workspace.root / "files"
    files.mkdir()
    hands = [["fsguard", "run", "--quiet", "--task", task, "--", sys.executable, HAND] for task in "AB"]
    with Exerciser(files, seed, hands, env=workspace.env) as exerciser:
        exerciser.run(OPERATIONS)
    until(lambda: workspace.status()["open_files"] == 0, "closing all files")


class Forgetful(Exerciser):
    """Expects something wrong in the end, or finds out that nobody compares."""

    def whole(self, name: str) -> None:
        self.names[name].data[-1:] = b"?" if self.names[name].data[-1:] != b"?" else b"!"
        super().whole(name)


def test_a_difference_tells_how_to_have_it_again(tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match=r"seed 7, operation \d+: .* the first that differs is byte"),
        Forgetful(tmp_path, 7, [[sys.executable, HAND]]) as exerciser,
    ):
        exerciser.run(500)
