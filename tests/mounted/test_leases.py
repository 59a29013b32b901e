"""Leases on a real mount: who is kept off, from what, how it ends, and what can be done about it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.kit.agents import Agent, together, until
from tests.kit.mounting import Result, Workspace

WAIT = 0.5
BUSY = os.strerror(16)


@pytest.fixture
def leased(make_workspace: Callable[..., Workspace]) -> Workspace:
    """A tree, and opens that wait for half a second."""
    workspace = make_workspace(mount=False)
    (workspace.directory / "fsguard.toml").write_text(f"[turns]\nwait = {WAIT}\n")
    workspace.mount()
    workspace.plain(
        "sh",
        "-c",
        "mkdir -p src/deep docs; for f in src/a.py src/deep/b.py docs/c.md s.sql; do echo 1 > $f; done",
    ).ok()
    return workspace


def acquire(workspace: Workspace, task: str, *words: str) -> Result:
    return workspace.fsguard("lease", "acquire", *words, "--task", task, "--json")


def held(workspace: Workspace) -> Any:
    return workspace.fsguard("lease", "list", "--json").json()


def seconds(call: Callable[[], Any]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def test_others_are_kept_off_what_the_globs_name_and_from_nothing_else(leased: Workspace) -> None:
    lease = acquire(leased, "A", "src/**/*.py", "*.sql", "--reason", "renaming").json()
    assert lease["task"] == "A" and lease["patterns"] == ["src/**/*.py", "*.sql"] and lease["ttl"] == 600
    for path in ("src/a.py", "src/deep/b.py", "s.sql"):
        refused = leased.sh("B", f"echo mine > {path}")
        assert refused.code != 0 and BUSY in refused.err
        for words in ('Task "A" has a lease on', path, '"renaming"', "since", "until", f"waited {WAIT} s"):
            assert words in refused.err
        assert f"`fsguard lease request {path}`" in refused.err
        assert f"`fsguard lease release {lease['id']} --force`" in refused.err
        assert (leased.root / path).read_text() == "1\n"
    leased.sh(
        "B", "cat src/a.py s.sql; echo mine > docs/c.md; echo new > src/new.txt; ls -R > /dev/null"
    ).ok()
    leased.sh("A", "echo mine > src/a.py; mv s.sql t.sql; mv t.sql s.sql").ok()
    leased.plain("sh", "-c", "echo an editor > src/deep/b.py").ok()


def test_what_is_no_open_of_a_file_that_is_there_is_refused_at_once(leased: Workspace) -> None:
    acquire(leased, "A", "src/").ok()
    script = """if True:
        import os, time
        began = time.monotonic()
        def attempt(call, *args):
            try:
                call(*args)
                print("done", args)
            except OSError as error:
                print(error.errno)
        attempt(os.unlink, "src/a.py")
        attempt(os.rename, "src/a.py", "docs/a.py")
        attempt(os.rename, "docs/c.md", "src/a.py")
        attempt(os.rename, "docs/c.md", "src/c.md")
        attempt(os.rename, "src", "elsewhere")
        attempt(os.link, "docs/c.md", "src/c.md")
        attempt(os.symlink, "x", "src/x")
        attempt(os.truncate, "src/a.py", 0)
        attempt(os.open, "src/new", os.O_WRONLY | os.O_CREAT)
        print(time.monotonic() - began)
    """
    *errors, took = leased.python("B", script).out.split()
    assert errors == ["16"] * 9 and float(took) < WAIT
    assert sorted(os.listdir(leased.root / "src")) == ["a.py", "deep"]


def test_whoever_waits_goes_on_when_it_is_released(make_workspace: Callable[..., Workspace]) -> None:
    workspace = make_workspace()
    workspace.plain("sh", "-c", "echo 1 > f").ok()
    lease = acquire(workspace, "A", "f").json()
    late = workspace.start("B", "sh", "-c", "echo late > f")
    (line,) = until(lambda: workspace.status()["queues"])
    assert (line["path"], line["lease"], line["holder"]) == ("f", lease["id"], ["A"])
    assert [(t["task"], t["next"]) for t in line["queue"]] == [("B", True)]
    assert "f: lease 1 of A, for" in (shown := workspace.fsguard("status").out)
    assert f"s  B (pid {line['queue'][0]['pid']}, " in shown and "next in line" in shown
    released = workspace.fsguard("lease", "release", "--task", "A", "--json").json()
    assert released == {"released": [lease["id"]]}
    (result,) = together(late)
    assert result.code == 0 and (workspace.root / "f").read_text() == "late\n"


def test_it_ends_after_its_ttl_and_writing_keeps_it_alive(leased: Workspace) -> None:
    acquire(leased, "A", "src/", "--ttl", "2").ok()
    began = time.monotonic()
    while time.monotonic() - began < 3.0:  # longer than the time to live
        leased.sh("A", "echo more >> src/a.py").ok()
    assert len(held(leased)["leases"]) == 1
    until(lambda: not held(leased)["leases"], "its end")
    leased.sh("B", "cat src/a.py > /dev/null; echo mine > src/a.py").ok()


def test_it_ends_with_its_task(leased: Workspace) -> None:
    acquire(leased, "A", "src/").ok()
    leased.fsguard("task", "end", "A").ok()
    assert held(leased)["leases"] == []
    leased.sh("B", "echo mine > src/a.py").ok()


def test_none_is_granted_over_what_somebody_writes_right_now(leased: Workspace) -> None:
    script = (
        'f = open("src/a.py", "w"); f.write("half"); f.flush(); stop("writes"); f.write("whole"); f.close()'
    )
    with Agent(leased, "B", script) as agent:
        agent.until("writes")
        refused = acquire(leased, "A", "src/", "--wait", "0")
        assert refused.code == 4
        for words in ("src/", "'B', which is writing there", "Try again", "fsguard lease request"):
            assert words in refused.err
        waiting = leased.start(None, "fsguard", "lease", "acquire", "src/", "--task", "A")
        agent.finish()
    (result,) = together(waiting)
    assert result.code == 0 and "lease " in result.out


def test_parent_and_child_share_it(leased: Workspace) -> None:
    acquire(leased, "A", "src/").ok()
    leased.run("A.1", "sh", "-c", "echo child > src/a.py", options=["--parent", "A"]).ok()
    acquire(leased, "A.1", "src/a.py", "--wait", "0").ok()
    leased.sh("A", "echo parent > src/a.py").ok()
    assert leased.sh("B", "rm src/a.py").code != 0
    leased.fsguard("lease", "release", "--task", "A").ok()
    leased.fsguard("lease", "release", "--task", "A.1").ok()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_queue_moves_on_when_somebody_gives_up(leased: Workspace, number: signal.Signals) -> None:
    """B waits for x and y, C behind it for y alone: C needs nothing that A has."""
    acquire(leased, "A", "x").ok()
    b = leased.start(None, "fsguard", "lease", "acquire", "x", "y", "--task", "B")
    until(lambda: [t["task"] for t in held(leased)["waiting"]] == ["B"])
    c = leased.start(None, "fsguard", "lease", "acquire", "y", "--task", "C")
    waiting = until(lambda: len(found := held(leased)["waiting"]) == 2 and found)
    assert "lease 1 of task 'A'" in waiting[0]["for"] and "'B', which waits for it too" in waiting[1]["for"]
    assert "wait  C" in leased.fsguard("lease", "list").out
    os.kill(b.pid, number)
    (result,) = together(c)
    assert result.code == 0 and "waiting for task 'B', which waits for it too" in result.err
    assert [le["task"] for le in held(leased)["leases"]] == ["A", "C"] and not held(leased)["waiting"]
    assert together(b)[0].code != 0


def test_a_bounded_wait_ends_with_an_error_that_says_what_to_do(leased: Workspace) -> None:
    acquire(leased, "A", "src/").ok()
    refused = leased.fsguard("lease", "acquire", "src/a.py", "--task", "B", "--wait", "1")
    assert refused.code == 4
    for words in ("src/a.py", "after 1 s", "the lease 1 of task 'A'", "Try again", "fsguard lease request"):
        assert words in refused.err
    asked = leased.fsguard("lease", "request", "src/a.py", "--task", "B", "--reason", "one line")
    assert asked.code == 0 and "told task A (lease 1)" in asked.out
    told = leased.sh("A", "true").ok().err
    assert 'Task "B" asks for what your lease 1 covers' in told and '"one line"' in told
    assert "`fsguard lease release 1` gives it back" in told
    assert "asked for by B" in leased.fsguard("lease", "list").out
    leased.run("A", "fsguard", "lease", "release", "1").ok()
    acquire(leased, "B", "src/a.py", "--wait", "0").ok()


def test_nobody_releases_anothers_by_accident(leased: Workspace) -> None:
    acquire(leased, "A", "src/").ok()
    refused = leased.fsguard("lease", "release", "1")
    assert refused.code == 6 and "belongs to task 'A'" in refused.err and "--force" in refused.err
    inside = leased.run("B", "fsguard", "lease", "release", "1", "--force")
    assert inside.code == 6 and len(held(leased)["leases"]) == 1
    leased.fsguard("lease", "release", "1", "--force").ok()
    gone = leased.fsguard("lease", "release", "1")
    assert gone.code == 2 and "there is no lease 1" in gone.err and "fsguard lease list" in gone.err


def test_what_was_stale_before_stays_stale_after(leased: Workspace) -> None:
    leased.sh("B", "cat src/a.py").ok()
    acquire(leased, "A", "src/").ok()
    leased.sh("A", "echo mine > src/a.py").ok()
    leased.fsguard("lease", "release", "--task", "A").ok()
    leased.sh("B", "echo other > src/a.py").ok()
    (warning,) = leased.conflicts("B")
    assert warning["kind"] == "stale_write" and warning["sibling"] == "A"


def test_it_is_shown_by_status(leased: Workspace) -> None:
    acquire(leased, "A", "src/", "--reason", "renaming").ok()
    assert [le["task"] for le in leased.status()["leases"]] == ["A"]
    assert "A  src/" in leased.fsguard("status").out
    for words in (
        ("lease", "acquire", "x"),
        ("lease", "request", "x"),
        ("lease", "release"),
        ("lease", "release", "one"),
    ):
        assert leased.fsguard(*words).code == 2
