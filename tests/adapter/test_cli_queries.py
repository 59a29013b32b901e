"""The commands that ask the daemon: what they ask, and how they print the answer."""

import json
import os
import signal
import subprocess

import pytest

from fsguard.errors import RefusedError
from tests.adapter.fake_daemon import FakeDaemon

CAFE = os.fsdecode(b"caf\xe9")
EVIL = "x\n\x1b[2J\u202e"


def warning(**fields):
    base = {
        "id": 1,
        "time": "2025-01-02T03:04:05.678901Z",
        "kind": "stale_write",
        "severity": "conflict",
        "task": "A",
        "path": CAFE,
        "pid": 7,
        "command": "sed",
        "sibling": "B",
        "sibling_command": "vi",
        "sibling_time": "2025-01-02T03:04:04.5Z",
        "read_time": None,
        "count": 1,
        "paths": [CAFE],
        "message": f"B changed {EVIL}\n- lost",
    }
    return base | fields


TASK = {
    "task": "A",
    "name": EVIL,
    "parent": None,
    "children": ["A.1"],
    "state": "idle",
    "started": "2025-01-02T03:04:05Z",
    "last_seen": "2025-01-02T03:04:05Z",
    "ended": None,
    "runs": 3,
    "running": 0,
    "reads": 4,
    "writes": 5,
    "pending": 6,
}

STATUS = {
    "workspace": "/w",
    "mountpoint": "/w",
    "pid": 9,
    "io": "daemon",
    "policy": "warn",
    "disabled": False,
    "uptime": 3725.5,
    "features": {"writer_pids": True, "passthrough": False, "protocol": "7.40", "readers": 0},
    "requests": {"open": 2, "read": 30},
    "attribution": {"cgroup": 4},
    "tasks": [TASK],
    "open_handles": 1,
    "pending": 6,
    "warnings_total": 8,
    "paths_known": 9,
    "memory_bytes": 3 << 20,
}


@pytest.fixture
def daemon(tmp_path):
    answers = {
        "warnings": [warning(), warning(id=2, severity="note")],
        "log": [
            {
                "time": "2025-01-02T03:04:05Z",
                "op": "rename",
                "path": EVIL,
                "target": CAFE,
                "task": None,
                "pid": 7,
                "command": EVIL,
            },
            {
                "time": "2025-01-02T03:04:05Z",
                "op": "read",
                "path": "f",
                "task": "A",
                "pid": 8,
                "command": "cat f",
            },
        ],
        "who": {
            "path": CAFE,
            "version": 4,
            "writers": [
                {
                    "task": "B",
                    "pid": 1,
                    "command": EVIL,
                    "time": "2025-01-02T03:04:05Z",
                    "version": 4,
                    "ended": None,
                }
            ],
            "readers": [
                {"task": "A", "time": "2025-01-02T03:04:05Z", "version": 3, "partial": True, "current": False}
            ],
            "open": [],
        },
        "check": lambda params: [
            {"path": path, "stale": path == "old", "kind": None, "message": f"stale: {path}", "sibling": None}
            for path in params["paths"]
        ],
        "note": {"warnings": [warning()]},
        "task.list": [TASK],
        "task.show": TASK | {"stale_reads": [CAFE]},
        "task.end": {"task": "A", "told": [warning(message="told so")]},
        "policy.set": {},
        "policy.get": {
            "default": "warn",
            "paths": [{"pattern": "*.py", "policy": "block"}],
            "tasks": {"A": "off"},
        },
        "status": STATUS,
    }
    with FakeDaemon(tmp_path, answers) as fake:
        (fake.workspace / "src").mkdir()
        yield fake


def harmless(text):
    return "\x1b" not in text and "\u202e" not in text


def test_warnings(daemon):
    done = daemon.fsguard("warnings", "--task", "A", "--ack")
    assert daemon.params("warnings") == {"task": "A", "all": False, "ack": True}
    assert done.returncode == 0 and harmless(done.stdout)
    assert "A stale_write\n  B changed x\n  \\x1b[2J\\u202e\n  - lost\n" in done.stdout
    done = daemon.fsguard("warnings", "--all", "--json", str(daemon.workspace), cwd=daemon.top)
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [1, 2]
    first = json.loads(done.stdout.splitlines()[0])
    assert first == warning() and os.fsencode(first["path"]) == b"caf\xe9"
    assert done.stdout.isascii()


def test_following_prints_each_as_it_comes_until_ctrl_c(tmp_path):
    import threading

    go = threading.Semaphore(0)
    answers = {"warnings.follow": None}
    with FakeDaemon(tmp_path, answers) as daemon:

        async def follow(peer, params):
            import trio

            for number in (1, 2):
                await trio.to_thread.run_sync(go.acquire, abandon_on_cancel=True)
                yield warning(id=number)
            await trio.sleep_forever()

        daemon.handlers["warnings.follow"] = follow
        process = daemon.popen("warnings", "--follow", "--json")
        for number in (1, 2):
            go.release()
            assert json.loads(process.stdout.readline())["id"] == number
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=10)
        assert (process.returncode, out, err) == (130, "", "")


def test_log(daemon):
    done = daemon.fsguard("log", "src/../f", "--task", "A", "--limit", "5")
    assert daemon.params("log") == {"path": "f", "task": "A", "limit": 5}
    lines = done.stdout.splitlines()
    assert harmless(done.stdout) and len(lines) == 2
    assert "external" in lines[0] and "rename   x\\n\\x1b[2J\\u202e → caf\\xe9" in lines[0]
    assert lines[1].endswith("read     f  “cat f” pid 8")
    assert len(daemon.fsguard("log", "--json", ".").stdout.splitlines()) == 2
    assert daemon.calls[-1][1]["path"] == ""


