"""What is on record may be old: nobody is told anything because of it, and the guard goes on."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from tests.kit.oracle_world import Proc, World

BEFORE: dict[str, Callable[[World, Proc, Proc], object]] = {
    "read": lambda w, a, b: (a.read("f"), b.write("f", "b")),
    "never read": lambda w, a, b: b.write("f", "b"),
    "deleted": lambda w, a, b: (a.read("f"), b.unlink("f")),
    "deleted by its reader": lambda w, a, b: (b.write("f", "b"), a.unlink("f")),
    "moved": lambda w, a, b: (a.read("f"), b.write("g", "b"), b.rename("g", "f")),
    "put back": lambda w, a, b: (a.write("f", "base"), b.write("f", "b")),
    "appended": lambda w, a, b: (a.read("f"), b.append("f", "b")),
}
AFTER: dict[str, Callable[[Proc], object]] = {
    "write": lambda a: a.write("f", "a"),
    "the same": lambda a: a.write("f", "base"),
    "append": lambda a: a.append("f", "a"),
    "replace": lambda a: a.replace("f", "a"),
    "edit": lambda a: a.edit("f", "a"),
    "checkout": lambda a: a.checkout("f", "base"),
    "unlink": lambda a: a.unlink("f"),
}


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("another", [False, True])
def test_nobody_is_told_of_what_was_before(before: str, after: str, another: bool) -> None:
    w = World()
    w.file("f")
    a, b = w.run("A"), w.run("B")
    BEFORE[before](w, a, b)
    told = [(x.task, x.message) for x in w.warnings()]
    w.dispatch.forget_doubtful()
    if "f" not in {p.decode() for p in w.tree}:
        w.file("f", "made since")
    AFTER[after](w.run("A") if another else a)
    a.end()
    w.now += 60
    w.guard.settle(w.now, w.gone)
    assert [(x.task, x.message) for x in w.warnings()] == told


def test_what_comes_afterwards_is_told_as_ever() -> None:
    w = World()
    w.file("f")
    a, b = w.run("A"), w.run("B")
    a.read("f")
    b.write("f", "1")
    w.dispatch.forget_doubtful(least=500)
    assert w.guard.ledger.version >= 500, "a number may be on record in the version store"
    b.write("f", "2")
    w.run("A").write("f", "3")
    assert ("A", "f", "stale_write", "B") in w.told()
    c = w.run("C")
    c.read("f")
    a.write("f", "4")
    w.run("C").write("f", "5")
    assert ("C", "f", "stale_write", "A") in w.told()


def test_what_an_open_file_has_done_before_is_not_held_against_anybody() -> None:
    w = World()
    w.file("f")
    a, b = w.run("A"), w.run("B")
    handle = a.open("f", os.O_WRONLY)
    handle.write("aaaa")
    w.now += 60
    b.write("f", "base")
    told = len(w.warnings())
    w.dispatch.forget_doubtful()
    handle.write("aaaa", at=0)
    handle.close()
    assert len(w.warnings()) == told
    assert w.content("f") == b"aaaa"


@pytest.mark.parametrize("seed", range(60))
def test_anything_may_have_happened(seed: int) -> None:
    """Whatever is on record: who does one thing afterwards is told nothing, and told about by nobody."""
    rng, w = random.Random(seed), World()
    for path in ("f", "g", "d/x"):
        w.file(path)
    procs = [w.run(task) for task in "ABC"] + [w.bare("A"), w.person()]
    for _ in range(40):
        p, path = rng.choice(procs), rng.choice(("f", "g", "d/x"))
        if path not in {x.decode() for x in w.tree}:
            p.write(path, "new")
            continue
        act = rng.choice(("read", "write", "append", "replace", "unlink", "edit", "checkout"))
        if act in ("read", "unlink"):
            getattr(p, act)(path)
        else:
            getattr(p, act)(path, rng.choice(("base", "a", "b")))
    w.dispatch.forget_doubtful()
    told = len(w.warnings())
    path = rng.choice(("f", "g", "d/x"))
    if path.encode() not in w.tree:
        w.file(path)
    AFTER[rng.choice(list(AFTER))](rng.choice(procs)) if path == "f" else rng.choice(procs).write(path, "z")
    w.now += 60
    w.guard.settle(w.now, w.gone)
    assert len(w.warnings()) == told, [x.message for x in w.warnings()[told:]]
