"""Leases keep other tasks off by every way to a path, and nobody else."""

import os

import pytest

from fsguard.core.leases import Leases
from fsguard.core.model import Command
from tests.kit.oracle_world import Proc, World


@pytest.fixture
def w() -> World:
    world = World()
    for path in ("api/f", "out/g", "lone"):
        world.file(path)
    return world


def leased(w: World, *patterns: str) -> Leases:
    leases = w.dispatch.waiting.leases
    assert leases.ask(w.task("L"), patterns, 60.0, "", w.now).lease is not None
    return leases


WAYS = {
    "unlink": lambda p: p.unlink("api/f"),
    "rename over": lambda p: p.rename("out/g", "api/f"),
    "rename to a free name": lambda p: p.rename("out/g", "api/new"),
    "rename away": lambda p: p.rename("api/f", "out/f"),
    "link": lambda p: p.link("out/g", "api/new"),
    "symlink": lambda p: p.symlink("api/new"),
    "truncate": lambda p: p.truncate("api/f"),
    "exchange": lambda p: p.exchange("lone", "api/f"),
    "move the directory": lambda p: p.rename("api", "elsewhere"),
    "move a directory there": lambda p: p.rename("out", "api/out"),
}


@pytest.mark.parametrize("way", WAYS)
def test_no_way_around_a_lease(w, way):
    leased(w, "api/")
    before = dict(w.tree)
    with pytest.raises(OSError, match="has a lease"):
        WAYS[way](w.run("B"))
    assert w.tree == before
    WAYS[way](w.run("L2", parent="L"))


def test_a_lease_on_a_file_holds_the_directory_above(w):
    leased(w, "api/f")
    with pytest.raises(OSError, match="has a lease"):
        w.run("B").rename("api", "elsewhere")
    w.run("B").rename("out", "elsewhere")


@pytest.mark.parametrize("who", ["external", "off"])
def test_whom_a_lease_does_not_bind(w, who):
    leased(w, "api/")
    w.guard.policies.set("off", task="B")
    proc: Proc = w.process(None, Command("p1", "vi")) if who == "external" else w.run("B")
    proc.rename("api", "elsewhere")


def test_writing_keeps_a_lease_alive(w):
    leases = leased(w, "api/")
    handle = w.run("L").open("api/f", 1)
    w.now += 50
    handle.write("still at it")
    w.now += 50
    assert len(leases.all(w.now)) == 1
    w.now += 61
    assert not leases.all(w.now)


def test_a_directory_is_not_moved_under_a_running_turn_unsaid(w):
    handle = w.run("A").open("api/f", os.O_WRONLY | os.O_TRUNC)
    handle.write("half")
    w.run("B").rename("api", "elsewhere")
    assert ("B", "api/f", "concurrent_write", "A") in w.told()
    handle.close()


def test_an_exchange_is_said_once_for_each_path(w):
    w.run("A").write("lone", "a")
    w.run("B").exchange("lone", "api/f")
    (warning,) = [x for x in w.warnings("B") if str(x.kind) == "stale_write"]
    assert list(warning.paths) == [b"lone"]


def test_a_truncating_append_waits_like_any_rewrite(w):
    log = w.run("A").open("lone", os.O_WRONLY | os.O_APPEND)
    log.write("line")
    with pytest.raises(RuntimeError, match="async context"):  # it would wait, and nothing runs here
        w.run("B").open("lone", os.O_WRONLY | os.O_APPEND | os.O_TRUNC)
    w.run("C").append("lone", "another line")
