"""Turns between real processes: who waits, for how long, and who never does."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from tests.kit.agents import Agent, together, until
from tests.kit.mounting import Workspace

# Holds the turn on f: truncates it, writes while it is told to, and lets go at its end.
HOLDER = """
    import threading
    f = open("f", "w")
    done = threading.Event()
    def write():
        while not done.wait(0.1):
            f.write("holder\\n"); f.flush()
    t = threading.Thread(target=write); t.start()
    stop("holds")
    done.set(); t.join(); f.close()
"""

WRITE = "echo late > f"


@pytest.fixture
def holder(workspace: Workspace) -> Any:
    with Agent(workspace, "H", HOLDER, patience=40) as agent:
        yield agent.until("holds")
        if agent.process.poll() is None:
            agent.finish()


def queue(workspace: Workspace, length: int = 1) -> Any:
    """The queue of f, once `length` wait in it."""

    def look() -> Any:
        queues = [q for q in workspace.status()["queues"] if q["path"] == "f"]
        return queues[0] if queues and len(queues[0]["queue"]) >= length else None

    return until(look)


def kinds(workspace: Workspace, task: str) -> list[str]:
    return [w["kind"] for w in workspace.warnings(task)]


def test_a_write_waits_for_the_other_tasks_turn(workspace: Workspace, holder: Agent) -> None:
    late = workspace.start("L", "sh", "-c", WRITE)
    seen = queue(workspace)
    assert seen["holder"] == ["H"]
    assert seen["queue"][0]["task"] == "L" and seen["queue"][0]["next"] is True
    assert late.poll() is None
    holder.finish()
    (result,) = together(late)
    assert result.code == 0 and (workspace.root / "f").read_text() == "late\n"
    assert kinds(workspace, "L") == ["waited", "stale_write"], (
        f"checked when the turn came\n{result.err}\n{seen}\n{workspace.fsguard('log', '--json').out}"
    )
    assert '"H"' in result.err


def test_first_come_first_served(workspace: Workspace, holder: Agent) -> None:
    waiters = []
    for i in range(4):
        waiters.append(workspace.start(f"W{i}", "sh", "-c", f"echo {i} > f"))
        queue(workspace, i + 1)
    holder.finish()
    assert all(r.code == 0 for r in together(*waiters))
    log = workspace.fsguard("log", "f", "--json").lines()
    order = [e["task"] for e in reversed(log) if e["op"] == "write" and e["task"] != "H"]
    assert list(dict.fromkeys(order)) == ["W0", "W1", "W2", "W3"]


def test_nothing_else_waits(workspace: Workspace, holder: Agent) -> None:
    workspace.plain("sh", "-c", "echo g > g").ok()
    late = workspace.start("L", "sh", "-c", WRITE)
    queue(workspace)
    begun = time.monotonic()
    workspace.run("R", "cat", "f").ok()  # reads
    workspace.sh("R", "echo other > g; mv g h; rm h; ls > /dev/null").ok()  # other paths
    workspace.sh("H", "echo own > f").ok()  # the holder's own processes
    run = f"fsguard run --task H.1 --workspace {workspace.root} --"
    workspace.sh("H", f"{run} sh -c 'echo child > f'").ok()  # and its children
    workspace.status()
    assert time.monotonic() - begun < 4.0, "the wait of one must not be the wait of all"
    assert late.poll() is None
    holder.finish()
    together(late)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_waiter_that_is_told_to_stop_leaves_at_once(
    workspace: Workspace, holder: Agent, number: signal.Signals
) -> None:
    doomed = workspace.start(None, "sh", "-c", f"exec {WRITE}", env={"FSGUARD_TASK": "D"})
    seen = queue(workspace)
    late = workspace.start("L", "sh", "-c", WRITE)
    queue(workspace, 2)
    os.kill(seen["queue"][0]["pid"], number)
    doomed.wait(3)
    assert [t["task"] for t in queue(workspace)["queue"]] == ["L"], "the next one moved up"
    holder.finish()
    assert together(late)[0].code == 0


def test_handled_signals_never_fail_a_waiting_call(workspace: Workspace, holder: Agent) -> None:
    script = """if True:
        import os, signal
        hits = []
        for s in (signal.SIGALRM, signal.SIGUSR1, signal.SIGCHLD, signal.SIGWINCH):
            signal.signal(s, lambda n, f: hits.append(n))
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        fd = os.open("f", os.O_WRONLY | os.O_TRUNC)
        os.write(fd, b"late")
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(len(hits))
    """
    late = workspace.start("L", "python3", "-c", script)
    pid = queue(workspace)["queue"][0]["pid"]
    for number in (signal.SIGUSR1, signal.SIGCHLD, signal.SIGWINCH):
        os.kill(pid, number)
    holder.finish()
    (result,) = together(late)
    assert result.code == 0 and int(result.out) > 0, result.err


def test_a_holder_that_dies_gives_its_turn_back(workspace: Workspace, holder: Agent) -> None:
    late = workspace.start("L", "sh", "-c", WRITE)
    queue(workspace)
    begun = time.monotonic()
    holder.kill()
    assert together(late)[0].code == 0
    assert time.monotonic() - begun < 3.0
    holder.process.wait(5)


def test_a_stopped_holder_loses_its_turn(workspace: Workspace, holder: Agent) -> None:
    holder.kill(signal.SIGSTOP)
    try:
        (result,) = together(workspace.start("L", "sh", "-c", WRITE))
        assert result.code == 0
        assert "concurrent_write" not in kinds(workspace, "L"), "a turn that lapsed is nobody's"
    finally:
        holder.kill(signal.SIGCONT)
    until(lambda: "concurrent_write" in kinds(workspace, "H"))  # it goes on writing
    assert "concurrent_write" in kinds(workspace, "L"), "told to both"


def test_when_the_wait_runs_out_both_are_told(make_workspace: Callable[..., Workspace]) -> None:
    workspace = make_workspace(mount=False)
    (workspace.directory / "fsguard.toml").write_text("[turns]\nwait = 0.5\n")
    workspace.mount()
    with Agent(workspace, "H", HOLDER) as agent:
        agent.until("holds")
        result = workspace.sh("L", WRITE).ok()
        assert kinds(workspace, "L") == ["concurrent_write"] and '"H"' in result.err
        assert "concurrent_write" in kinds(workspace, "H")
        agent.finish()


def test_under_block_the_wait_ends_with_eagain_and_nothing_changed(
    make_workspace: Callable[..., Workspace],
) -> None:
    workspace = make_workspace(mount=False)
    (workspace.directory / "fsguard.toml").write_text('[turns]\nwait = 0.5\n[policy]\ndefault = "block"\n')
    workspace.mount()
    script = "import os\ntry: os.open('f', os.O_WRONLY | os.O_TRUNC)\nexcept OSError as e: print(e.errno)"
    with Agent(workspace, "H", HOLDER) as agent:
        agent.until("holds")
        first = workspace.python("L", script).ok()
        again = workspace.python("L", script).ok()
        assert first.out == again.out == "11\n"
        assert "holder" in (workspace.root / "f").read_text()
        assert first.err.replace(" -c ", "") == again.err.replace(" -c ", ""), "the same words on a retry"
        agent.finish()


@pytest.mark.parametrize(
    "way", ["mv new f", "rm f", "python3 -c 'import os; os.truncate(\"f\", 0)'", "ln -f new f"]
)
def test_what_happens_to_a_path_under_anothers_turn_is_told_to_both(
    workspace: Workspace, holder: Agent, way: str
) -> None:
    workspace.sh("B", "echo new > new").ok()
    begun = time.monotonic()
    workspace.sh("B", way).ok()
    assert time.monotonic() - begun < 4.0, "only an open ever waits"
    assert "concurrent_write" in kinds(workspace, "B")
    assert "concurrent_write" in kinds(workspace, "H")


@pytest.mark.parametrize("way", ["rm f", "mv new f", "rm f; mv new f", "ln -f new f", "git checkout -q -- f"])
def test_what_is_written_into_a_file_that_lost_its_name_is_kept(workspace: Workspace, way: str) -> None:
    git = "git -c user.name=t -c user.email=t@e"
    workspace.sh(
        "B", f"echo old > f; git init -q . && git add f && {git} commit -qm one; echo new > new"
    ).ok()
    script = 'f = open("f", "w"); f.write("half"); f.flush(); stop("holds"); f.write(" whole"); f.close()'
    with Agent(workspace, "H", script) as agent:
        agent.until("holds")
        workspace.sh("B", way).ok()
        assert "concurrent_write" in kinds(workspace, "B")
        agent.finish()

    def kept() -> Any:
        versions = workspace.fsguard("versions", "f", "--json").lines()
        return {
            workspace.fsguard("show", f"f@{v['version']}").out: v["sibling"] for v in versions if v["kept"]
        }

    until(lambda: "half whole" in kept(), "the final bytes")
    assert kept()["half whole"] == "H" and kept()["half"] == "H", "also those at the time of the loss"


@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_circle_is_found_at_once(make_workspace: Callable[..., Workspace], size: int) -> None:
    """Each holds one file and wants the next one's; no turn lapses and no wait ends before a minute."""
    workspace = patient(make_workspace)
    workspace.plain("sh", "-c", "touch f0 f1 f2 f3 f4").ok()
    script = """
        import sys
        a, b = sys.argv[1:3]
        f = open(a, "w"); f.write("x"); f.flush()
        stop("has one")
        g = open(b, "w"); g.write("y"); g.close(); f.close()
    """
    with ExitStack() as stack:
        agents = [
            stack.enter_context(Agent(workspace, f"A{i}", script, f"f{i}", f"f{(i + 1) % size}", patience=40))
            for i in range(size)
        ]
        for agent in agents:
            agent.until("has one")
        begun = time.monotonic()
        for agent in agents:
            agent.go()
        assert [agent.finish(go=False).code for agent in agents] == [0] * size
        assert time.monotonic() - begun < 20.0, "found, not timed out"
    told = [w for w in workspace.warnings() if w["kind"] == "concurrent_write"]
    assert any("neither could go on" in w["message"] for w in told)
    assert len({w["path"] for w in told}) == 1, "one of them went on, the others waited for their turn"


