"""Starting a daemon: what it is told, and every way in which it may not come up."""

import os
import signal
import sys

import pytest

from fsguard.cli import launch as launching
from fsguard.cli.launch import launch
from fsguard.errors import ConfigError, DaemonError, FsguardError, UsageError

START = """
import json, os, sys
spec = json.load(open(int(os.environ["FSGUARD_SPEC_FD"]), encoding="ascii"))
status = int(os.environ["FSGUARD_STATUS_FD"])
def say(what):
    os.write(status, json.dumps(what).encode() + b"\\n")
"""


@pytest.fixture
def start(tmp_path):
    started = []

    def call(program, **spec):
        spec = {"mountpoint": str(tmp_path / "mp"), "foreground": False} | spec
        daemon = launch(spec, str(tmp_path / "daemon.log"), [sys.executable, "-S", "-c", START + program])
        started.append(daemon)
        return daemon

    yield call
    for daemon in started:
        daemon.process.kill()
        daemon.process.wait()


def test_the_spec_arrives_and_ready_comes_back(start):
    name = os.fsdecode(b"caf\xe9\n")
    daemon = start("say({'ready': True, 'pid': os.getpid(), 'got': spec['config']})", config=name)
    assert daemon.ready == {"ready": True, "pid": daemon.process.pid, "got": name}


def test_it_stands_alone(start, monkeypatch, tmp_path):
    monkeypatch.setenv("FSGUARD_TASK", "A")
    monkeypatch.setenv("FSGUARD_RUN", "x")
    monkeypatch.setenv("PYTHONPATH", "relative")
    monkeypatch.chdir(tmp_path)
    program = (
        "env = {k: v for k, v in os.environ.items() if k.startswith('FSGUARD')}\n"
        "fds = sorted(int(fd) for fd in os.listdir('/proc/self/fd'))\n"
        "links = [os.readlink(f'/proc/self/fd/{n}') for n in (0, 1)]\n"
        "say({'ready': True, 'cwd': os.getcwd(), 'sid': os.getsid(0), 'env': sorted(env), 'links': links,"
        " 'path': os.environ['PYTHONPATH'], 'fds': fds})"
    )
    daemon = start(program)
    said = daemon.ready
    assert (said["cwd"], said["sid"], said["links"][0]) == ("/", daemon.process.pid, "/dev/null")
    assert {"FSGUARD_SPEC_FD", "FSGUARD_STATUS_FD"} <= set(said["env"])
    assert not {"FSGUARD_TASK", "FSGUARD_RUN"} & set(said["env"])
    assert said["links"][1] == str(tmp_path / "daemon.log")
    assert said["path"].split(":")[0] == str(tmp_path / "relative")
    assert len(said["fds"]) <= 6  # 0 to 2, two pipes, the listing's own


@pytest.mark.parametrize(
    ("program", "kind", "said", "hint"),
    [
        ("say({'error': {'code': 2, 'message': 'F:3: bad', 'hint': 'h'}})", UsageError, "F:3: bad", "h"),
        ("say({'error': {'code': 99, 'message': 'odd', 'hint': None}})", FsguardError, "odd", ""),
        ("print('last words', flush=True); sys.exit(3)", DaemonError, "exit code 3", "ends: last words"),
        ("os.kill(os.getpid(), 9)", DaemonError, "signal 9", "is empty"),
        ("os.close(status); import time; time.sleep(60)", DaemonError, "closed its status pipe", ""),
        ("os.write(status, b'what?\\n')", DaemonError, "nonsense", "daemon.log"),
        ("say({})", DaemonError, "nonsense", "daemon.log"),
        ("say([1])", DaemonError, "nonsense", "daemon.log"),
        ("os.write(status, b'half'); sys.exit(0)", DaemonError, "exit code 0", ""),
    ],
)
def test_a_daemon_that_does_not_come_up_is_a_sentence(start, program, kind, said, hint, monkeypatch):
    monkeypatch.setattr(launching, "ENDS_WITHIN", 0.2)
    with pytest.raises(kind) as caught:
        start(program)
    assert said in caught.value.message and hint in (caught.value.hint or "")
    assert not isinstance(caught.value, ConfigError)


def test_silence_is_noted_then_given_up_and_nothing_is_left(start, monkeypatch, capfd):
    monkeypatch.setattr(launching, "READY_WITHIN", 0.4)
    monkeypatch.setattr(launching, "NOTE_AFTER", 0.1)
    program = "print(os.getpid(), flush=True)\nimport signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    monkeypatch.setattr(launching, "ENDS_WITHIN", 0.2)
    with pytest.raises(DaemonError, match="not ready within") as caught:
        start(program + "signal.pause()")
    assert "still mounting" in capfd.readouterr().err
    log = (caught.value.hint or "").partition("its log: ")[2]
    with open(log) as file:
        pid = int(file.read())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_ctrl_c_while_waiting_ends_the_daemon_too(start, monkeypatch, tmp_path):
    program = f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
    program += f"os.kill(os.getppid(), {int(signal.SIGINT)})\n"
    with pytest.raises(KeyboardInterrupt):
        start(program + "import signal; signal.pause()")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_spec_larger_than_a_pipe_arrives(start):
    daemon = start("say({'ready': True, 'size': len(spec['config'])})", config="\udce9" * 100_000)
    assert daemon.ready["size"] == 100_000


def test_in_the_foreground_it_speaks_to_our_stderr(start, capfd):
    start("print('to you', flush=True); say({'ready': True})", foreground=True)
    assert capfd.readouterr().err == "to you\n"


def test_the_log_is_for_us_alone(start, tmp_path):
    start("say({'ready': True})")
    assert os.stat(tmp_path / "daemon.log").st_mode & 0o777 == 0o600
