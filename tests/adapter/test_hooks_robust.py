"""A hook never fails and never holds up an agent's turn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsguard.hooks import TOOLS
from tests.adapter.fake_daemon import FakeDaemon

WRITE = {
    "session_id": "s",
    "hook_event_name": "PreToolUse",
    "tool_name": "Write",
    "tool_input": {"file_path": "f"},
    "tool_use_id": "t",
}


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[FakeDaemon]:
    """A daemon that answers nothing before it is let go."""
    go = threading.Event()

    def wait(params: dict[str, Any]) -> Any:
        go.wait(20)

    methods = ("tool.begin", "tool.end", "task.start", "task.end", "warnings", "check", "policy.get")
    with FakeDaemon(tmp_path, dict.fromkeys(methods, wait)) as daemon:
        yield daemon
        go.set()


def event(daemon: FakeDaemon, **more: Any) -> str:
    return json.dumps({**WRITE, "cwd": str(daemon.workspace), **more})


GARBAGE = [
    b"",
    b"\n",
    b"nonsense",
    b"[]",
    b"7",
    b"null",
    b'"text"',
    b"{",
    b'{"session_id": NaN',
    b"\xff\xfe\x00",
    b"[" * 100_000,
    b'{"session_id": {"a": 1}, "hook_event_name": 3, "tool_input": "x"}',
    b'{"session_id": "s", "hook_event_name": "PreToolUse", "tool_name": "Write", "tool_input": []}',
    b"{}" * 10,
]


@pytest.mark.parametrize("tool", TOOLS)
def test_garbage_is_nothing_to_say(tmp_path: Path, tool: str) -> None:
    with FakeDaemon(tmp_path) as daemon:
        for data in GARBAGE if tool == "claude-code" else GARBAGE[:4]:
            done = subprocess.run(
                daemon.command("hook", tool), input=data, capture_output=True, env=daemon.env, check=False
            )
            assert (done.returncode, done.stdout, done.stderr) == (0, b"", b""), data[:40]


def test_without_any_workspace_nothing_is_said(tmp_path: Path) -> None:
    daemon = FakeDaemon(tmp_path)  # never started
    for name in ("PreToolUse", "PostToolUse", "SubagentStop", "SessionEnd"):
        done = daemon.fsguard("hook", "claude-code", input=event(daemon, hook_event_name=name, agent_id="a"))
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_dead_daemon_is_no_daemon(tmp_path: Path) -> None:
    with FakeDaemon(tmp_path) as daemon:
        daemon.stop()
        done = daemon.fsguard("hook", "claude-code", input=event(daemon))
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", ["PreToolUse", "PostToolUse", "SubagentStart", "SubagentStop"])
def test_a_slow_daemon_is_not_waited_for(slow: FakeDaemon, name: str) -> None:
    began = time.monotonic()
    done = slow.fsguard("hook", "claude-code", input=event(slow, hook_event_name=name, agent_id="a"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert 0.9 < time.monotonic() - began < 4, "1 s of silence, and this machine's own slowness"


def test_a_command_is_attributed_without_the_daemon(slow: FakeDaemon) -> None:
    bash = {"tool_name": "Bash", "tool_input": {"command": "ls"}}
    done = slow.fsguard("hook", "claude-code", input=event(slow, **bash))
    said = json.loads(done.stdout)["hookSpecificOutput"]
    assert said["updatedInput"]["command"] == "export FSGUARD_TASK=claude-s; ls"


def test_an_agent_that_does_not_end_the_event(tmp_path: Path) -> None:
    with FakeDaemon(tmp_path) as daemon:
        process = daemon.popen("hook", "claude-code", stdin=subprocess.PIPE)
        began = time.monotonic()
        assert process.wait(15) == 0
        assert time.monotonic() - began < 6
        assert process.communicate() == ("", "")


def test_an_agent_that_is_gone(tmp_path: Path) -> None:
    with FakeDaemon(tmp_path, {"task.start": {}}) as daemon:
        read, write = os.pipe()
        os.close(read)
        bash = event(daemon, tool_name="Bash", tool_input={"command": "ls"})
        done = subprocess.run(
            daemon.command("hook", "claude-code"),
            input=bash,
            text=True,
            stdout=write,
            stderr=subprocess.PIPE,
            env=daemon.env,
            check=False,
        )
        os.close(write)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_large_event_and_a_large_answer(tmp_path: Path) -> None:
    with FakeDaemon(tmp_path, {"task.start": {}, "tool.begin": {}}) as daemon:
        content = {"file_path": str(daemon.workspace / "f"), "content": "x" * 8_000_000}
        done = daemon.fsguard("hook", "claude-code", input=event(daemon, tool_input=content))
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        command = "echo " + "x" * 500_000
        done = daemon.fsguard(
            "hook", "claude-code", input=event(daemon, tool_name="Bash", tool_input={"command": command})
        )
        assert json.loads(done.stdout)["hookSpecificOutput"]["updatedInput"]["command"].endswith(command)


def test_a_wrong_name_does_not_stop_the_agent(tmp_path: Path) -> None:
    daemon = FakeDaemon(tmp_path)
    done = daemon.fsguard("hook", "claudecode", input="{}")
    assert done.returncode == 1, "2 would block the tool call"
    assert "claudecode" in done.stderr


def test_an_error_of_our_own_is_silent(tmp_path: Path) -> None:
    with FakeDaemon(tmp_path) as daemon:
        (tmp_path / "json.py").write_text("raise MemoryError\n")
        env = daemon.env | {"PYTHONPATH": f"{tmp_path}:{daemon.env['PYTHONPATH']}"}
        done = daemon.fsguard("hook", "claude-code", input=event(daemon), env=env)
        assert done.returncode in (0, 1) and done.stdout == "", "never 2"


HEAVY = [
    "argparse",
    "typing",
    "socket",
    "subprocess",
    "dataclasses",
    "inspect",
    "hashlib",
    "threading",
    "shlex",
]
HEAVY += ["tempfile", "pathlib", "difflib", "datetime", "logging", "trio", "random"]


@pytest.mark.parametrize("tool", TOOLS)
def test_a_hook_imports_little(tmp_path: Path, tool: str) -> None:
    program = (
        "import os, sys; before = set(sys.modules); os._exit = sys.exit;"
        " from fsguard import cli; cli.main(['hook', sys.argv[1]]); print(*sorted(set(sys.modules) - before))"
    )
    events = {
        "codex": {"tool_name": "apply_patch", "tool_input": {"command": "*** Add File: f"}},
        "cursor": {"conversation_id": "s", "hook_event_name": "preToolUse", "tool_name": "Write"},
        "opencode": {"hook": "tool.execute.after", "input": {"tool": "read", "sessionID": "s"}},
        "gemini": {**WRITE, "hook_event_name": "BeforeTool", "tool_name": "write_file"},
    }
    with FakeDaemon(tmp_path, {"tool.begin": {}, "warnings": [], "tool.end": {}}) as daemon:
        given = {**WRITE, **events.get(tool, {}), "cwd": str(daemon.workspace)}
        given["workspace_roots"] = given["directory"] = [given["cwd"]]
        done = subprocess.run(
            # -S: what the site directory brings on this machine is not ours
            [sys.executable, "-S", "-c", program, tool],
            input=json.dumps(given),
            capture_output=True,
            text=True,
            env=daemon.env,
            check=True,
        )
    loaded = done.stdout.split()
    assert "fsguard.hooks.engine" in loaded
    assert not set(HEAVY) & set(loaded), set(HEAVY) & set(loaded)
    assert len(loaded) < 60, loaded
