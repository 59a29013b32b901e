"""From a thread to its task: real processes, and a /proc of our own for what cannot be brought about."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fsguard.attribution import procfs, resolver
from fsguard.attribution.cgroup import CgroupPattern
from fsguard.attribution.resolver import Resolver, Run
from fsguard.core.guard import Guard
from fsguard.core.model import Command
from tests.kit.oracle_world import Facts

MINE = ("FSGUARD_TASK", "FSGUARD_PARENT", "FSGUARD_RUN", "FSGUARD_DISABLE", "FSGUARD_INTENT")


@pytest.fixture
def guard() -> Guard:
    return Guard(Facts())


@pytest.fixture
def who(guard: Guard) -> Resolver:
    return Resolver(guard)


class Child:
    """A Python program that says lines and waits for lines."""

    PRELUDE = """
import os, signal, sys, threading
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
def wait():
    os.read(0, 1)
"""

    def __init__(self, script: str, env: dict[str, str]) -> None:
        clean = {k: v for k, v in os.environ.items() if k not in MINE}
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.PRELUDE + textwrap.dedent(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**clean, **env},
            start_new_session=True,
        )
        self.pid = self.process.pid

    def line(self) -> list[str]:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().split()

    def number(self) -> int:
        return int(self.line()[-1])

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def echoes(self) -> None:
        """Wait until the program it has become, cat, answers."""
        self.go()
        assert self.line() == []

    def close(self) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(10)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Child]]:
    children: list[Child] = []

    def make(script: str, **env: str) -> Child:
        child = Child(script, env)
        children.append(child)
        return child

    yield make
    for child in children:
        child.close()


def run_of(
    who: Resolver, guard: Guard, task: str, pid: int = 1 << 30, token: str = "tok", number: int = 1
) -> Run:
    made = guard.tasks.get(task, 0.0, 0)
    start = who.process_start(pid) or 0
    run = Run(token, number, made, Command(token, "the command", made), pid, start, None)
    who.register(run)
    return run


READY = "say('ready'); wait()"

# -- by environment --------------------------------------------------------------------


def test_a_process_of_no_task_is_external_with_command_and_pid(who, start):
    child = start(READY)
    child.line()
    actor = who.actor(child.pid)
    assert actor.task is None and actor.process.pid == child.pid
    assert "-c" in actor.command.text and actor.process.name
    assert who.means == {"external": 1}


def test_an_exported_task_is_inherited(who, start):
    child = start(
        """
        pid = os.fork()
        if pid:
            say(pid)
        wait()
        """,
        FSGUARD_TASK="alice",
    )
    below = child.number()
    mine, theirs = who.actor(child.pid), who.actor(below)
    assert mine.task is theirs.task and mine.task.id == "alice"
    assert theirs.process.parent is mine.process and mine.process.kin(theirs.process)
    assert mine.command is not theirs.command, "without a run, every process is a command"
    assert who.means["environment"] == 2


def test_its_parent_task(who, guard, start):
    child = start(READY, FSGUARD_TASK="sub", FSGUARD_PARENT="boss")
    child.line()
    assert who.actor(child.pid).task.parent is guard.tasks.find("boss")


def test_an_empty_task_is_none(who, start):
    child = start(READY, FSGUARD_TASK="")
    child.line()
    assert who.actor(child.pid).task is None


def test_a_task_id_of_any_bytes_is_bounded(who, start):
    child = start(READY, FSGUARD_TASK="\udcff" + "x" * 5000)
    child.line()
    task = who.actor(child.pid).task
    assert task.id.startswith("\udcff") and len(task.id) == resolver.MAX_NAME


@pytest.mark.parametrize(("value", "off"), [("1", True), ("0", False), ("", False)])
def test_disabled_by_the_environment(who, start, value, off):
    child = start(READY, FSGUARD_TASK="a", FSGUARD_DISABLE=value)
    child.line()
    assert who.actor(child.pid).disabled is off


def test_threads_are_their_process(who, start):
    child = start(
        """
        def body():
            say(threading.get_native_id())
            wait()
        threading.Thread(target=body).start()
        """,
        FSGUARD_TASK="alice",
    )
    tid = child.number()
    assert tid != child.pid
    assert who.actor(tid) is who.actor(child.pid)
    assert who.tgid(tid) == child.pid


def test_exec_keeps_the_process_and_makes_a_new_command(who, start):
    child = start("say('one'); wait(); os.execv('/bin/cat', ['cat', '-'])", FSGUARD_TASK="alice")
    child.line()
    before = who.actor(child.pid)
    child.go(), child.echoes()
    after = who.actor(child.pid)
    assert after.process is before.process and after.task is before.task
    assert after.command is not before.command and after.command.text == "cat -"


def test_exec_with_another_task(who, start):
    child = start(
        """
        say("one"); wait()
        os.execve("/bin/cat", ["cat"], {"FSGUARD_TASK": "bob"})
        """,
        FSGUARD_TASK="alice",
    )
    child.line()
    assert who.actor(child.pid).task.id == "alice"
    child.go(), child.echoes()
    assert who.actor(child.pid).task.id == "bob"


def test_setsid_double_fork_and_the_death_of_every_parent(who, start):
    """What is left is the environment; nobody above it is of any task."""
    script = """
    r, w = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.close(w)
            os.read(r, 1)  # ends when the last parent is gone
            say(os.getpid())
            wait()
        os._exit(0)
    os.wait()
    os._exit(0)
    """
    child = start(script, FSGUARD_TASK="alice")
    orphan = child.number()
    try:
        child.process.wait(10)
        actor = who.actor(orphan)
        assert actor.task.id == "alice" and actor.process.pid == orphan
        assert actor.process.parent is not None and actor.process.parent.pid != child.pid
    finally:
        os.kill(orphan, signal.SIGKILL)


def test_who_its_parent_was_is_remembered_when_the_parent_dies(who, start):
    script = """
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(w)
        say(os.getpid())
        os.read(r, 1)
        say("orphan")
        wait()
        os._exit(0)
    wait()
    os._exit(0)
    """
    child = start(script, FSGUARD_TASK="alice")
    orphan = child.number()
    try:
        parent = who.actor(child.pid).process
        assert who.actor(orphan).process.parent is parent
        child.go()
        child.process.wait(10)
        assert child.line() == ["orphan"]
        assert who.actor(orphan).process.parent is parent
    finally:
        os.kill(orphan, signal.SIGKILL)


def test_a_process_gone_before_it_is_looked_up(who, start):
    child = start(READY, FSGUARD_TASK="alice")
    child.line()
    child.close()
    actor = who.actor(child.pid)
    assert actor.task is None and actor.process.pid == 0
    assert who.actor(0) is actor and who.actor(-1) is actor


def test_gone_means_ended_or_a_zombie(who, start):
    child = start(READY)
    child.line()
    actor = who.actor(child.pid)
    assert not who.gone(actor)
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert who.gone(actor), "a zombie"
    child.close()
    assert who.gone(actor)


# -- runs ------------------------------------------------------------------------------------


def test_the_registered_process_and_its_descendants(who, guard, start):
    child = start("pid = os.fork()\nif pid: say(pid)\nwait()")
    below = child.number()
    run = run_of(who, guard, "alice", child.pid)
    mine, theirs = who.actor(child.pid), who.actor(below)
    assert mine.task is theirs.task is run.task
    assert mine.command is theirs.command is run.command, "a run is one command"
    assert who.means == {"registered process": 1, "ancestor": 1}


def test_a_process_that_was_looked_up_before_it_was_registered(who, guard, start):
    child = start(READY)
    child.line()
    assert who.actor(child.pid).task is None
    run = run_of(who, guard, "alice", child.pid)
    assert who.actor(child.pid).task is run.task


def test_the_runs_token_in_the_environment_survives_everything(who, guard, start):
    run = run_of(who, guard, "alice")
    child = start(READY, FSGUARD_RUN="tok", FSGUARD_TASK="alice")
    child.line()
    assert who.actor(child.pid).command is run.command


def test_a_task_exported_anew_inside_a_run_is_its_child(who, guard, start):
    """An orchestrator that just exports FSGUARD_TASK for its subagents."""
    run = run_of(who, guard, "alice")
    child = start(READY, FSGUARD_RUN="tok", FSGUARD_TASK="helper")
    child.line()
    actor = who.actor(child.pid)
    assert actor.task.id == "helper" and actor.task.parent is run.task
    assert actor.command is not run.command


def test_the_innermost_run_counts(who, guard, start):
    run_of(who, guard, "outer", token="outer", number=1)
    inner = run_of(who, guard, "inner", token="inner", number=2)
    child = start(READY, FSGUARD_RUN="inner", FSGUARD_TASK="inner")
    child.line()
    assert who.actor(child.pid).task is inner.task


def test_an_unknown_token_is_nothing(who, start):
    child = start(READY, FSGUARD_RUN="forged", FSGUARD_TASK="alice")
    child.line()
    assert who.actor(child.pid).task.id == "alice"


def test_a_forgotten_run(who, guard, start):
    run = run_of(who, guard, "alice")
    who.forget_run(run)
    child = start(READY, FSGUARD_RUN="tok")
    child.line()
    assert who.actor(child.pid).task is None


def test_a_task_forgotten_meanwhile_comes_back_as_a_new_one(who, guard, start):
    child = start(READY, FSGUARD_TASK="alice")
    child.line()
    old = who.actor(child.pid).task
    guard.tasks._forget(old)
    new = who.actor(child.pid).task
    assert new is not old and new.id == "alice"


# -- a /proc of our own -----------------------------------------------------------------------


class Proc:
    """Files by path; `inodes` of the directories."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.inodes: dict[str, int] = {}
        self.reads = 0

    def process(self, pid: int, *, start: int = 100, ppid: int = 1, image: int = 7, **more: Any) -> None:
        tail = ["0"] * 48
        tail[0], tail[1], tail[19], tail[47] = "S", str(ppid), str(start), str(image)
        self.files[f"/proc/{pid}/stat"] = f"{pid} ({more.get('comm', 'x')}) {' '.join(tail)}".encode()
        self.files[f"/proc/{pid}/environ"] = more.get("environ", b"")
        self.files[f"/proc/{pid}/cgroup"] = more.get("cgroup", b"0::/\n")
        self.files[f"/proc/{pid}/cmdline"] = more.get("cmdline", b"x\0")
        self.thread(pid, pid)

    def thread(self, tid: int, tgid: int) -> None:
        self.files[f"/proc/{tid}/status"] = f"Name:\tx\nTgid:\t{tgid}\n".encode()
        self.inodes[f"/proc/{tid}"] = self.inodes.get(f"/proc/{tid}", tid * 1000) + 1

    def end(self, pid: int) -> None:
        for name in ("stat", "environ", "cgroup", "cmdline", "status"):
            self.files.pop(f"/proc/{pid}/{name}", None)
        self.gone = self.inodes.pop(f"/proc/{pid}")

    def read(self, path: str, limit: int = 65536) -> bytes | None:
        self.reads += 1
        raw = self.files.get(path)
        return raw[:limit] if raw is not None else None

    def stat(self, path: str) -> os.stat_result:
        if path not in self.inodes:
            raise FileNotFoundError(path)
        return os.stat_result([0, self.inodes[path], *[0] * 8])