def test_who(daemon):
    done = daemon.fsguard("who", "f", cwd=daemon.workspace / "src")
    assert daemon.params("who") == {"path": "src/f"}
    assert harmless(done.stdout)
    for words in (
        "caf\\xe9, version 4",
        "B at ",
        "A at ",
        "version 3, in part: changed since",
        "open: nobody",
    ):
        assert words in done.stdout
    assert json.loads(daemon.fsguard("who", "--json", "f").stdout)["path"] == CAFE


def test_who_takes_a_path_out_of_a_warning_in_any_directory(daemon):
    nobody = {"path": "x", "version": 0, "absent": False, "writers": [], "readers": [], "open": []}
    known = daemon.answers["who"]
    daemon.answers["who"] = lambda params: known if params["path"] == "src/f" else nobody | params
    done = daemon.fsguard("who", "src/f", cwd=daemon.workspace / "src")
    assert "version 4" in done.stdout and "taken from the workspace's top" in done.stderr
    done = daemon.fsguard("who", "src/none", cwd=daemon.workspace / "src")
    assert "src/src/none, version 0" in done.stdout and done.stderr == ""


def test_check_answers_by_its_exit_code(daemon):
    done = daemon.fsguard("check", "--task", "A", "new", "src/x")
    assert (done.returncode, done.stdout) == (0, "")
    assert daemon.params("check") == {"task": "A", "paths": ["new", "src/x"]}
    done = daemon.fsguard("check", "--task", "A", "new", "old")
    assert (done.returncode, done.stdout) == (1, "stale: old\n")
    done = daemon.fsguard("check", "--task", "A", "--json", "new", "old")
    assert done.returncode == 1 and [json.loads(line)["stale"] for line in done.stdout.splitlines()] == [
        False,
        True,
    ]


def test_note(daemon):
    done = daemon.fsguard("note", "read", "--task", "A", "--partial", CAFE)
    assert daemon.params("note") == {"what": "read", "task": "A", "path": CAFE, "partial": True}
    assert (
        done.returncode == 0 and done.stdout == "" and done.stderr.startswith("fsguard: B changed x\n\\x1b")
    )


def test_tasks(daemon):
    done = daemon.fsguard("task", "list")
    assert "TASK" in done.stdout and "x\\n\\x1b[2J\\u202e" in done.stdout
    assert json.loads(daemon.fsguard("task", "list", "--json").stdout) == TASK
    done = daemon.fsguard("task", "show", "A")
    assert "stale reads: caf\\xe9" in done.stdout and harmless(done.stdout)
    done = daemon.fsguard("task", "end", "A")
    assert done.stdout == "ended A\n  told told so\n"
    assert daemon.params("task.end") == {"task": "A"}


def test_policy(daemon):
    done = daemon.fsguard("policy")
    assert done.stdout == "block  *.py\noff    task A\nwarn   everything else\n"
    daemon.fsguard("policy", "off", "--task", "A", "--path", "*.py")
    assert daemon.params("policy.set") == {"policy": "off", "task": "A", "path": "*.py"}
    assert json.loads(daemon.fsguard("policy", "--json").stdout)["default"] == "warn"


def test_status(daemon):
    done = daemon.fsguard("status")
    for line in (
        "mountpoint:    in place",
        "daemon:        pid 9, up 1 h 2 min, 3.0 MiB",
        "features:      writer_pids, protocol 7.40, readers 0 (not: passthrough)",
        "requests:      read 30, open 2",
        "warnings:      8 in all, 6 not yet delivered",
    ):
        assert line in done.stdout.splitlines()
    assert json.loads(daemon.fsguard("status", "--json", "src").stdout) == STATUS
    done = daemon.fsguard("status", cwd=daemon.top)
    assert str(daemon.workspace)[:60] in done.stdout and "warn" in done.stdout
    (entry,) = json.loads(daemon.fsguard("status", "--json", cwd=daemon.top).stdout)
    assert entry["mountpoint"] == str(daemon.workspace) and entry["status"] == STATUS


def test_a_refusal_keeps_its_words_and_its_code(daemon):
    def refuse(params):
        raise RefusedError(f"not {EVIL}", "ask B")

    daemon.answers["status"] = refuse
    done = daemon.fsguard("status")
    assert done.returncode == RefusedError.exit_code and done.stdout == ""
    assert done.stderr == "fsguard: not x\n\\x1b[2J\\u202e\n  ask B\n"


def test_a_dead_daemon_is_said(daemon):
    daemon.stop()
    done = daemon.fsguard("warnings")
    assert done.returncode == 7 and "does not answer" in done.stderr
    done = daemon.fsguard("status", cwd=daemon.top)
    assert done.returncode == 0 and "no answer" in done.stdout


def test_head_may_go_away(daemon):
    daemon.answers["log"] = [{"time": "x", "op": "read", "path": "f" * 1000, "task": "A"}] * 5000
    command = " ".join(f"'{word}'" for word in daemon.command("log"))
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -1; echo ${{PIPESTATUS[0]}}"],
        cwd=daemon.workspace,
        env=daemon.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[1] == "141" and done.stderr == ""


def test_any_locale_will_do(daemon):
    env = daemon.env | {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = daemon.fsguard("log", env=env)
    assert done.returncode == 0 and "\\u2192" in done.stdout
