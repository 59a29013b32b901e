"""The lane's process is killed at any moment, and the next one goes on over the same memory.

What the kernel was answered is known to the next: every node with its lookups, every handle.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fsguard.lane import engine
from tests.kit.kernel import Kernel

Q_OVERFLOW = 0x4000  # FAN_Q_OVERFLOW
ROOT = Path(__file__).parents[2]


def _mortal(directory: Path, *words: object) -> dict[str, Any]:
    """`tests.kit.mortal` in a process of its own: there is one lane in each."""
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.kit.mortal",
            *map(str, words[:2]),
            str(directory),
            *map(str, words[2:]),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    said = json.loads(result.stdout)
    assert isinstance(said, dict)
    return said


@pytest.mark.parametrize("seed", range(4))
def test_what_the_kernel_was_answered_survives(tmp_path: Path, seed: int) -> None:
    done = _mortal(tmp_path, seed, 80)
    assert done["kills"] >= 80 and done["requests"] > 1000


@pytest.mark.parametrize("seed", range(2))
def test_damaged_memory_is_refused_or_harmless(tmp_path: Path, seed: int) -> None:
    outcomes = _mortal(tmp_path, seed, 200, "damage")
    assert outcomes["refused"] > 10


def test_changes_from_behind_are_heard_of_by_the_next(kernel: Kernel, tmp_path: Path) -> None:
    if not engine.watch_load()["on"]:
        pytest.skip("changes cannot be heard of here")
    found = _mortal(tmp_path, 0, 0, "listen")
    heard = found["heard"]
    assert heard[0] == [Q_OVERFLOW, ""], "some may have been lost"
    assert "d/new" in [path for _, path in heard]
    assert found["load"]["directories"] == 2 and found["load"]["foreign"] >= 1
    assert found["told"] == ["d", "old1"], "what the kernel believed is taken back"


def test_a_memory_is_set_up_once_and_before_anything_else(kernel: Kernel) -> None:
    memory = os.memfd_create("late")
    try:
        for call in (engine.share, engine.take_over):
            with pytest.raises(OSError):
                call(memory)
        assert os.fstat(memory).st_size == 0
    finally:
        os.close(memory)


def test_a_handle_of_pythons_holds_its_node(kernel: Kernel, root: Path) -> None:
    (root / "f").touch()
    node = kernel.lookup(kernel.rel(root / "f"))
    fd = os.open(root / "f", os.O_RDONLY)
    assert engine.note_handle(7, node, fd, os.O_RDONLY, True, 0)
    kernel.forget(node)
    assert engine.hold(node) is not None
    engine.release(node)
    engine.unnote_handle(7)
    os.close(fd)
    assert engine.hold(node) is None
    assert not engine.note_handle(7, node, 0, os.O_RDONLY, True, 0), "no such node"