@pytest.fixture
def proc(monkeypatch: pytest.MonkeyPatch) -> Proc:
    fake = Proc()
    fake.process(1, ppid=0)
    monkeypatch.setattr(procfs, "read", fake.read)
    monkeypatch.setattr(resolver.os, "stat", fake.stat)
    return fake


@pytest.fixture
def clock() -> list[float]:
    return [1000.0]


@pytest.fixture
def timed(guard: Guard, clock: list[float]) -> Resolver:
    return Resolver(guard, clock=lambda: clock[0])


def test_a_reused_pid_is_another_process(timed, proc):
    proc.process(50, start=100, environ=b"FSGUARD_TASK=alice\0")
    first = timed.actor(50)
    proc.end(50)
    proc.inodes["/proc/50"] = 999_999
    proc.process(50, start=200, environ=b"FSGUARD_TASK=bob\0")
    second = timed.actor(50)
    assert (first.task.id, second.task.id) == ("alice", "bob")
    assert first.process is not second.process and timed.gone(first) and not timed.gone(second)


def test_a_reused_thread_id_belongs_to_another_process(timed, proc):
    proc.process(50, environ=b"FSGUARD_TASK=alice\0")
    proc.process(60, environ=b"FSGUARD_TASK=bob\0")
    proc.thread(70, 50)
    assert timed.actor(70).task.id == "alice"
    proc.end(70)
    proc.inodes["/proc/70"] = 123
    proc.thread(70, 60)
    assert timed.actor(70).task.id == "bob"


