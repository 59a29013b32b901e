"""What locks for itself, and what only appends, runs as fast with turns as without, and without a word.

FSGUARD_STRESS_TRANSACTIONS: SQLite transactions of each of two tasks (2,000).
FSGUARD_STRESS_PAIRS: runs with turns and without, one after the other (5); medians are compared.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable

import pytest

from tests.kit.agents import together
from tests.kit.mounting import Workspace

TRANSACTIONS = int(os.environ.get("FSGUARD_STRESS_TRANSACTIONS", "2000"))
PAIRS = int(os.environ.get("FSGUARD_STRESS_PAIRS", "5"))
LIMIT = 1.2

SQLITE = """if True:
    import sqlite3, sys
    name, number, me = sys.argv[1:]
    c = sqlite3.connect(name, timeout=120, isolation_level=None)
    for i in range(int(number)):
        c.execute("begin immediate")
        c.execute("insert into t values(?, ?)", (me, i))
        c.execute("commit")
"""

MAKE = """if True:
    import sqlite3, sys
    c = sqlite3.connect(sys.argv[1], isolation_level=None)
    c.execute(f"pragma journal_mode={sys.argv[2]}")
    c.execute("create table t(a, b)")
"""

APPEND = """if True:
    import os, sys
    name, number, me = sys.argv[1:]
    for i in range(int(number)):
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(fd, f"{me} {i}\\n".encode())
        os.close(fd)
"""

COMMIT = """
for i in $(seq "$2"); do
  echo "$1 $i" > "$1.txt"
  until git add "$1.txt" 2>/dev/null && git commit -qm "$1 $i" "$1.txt" 2>/dev/null; do
    : # `git commit FILE` reads the index before it locks it, and so may drop what another has just added
  done
done
"""


def seconds(workspace: Workspace, commands: dict[str, list[str]]) -> float:
    """How long the commands take, side by side, each as its task."""
    began = time.monotonic()
    results = together(*[workspace.start(t, *command) for t, command in commands.items()], seconds=900)
    assert [r.code for r in results] == [0] * len(results), results
    return time.monotonic() - began


def compare(workspace: Workspace, what: str, commands: Callable[[str], dict[str, list[str]]]) -> float:
    """Time with turns by time without, as medians of runs that alternate; each on a file of its own."""
    times: dict[str, list[float]] = {"warn": [], "off": []}
    for number in range(PAIRS):
        for policy in times if number % 2 else reversed(times):
            workspace.fsguard("policy", policy).ok()
            times[policy].append(seconds(workspace, commands(f"{policy}{number}")))
    on, off = (statistics.median(times[policy]) for policy in ("warn", "off"))
    print(f"{what}: {on:.1f} s with turns, {off:.1f} s without: {on / off:.2f}; all {times}")
    assert workspace.warnings() == [], "a false word"
    return on / off


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_two_tasks_on_one_database(workspace: Workspace, journal: str) -> None:
    def commands(name: str) -> dict[str, list[str]]:
        # Before they start: two that change the mode at once do not wait for each other.
        workspace.plain(sys.executable, "-c", MAKE, f"{name}.db", journal).ok()
        python = [sys.executable, "-c", SQLITE, f"{name}.db", str(TRANSACTIONS)]
        return {task: [*python, task] for task in "AB"}

    ratio = compare(workspace, f"SQLite, {journal}", commands)
    count = (
        "import sqlite3; print(sqlite3.connect('warn0.db').execute('select count(*) from t').fetchone()[0])"
    )
    assert workspace.plain(sys.executable, "-c", count).ok().out == f"{2 * TRANSACTIONS}\n"
    assert ratio <= LIMIT


def test_appends_of_four_tasks(workspace: Workspace) -> None:
    def commands(name: str) -> dict[str, list[str]]:
        return {task: [sys.executable, "-c", APPEND, f"{name}.log", "3000", task] for task in "ABCD"}

    ratio = compare(workspace, "appends", commands)
    lines = (workspace.root / "warn0.log").read_text().splitlines()
    assert sorted(lines) == sorted(f"{task} {i}" for task in "ABCD" for i in range(3000))
    assert ratio <= LIMIT


def test_commits_of_three_tasks_in_one_repository(workspace: Workspace) -> None:
    for who in ("AUTHOR", "COMMITTER"):
        workspace.env |= {f"GIT_{who}_NAME": "t", f"GIT_{who}_EMAIL": "t@e"}
    workspace.plain("git", "init", "-q", ".").ok()

    def commands(name: str) -> dict[str, list[str]]:
        return {task: ["sh", "-c", COMMIT, "sh", f"{name}{task}", "20"] for task in "ABC"}

    ratio = compare(workspace, "commits", commands)
    log = workspace.plain("git", "log", "--format=%s").ok().out.splitlines()
    assert len(log) == 3 * 20 * 2 * PAIRS
    workspace.plain("git", "fsck", "--strict").ok()
    assert ratio <= LIMIT
