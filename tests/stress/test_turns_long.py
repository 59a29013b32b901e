"""Sixteen tasks rewrite one file; whoever reads between two turns sees one writer's whole content.

FSGUARD_STRESS_ROUNDS: rewrites of each task (200).
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path

import pytest

from tests.kit.agents import together
from tests.kit.mounting import Workspace

ROUNDS = int(os.environ.get("FSGUARD_STRESS_ROUNDS", "200"))

# Each content names its writer and its size in the first line, and is that letter throughout.
WRITER = """if True:
    import os, random, subprocess, sys
    me, rounds = sys.argv[1], int(sys.argv[2])
    rng = random.Random(me)
    for i in range(rounds):
        size = rng.choice([10, 1000, 65536, 300_000, 5_000_000 if i % 20 == 0 else 100_000])
        text = me * size
        way = rng.choice(["redirect", "cp", "dd", "pieces"])
        if way == "pieces":
            fd = os.open("f", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            for at in range(0, size, 65536):
                os.write(fd, text[at : at + 65536].encode())
            os.close(fd)
            continue
        mine = os.path.join(sys.argv[3], me)
        with open(mine, "w") as f:
            f.write(text)
        command = {
            "redirect": f"cat {mine} > f",
            "cp": f"cp {mine} f",
            "dd": f"dd if={mine} of=f bs=65536 status=none",
        }[way]
        subprocess.run(["sh", "-c", command], check=True)
"""

READER = """if True:
    import os, sys, time
    mixed = seen = 0
    while not os.path.exists(sys.argv[1]):
        data = open("f", "rb").read()
        if data and len(set(data)) > 1:
            mixed += 1
        seen += 1
    print(mixed, seen)
"""


def rewrite(workspace: Workspace, tasks: int, rounds: int) -> tuple[int, int]:
    """(mixed contents, contents) that a reader saw while `tasks` rewrote f."""
    scratch = workspace.top / "scratch"
    scratch.mkdir()
    (workspace.root / "f").write_text("")
    done = scratch / "done"
    reader = workspace.start(None, sys.executable, "-c", READER, str(done))
    names = "abcdefghijklmnop"[:tasks]
    writers = [
        workspace.start(f"T{n}", sys.executable, "-c", WRITER, n, str(rounds), str(scratch)) for n in names
    ]
    results = together(*writers, seconds=3600)
    done.write_text("")
    assert all(r.code == 0 for r in results), [r.err[-300:] for r in results if r.code]
    mixed, seen = (int(x) for x in together(reader)[0].out.split())
    text = (workspace.root / "f").read_text()
    if len(set(text)) > 1:
        mixed += 1
    return mixed, seen


def test_one_writers_whole_content(workspace: Workspace) -> None:
    mixed, seen = rewrite(workspace, 16, ROUNDS)
    print(f"{16 * ROUNDS} rewrites, {seen} reads, {mixed} mixed")
    assert mixed == 0


def test_without_turns_they_mix(workspace: Workspace) -> None:
    workspace.fsguard("policy", "off").ok()
    mixed, seen = rewrite(workspace, 16, max(5, ROUNDS // 10))
    print(f"{seen} reads, {mixed} mixed")
    assert mixed > 0, "this test could not fail"


@pytest.mark.parametrize("tasks", [8])
def test_nobody_is_starved(workspace: Workspace, tasks: int) -> None:
    """Under constant contention the longest wait stays below twice the mean round."""
    script = """if True:
        import os, sys, time
        for _ in range(int(sys.argv[1])):
            begun = time.monotonic()
            fd = os.open("f", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            got = time.monotonic()
            for _ in range(4):
                os.write(fd, b"x" * 1000); time.sleep(0.005)
            os.close(fd)
            print(got - begun, flush=True)
    """
    rounds = max(10, ROUNDS // 10)
    begun = time.monotonic()
    writers = [workspace.start(f"T{i}", sys.executable, "-c", script, str(rounds)) for i in range(tasks)]
    results = together(*writers, seconds=600)
    waits = [float(x) for r in results for x in r.out.split()]
    round_time = (time.monotonic() - begun) / rounds
    print(
        f"mean round {round_time:.3f} s, waits: mean {statistics.mean(waits):.3f}, longest {max(waits):.3f}"
    )
    assert max(waits) < 2 * round_time
    assert Path(workspace.root / "f").stat().st_size == 4000
