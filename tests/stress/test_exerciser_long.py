"""A million random calls, each answer compared with a model in memory; four directories at once.

FSGUARD_EXERCISE_OPERATIONS: how many (1,000,000; a fifth of it without the lane),
FSGUARD_EXERCISE_SEED: where the seeds begin (otherwise new ones each time).
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Callable

import pytest

from tests.kit import tally
from tests.kit.exerciser import HAND, Exerciser
from tests.kit.mounting import Workspace
from tests.mounted.test_exerciser import CONFIG

OPERATIONS = int(os.environ.get("FSGUARD_EXERCISE_OPERATIONS", "1000000"))
FIRST = int(os.environ.get("FSGUARD_EXERCISE_SEED", "0")) or random.randrange(1 << 30)
AT_ONCE = 4


@pytest.mark.parametrize(("io", "operations"), [("lane", OPERATIONS), ("daemon", OPERATIONS // 5)])
def test_a_million_calls(make_workspace: Callable[..., Workspace], io: str, operations: int) -> None:
    workspace = make_workspace(mount=False)
    workspace.options = ("--io", io)
    (workspace.root / "fsguard.toml").write_text(CONFIG)
    workspace.mount()
    failures: list[str] = []

    def exercise(number: int) -> None:
        directory = workspace.root / f"d{number}"
        directory.mkdir()
        run = ["fsguard", "run", "--quiet", "--workspace", str(workspace.root)]
        hands = [[*run, "--task", f"{task}{number}", "--", sys.executable, HAND] for task in "AB"]
        exerciser = Exerciser(directory, FIRST + number, hands, env=workspace.env)
        failed = 0
        try:
            with exerciser:
                exerciser.run(operations // AT_ONCE)
        except Exception as error:
            failed = 1
            failures.append(f"{type(error).__name__}: {error}")
        tally.note("file exerciser, against a model", io, exerciser.number, failed)

    print(f"{io}: seeds {FIRST} to {FIRST + AT_ONCE - 1}")
    threads = [threading.Thread(target=exercise, args=(number,)) for number in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, "\n\n".join(failures)
