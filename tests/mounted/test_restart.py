"""`fsguard restart`: another program of the daemon goes on, and nobody notices."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fsguard.cli import launch
from fsguard.control import registry
from fsguard.control.client import Client
from fsguard.restart import FORMAT
from tests.kit.abilities import need_root
from tests.kit.agents import Agent, until
from tests.kit.behind import behind
from tests.kit.mounting import Workspace
from tests.kit.workers import at_work

pytestmark = pytest.mark.skipif(
    os.environ.get("FSGUARD_TEST_IO") == "daemon", reason="without the lane a restart is refused"
)


def restart(workspace: Workspace) -> dict[str, Any]:
    done = workspace.fsguard("restart", "--json", str(workspace.root), cwd="/").json()
    assert done["restarted"] is True
    return dict(done)


def test_no_call_fails_while_it_is_restarted(workspace: Workspace) -> None:
    with at_work(workspace) as stop:
        pid = workspace.daemon_pid()
        for number in range(1, 5):
            done = restart(workspace)
            assert (done["restarts"], done["pid"]) == (number, pid)
        stop()
    assert workspace.warnings() == []


def test_what_is_on_record_stays(workspace: Workspace) -> None:
    root = workspace.root
    for name in ("a", "b", "c"):
        (root / name).write_text("0\n")
    workspace.run("A", "cat", "a", "b").ok()
    workspace.sh("B", "echo B >> a; echo B > b").ok()
    workspace.sh("A", "echo A > b").ok()  # told, and delivered
    workspace.fsguard("policy", "off", "--path", "quiet/*").ok()
    workspace.fsguard("lease", "acquire", "held/**", "--task", "L", "--ttl", "600").ok()
    workspace.fsguard("note", "--task", "N", "read", "c").ok()
    # A command of a task, begun before and ended after.
    with Agent(workspace, "R", 'open("c").read()\nstop("has read")\nopen("c", "w").write("R")') as reader:
        reader.until("has read")
        workspace.sh("B", "echo B > c").ok()
        before = workspace.status()
        said, log = workspace.warnings(), workspace.fsguard("log", "--json", "--limit", "100000").out
        versions = workspace.fsguard("versions", "b", "--json").out
        restart(workspace)
        after = workspace.status()
        assert workspace.warnings() == said
        assert workspace.fsguard("log", "--json", "--limit", "100000").out == log
        assert workspace.fsguard("versions", "b", "--json").out == versions
        for fact in ("tasks", "policy", "leases", "paths_known", "warnings_total", "pending", "open_handles"):
            assert without_times(after[fact]) == without_times(before[fact]), fact
        # It is said by the wall clock and kept by another one.
        ends = [datetime.fromisoformat(facts["leases"][0]["until"]) for facts in (before, after)]
        assert abs(ends[0] - ends[1]) < timedelta(seconds=0.1)
        for name, count in before["requests"].items():
            assert after["requests"].get(name, 0) >= count, name
        result = reader.finish()
    assert result.code == 0 and '"B"' in result.err and "c" in result.err, "what it read before counts"
    told = workspace.sh("A", "echo A > a")
    assert '"B"' in told.err
    ids = [w["id"] for w in workspace.warnings()]
    assert ids == sorted(set(ids)), "numbers go on"
    assert workspace.fsguard("policy", "--json").json()["paths"][0]["pattern"] == "quiet/*"
    (root / "held").mkdir()
    refused = workspace.sh("X", "echo x > held/f; mv held/f held/g")
    assert "lease" in refused.err and '"L"' in refused.err


def without_times(facts: Any) -> Any:
    """Ages move on."""
    if isinstance(facts, dict):
        return {
            k: without_times(v)
            for k, v in facts.items()
            if k not in ("remaining", "since", "until", "idle", "last_seen")
        }
    return [without_times(x) for x in facts] if isinstance(facts, list) else facts


def test_whoever_stands_there_goes_on(workspace: Workspace) -> None:
    """Directories, files without a name, mappings, listings half read: all by what the kernel holds."""
    root = workspace.root
    (root / "d" / "e").mkdir(parents=True)
    (root / "d" / "e" / "f").write_text("deep")
    many = {f"{i:04}" for i in range(3000)}
    (root / "many").mkdir()
    for name in many:
        (root / "many" / name).touch()
    script = """
        import mmap
        os.chdir("d/e")
        nameless = os.open("f", os.O_RDWR)
        os.unlink("f")
        made = open("made", "x"); made.write("half"); made.flush()
        os.mkdir("gone"); gone = os.open("gone", os.O_RDONLY); os.rmdir("gone")
        listing = os.scandir("../../many"); first = {next(listing).name for _ in range(100)}
        append = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND); os.write(append, b"1")
        with open("m", "wb") as f: f.write(bytes(4096))
        m = mmap.mmap(os.open("m", os.O_RDWR), 4096); m[:3] = b"one"
        stop("stands")
        assert os.read(nameless, 10) == b"deep" and os.fstat(nameless).st_nlink == 0
        os.pwrite(nameless, b"DEEP", 0); assert os.pread(nameless, 9, 0) == b"DEEP"
        made.write(" whole"); made.close(); assert open("made").read() == "half whole"
        assert os.fstat(gone).st_nlink == 0 and os.listdir(gone) == []
        first |= {e.name for e in listing}
        print(len(first))
        os.write(append, b"2"); assert open("log").read() == "12"
        m[3:6] = b"two"; m.flush(); assert open("m", "rb").read(6) == b"onetwo"
        assert os.getcwd().endswith("d/e") and "made" in os.listdir(".")
    """
    with Agent(workspace, "S", script) as agent:
        agent.until("stands")
        for _ in range(3):
            restart(workspace)
        result = agent.finish()
    assert result.code == 0, result.err
    assert result.out.split()[0] == "3000"
    assert workspace.warnings() == []
    # A name that was taken away before, and what was open without one, is gone for good.
    assert not (root / "d" / "e" / "f").exists() and (root / "d" / "e" / "made").read_text() == "half whole"


HOLD = 'f = open("f", "w"); f.write("holder"); f.flush()\nstop("holds")\nf.close()'


def test_who_waits_for_a_turn_goes_on_waiting(make_workspace: Any) -> None:
    workspace = make_workspace(mount=False)
    (workspace.directory / "fsguard.toml").write_text("[turns]\nlapse = 60\nwait = 60\n")
    workspace.mount()
    with Agent(workspace, "H", HOLD, patience=60) as holder:
        holder.until("holds")
        late = workspace.start("L", "sh", "-c", "echo late > f")
        until(lambda: workspace.status()["queues"])
        (before,) = workspace.status()["queues"]
        restart(workspace)
        (after,) = until(lambda: workspace.status()["queues"])
        assert after["holder"] == ["H"] and after["queue"][0]["pid"] == before["queue"][0]["pid"]
        assert after["queue"][0]["waiting"] > before["queue"][0]["waiting"], (
            "the time counts from its beginning"
        )
        told = workspace.start("T", "sh", "-c", "echo told > f")
        until(lambda: len(workspace.status()["queues"][0]["queue"]) == 2)
        restart(workspace)
        until(lambda: len(workspace.status()["queues"][0]["queue"]) == 2)
        assert [w["task"] for w in workspace.status()["queues"][0]["queue"]] == ["L", "T"], "in their order"
        os.killpg(told.pid, signal.SIGTERM)  # who was told to stop before or after does
        until(lambda: told.poll() is not None)
        assert len(workspace.status()["queues"][0]["queue"]) == 1 and late.poll() is None
        holder.finish()
        _out, err = late.communicate(timeout=30)
    assert late.returncode == 0, err
    assert (workspace.root / "f").read_text() == "late\n"
    assert [w["kind"] for w in workspace.warnings("L")] == ["waited", "stale_write"]


def test_changes_from_behind_are_heard_of_as_before(make_workspace: Any) -> None:
    need_root()
    workspace = make_workspace(mount=False)
    with behind(workspace.directory) as worker:
        workspace.mount()
        root = workspace.root
        (root / "d").mkdir()
        (root / "d" / "f").write_text("one")
        assert (root / "d" / "f").read_text() == "one" and not (root / "d" / "g").exists()
        restart(workspace)
        worker("write", "d/f", "two, and longer")
        worker("write", "d/g", "new")
        until(lambda: (root / "d" / "f").read_text() == "two, and longer", seconds=1)
        until((root / "d" / "g").exists, seconds=1)
        log = workspace.fsguard("log", "d/f", "--json").lines()
        assert any(e["task"] is None and e["pid"] == worker.pid for e in log)
        workspace.unmount()


def test_nothing_leaks(workspace: Workspace) -> None:
    (workspace.root / "f").write_text("x")
    with open(workspace.root / "f") as held:
        restart(workspace)
        before = workspace.settled_fds(0, 0.5)
        for _ in range(3):
            restart(workspace)
        assert workspace.settled_fds(len(before)) == before
        assert held.read() == "x"


def test_a_child_of_ours_that_closes_what_it_was_born_with_changes_nothing(workspace: Workspace) -> None:
    """fork(2) copies descriptors: the last of an open file may be closed by the exec(2) of the child."""
    script = """
        os.chdir(sys.argv[1])
        stop("begins")
        for i in range(3000):
            f = open(f"f{i % 8}", "w"); f.write("x"); f.close()
    """
    agents = []
    for name in ("M", "N"):
        (workspace.root / name).mkdir()
        agents.append(Agent(workspace, name, script, str(workspace.root / name)).until("begins"))
    children = 0
    for agent in agents:
        agent.go()
    while any(agent.process.poll() is None for agent in agents):
        ask(workspace, "restart", ok=False, program=["/bin/false"])
        children += 1
    assert children > 10 and all(agent.finish(go=False).code == 0 for agent in agents)
    for agent in agents:
        agent.close()
    entries = workspace.fsguard("log", "--json", "--limit", "100000").lines()
    assert not [e for e in entries if e["task"] is None and e["path"].startswith(("M/", "N/"))]
    assert workspace.warnings() == []


def test_a_program_that_cannot_go_on_changes_nothing(workspace: Workspace) -> None:
    (workspace.root / "f").write_text("x")
    pid = workspace.daemon_pid()
    other = workspace.top / "other"
    for text, said in (
        ("raise SystemExit('no such thing')", "no such thing"),
        ('print(\'{"format": 999, "version": "9.9", "io": "lane"}\')', "9.9 cannot go on"),
    ):
        other.write_text(text)
        with pytest.raises(AssertionError, match="nothing was changed"):
            ask(workspace, "restart", program=["/usr/bin/env", "python3", str(other)])
        answer = ask(workspace, "restart", ok=False, program=["/usr/bin/env", "python3", str(other)])
        assert said in json.dumps(answer)
    status = workspace.status()
    assert (status["restarts"], status["pid"]) == (0, pid)
    # One that passes the trial and then can't be executed: the old one goes on.
    other.write_text(
        f"#!/bin/sh\nrm -- {other}\n"
        f"""echo '{{"format": {FORMAT}, "version": "9.9", "io": "lane"}}'\n"""
    )
    other.chmod(0o755)
    workspace.announce("not restarted")
    ask(workspace, "restart", program=[str(other)])
    status = until(lambda: (s := workspace.status())["restart_trouble"] and s)
    assert status["restarts"] == 0 and "No such file" in status["restart_trouble"]
    assert (workspace.root / "f").read_text() == "x"
    (workspace.root / "g").write_text("y")
    restart(workspace)
    assert (workspace.root / "g").read_text() == "y"


def ask(workspace: Workspace, method: str, ok: bool = True, **params: Any) -> Any:
    """By the control socket itself."""
    import socket

    (note,) = (workspace.top / "run" / "fsguard").glob("*.json")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(json.loads(note.read_text())["socket"])
        sock.sendall(json.dumps({"v": 1, "id": 1, "method": method, "params": params}).encode() + b"\n")
        answer = json.loads(sock.makefile().readline())
    assert not ok or "error" not in answer, f"nothing was changed? {answer}"
    return answer


def test_without_the_lane_it_says_what_to_do(make_workspace: Any) -> None:
    workspace = make_workspace(options=("--io", "daemon"))
    done = workspace.fsguard("restart", str(workspace.root), cwd="/")
    assert done.code == 2 and "unmount and mount" in done.err and workspace.status()["restarts"] == 0


def test_it_ends_as_ever_afterwards(workspace: Workspace) -> None:
    (workspace.root / "f").write_text("x")
    restart(workspace)
    pid = workspace.daemon_pid()
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    until(lambda: not os.path.ismount(workspace.root))
    until(
        lambda: not Path(f"/proc/{pid}").exists() or Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    )
    workspace.mounted = False
    assert (workspace.root / "f").read_text() == "x"


def signals_itself(workspace: Workspace, number: signal.Signals) -> list[str]:
    """A program that gets a signal before it is the daemon, as between execve(2) and its first line."""
    other = workspace.top / "signalled"
    other.write_text(f'#!/bin/sh\n[ "$FSGUARD_RESTART_TRIAL" ] || kill -{number.name[3:]} $$\nexec "$@"\n')
    other.chmod(0o755)
    return [str(other), *launch.program()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_who_ends_it_meanwhile_ends_the_next_program(workspace: Workspace, number: signal.Signals) -> None:
    (workspace.root / "f").write_text("x")
    pid = workspace.daemon_pid()
    ask(workspace, "restart", program=signals_itself(workspace, number), path=launch.python_path())
    until(lambda: not os.path.ismount(workspace.root) and os.listdir(workspace.root) == ["f"], seconds=20)
    until(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split())
    workspace.mounted = False


def test_a_hangup_meanwhile_is_passed_over(workspace: Workspace) -> None:
    ask(workspace, "restart", program=signals_itself(workspace, signal.SIGHUP), path=launch.python_path())
    until(lambda: workspace.status()["restarts"])
    (workspace.root / "f").write_text("x")


@pytest.mark.parametrize("part", range(6))
def test_no_signal_is_lost_whenever_it_comes(workspace: Workspace, part: int) -> None:
    """Busy, it says so and goes on, as this program or the next; in the end it unmounts."""
    pid = workspace.daemon_pid()
    assert pid is not None
    (workspace.root / "f").write_text("x")
    workspace.announce("asked to end|not restarted: it is being unmounted")
    with open(workspace.root / "f") as held, ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        restart(workspace)
        took = time.monotonic() - began
        restarted = pool.submit(workspace.fsguard, "restart", str(workspace.root), cwd="/")
        wait([restarted], took * part / 6)  # that is another moment each time
        os.kill(pid, signal.SIGTERM)
        until(lambda: workspace.log().count("asked to end, but") == 1, seconds=20)
        done = restarted.result()
        assert done.code == 0 or "being unmounted" in done.err, done
        assert held.read() == "x"
    os.kill(pid, signal.SIGTERM)
    until(lambda: not os.path.ismount(workspace.root), seconds=20)
    workspace.mounted = False


def test_one_restart_at_a_time(workspace: Workspace) -> None:
    """The second is refused while the first is still tried out, and the first goes on."""
    gate = workspace.top / "gate"
    os.mkfifo(gate)
    slow = workspace.top / "slow"
    slow.write_text(f'#!/bin/sh\n[ "$FSGUARD_RESTART_TRIAL" ] && cat {gate} > /dev/null\nexec "$@"\n')
    slow.chmod(0o755)
    program, path = [str(slow), *launch.program()], launch.python_path()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask, workspace, "restart", program=program, path=path)
        opened = os.open(gate, os.O_WRONLY)  # it is being tried
        refused = ask(workspace, "restart", ok=False)
        assert refused["error"]["code"] == 4 and "already" in refused["error"]["message"]
        os.close(opened)
        assert first.result()["result"]["version"]
    until(lambda: workspace.status()["restarts"] == 1)
    assert restart(workspace)["restarts"] == 2


def test_it_goes_on_where_everything_around_it_was_tidied_away(make_workspace: Any) -> None:
    """A daemon does not need its configuration, its socket's directory or its store in order to serve."""
    workspace = make_workspace(mount=False)
    settings = workspace.directory / "fsguard.toml"
    settings.write_text("[turns]\nwait = 42\n")
    workspace.mount()
    pid = workspace.daemon_pid()
    (workspace.root / "f").write_text("x")
    workspace.announce("nothing is kept any more|registering failed")
    (note,) = (workspace.top / "run" / "fsguard").glob("*.json")
    mount = json.loads(note.read_text())
    with open(workspace.root / "f") as held, Client(registry.Mount(**mount)) as client:
        assert client.call("status")["turn_wait"] == 42
        settings.write_text("not toml [")
        os.rename(workspace.top / "run", workspace.top / "elsewhere")
        for path in (workspace.top / "state").rglob("versions"):
            shutil.rmtree(path)
            path.write_text("in the way")
        client.call("restart")
        os.rename(workspace.top / "elsewhere", workspace.top / "run")
        status = until(lambda: (s := workspace.status())["restarts"] and s)
        assert (status["pid"], status["turn_wait"], status["keeping"]) == (pid, 42, False)
        assert held.read() == "x"
        (workspace.root / "f").write_text("y")


