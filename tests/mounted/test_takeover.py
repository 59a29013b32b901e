"""The worker may die at any moment, and nobody who uses the mount notices."""

from __future__ import annotations

import errno
import os
import random
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.kit.abilities import need
from tests.kit.agents import Agent, until
from tests.kit.mounting import Workspace
from tests.kit.workers import WORKERS, at_work

SECONDS = float(os.environ.get("FSGUARD_KILL_SECONDS", "60"))
SEED = int(os.environ.get("FSGUARD_KILL_SEED", "0")) or random.randrange(1 << 30)

pytestmark = pytest.mark.skipif(
    os.environ.get("FSGUARD_TEST_IO") == "daemon", reason="without the lane nobody takes over"
)


@pytest.fixture(autouse=True)
def kernel() -> None:
    numbers = tuple(int(n) for n in os.uname().release.split("-")[0].split(".")[:2])
    need(numbers >= (6, 9), "needs Linux 6.9, which sends requests again")


MORE = {
    "numbers": """
        f = os.open("numbers", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        def work(n):
            line = b"%d\\n" % n
            assert os.write(f, line) == len(line)
        def check(n):
            same(open("numbers").read().split(), n)
    """,
    "archive": """
        import subprocess, filecmp, shutil
        os.makedirs("tree/deep/er")
        for i in range(40):
            open(f"tree/deep/er/{i}", "w").write(str(i) * (i * 50))
        subprocess.run(["tar", "cf", "tar", "tree"], check=True)
        def work(n):
            os.mkdir(f"out-{n}")
            subprocess.run(["tar", "xf", "tar", "-C", f"out-{n}"], check=True)
            assert not subprocess.run(["diff", "-r", "tree", f"out-{n}/tree"]).returncode
            shutil.rmtree(f"out-{n}")
        def check(n):
            assert sorted(os.listdir(".")) == ["tar", "tree"]
    """,
}


def worker(workspace: Workspace) -> int:
    """The process that does the work, as the kernel knows it: nobody is asked. 0: there is none now."""
    keeper, pid = workspace.daemon_pid(), workspace.worker_pid()
    return pid if pid is not None and pid != keeper else 0


def kill_worker(workspace: Workspace, number: int = signal.SIGKILL) -> int:
    pid = until(lambda: worker(workspace))
    os.kill(pid, number)
    workspace.deaths += 1
    until(lambda: worker(workspace) not in (0, pid), "another worker")
    return int(pid)


@contextmanager
def killing(workspace: Workspace, low: float, high: float) -> Iterator[list[int]]:
    """Kill the worker again and again, at random."""
    chance, over, killed = random.Random(SEED), threading.Event(), []

    def kill() -> None:
        while not over.wait(chance.uniform(low, high)):
            pid = worker(workspace)
            if pid:
                os.kill(pid, signal.SIGKILL)
                workspace.deaths += 1
                killed.append(pid)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


def test_it_is_said_who_keeps_and_who_works(workspace: Workspace) -> None:
    status = workspace.status()
    assert status["takeovers"] == 0
    assert status["pid"] == status["keeper_pid"] == workspace.daemon_pid()
    assert status["worker_pid"] == worker(workspace)
    workspace.announce("was killed by signal 9")
    killed = kill_worker(workspace)
    status = workspace.status()
    assert status["takeovers"] == 1 and status["worker_pid"] not in (killed, status["keeper_pid"])
    assert status["pid"] == status["keeper_pid"] == workspace.daemon_pid()


def test_what_is_open_stays_open(workspace: Workspace) -> None:
    """With names and without, for reading, writing and in a mapping."""
    import mmap

    workspace.announce("was killed by signal")
    root = workspace.root
    (root / "d").mkdir()
    (root / "read").write_text("read")
    files = {name: open(root / name, "w+") for name in ("written", "gone", "moved", "grown")}  # noqa: SIM115
    mapped = os.open(root / "mapped", os.O_RDWR | os.O_CREAT)
    os.ftruncate(mapped, 4096)
    mapping = mmap.mmap(mapped, 4096)
    with open(root / "read") as reading:
        for name, file in files.items():
            file.write(f"{name} before\n")
            file.flush()
        os.unlink(root / "gone")
        os.rename(root / "moved", root / "d" / "there")
        inos = {path: os.lstat(path).st_ino for path in (root / "read", root / "d", root / "written")}
        for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT):
            kill_worker(workspace, number)
            for name, file in files.items():
                file.write(f"{name} after {number}\n")
                file.flush()
            mapping[number : number + 1] = b"x"
            mapping.flush()
        assert reading.read() == "read"
        for name, file in files.items():
            file.seek(0)
            assert [line.split()[1] for line in file] == ["before", "after", "after", "after"], name
        assert {path: os.lstat(path).st_ino for path in inos} == inos
        assert sorted(os.listdir(root)) == ["d", "grown", "mapped", "read", "written"]
        assert (root / "d" / "there").read_text().startswith("moved before")
    for file in files.values():
        file.close()
    mapping.close()
    os.close(mapped)
    assert (root / "mapped").read_bytes().count(b"x") == 3
    until(lambda: workspace.status()["open_files"] == 0, "all files are released")


