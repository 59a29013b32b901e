"""stress-ng's file stressors and fio's checked writes: what passes on a plain directory passes on the mount.

In short; the long runs are in `tests/stress`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.kit.abilities import need_tools
from tests.kit.conformance import FIO, STRESSORS, Outcome, fio, stress_ng
from tests.kit.mounting import Workspace


def passed(outcomes: Mapping[str, Outcome], least: int) -> list[str]:
    """What this machine and this version of the tool can do at all."""
    good = [name for name, outcome in outcomes.items() if not outcome.failures]
    print("left out, they fail on a plain directory:", sorted(set(outcomes) - set(good)))
    assert len(good) >= least, {name: outcomes[name] for name in outcomes if name not in good}
    return good


def as_a_task(workspace: Workspace, task: str = "A") -> list[str]:
    return ["fsguard", "run", "--workspace", str(workspace.root), "--task", task, "--"]


def test_file_stressors_all_at_once(workspace: Workspace, tmp_path: Path) -> None:
    need_tools("stress-ng")
    good = passed(stress_ng(tmp_path, list(STRESSORS), seconds=3), 40)
    seen = stress_ng(workspace.root, good, seconds=3, before=as_a_task(workspace), env=workspace.env)
    assert not {name: outcome.text for name, outcome in seen.items() if outcome.failures}
    # So many at once on a small machine: one or the other does not come to the end of its first round.
    assert len([name for name, outcome in seen.items() if outcome.operations]) > 30


def test_what_is_written_is_read_back_also_after_the_mount_has_ended(
    workspace: Workspace, tmp_path: Path
) -> None:
    need_tools("fio")
    good = passed(fio(tmp_path, list(FIO), size="1m"), 12)
    seen = fio(workspace.root, good, size="1m", before=as_a_task(workspace), env=workspace.env)
    assert not {name: outcome.text for name, outcome in seen.items() if outcome.failures}
    assert not [name for name, outcome in seen.items() if not outcome.operations]
    workspace.unmount()
    behind = fio(workspace.directory, good, size="1m", again=True)
    assert not {name: outcome.text for name, outcome in behind.items() if outcome.failures}
    # Does it look at all?
    (victim, *_) = sorted(workspace.directory.glob("p0.*"))
    with victim.open("r+b") as file:
        file.seek(5000)
        file.write(b"another byte")
    spoiled = fio(workspace.directory, good[:1], size="1m", again=True)
    assert spoiled[good[0]].failures
