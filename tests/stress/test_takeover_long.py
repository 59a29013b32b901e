"""Eight tasks at work for ten minutes while the worker is killed every one to three seconds.

FSGUARD_KILL_SECONDS: how long (600), FSGUARD_KILL_SEED: what decides when (otherwise new each time).
"""

from __future__ import annotations

import os
import statistics
import threading
import time

import pytest

from tests.kit import tally
from tests.kit.mounting import Workspace
from tests.kit.workers import WORKERS, at_work
from tests.mounted import test_takeover

SECONDS = float(os.environ.get("FSGUARD_KILL_SECONDS", "600"))


def test_ten_minutes(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_takeover, "SECONDS", SECONDS)
    done, killed, talks = test_takeover.work_while_it_is_killed(workspace)
    tally.note("workers killed under eight tasks", "lane", killed, 0)
    tally.note("what those did meanwhile", "lane", sum(done.values()), 0)
    tally.note("conflicts told of, each once", "lane", talks, 0)


def test_keepers_and_workers_in_turn(workspace: Workspace) -> None:
    workspace.announce("the keeper|was killed by signal")
    few = {name: WORKERS[name] for name in ("appends", "trees")}
    with at_work(workspace, few) as stop:
        for _ in range(10):
            test_takeover.kill_keeper(workspace)
            test_takeover.kill_worker(workspace)
        stop()
    assert workspace.status()["takeovers"] == 10
    assert workspace.warnings() == []


@pytest.mark.parametrize("files", [100, 10_000])
def test_the_pause(workspace: Workspace, files: int) -> None:
    """How long calls take at most when the worker dies; printed."""
    workspace.announce("was killed by signal")
    root = workspace.root
    (root / "many").mkdir()
    write = f"for n in range({files}): open(f'many/{{n}}', 'w').write('x')"
    workspace.python("A", write).ok()
    workspace.sh("B", "cat many/* > /dev/null").ok()
    calls, pauses, over = 0, [], threading.Event()

    def call() -> None:
        nonlocal calls
        while not over.is_set():
            for act in (
                lambda: os.close(os.open(root / "p", os.O_WRONLY | os.O_CREAT)),
                lambda: os.rename(root / "p", root / "q"),
                lambda: os.unlink(root / "q"),
            ):
                began = time.perf_counter()
                act()
                calls += 1
                longest[0] = max(longest[0], time.perf_counter() - began)

    longest = [0.0]
    thread = threading.Thread(target=call)
    thread.start()
    try:
        for _ in range(20):
            time.sleep(2)  # it has written down what it knows
            longest[0] = 0.0
            test_takeover.kill_worker(workspace)
            time.sleep(2)
            pauses.append(1000 * longest[0])
    finally:
        over.set()
        thread.join()
    assert workspace.status()["takeovers"] == len(pauses)
    print(
        f"{files} files on record: the longest call at each of {len(pauses)} deaths: "
        f"median {statistics.median(pauses):.0f} ms, worst {max(pauses):.0f} ms"
    )
    tally.note(f"calls across {len(pauses)} deaths, {files} files", "lane", calls, 0)