def test_a_reused_pid_of_a_registered_run_is_not_the_run(timed, guard, proc):
    proc.process(50, start=100)
    run = run_of(timed, guard, "alice", 50)
    assert timed.actor(50).task is run.task
    proc.process(50, start=300)
    assert timed.actor(50).task is None


def test_a_reused_pid_above_is_not_the_ancestor(timed, guard, proc):
    proc.process(50, start=100)
    run_of(timed, guard, "alice", 50)
    proc.process(50, start=300)
    proc.process(51, ppid=50, start=301)
    assert timed.actor(51).task is None


def test_a_process_that_ended_while_it_was_looked_up_is_who_it_was(timed, proc):
    proc.process(50, environ=b"FSGUARD_TASK=alice\0")
    actor = timed.actor(50)
    del proc.files["/proc/50/stat"]
    assert timed.actor(50) is actor


def test_its_own_group_is_the_strongest(timed, guard, proc):
    outer = run_of(timed, guard, "outer", token="oo", number=1)
    inner = run_of(timed, guard, "inner", token="ii", number=2)
    proc.process(50, cgroup=b"0::/x/fsguard-oo/fsguard-ii\n")
    proc.process(51, cgroup=b"3:pids:/x/fsguard-oo\n0::/\n")
    proc.process(52, cgroup=b"0::/x/fsguard-oo/fsguard-ended\n", environ=b"FSGUARD_TASK=other\0")
    assert timed.actor(50).task is inner.task
    assert timed.actor(51).task is outer.task
    assert timed.actor(52).task is outer.task, "a run that is forgotten does not hide the one around it"
    assert timed.means["cgroup"] == 3


