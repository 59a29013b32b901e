"""What a task makes for itself goes past Python, and both modes put the same on record."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable

import pytest

from tests.kit.agents import Agent, until
from tests.kit.mounting import Workspace

# A thread is known from its first open for reading on.
KNOWN = "import os, sys; open('known').read()\n"

MANY = (
    KNOWN
    + """
for i in range(200):
    with open(f"f{i}", "wb") as f:
        f.write(b"one")
        f.write(b"two")
    os.mkdir(f"d{i}")
for i in range(0, 100, 2):
    os.link(f"f{i}", f"d{i}/linked")
    os.unlink(f"f{i}")
for i in range(1, 100, 2):
    os.rmdir(f"d{i}")
"""
)


@pytest.fixture(params=["lane", "daemon"])
def both(request: pytest.FixtureRequest, make_workspace: Callable[..., Workspace]) -> Workspace:
    workspace = make_workspace(options=("--io", request.param))
    assert workspace.status()["io"] == request.param
    (workspace.root / "known").write_text("x")
    return workspace


def test_what_a_task_makes_for_itself_is_on_record(both: Workspace) -> None:
    before = both.status()
    report = both.top / "report.json"
    both.run("A", "python3", "-c", MANY, options=["--report", str(report)]).ok()
    after = both.status()
    asked = sum(after["requests"].values()) - sum(before["requests"].values())
    decided = sum(after["decisions"].values()) - sum(before["decisions"].values())
    assert asked > 1500
    assert decided == asked if after["io"] == "daemon" else decided < 100
    footprint = json.loads(report.read_text())["footprint"]
    linked = {f"d{i}/linked" for i in range(0, 100, 2)}
    assert set(footprint["created"]) == {f"f{i}" for i in range(200)} | linked
    assert set(footprint["deleted"]) == {f"f{i}" for i in range(0, 100, 2)}
    log = both.fsguard("log", "--task", "A", "--limit", "10000", "--json").lines()
    assert {e["path"] for e in log if e["op"] == "write"} == {f"f{i}" for i in range(200)}
    assert both.warnings() == []
    assert (both.root / "d0" / "linked").read_bytes() == b"onetwo" and not (both.root / "f0").exists()


SCENES: dict[str, list[tuple[str, str]]] = {
    "closed, then overwritten unseen": [
        ("A", "open('f', 'w').write('a')"),
        ("B", "open('f', 'w').write('b')"),
    ],
    "seen by a sibling, then written on": [
        ("A", "f = open('f', 'w'); f.write('a'); f.flush()"),
        ("B", "open('f').read()"),
        ("A", "f.write('more'); f.flush()"),
        ("B", "open('f', 'w').write('b')"),
    ],
    "overwritten while it is open": [
        ("A", "f = open('f', 'w'); f.write('a'); f.flush()"),
        ("B", "os.truncate('f', 0)"),
        ("A", "f.write('more'); f.close()"),
    ],
    "replaced by a rename": [
        ("A", "open('f', 'w').write('a')"),
        ("B", "open('g', 'w').write('b'); os.rename('g', 'f')"),
    ],
    "moved along with its directory": [
        ("A", "os.mkdir('d'); f = open('d/f', 'w'); f.write('a'); f.flush()"),
        ("B", "os.rename('d', 'e')"),
        ("A", "f.write('more'); f.close()"),
        ("B", "open('e/f', 'w').write('b')"),
    ],
    "removed by a sibling": [
        ("A", "open('f', 'w').write('a')"),
        ("B", "os.unlink('f')"),
    ],
    "made anew where a sibling's was removed": [
        ("A", "open('f', 'w').write('a')"),
        ("B", "open('f').read()"),
        ("A", "os.unlink('f')"),
        ("B", "open('f', 'w').write('b')"),
    ],
    "removed and made anew, which nobody minds": [
        ("A", "open('f', 'w').write('a'); os.unlink('f'); open('f', 'w').write('aa')"),
        ("B", "open('g', 'w').write('b'); os.unlink('g')"),
    ],
    "linked, and gone before anybody is told": [
        (
            "A",
            "open('known').read(); open('f', 'w').write('a'); os.link('f', 'g')\n"
            "for name in 'fg': os.unlink(name)",
        ),
        ("B", "open('g', 'w').write('b')"),
    ],
    "linked, and written under the other name": [
        ("A", "open('f', 'w').write('a'); os.link('f', 'g'); os.unlink('f')"),
        ("B", "open('g').read()"),
        ("A", "open('g', 'w').write('aa')"),
        ("B", "open('g', 'w').write('b')"),
    ],
}


def open_behind(workspace: Workspace) -> list[str]:
    """Files of the workspace that the daemon has open. (A question over the socket would change modes.)"""
    return [
        fd for fd in workspace.daemon_fds() if fd.startswith(f"{workspace.root}/") and "(deleted)" not in fd
    ]


def act(workspace: Workspace, scene: list[tuple[str, str]]) -> None:
    """Each task is one Python process that does its lines when they come."""
    scripts = {task: KNOWN + "stop('known')\n" for task, _ in scene}
    for number, (task, line) in enumerate(scene):
        scripts[task] += f"{line}\nstop('{number}')\n"
    agents = {task: Agent(workspace, task, script) for task, script in scripts.items()}
    try:
        for agent in agents.values():
            agent.until("known")
        for number, (task, _) in enumerate(scene):
            agents[task].go()
            agents[task].until(str(number))
            if "f = open(" not in "".join(line for _, line in scene):
                # RELEASE comes after close(2) has returned; until then it is a write at the same time.
                until(lambda: not open_behind(workspace), "the release of what was closed")
        for agent in agents.values():
            agent.finish()
    finally:
        for agent in agents.values():
            if agent.process.poll() is None:
                agent.process.kill()


@pytest.mark.parametrize("name", SCENES)
def test_both_modes_say_the_same(make_workspace: Callable[..., Workspace], name: str) -> None:
    said, held = [], []
    for io in ("daemon", "lane"):
        workspace = make_workspace(options=("--io", io))
        (workspace.root / "known").write_text("x")
        act(workspace, SCENES[name])
        words = ("task", "kind", "severity", "sibling", "path", "count")
        said.append(sorted(tuple(w[word] for word in words) for w in workspace.warnings()))
        log = workspace.fsguard("log", "--json").lines()
        said[-1] += sorted((e["op"], e["path"], e["task"]) for e in log if e["op"] != "read")
        held.append({p.name: p.read_text() for p in workspace.root.rglob("*") if p.is_file()})
    assert said[0] == said[1]
    assert held[0] == held[1]


def test_what_is_refused_is_refused_before_it_is_made(both: Workspace) -> None:
    script = KNOWN + "stop('known')\ntry: open('f', 'w')\nexcept OSError as e: print(e.errno)\n"
    (both.root / "f").write_text("x")
    both.fsguard("policy", "block").ok()
    with Agent(both, "B", script) as b:
        b.until("known")
        both.sh("B", "cat f").ok()
        both.sh("A", "echo a > f").ok()
        (both.root / "f").unlink()
        result = b.finish()
    assert result.out.strip() in ("", str(errno.EBUSY))
    blocked = bool(result.out.strip())
    assert blocked != (both.root / "f").exists()


def test_a_lease_keeps_others_from_making(both: Workspace) -> None:
    script = KNOWN + "stop('known')\ntry: open('d/f', 'x')\nexcept OSError as e: print(e.errno)\n"
    (both.root / "d").mkdir()
    with Agent(both, "B", script) as b:
        b.until("known")
        both.fsguard("lease", "acquire", "d/**", "--task", "A").ok()
        result = b.finish()
    assert result.out.strip() in (str(errno.EBUSY), str(errno.EAGAIN))
    assert os.listdir(both.root / "d") == []


def test_a_lease_that_had_to_wait_does_so_too(both: Workspace) -> None:
    script = KNOWN + (
        "f = open('d/f', 'w')\nstop('writing')\nf.close()\nopen('known').read()\nstop('closed')\n"
        "open('known').read()\ntry: open('d/g', 'x')\nexcept OSError as e: print(e.errno)\n"
    )
    (both.root / "d").mkdir()
    with Agent(both, "B", script) as b:
        b.until("writing")
        asking = both.start(None, "fsguard", "lease", "acquire", "d/**", "--task", "A", "--wait", "20")
        until(lambda: bool(both.fsguard("lease", "list", "--json").json()["waiting"]))
        b.go()
        b.until("closed")
        assert asking.wait(20) == 0, asking.communicate()
        result = b.finish()
    assert result.out.strip() in (str(errno.EBUSY), str(errno.EAGAIN))
    assert os.listdir(both.root / "d") == ["f"]
