"""The Python API on a real mount, the README's orchestrator among it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

import fsguard
import fsguard.trio
from tests.kit.mounting import ROOT, Workspace


@pytest.fixture
def tree(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Iterator[fsguard.Workspace]:
    """A connection of this very process to the mount."""
    for name in ("FSGUARD_RUNTIME_DIR", "XDG_STATE_HOME", "PATH"):
        monkeypatch.setenv(name, workspace.env[name])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with fsguard.connect(workspace.root) as connected:
        yield connected


def orchestrator() -> str:
    """The program as it stands in the README."""
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"(?:^(?:    .*)?\n)+", text, re.MULTILINE)
    (block,) = [block for block in blocks if "import fsguard.trio" in block]
    return re.sub("^    ", "", block, flags=re.MULTILINE)


def test_the_readmes_orchestrator_finds_every_collision_and_no_other(
    workspace: Workspace, tmp_path: Path
) -> None:
    points = tmp_path / "points"
    points.mkdir()
    for point in ("r1", "r2", "c1", "c2", "g1", "g2", "p1", "p2"):
        os.mkfifo(points / point)
    workspace.plain(
        "sh",
        "-ec",
        "for f in shared.py config.toml plan.md gone.txt; do seq 1 30 > $f; done; mkdir own; echo x > README",
    ).ok()
    say, hear = (lambda p: f": > {points}/{p}"), (lambda p: f": < {points}/{p}")
    config = "p = 'config.toml'; t = open(p).read(); open('{0}/c1', 'w').close(); open('{0}/c2').close(); "
    config = config.format(points) + "open(p, 'w').write(t + 'w3')"
    quiet = "cat README > /dev/null; grep -q 1 *.md; echo $0 >> log; touch README; for i in 1 2 3; do "
    quiet += "echo $$ > own/$$; cat own/$$ > /dev/null; sed -i s/1/2/ own/$$; done; mv own/$$ own/$$.done"
    rivals = {
        "w1": (
            *("cat shared.py", say("r1"), hear("r2"), "echo w1 > shared.py"),
            *(hear("c1"), "sed -i s/7/seven/ config.toml", say("c2")),
        ),
        "w2": (
            *(hear("r1"), "sed -i s/1/one/ shared.py", say("r2")),
            *(hear("p1"), "echo new > plan.md", say("p2")),
        ),
        "w3": ("cat gone.txt", say("g1"), hear("g2"), "echo back > gone.txt", f'python3 -c "{config}"'),
        "w4": (
            *(hear("g1"), "rm gone.txt", say("g2")),
            *("cp plan.md plan.old", say("p1"), hear("p2"), "cat plan.md", "cp plan.old plan.md"),
        ),
    }
    words = [f"{name}=exec > /dev/null; {quiet}; {'; '.join(job)}; {quiet}" for name, job in rivals.items()]
    program = tmp_path / "orchestrate.py"
    program.write_text(orchestrator())
    result = workspace.plain(
        *(sys.executable, str(program), str(workspace.root), *words),
        env={**workspace.env, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
    ).ok()
    found = {(w["task"], w["path"], w["sibling"]): w for w in workspace.warnings()}
    assert set(found) == {
        ("w1", "shared.py", "w2"),
        ("w3", "gone.txt", "w4"),
        ("w2", "plan.md", "w4"),
        ("w3", "config.toml", "w1"),
    }
    kinds = [w["kind"] for w in found.values()]
    assert sorted(kinds) == ["lost_update", "resurrected", "reverted", "stale_write"], kinds
    assert len(workspace.warnings()) == 4, "each is told once"
    for (task, path, sibling), warning in found.items():
        assert f"{task} is told: {warning['message']}" in result.out and result.err == ""
        assert f'"{sibling}"' in warning["message"] and path in warning["message"]
    assert result.out.count("is told: ") == 4
    assert workspace.warnings(None, "--task", "w1") and not workspace.fsguard("warnings", "--json").lines()
    tasks = {task["task"]: (task["parent"], task["state"]) for task in workspace.status()["tasks"]}
    assert tasks == {"orchestrator": (None, "idle"), **dict.fromkeys(rivals, ("orchestrator", "ended"))}


def test_a_command_with_its_output_footprint_and_warnings(tree: fsguard.Workspace) -> None:
    a, b = tree.task("A", intent="count"), tree.task("B", name="tester", intent="the other way")
    (tree.mountpoint / "f").write_text("1\n")
    done = a.run(["sh", "-c", "cat f; cat >&2"], capture_output=True, input=b"said")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"1\n", b"said")
    assert done.footprint.read == ("f",) and done.warnings == ()
    assert (
        a.check("f", tree.mountpoint / "f")
        == [fsguard.Check("f", False, None, None, None, None, None, None)] * 2
    )
    assert b.run(["sed", "-i", "s/1/2/", "f"]).footprint.renamed
    (stale,) = a.check("f")
    assert stale.stale and stale.kind == "stale_write" and stale.sibling == "B"
    assert stale.sibling_time and stale.read_time and stale.read_time < stale.sibling_time
    done = a.run(["sh", "-c", "echo 3 > f; exit 9"], capture_output=True)
    assert done.returncode == 9 and done.stderr == b"", "what is in the answer is not on stderr, too"
    (warning,) = done.conflicts
    assert (warning.kind, warning.sibling) == ("stale_write", "B")
    assert "tester" in warning.message and "the other way" in warning.message
    with pytest.raises(subprocess.CalledProcessError):
        done.check_returncode()
    assert tree.warnings("A") == [] and tree.warnings("A", everything=True) == [warning]
    kept = [v for v in tree.versions("f") if v.conflict]
    assert kept and kept[0].task == "A" and kept[0].sibling == "B"
    assert tree.content("f", kept[0].version) == b"2\n"
    assert tree.restore("f", kept[0].version) and not tree.restore("f", kept[0].version)
    assert (tree.mountpoint / "f").read_text() == "2\n"
    assert {t.task for t in tree.tasks()} == {"A", "B"}
    assert tree.who("f")["writers"][0]["task"] is None, "restored by this process, which is no task's"


def test_how_a_command_ends_and_does_not_start(tree: fsguard.Workspace, tmp_path: Path) -> None:
    task = tree.task("A")
    assert task.run(["sh", "-c", "kill -9 $$"]).returncode == -9
    assert task.run(["/nowhere"], capture_output=True).returncode == 127
    assert task.run(["sh", "-c", "exit 125"]).returncode == 125
    with pytest.raises(fsguard.FsguardError, match="task ID"):
        tree.task("x" * 201).run(["true"], capture_output=True)
    pid = tmp_path / "pid"
    with pytest.raises(subprocess.TimeoutExpired):
        task.run(["sh", "-c", f"echo $$ > {pid}; exec sleep 60"], timeout=1.5)
    assert not os.path.exists(f"/proc/{pid.read_text().strip()}"), "the command has ended with it"
    with pytest.raises(fsguard.NotMountedError):
        fsguard.connect(tmp_path)
    with pytest.raises(fsguard.UsageError):
        task.check("/etc/passwd")


def test_agents_of_one_process_announce_what_they_do(tree: fsguard.Workspace) -> None:
    path = tree.mountpoint / "f"
    path.write_text("1\n")
    a, b = tree.task("A", parent="all"), tree.task("B", parent="all", name="linter")
    for task in (a, b):
        with task.reading("f") as call:
            path.read_text()
        assert call.warnings == []
    with b.writing(path) as call:
        assert not call.stale
        path.write_text("by B\n")
    assert call.warnings == []
    with a.writing("f") as call:
        assert call.stale and not call.refused and call.message and "linter" in call.message
        path.write_text("by A\n")
    (warning,) = call.warnings
    assert warning.sibling == "B" and warning.conflict and tree.warnings("A") == []
    assert [w["task"] for w in tree.who("f")["writers"]][:2] == ["A", "B"]
    assert a.end() == [] and {t.task: t.state for t in tree.tasks()}["A"] == "ended"


def test_leases(tree: fsguard.Workspace) -> None:
    a, b = tree.task("A"), tree.task("B")
    with a.lease("src/", reason="renaming") as lease:
        assert lease.task == "A" and [x.id for x in tree.leases()] == [lease.id]
        with pytest.raises(fsguard.BusyError, match="task 'A'"), b.lease("src/x", wait=0):
            pass
    assert tree.leases() == []
    with b.lease("src/x", wait=0):
        pass


def test_following(tree: fsguard.Workspace, workspace: Workspace) -> None:
    def write(task: str) -> None:
        env = {**workspace.env, "FSGUARD_TASK": task}
        # Never what was there before: that would be `reverted`, for the other.
        workspace.plain("sh", "-c", f"echo by {task} {os.urandom(4).hex()} > f", env=env).ok()

    write("A")
    write("B")
    write("A")
    told = tree.follow(acknowledge=True)
    first = next(told)  # it waited; from here on each is told as it is raised
    write("B")
    second = next(told)
    assert [(w.task, w.sibling) for w in (first, second)] == [("B", "A"), ("A", "B")]
    told.close()
    assert tree.warnings() == []


def test_the_same_on_trio(tree: fsguard.Workspace, workspace: Workspace, tmp_path: Path) -> None:
    pid = tmp_path / "pid"

    async def main() -> None:
        async with fsguard.trio.connect(workspace.root / ".") as guard:
            a, b = guard.task("A"), guard.task("B", intent="the other way")
            done: dict[str, fsguard.Completed] = {}

            async def run(task: fsguard.trio.Worker, script: str) -> None:
                done[task.id] = await task.run(["sh", "-c", script], capture_output=True)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(run, a, "echo 1 > f; cat f")
                nursery.start_soon(run, b, "echo 2 > g; cat g")
            assert (done["A"].stdout, done["B"].stdout) == (b"1\n", b"2\n")
            await b.run(["sh", "-c", "cat f; echo 3 > f"], capture_output=True)
            (stale,) = await a.check("f")
            assert stale.stale and stale.sibling == "B"
            async with a.writing("f") as call:
                assert call.stale
                (guard.mountpoint / "f").write_text("4\n")
            assert [w.sibling for w in call.warnings] == ["B"]
            (kept,) = [v for v in await guard.versions("f") if v.conflict]
            assert await guard.content("f", kept.version) == b"3\n"
            assert await guard.restore("f", kept.version)
            async with a.lease("x/"):
                with pytest.raises(fsguard.BusyError):
                    async with b.lease("x/y", wait=0):
                        pass
                with trio.move_on_after(0.3):
                    async with b.lease("x/y"):
                        raise AssertionError("granted")
                async with trio.open_nursery() as nursery:
                    for _ in range(20):
                        nursery.start_soon(guard.warnings)
            assert await guard.leases() == [], "nobody waits for it any more"
            with trio.move_on_after(1.5):
                await a.run(["sh", "-c", f"echo $$ > {pid}; exec sleep 60"])
            assert not os.path.exists(f"/proc/{pid.read_text().strip()}")
            assert len(await guard.warnings(everything=True)) == 1
            with trio.fail_after(15):
                async with trio.open_nursery() as nursery:
                    told = guard.follow(acknowledge=True)
                    nursery.start_soon(a.run, ["sh", "-c", "echo 5 > f"])
                    assert (await anext(told)).task == "A"
                    await told.aclose()

    trio.run(main)


def test_a_task_speaks_for_itself_only(workspace: Workspace) -> None:
    script = "import fsguard, sys; fsguard.connect('.').task(sys.argv[1]).end()"
    env = {**workspace.env, "PYTHONPATH": str(ROOT)}
    run: Callable[..., Any] = workspace.python
    run("B", "pass").ok()
    run("A", script, "A", env=env).ok()
    result = run("A", script, "B", env=env)
    assert result.code == 1 and "RefusedError" in result.err