def test_an_inner_run_without_a_group_of_its_own(timed, guard, proc):
    run_of(timed, guard, "outer", token="oo", number=1)
    inner = run_of(timed, guard, "inner", token="ii", number=2)
    proc.process(50, cgroup=b"0::/fsguard-oo\n", environ=b"FSGUARD_RUN=ii\0FSGUARD_TASK=inner\0")
    assert timed.actor(50).task is inner.task


def test_an_old_token_does_not_lead_out_of_the_group(timed, guard, proc):
    run_of(timed, guard, "outer", token="oo", number=1)
    inner = run_of(timed, guard, "inner", token="ii", number=2)
    proc.process(50, cgroup=b"0::/fsguard-oo/fsguard-ii\n", environ=b"FSGUARD_RUN=oo\0FSGUARD_TASK=outer\0")
    assert timed.actor(50).task is inner.task


def test_patterns_come_last(guard, clock, proc):
    patterns = [CgroupPattern(re.compile(r"/agent-(\w+)"), "unit-{1}")]
    timed = Resolver(guard, patterns, clock=lambda: clock[0])
    proc.process(50, cgroup=b"0::/agent-bob\n")
    proc.process(51, cgroup=b"0::/agent-bob\n", environ=b"FSGUARD_TASK=alice\0")
    assert timed.actor(50).task.id == "unit-bob" and timed.means["cgroup pattern"] == 1
    assert timed.actor(51).task.id == "alice"


def test_a_process_that_is_moved_to_another_group_is_noticed_within_a_second(timed, guard, clock, proc):
    run = run_of(timed, guard, "alice", token="aa")
    proc.process(50)
    assert timed.actor(50).task is None
    proc.files["/proc/50/cgroup"] = b"0::/fsguard-aa\n"
    assert timed.actor(50).task is None
    clock[0] += 1.0
    assert timed.actor(50).task is run.task


def test_a_known_process_costs_one_small_read(timed, proc):
    proc.process(50, environ=b"FSGUARD_TASK=alice\0")
    timed.actor(50)
    proc.reads = 0
    for _ in range(10):
        timed.actor(50)
    assert proc.reads == 10


def test_a_circle_of_parents_ends(timed, proc):
    proc.process(50, ppid=51)
    proc.process(51, ppid=50)
    assert timed.actor(50).task is None
    assert not timed.actor(50).process.below(timed.actor(1).process)