def test_many_files_in_any_order_never_stand_still(make_workspace: Callable[..., Workspace]) -> None:
    """Six tasks hold up to three of five files each, taken in random order: all get through."""
    workspace = patient(make_workspace)
    workspace.plain("sh", "-c", "touch f0 f1 f2 f3 f4").ok()
    script = """if True:
        import random, sys
        rng = random.Random(sys.argv[1])
        for i in range(8):
            held = []
            for name in rng.sample(range(5), 3):
                f = open(f"f{name}", "w")
                f.write(sys.argv[1] * 1000)
                f.flush()
                held.append(f)
            for f in held:
                f.close()
    """
    begun = time.monotonic()
    results = together(*[workspace.start(f"A{i}", sys.executable, "-c", script, str(i)) for i in range(6)])
    assert [r.code for r in results] == [0] * 6, results
    assert time.monotonic() - begun < 40.0
    assert workspace.status()["queues"] == []


def patient(make_workspace: Callable[..., Workspace]) -> Workspace:
    workspace = make_workspace(mount=False)
    (workspace.directory / "fsguard.toml").write_text("[turns]\nwait = 60\nlapse = 60\n")
    workspace.mount()
    return workspace


def test_a_turn_is_passed_on_when_the_last_of_its_handles_is_closed(
    make_workspace: Callable[..., Workspace],
) -> None:
    """Two processes of a task write one file: the first that is done gives nothing back."""
    workspace = patient(make_workspace)
    workspace.plain("touch", "f").ok()
    script = 'f = open("f", "w"); f.write("mine"); f.flush(); stop("writes"); f.close(); stop("closed")'
    with Agent(workspace, "H", script) as one, Agent(workspace, "H", script) as two:
        one.until("writes"), two.until("writes")
        late = workspace.start("L", "sh", "-c", WRITE)
        queue(workspace)
        one.go().until("closed")
        assert queue(workspace)["holder"] == ["H"] and late.poll() is None
        two.go().until("closed")
        assert together(late)[0].code == 0
        one.finish(), two.finish()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_holder_that_is_killed_gives_back_at_once(
    make_workspace: Callable[..., Workspace], number: signal.Signals
) -> None:
    """Not only after a while without a write."""
    workspace = patient(make_workspace)
    with Agent(workspace, None, HOLDER, env={"FSGUARD_TASK": "H"}) as holder:
        holder.until("holds")
        late = workspace.start("L", "sh", "-c", WRITE)
        queue(workspace)
        os.kill(holder.process.pid, number)
        assert together(late, seconds=20)[0].code == 0
        holder.process.wait(10)
    assert (workspace.root / "f").read_text() == "late\n"


