"""The API's connections against a daemon that hangs, refuses, or says what it should not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

import fsguard
import fsguard.trio
from fsguard.errors import RefusedError
from tests.adapter.fake_daemon import FakeDaemon

LEASE = {"id": 7, "task": "A", "patterns": ["x"], "since": "2026-01-31T14:03:30+01:00", "ttl": 600.0}
LEASE |= {"until": "2026-01-31T14:13:30+01:00", "reason": "", "requests": [], "a_field_of_tomorrow": 1}


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    answers: dict[str, Any] = {name: [] for name in ("warnings", "task.list", "check")}
    answers["lease.list"] = {"leases": [LEASE], "waiting": []}
    with FakeDaemon(tmp_path, answers) as fake:
        monkeypatch.setenv("FSGUARD_RUNTIME_DIR", fake.env["FSGUARD_RUNTIME_DIR"])
        yield fake


def test_a_daemon_that_says_nothing(daemon: FakeDaemon) -> None:
    over = threading.Event()
    daemon.answers["warnings"] = lambda params: over.wait(10) and []

    async def main() -> None:
        async with fsguard.trio.connect(daemon.workspace, timeout=0.3) as tree:
            with pytest.raises(fsguard.DaemonError, match=r"said nothing for 0\.3 s"):
                await tree.warnings()
            assert await tree.tasks() == [], "the next question has a connection of its own"

    with fsguard.connect(daemon.workspace, timeout=0.3) as tree:
        with pytest.raises(fsguard.DaemonError, match=r"said nothing for 0\.3 s"):
            tree.warnings()
        assert tree.tasks() == []
    trio.run(main)
    over.set()


def test_a_cancelled_question_is_not_answered_to_the_next(daemon: FakeDaemon) -> None:
    over = threading.Event()
    daemon.answers["warnings"] = lambda params: over.wait(10) and []

    async def main() -> None:
        async with fsguard.trio.connect(daemon.workspace) as tree:
            with trio.move_on_after(0.2) as scope:
                await tree.warnings()
            assert scope.cancelled_caught
            over.set()
            assert [lease.id for lease in await tree.leases()] == [7]

    trio.run(main)


def test_refusals_and_nonsense(daemon: FakeDaemon) -> None:
    def refuse(params: Any) -> Any:
        raise RefusedError("not yours", "ask the other")

    daemon.answers["task.list"] = refuse
    daemon.answers["warnings"] = [{"id": 1}]
    daemon.answers["check"] = "nonsense"

    async def main() -> None:
        async with fsguard.trio.connect(daemon.workspace) as tree:
            for question in (tree.warnings, tree.task("A").check):
                with pytest.raises(fsguard.DaemonError, match="something else"):
                    await question()
            with pytest.raises(fsguard.RefusedError, match="not yours") as caught:
                await tree.tasks()
            assert caught.value.hint == "ask the other"
            daemon.stop()
            with pytest.raises(fsguard.DaemonError):
                await tree.leases()
            with pytest.raises(fsguard.DaemonError):
                await tree.leases()

    with fsguard.connect(daemon.workspace) as tree:
        for question in (tree.warnings, tree.task("A").check):
            with pytest.raises(fsguard.DaemonError, match="something else"):
                question()
        with pytest.raises(fsguard.RefusedError, match="not yours"):
            tree.tasks()
    trio.run(main)


def test_what_a_task_puts_into_an_environment() -> None:
    task = fsguard.Worker(None, "A", "boss", None, "tidy up")  # type: ignore[arg-type]
    assert task.environment() == {"FSGUARD_TASK": "A", "FSGUARD_PARENT": "boss", "FSGUARD_INTENT": "tidy up"}
    assert "connect" in dir(fsguard) and "Workspace" in fsguard.__all__
    with pytest.raises(AttributeError):
        _ = fsguard.nothing_of_this_name  # type: ignore[attr-defined]
    for name in fsguard.__all__:
        assert getattr(fsguard, name).__name__ == name
