"""Sixteen tasks rewrite one file; whoever reads between two turns sees one writer's whole content.

FSGUARD_STRESS_ROUNDS: rewrites of each task (200).
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.agents import together
from tests.kit.mounting import Workspace

ROUNDS = int(os.environ.get("FSGUARD_STRESS_ROUNDS", "200"))

SIZES = (10, 1000, 65536, 100_000, 300_000, 5_000_000)

# Each content is one letter throughout, its writer's, and one of SIZES long.
WRITER = """if True:
    import os, random, subprocess, sys
    me, rounds = sys.argv[1], int(sys.argv[2])
    rng = random.Random(me)
    for i in range(rounds):
        *small, large = eval(sys.argv[4])
        size = large if i % 20 == 0 else rng.choice(small)
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

# A further task: it opens for writing, so that it gets a turn of its own, and only reads.
BETWEEN = """if True:
    import os, sys
    sizes = set(eval(sys.argv[2]))
    wrong = seen = 0
    while not os.path.exists(sys.argv[1]):
        fd = os.open("f", os.O_RDWR)
        data = b"".join(iter(lambda: os.read(fd, 1 << 20), b""))
        os.close(fd)
        wrong += bool(data) and (len(set(data)) > 1 or len(data) not in sizes)
        seen += 1
    print(wrong, seen)
"""


def rewrite(workspace: Workspace, tasks: int, rounds: int) -> tuple[int, int]:
    """(contents that are not one writer's whole one, contents) seen between turns while `tasks` rewrite f."""
    scratch = workspace.top / "scratch"
    scratch.mkdir()
    (workspace.root / "f").write_text("")
    done = scratch / "done"
    reader = workspace.start("reader", sys.executable, "-c", BETWEEN, str(done), repr(SIZES))
    names = "abcdefghijklmnop"[:tasks]
    writers = [
        workspace.start(f"T{n}", sys.executable, "-c", WRITER, n, str(rounds), str(scratch), repr(SIZES))
        for n in names
    ]
    results = together(*writers, seconds=3600)
    done.write_text("")
    assert all(r.code == 0 for r in results), [r.err[-300:] for r in results if r.code]
    wrong, seen = (int(x) for x in together(reader)[0].out.split())
    text = (workspace.root / "f").read_text()
    return wrong + (len(set(text)) > 1 or len(text) not in SIZES), seen


def patient(make_workspace: Callable[..., Workspace]) -> Workspace:
    """On a busy machine a writer may come to no write for a second, and so many may wait for minutes."""
    workspace = make_workspace(mount=False)
    (workspace.directory / "fsguard.toml").write_text("[turns]\nwait = 600\nlapse = 60\n")
    workspace.mount()
    return workspace


def test_one_writers_whole_content(make_workspace: Callable[..., Workspace]) -> None:
    workspace = patient(make_workspace)
    began = time.monotonic()
    wrong, seen = rewrite(workspace, 16, ROUNDS)
    print(
        f"{16 * ROUNDS} rewrites, {time.monotonic() - began:.0f} s, {seen} read between turns, {wrong} mixed"
    )
    assert wrong == 0 and seen > ROUNDS // 10
    assert [w for w in workspace.warnings() if w["kind"] == "concurrent_write"] == []


def test_without_turns_they_mix(make_workspace: Callable[..., Workspace]) -> None:
    workspace = patient(make_workspace)
    workspace.fsguard("policy", "off").ok()
    wrong, seen = rewrite(workspace, 16, max(5, ROUNDS // 10))
    print(f"{seen} reads, {wrong} mixed")
    assert wrong > 0, "this test could not fail"


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
                os.write(fd, b"x" * 1000); time.sleep(0.02)
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


def test_a_slow_agent_is_not_starved(make_workspace: Callable[..., Workspace]) -> None:
    """Seven hammer one file without a pause; the eighth comes now and then, and is served in its order."""
    workspace = patient(make_workspace)
    (workspace.root / "f").write_text("")
    script = """if True:
        import os, sys, time
        done, pause = sys.argv[1], float(sys.argv[2])
        rounds = 15 if pause else 1 << 30
        for _ in range(rounds):
            begun = time.monotonic()
            fd = os.open("f", os.O_WRONLY | os.O_TRUNC)
            got = time.monotonic()
            os.write(fd, b"x" * 1000)
            time.sleep(0.01)
            os.close(fd)
            print(got - begun, time.monotonic() - begun)
            time.sleep(pause)
            if not pause and os.path.exists(done):
                break
        if pause:
            open(done, "w").close()
    """
    done = str(workspace.top / "done")
    python = [sys.executable, "-c", script, done]
    agents = [workspace.start(f"T{i}", *python, "0.3" if i == 0 else "0") for i in range(8)]
    results = together(*agents, seconds=600)
    assert all(r.code == 0 for r in results), results
    slow = [float(line.split()[0]) for line in results[0].out.splitlines()]
    rounds = [float(line.split()[1]) for r in results[1:] for line in r.out.splitlines()]
    mean = statistics.mean(rounds)
    print(f"the slow one waited {max(slow):.3f} s at most; mean round of the others {mean:.3f} s")
    assert max(slow) < 2 * mean