def test_an_open_log_file_holds_no_turn_and_appends_do_not_wait(workspace: Workspace) -> None:
    with Agent(workspace, "A", 'f = open("log", "a"); f.write("a\\n"); f.flush(); stop("open")') as agent:
        agent.until("open")
        begun = time.monotonic()
        workspace.sh("B", "for i in 1 2 3; do echo b$i >> log; done").ok()
        assert time.monotonic() - begun < 4.0
        agent.finish()
    assert workspace.warnings() == []
    assert (workspace.root / "log").read_text().split() == ["a", "b1", "b2", "b3"]


def test_a_reader_between_turns_sees_one_writers_whole_content(workspace: Workspace) -> None:
    script = """if True:
        import os, sys
        letter, size = sys.argv[1].encode(), int(sys.argv[2])
        for _ in range(6):
            fd = os.open("f", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            for _ in range(8):
                os.write(fd, letter * size)
            os.close(fd)
    """
    writers = [
        workspace.start(t, "python3", "-c", script, t.lower(), str(1000 * (i + 1)))
        for i, t in enumerate("ABCD")
    ]
    assert all(r.code == 0 for r in together(*writers))
    text = (workspace.root / "f").read_text()
    letter = text[0]
    assert text == letter * (8000 * ("abcd".index(letter) + 1))


