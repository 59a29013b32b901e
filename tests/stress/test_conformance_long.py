"""stress-ng's file stressors and fio's checked writes, long, with both ways to serve a mount.

FSGUARD_CONFORMANCE_SECONDS: how long each group of stressors runs (10); fio's files
are that many times 6 MiB large.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.kit import tally
from tests.kit.abilities import need_tools
from tests.kit.conformance import FIO, STRESSORS, Outcome, fio, stress_ng
from tests.kit.mounting import Workspace
from tests.mounted.test_conformance import as_a_task, passed

SECONDS = int(os.environ.get("FSGUARD_CONFORMANCE_SECONDS", "10"))
GROUP = 6


def note(tool: str, where: str, outcomes: Mapping[str, Outcome]) -> list[str]:
    """Count them; what went wrong."""
    failures = sum(outcome.failures for outcome in outcomes.values())
    tally.note(tool, where, sum(outcome.operations for outcome in outcomes.values()), failures)
    return [f"{name}: {outcome.text}" for name, outcome in outcomes.items() if outcome.failures]


@pytest.fixture(scope="module")
def stressors(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What passes on a plain directory, in the same groups."""
    need_tools("stress-ng")
    directory, seen = tmp_path_factory.mktemp("plain"), {}
    for names in groups(list(STRESSORS)):
        seen |= stress_ng(directory, names, seconds=SECONDS // 2, instances=4)
    note("stress-ng", "plain directory", seen)
    return passed({name: outcome for name, outcome in seen.items() if outcome.operations}, 40)


def groups(names: list[str]) -> list[list[str]]:
    return [names[at : at + GROUP] for at in range(0, len(names), GROUP)]


@pytest.mark.parametrize("io", ["lane", "daemon"])
def test_file_stressors(make_workspace: Callable[..., Workspace], stressors: list[str], io: str) -> None:
    """Four of a kind and six kinds at once; then all kinds at once, by two tasks."""
    workspace = make_workspace(mount=False)
    workspace.options = ("--io", io)
    workspace.mount()
    wrong, title = [], f"stress-ng, {len(stressors)} file stressors"
    for names in groups(stressors):
        seen = stress_ng(
            workspace.root,
            names,
            seconds=SECONDS,
            instances=4,
            before=as_a_task(workspace),
            env=workspace.env,
        )
        assert any(outcome.operations for outcome in seen.values()), names
        wrong += note(f"{title}: four each, six at once", io, seen)

    def all_at_once(task: str) -> None:
        (workspace.root / task).mkdir()
        seen = stress_ng(
            workspace.root / task,
            stressors,
            seconds=3 * SECONDS,
            before=as_a_task(workspace, task),
            env=workspace.env,
        )
        wrong.extend(note(f"{title}: all at once, by two tasks", io, seen))

    threads = [threading.Thread(target=all_at_once, args=(task,)) for task in ("A", "B")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("io", ["lane", "daemon"])
def test_checked_writes(make_workspace: Callable[..., Workspace], tmp_path: Path, io: str) -> None:
    need_tools("fio")
    good = passed(fio(tmp_path, list(FIO), size="1m"), 12)
    workspace = make_workspace(mount=False)
    workspace.options = ("--io", io)
    workspace.mount()
    size, title = f"{6 * SECONDS}m", f"fio --verify, {len(good)} profiles at once"
    seen = fio(workspace.root, good, size=size, before=as_a_task(workspace), env=workspace.env)
    wrong = note(title, io, seen)
    assert all(outcome.operations for outcome in seen.values())
    workspace.unmount()
    wrong += note(
        f"{title}, read again after the unmount", io, fio(workspace.directory, good, size=size, again=True)
    )
    assert not wrong, "\n".join(wrong)
