"""Memory has a bound, however many paths and tasks there are.

FSGUARD_BOUNDS_PATHS, FSGUARD_BOUNDS_TASKS: how many to go through; `make stress` takes a
million and 10,000 (`tests/stress/test_core_bounds_full.py`).
"""

from __future__ import annotations

import gc
import os
import tracemalloc

from fsguard.core.guard import Change, Guard, Limits
from fsguard.core.ledger import MAX_GLANCES
from fsguard.core.model import Act, Actor, Command, Process
from fsguard.dispatch.openfile import MAX_WRITERS
from tests.kit.oracle_world import World

PATHS = int(os.environ.get("FSGUARD_BOUNDS_PATHS", "16800"))
TASKS = int(os.environ.get("FSGUARD_BOUNDS_TASKS", "400"))


class Nothing:
    def self_locking(self, path: bytes, file: object, act: Act) -> bool:
        return False

    def git_ignored(self, path: bytes) -> bool:
        return False


def test_what_is_remembered_stays_within_its_limits() -> None:
    go_through(PATHS, TASKS)


def go_through(paths: int, tasks: int) -> None:
    """Every path read, written by another task and overwritten; a tenth of all may be remembered."""
    limits = Limits(paths=paths // 10, tasks=tasks // 10, warnings=500, log=1000)
    guard = Guard(Nothing(), limits=limits)
    sizes = []
    tracemalloc.start()
    for i in range(paths):
        name = f"task{i * tasks // paths}"
        task = guard.tasks.get(name, float(i), guard.ledger.version)
        actor = Actor(task, Process(i % 1000, i), Command(f"c{i}", "cat", task))
        path = b"d%d/f%d" % (i % 100, i)
        guard.looked(actor, [path], float(i))
        other = guard.tasks.get("writer", float(i), guard.ledger.version)
        writer = Actor(other, Process(5, 1), Command("w", "sed", other))
        guard.done(Change(writer), path, Act.WRITE, float(i))
        edit = Change(actor)
        guard.intend(edit, path, Act.TRUNCATE, float(i))
        guard.done(edit, path, Act.TRUNCATE, float(i))
        if (i + 1) % (paths // 4) == 0:
            gc.collect()  # what went away in circles
            sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert len(guard.ledger) <= limits.paths and len(guard.tasks) <= limits.tasks
    assert len(list(guard.outbox)) <= limits.warnings and len(guard.history) <= limits.log
    print(f"{paths} paths, {tasks} tasks: {[round(s / 1e6, 1) for s in sizes]} MB after each quarter")
    assert sizes[-1] < 1.3 * sizes[0], sizes


def test_an_open_file_remembers_few_of_those_who_wrote_through_it() -> None:
    """The log of a build: thousands of processes inherit it, of a few tasks."""
    world = World()
    log = world.run("A").open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    writers = {f"T{i}": Command(f"c{i}", "make", world.task(f"T{i}")) for i in range(5)}
    for i in range(3000):
        task = f"T{i % 5}"
        log.write("line\n", by=world.process(world.task(task), writers[task]))
    session = log.session
    assert len(session._edits) <= MAX_WRITERS and len(session._tids) <= MAX_WRITERS
    assert len(session._sessions) == 6
    log.close()
    state = world.guard.ledger.find(b"log")
    assert state is not None and state.writers[-1].task is world.task("T4")
    assert world.warnings() == []


def test_a_person_that_reads_the_whole_tree_makes_nothing_known() -> None:
    world = World()
    indexer = world.person()
    for i in range(2 * MAX_GLANCES):
        world.guard.looked(indexer.actor, [b"d/f%d" % i], 1.0)
    assert len(world.guard.ledger) == 0 and not indexer.actor.process.looks
    assert len(world.guard.ledger._glances) == MAX_GLANCES