CROWD = """if True:
    import os, sys
    number = int(sys.argv[1])
    for i in range(number):
        if os.fork() == 0:
            os.write(os.open("f", os.O_WRONLY | os.O_TRUNC), b"crowd")
            os._exit(0)
    sys.exit(sum(os.wait()[1] != 0 for _ in range(number)))
"""


def crowd(make_workspace: Callable[..., Workspace], tasks: int, each: int) -> None:
    """`tasks` times `each` processes wait to write f, and nobody else notices; then each has its turn."""
    workspace = make_workspace(mount=False)
    (workspace.directory / "fsguard.toml").write_text("[turns]\nwait = 500\nlapse = 60\n")
    workspace.mount()
    number = tasks * each
    with Agent(workspace, "H", HOLDER, patience=60) as agent:
        agent.until("holds")
        writers = [workspace.start(f"W{i}", sys.executable, "-c", CROWD, str(each)) for i in range(tasks)]
        until(lambda: len(queue(workspace)["queue"]) == number, f"{number} that wait", 200)
        script = """if True:
            import os, time
            def took(what, call):
                began = time.monotonic()
                call()
                print(what, time.monotonic() - began)
            def write():
                with open("other", "w") as f:
                    f.write("x")
            took("read", lambda: open("f").read())
            took("write another file", write)
            took("rename", lambda: os.rename("other", "another"))
            took("unlink", lambda: os.unlink("another"))
            took("list", lambda: os.listdir("."))
        """
        alone = workspace.python("R", script).ok().out  # 1,000 waiting processes must not cost anything
        slow = [line for line in alone.splitlines() if float(line.split()[-1]) > 1.0]
        assert not slow, slow
        began = time.monotonic()
        seen = queue(workspace)
        asked = time.monotonic() - began
        assert asked < 3.0, f"status took {asked:.1f} s"
        assert seen["holder"] == ["H"] and [t["next"] for t in seen["queue"]] == [True] + [False] * (
            number - 1
        )
        assert all(0 < t["waiting"] <= seen["queue"][0]["waiting"] for t in seen["queue"])
        text = workspace.fsguard("status").out
        assert f"f: written by H, for {seen['since']:.0f}"[:20] in text and f"; {number} waiting" in text
        assert text.count("next in line") == 1 and f"… and {number - 20} more" in text
        os.kill(seen["queue"][1]["pid"], signal.SIGKILL)
        after = until(lambda: len(q := queue(workspace)["queue"]) == number - 1 and q, "one less", 60)
        assert after[1]["pid"] == seen["queue"][2]["pid"], "the next one moved up"
        agent.finish()
    results = together(*writers, seconds=500)
    assert sorted(r.code for r in results) == [0] * (tasks - 1) + [1], "all had their turn but the killed one"
    assert (workspace.root / "f").read_text() == "crowd"
    assert workspace.status()["queues"] == []


def test_many_waiters_stop_nobody(make_workspace: Callable[..., Workspace]) -> None:
    crowd(make_workspace, 3, 50)


@pytest.mark.parametrize("journal", ["delete", "truncate", "wal"])
def test_databases_lock_for_themselves(workspace: Workspace, journal: str) -> None:
    script = f"""if True:
        import sqlite3, sys
        c = sqlite3.connect("db", timeout=60, isolation_level=None)
        c.execute("pragma journal_mode={journal}")
        c.execute("pragma synchronous=off")
        c.execute("create table if not exists t(a, b)")
        for i in range(40):
            c.execute("begin immediate")
            c.execute("insert into t values(?, ?)", (sys.argv[1], i))
            c.execute("commit")
    """
    results = together(*[workspace.start(t, "python3", "-c", script, t) for t in "AB"])
    assert [r.code for r in results] == [0, 0], results
    count = "import sqlite3; print(sqlite3.connect('db').execute('select count(*) from t').fetchone()[0])"
    assert workspace.plain("python3", "-c", count).ok().out == "80\n"
    assert [w for w in workspace.warnings() if w["kind"] != "waited"] == []