def test_a_hidden_proc_means_external(timed, proc):
    proc.process(50)
    for name in ("environ", "cgroup", "cmdline"):
        del proc.files[f"/proc/50/{name}"]
    actor = timed.actor(50)
    assert actor.task is None and actor.command.text == "x"


def test_what_is_remembered_is_bounded(timed, proc, monkeypatch):
    monkeypatch.setattr(resolver, "MAX_PROCESSES", 50)
    for pid in range(100, 400):
        proc.process(pid)
        timed.actor(pid)
    assert max(len(timed._known), len(timed._threads), len(timed._processes)) <= 50


# -- what a thread is about ------------------------------------------------------------------------

x86 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of system calls are x86_64's")


@x86
@pytest.mark.parametrize(
    ("text", "reads"),
    [
        (b"257 0xffffff9c 0x7f 0x0 0x0 0x0 0x0 0x1 0x2", True),  # openat O_RDONLY
        (b"257 0xffffff9c 0x7f 0x80000 0x0 0x0 0x0 0x1 0x2", True),  # O_CLOEXEC
        (b"257 0xffffff9c 0x7f 0x2 0x0 0x0 0x0 0x1 0x2", True),  # O_RDWR
        (b"2 0x7f 0x0 0x0 0x0 0x0 0x0 0x1 0x2", True),  # open
        (b"257 0xffffff9c 0x7f 0x1 0x0 0x0 0x0 0x1 0x2", False),  # O_WRONLY
        (b"257 0xffffff9c 0x7f 0x42 0x1b6 0x0 0x0 0x1 0x2", False),  # O_RDWR | O_CREAT
        (b"257 0xffffff9c 0x7f 0x210000 0x0 0x0 0x0 0x1 0x2", False),  # O_PATH | O_DIRECTORY, as cp asks
        (b"257 0xffffff9c 0x7f 0x10000 0x0 0x0 0x0 0x1 0x2", False),  # O_DIRECTORY: ls
        (b"262 0xffffff9c 0x7f 0x7f 0x0 0x0 0x0 0x1 0x2", False),  # newfstatat
        (b"21 0x7f 0x4 0x0 0x0 0x0 0x0 0x1 0x2", False),  # access: test -e
        (b"running", False),
        (b"", False),
    ],
)
def test_a_read_that_found_nothing_is_told_from_a_question(timed, proc, text, reads):
    proc.files["/proc/50/syscall"] = text
    assert timed.opens_for_reading(50) is reads


@x86
@pytest.mark.parametrize(
    ("text", "reads"),
    [
        (b"89 0x7f 0x7f 0x100 0x0 0x0 0x0 0x1 0x2", True),  # readlink
        (b"267 0xffffff9c 0x7f 0x7f 0x100 0x0 0x0 0x1 0x2", True),  # readlinkat
        (b"257 0xffffff9c 0x7f 0x0 0x0 0x0 0x0 0x1 0x2", False),  # openat, of something behind the link
        (b"running", False),
        (b"", False),
    ],
)
def test_reading_a_link_is_told_from_following_it(timed, proc, text, reads):
    proc.files["/proc/50/syscall"] = text
    assert timed.reads_link(50) is reads


@x86
def test_a_real_thread_in_open(who, start, tmp_path):
    """A FIFO keeps open(2) waiting for the other end."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = start(f"say('now'); open({str(fifo)!r}, 'rb')")
    reader.line()
    end = time.monotonic() + 10  # that it has arrived in open(2) can only be asked
    while not who.opens_for_reading(reader.pid):
        assert time.monotonic() < end
        os.sched_yield()
    writer = start("say('now'); wait()")
    writer.line()
    assert not who.opens_for_reading(writer.pid), "it reads, but opens nothing"


def test_pending_signals_that_end_a_wait(who, start):
    block = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIG{0}]); say('ready'); wait()"
    for name, ends in (
        ("TERM", True),
        ("INT", True),
        ("HUP", True),
        ("QUIT", True),
        ("USR1", False),
        ("CHLD", False),
    ):
        child = start(block.format(name))
        child.line()
        assert not who.wants_out(child.pid)
        os.kill(child.pid, getattr(signal, "SIG" + name))
        assert who.wants_out(child.pid) is ends, name
        child.close()
        assert who.wants_out(child.pid), "it is gone"