def test_locks_that_are_held_stay_held(workspace: Workspace) -> None:
    workspace.announce("was killed by signal")
    holder = """
        import fcntl
        f = open("lock", "w"); fcntl.flock(f, fcntl.LOCK_EX)
        g = open("posix", "w"); fcntl.lockf(g, fcntl.LOCK_EX)
        stop("holds")
        stop("still")
    """
    other = """
        import fcntl
        for name, lock in (("lock", fcntl.flock), ("posix", fcntl.lockf)):
            try:
                lock(open(name, "w"), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            raise SystemExit(name)
    """
    with Agent(workspace, None, holder) as agent:
        agent.until("holds")
        kill_worker(workspace)
        workspace.plain(sys.executable, "-c", textwrap.dedent(other)).ok()
        agent.go().until("still")
        agent.finish().ok()


def test_what_is_on_record_is_known_to_the_next_worker(workspace: Workspace) -> None:
    workspace.announce("was killed by signal")
    root = workspace.root
    for name in ("a", "b"):
        (root / name).write_text("0\n")
    workspace.run("A", "cat", "a", "b").ok()
    workspace.sh("B", "echo B > a").ok()
    kill_worker(workspace)
    workspace.sh("C", "echo C > b").ok()
    kill_worker(workspace)
    told = workspace.sh("A", "echo A > a; echo A > b")
    assert '"B"' in told.err and '"C"' in told.err
    assert sorted((w["sibling"], w["kind"]) for w in workspace.warnings()) == [
        ("B", "stale_write"),
        ("C", "stale_write"),
    ]
    tasks = {task["task"] for task in workspace.status()["tasks"]}
    assert {"A", "B", "C"} <= tasks


def test_the_worker_may_be_killed_all_the_time(workspace: Workspace) -> None:
    work_while_it_is_killed(workspace)


def work_while_it_is_killed(workspace: Workspace) -> tuple[dict[str, int], int, int]:
    """(how often each task did what it does, workers killed, conflicts), all as it should be."""
    workspace.announce("was killed by signal")
    talks = 0
    with at_work(workspace, {**WORKERS, **MORE}, patience=120) as stop:
        end = time.monotonic() + SECONDS
        with killing(workspace, 1.0, 3.0) as killed:
            while time.monotonic() < end:
                name = f"talk-{talks}"
                (workspace.root / name).write_text("0\n")
                workspace.run("reader", "cat", name).ok()
                workspace.sh("writer", f"echo w >> {name}; echo alone > own-{talks}").ok()
                told = workspace.sh("reader", f"echo r > {name}").ok()
                assert '"writer"' in told.err and name in told.err, f"{told.err} (seed {SEED})"
                talks += 1
        done = stop()
    status = workspace.status()
    assert status["takeovers"] == len(killed) > SECONDS / 5
    said = [(w["task"], w["sibling"], w["kind"], w["path"]) for w in workspace.warnings()]
    assert said == [("reader", "writer", "stale_write", f"talk-{n}") for n in range(talks)], f"seed {SEED}"
    print(f"{len(killed)} workers killed in {SECONDS:.0f} s; {talks} conflicts; {done}")
    return done, len(killed), talks


def test_a_worker_may_die_as_soon_as_it_has_taken_over(workspace: Workspace) -> None:
    """Before it has touched its memory, made a checkpoint, or answered what had come again."""
    workspace.announce("was killed by signal")
    few = {name: (WORKERS | MORE)[name] for name in ("appends", "numbers", "trees", "renames")}
    with at_work(workspace, few, patience=120) as stop:
        for _ in range(12):
            began = time.monotonic()
            kill_worker(workspace)
            time.sleep(max(0.0, 0.6 - (time.monotonic() - began)))  # or they would be given up
        stop()
    assert workspace.warnings() == []


def kill_keeper(workspace: Workspace) -> None:
    """The worker becomes the keeper."""
    keeper, pid = workspace.daemon_pid(), worker(workspace)
    assert keeper is not None
    os.kill(keeper, signal.SIGKILL)
    until(lambda: workspace.daemon_pid() == pid and worker(workspace), "another keeper")
    assert workspace.status()["keeper_pid"] == pid


def test_a_keeper_that_dies_is_followed_by_another(workspace: Workspace) -> None:
    workspace.announce("the keeper|was killed by signal")
    with at_work(workspace, {"appends": WORKERS["appends"]}) as stop:
        kill_keeper(workspace)
        stop()
    kill_worker(workspace)
    assert (workspace.root / "appends" / "log").read_text().startswith("0\n1\n")
    assert workspace.status()["takeovers"] == 1


def test_workers_that_die_again_and_again_are_given_up(workspace: Workspace) -> None:
    """With a last word, and the mount closed."""
    workspace.announce("was killed by signal|giving up")
    (workspace.root / "f").write_text("x")
    keeper = workspace.daemon_pid()
    end = time.monotonic() + 30
    while os.path.exists(f"/proc/{keeper}") and time.monotonic() < end:
        pid = worker(workspace)
        if pid:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    assert not os.path.exists(f"/proc/{keeper}"), "it goes on for ever"
    with pytest.raises(OSError) as caught:
        os.stat(workspace.root / "f")
    assert caught.value.errno == errno.ENOTCONN
    assert "giving up" in workspace.log()
    workspace.mount()
    assert (workspace.root / "f").read_text() == "x"
