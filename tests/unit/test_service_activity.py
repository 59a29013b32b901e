"""What `fsguard top` is told: who is at work, what it touches now, and what two touched."""

from __future__ import annotations

import os
from typing import Any

import pytest
import trio

from fsguard.attribution.resolver import Resolver
from fsguard.control.server import Peer
from fsguard.service import Service
from fsguard.service import activity as module
from tests.kit.oracle_world import World


@pytest.fixture
def w() -> World:
    world = World()
    for name in ("seen", "f", "g"):
        world.file(name, "base")
    return world


def ask(w: World, monkeypatch: pytest.MonkeyPatch, **params: Any) -> Any:
    monkeypatch.setattr(module.time, "time", lambda: w.now)
    service = Service(w.dispatch, Resolver(w.guard), dict, None, -1)

    async def call() -> Any:
        return await service.handlers()["activity"](Peer(os.getpid(), 0, 0), params)  # type: ignore[misc]

    return trio.run(call)


def test_what_two_touched_and_one_wrote_is_contended_and_the_last_touched_comes_first(w, monkeypatch):
    w.run("A").read("seen")
    w.run("B").read("seen")
    w.run("A").read("f")
    w.run("B").write("f", "b")
    w.run("B").write("g", "b")
    w.run("A").write("g", "a")
    facts = ask(w, monkeypatch)
    assert [(c["path"], sorted(c["tasks"]), c["conflicts"]) for c in facts["contended"]] == [
        ("g", ["A", "B"], 1),
        ("f", ["A", "B"], 0),
    ]
    doing = {t["task"]: (t["reading"], t["writing"]) for t in facts["tasks"]}
    assert doing == {"A": (["f", "seen"], ["g"]), "B": (["seen"], ["g", "f"])}


def test_what_was_done_a_while_ago_is_not_now(w, monkeypatch):
    w.run("A").write("f", "a")
    w.now += module.NOW_SECONDS + 1
    w.run("A").read("g")
    facts = ask(w, monkeypatch)
    assert [(t["reading"], t["writing"]) for t in facts["tasks"]] == [(["g"], [])]


def test_what_is_open_is_now_however_long(w, monkeypatch):
    handle = w.run("A").open("f", os.O_RDWR | os.O_CREAT)
    w.now += 1000
    facts = ask(w, monkeypatch)
    assert facts["tasks"][0]["writing"] == ["f"] and facts["open_total"] == 1
    handle.close()


def test_each_list_has_a_limit_and_who_has_ended_comes_last(w, monkeypatch):
    for n in range(50):
        w.run(f"T{n}").write(f"f{n}", "x")
    w.guard.task_ended(w.guard.tasks.find("T49"), w.now)
    facts = ask(w, monkeypatch, limit=10)
    assert facts["tasks_total"] == 50 and len(facts["tasks"]) == 10
    assert "T49" not in {t["task"] for t in facts["tasks"]}
    assert ask(w, monkeypatch)["tasks"][-1]["task"] == "T49"
