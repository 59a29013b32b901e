"""`fsguard restart`: another program of the daemon goes on, and nobody notices."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.kit.abilities import need_root
from tests.kit.agents import Agent, until
from tests.kit.behind import behind
from tests.kit.mounting import Workspace

pytestmark = pytest.mark.skipif(
    os.environ.get("FSGUARD_TEST_IO") == "daemon", reason="without the lane a restart is refused"
)


def restart(workspace: Workspace) -> dict[str, Any]:
    done = workspace.fsguard("restart", "--json", str(workspace.root), cwd="/").json()
    assert done["restarted"] is True
    return dict(done)


# Each goes on until it is told to stop, checks all that it does, and says how often it did it.
WORKERS = {
    "appends": """
        f = open("log", "a")
        def work(n):
            f.write(f"{n}\\n"); f.flush()
        def check(n):
            assert open("log").read().split() == [str(i) for i in range(n)]
    """,
    "renames": """
        open("r-0", "w").write("here")
        def work(n):
            os.rename(f"r-{n}", f"r-{n + 1}")
        def check(n):
            assert [x for x in os.listdir(".") if x.startswith("r-")] == [f"r-{n}"]
            assert open(f"r-{n}").read() == "here"
    """,
    "trees": """
        import shutil
        def work(n):
            os.makedirs(f"t{n}/a/b")
            for i in range(5):
                open(f"t{n}/a/b/f{i}", "x").write(str(i))
            os.symlink("a", f"t{n}/l")
            assert sorted(os.listdir(f"t{n}/l/b")) == [f"f{i}" for i in range(5)]
            os.link(f"t{n}/a/b/f0", f"t{n}/h")
            shutil.rmtree(f"t{n}")
        def check(n):
            assert not [x for x in os.listdir(".") if x[0] == "t" and x[1:].isdigit()]
    """,
    "database": """
        import sqlite3
        db = sqlite3.connect("db.sqlite", timeout=30)
        db.execute("create table t (n integer)")
        def work(n):
            with db:
                db.execute("insert into t values (?)", (n,))
        def check(n):
            assert db.execute("select count(*), sum(n) from t").fetchone() == (n, n * (n - 1) // 2)
            assert db.execute("pragma integrity_check").fetchone() == ("ok",)
    """,
    "mapping": """
        import mmap
        open("mapped", "wb").write(bytes(65536))
        m = mmap.mmap(os.open("mapped", os.O_RDWR), 65536)
        def work(n):
            m[n * 8 % 65536 : n * 8 % 65536 + 8] = n.to_bytes(8, "big")
            if n % 50 == 0: m.flush()
        def check(n):
            m.flush()
            assert open("mapped", "rb").read() == m[:]
    """,
    "commits": """
        import subprocess
        def git(*words):
            return subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e", *words], check=True,
                                  capture_output=True, text=True, cwd="repo").stdout
        os.mkdir("repo"); git("init", "-q")
        def work(n):
            open("repo/file", "a").write(f"{n}\\n")
            git("add", "file"); git("commit", "-q", "-m", str(n))
        def check(n):
            assert git("log", "--format=%s").split() == [str(i) for i in reversed(range(n))]
            git("fsck", "--strict"); assert git("status", "--porcelain") == ""
    """,
}
LOOP = """
import select, sys
stop("works")
n = 0
while not select.select([0], [], [], 0)[0]:
    work(n)
    n += 1
check(n)
print(n)
"""


def test_no_call_fails_while_it_is_restarted(workspace: Workspace) -> None:
    agents, pipes = [], []
    for name, script in WORKERS.items():
        here = workspace.root / name
        here.mkdir()
        read, write = os.pipe()
        pipes.append(write)
        body = textwrap.dedent(script) + LOOP
        agents.append(Agent(workspace, name, body, cwd=here, stdin=read, patience=60))
        os.close(read)
    try:
        for agent in agents:
            agent.until("works")
        for agent in agents:
            agent.go()
        pid = workspace.daemon_pid()
        for number in range(1, 5):
            done = restart(workspace)
            assert (done["restarts"], done["pid"]) == (number, pid)
        for write in pipes:
            os.write(write, b"x")
        results = [agent.finish(go=False) for agent in agents]
    finally:
        for agent in agents:
            if agent.process.poll() is None:
                agent.kill()
            agent.close()
        for write in pipes:
            os.close(write)
    for result in results:
        assert result.code == 0, result.err
        assert int(result.out.split()[0]) > 0
        assert "fsguard:" not in result.err, f"each works alone in its directory: {result.err}"
    assert workspace.warnings() == []
    with contextlib.closing(sqlite3.connect(workspace.root / "database" / "db.sqlite")) as db:
        assert db.execute("pragma integrity_check").fetchone() == ("ok",)


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
            if k not in ("remaining", "since", "idle", "last_seen")
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
        """echo '{"format": 1, "version": "9.9", "io": "lane"}'\n"""
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