def test_who_waits_for_a_lease_or_follows_the_warnings_does_not_notice(workspace: Workspace) -> None:
    (workspace.root / "f").write_text("0")
    workspace.run("A", "cat", "f").ok()
    held = workspace.fsguard("lease", "acquire", "x/**", "--task", "L", "--json").json()
    waiter = workspace.start(None, "fsguard", "lease", "acquire", "x/**", "--task", "W", "--json")
    follower = workspace.start(None, "fsguard", "warnings", "--follow", "--json")
    until(lambda: workspace.fsguard("lease", "list", "--json").json()["waiting"])
    workspace.sh("B", "echo B > f").ok()
    for _ in range(2):
        restart(workspace)
        until(lambda: workspace.fsguard("lease", "list", "--json").json()["waiting"])
    assert waiter.poll() is None and follower.poll() is None
    workspace.fsguard("lease", "release", str(held["id"]), "--task", "L").ok()
    out, _ = waiter.communicate(timeout=20)
    assert waiter.returncode == 0 and json.loads(out)["task"] == "W"
    assert [x["task"] for x in workspace.fsguard("lease", "list", "--json").json()["leases"]] == ["W"]
    workspace.sh("A", "echo A > f").ok()
    workspace.run("B", "cat", "f").ok()
    workspace.sh("A", "echo A > f").ok()
    until(workspace.warnings)
    told = {w["id"] for w in workspace.warnings()}
    assert follower.stdout is not None
    first = json.loads(follower.stdout.readline())
    assert first["id"] in told
    follower.send_signal(signal.SIGINT)
    out, err = follower.communicate(timeout=20)
    ids = [first["id"], *(json.loads(line)["id"] for line in out.splitlines())]
    assert ids == sorted(set(ids)), f"each once: {ids} {err}"


def test_many_changes_from_behind_that_were_not_yet_told_are_not_forgotten(make_workspace: Any) -> None:
    need_root()
    workspace = make_workspace(mount=False)
    count = 2000
    with behind(workspace.directory) as worker:
        workspace.mount()
        (workspace.root / "d").mkdir()
        os.listdir(workspace.root / "d")
        worker("many", "d/", count)
        restart(workspace)
        names = {f"d/{i}" for i in range(count)}
        until(
            lambda: (
                names
                <= {
                    e["path"]
                    for e in workspace.fsguard("log", "--json", "--limit", "100000").lines()
                    if e["task"] is None
                }
            ),
            seconds=20,
        )
        workspace.unmount()
