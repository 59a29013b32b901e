"""`fsguard demo`: every kind of warning comes about by real commands, and nothing is left of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from fsguard.core.model import Kind
from tests.kit.abilities import need_mount, need_root, need_tools
from tests.kit.mounting import Workspace, leftovers


@pytest.fixture
def place(make_workspace: object) -> Iterator[Workspace]:
    """Where the demo finds its temporary directory; no mount of the test's own."""
    need_mount()
    workspace = Workspace()
    (workspace.top / "tmp").mkdir()
    workspace.env["TMPDIR"] = str(workspace.top / "tmp")
    yield workspace
    assert left(workspace) == []
    workspace.remove()


def left(workspace: Workspace) -> list[str]:
    directory = workspace.top / "tmp"
    return [str(path) for path in directory.iterdir()] + leftovers(f"{directory}/")


def test_every_kind_is_shown_and_explained_and_the_way_back_works(place: Workspace) -> None:
    result = place.fsguard("demo", "--fast", timeout=120).ok()
    for number, kind in enumerate(sorted(Kind), 1):
        assert f" of {len(Kind)}  {kind} ─" in result.out, (number, kind)
    assert result.out.count(", told to agent-") == len(Kind)
    assert "settings.py: version " in result.out and "refused, nothing was changed" in result.out
    assert "\x1b" not in result.out and result.err == ""


def test_inside_of_a_task_and_as_json(place: Workspace) -> None:
    """The caller's own task and mounts have nothing to do with it."""
    env = {"FSGUARD_TASK": "mine", "FSGUARD_PARENT": "other", "FSGUARD_DISABLE": "1"}
    answer = place.fsguard("demo", "--json", env=env, timeout=120).json()
    assert answer["missing"] == [] and set(answer["kinds"]) == set(Kind)


@pytest.mark.parametrize(
    ("number", "after"),
    [(signal.SIGINT, ""), (signal.SIGINT, "1 of"), (signal.SIGINT, "has read"), (signal.SIGTERM, "2 of")],
)
def test_who_ends_it_early_finds_nothing_left(place: Workspace, number: signal.Signals, after: str) -> None:
    process = place.start(None, "fsguard", "demo", "--fast")
    assert process.stdout is not None
    if after:
        while after not in (line := process.stdout.readline()):
            assert line, "the demo ended by itself"
    else:  # while it mounts
        while not any((place.top / "tmp").glob("fsguard-demo-*/tree/settings.py")):
            assert process.poll() is None
    os.kill(process.pid, number)
    process.stdout.read()
    assert process.wait(60) == 130
    assert left(place) == []


def test_what_the_machine_lacks_is_said(place: Workspace) -> None:
    need_root()
    need_tools("unshare")
    script = (
        "mount --bind /dev/null /dev/fuse && cd / && exec fsguard demo --fast"  # in a namespace of its own
    )
    done = place.plain("unshare", "--mount", "sh", "-c", script)
    assert done.code in (1, 5) and "Traceback" not in done.err and done.err.startswith("fsguard: ")
