"""Recorded streams of events, whole hook processes, and a daemon that says what it is asked.

The streams are made by hand from the tools' contracts, in several versions, with
fields that nobody has thought of yet.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsguard.errors import UsageError
from tests.adapter.fake_daemon import FakeDaemon

SESSION = "5e1f2a3b-1111-4222-8333-444455556666"
ME = "claude-5e1f2a3b"
PATCH = "*** Begin Patch\n*** Update File: f\n@@\n-x\n+y\n*** Add File: new\n+x\n*** End Patch"
STALE = 'task "B" changed f at 14:03:22 with "sed -i". Read f again and put back what is missing'


def warned(number: int, text: str) -> dict[str, Any]:
    return {"id": number, "kind": "stale_write", "severity": "conflict", "message": text, "tomorrow": 1}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    answers = {
        "tool.begin": {"stale": False, "refused": False, "message": None},
        "tool.end": {"warnings": []},
        "task.start": lambda params: {"task": params["task"], "parent": params["parent"]},
        "task.end": lambda params: {"task": params["task"], "told": []},
        "warnings": [],
    }
    with FakeDaemon(tmp_path, answers) as daemon:
        (daemon.workspace / "sub").mkdir()
        (daemon.workspace / "f").write_text("x\n")
        yield daemon


def send(daemon: FakeDaemon, tool: str, event: dict[str, Any], **env: str) -> Any:
    """One hook process; its answer, None when it said nothing. What the daemon was asked is in `calls`."""
    daemon.calls.clear()
    done = daemon.fsguard(
        "hook",
        tool,
        input=json.dumps({**event, "x_new": {"y": [1, None]}}),
        cwd=Path("/"),
        env=daemon.env | env,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout) if done.stdout else None


def asked(daemon: FakeDaemon) -> list[tuple[str, ...]]:
    """The calls, short: method, task, and what else tells them apart."""
    return [
        (method, *(str(params[k]) for k in ("task", "what", "path", "partial") if k in params))
        for method, params in daemon.calls
    ]


# ---- Claude Code: a session with a subagent, two versions -------------------------------------


def claude(daemon: FakeDaemon, name: str, agent: str = "", **more: Any) -> dict[str, Any]:
    event = {"session_id": SESSION, "transcript_path": "/t", "cwd": str(daemon.workspace)}
    event |= {"agent_id": agent, "agent_type": "Explore"} if agent else {}
    return {**event, "hook_event_name": name, **more}


@pytest.mark.parametrize("version", ["old", "new"])
def test_a_session_of_claude_code(daemon: FakeDaemon, version: str) -> None:
    extra = (
        {"prompt_id": "p", "effort": {"level": "high"}, "permission_mode": "plan"} if version == "new" else {}
    )
    path = str(daemon.workspace / "f")

    def hook(name: str, agent: str = "", **more: Any) -> Any:
        return send(daemon, "claude-code", claude(daemon, name, agent, **extra, **more))

    assert hook("SessionStart", source="startup") is None
    assert asked(daemon) == [("task.start", ME)]
    assert hook("UserPromptSubmit", prompt="Make it fast\nplease") is None
    assert daemon.params("task.start")["intent"] == "Make it fast"
    read = {"tool_name": "Read", "tool_input": {"file_path": path, "offset": 3}, "tool_use_id": "toolu_1"}
    assert hook("PreToolUse", **read) is None
    assert asked(daemon) == [("tool.begin", ME, "read", "f", "True")]
    begun = daemon.params("tool.begin")
    assert begun["pid"] == os.getpid(), "the process that ran the hook is the agent"
    assert hook("PostToolUse", **read, tool_response={"file": {}}, duration_ms=3) is None
    assert asked(daemon) == [("tool.end",), ("warnings", ME)]
    ended = next(params for method, params in daemon.calls if method == "tool.end")
    assert ended == {"tool_use_id": begun["tool_use_id"], "ok": True}

    agent = f"{ME}.a1"
    assert hook("SubagentStart", "a1") is None
    started = {"task": agent, "parent": ME, "name": "Explore", "intent": None, "idle": True}
    assert daemon.params("task.start") == started
    bash = {"tool_name": "Bash", "tool_input": {"command": "ls"}, "tool_use_id": "toolu_2"}
    answer = hook("PreToolUse", "a1", **bash)["hookSpecificOutput"]
    assert answer["updatedInput"] == {"command": f"export FSGUARD_TASK={agent} FSGUARD_PARENT={ME}; ls"}
    daemon.answers["warnings"] = [warned(1, "one"), warned(2, "two"), warned(3, "two")]
    answer = hook("PostToolUseFailure", "a1", **bash, error="exit 1", is_interrupt=False)
    assert answer == {
        "hookSpecificOutput": {
            "hookEventName": "PostToolUseFailure",
            "additionalContext": "fsguard: one\n\nfsguard: two",
        }
    }
    assert daemon.params("warnings") == {"task": agent, "ack": True}
    assert hook("SubagentStop", "a1", stop_hook_active=False, last_assistant_message="done") is None
    assert asked(daemon) == [("task.end", agent)]
    answer = hook("PostToolUse", tool_name="Task", tool_input={}, tool_use_id="toolu_3", tool_response={})
    assert answer["hookSpecificOutput"]["additionalContext"].startswith("fsguard: one")
    assert hook("SessionEnd", reason="exit") is None
    assert asked(daemon) == [("task.end", ME)]


def test_before_a_stale_write_the_agent_is_told(daemon: FakeDaemon) -> None:
    daemon.answers["tool.begin"] = {"stale": True, "refused": False, "message": STALE}
    daemon.answers["tool.end"] = {"warnings": [warned(7, "it happened")]}
    write = {
        "tool_name": "Write",
        "tool_input": {"file_path": str(daemon.workspace / "f"), "content": "x"},
        "tool_use_id": "toolu_1",
    }
    answer = send(daemon, "claude-code", claude(daemon, "PreToolUse", **write))
    assert answer == {
        "hookSpecificOutput": {"hookEventName": "PreToolUse", "additionalContext": f"fsguard: {STALE}"}
    }
    answer = send(daemon, "claude-code", claude(daemon, "PostToolUse", **write, tool_response={}))
    assert answer["hookSpecificOutput"]["additionalContext"] == "fsguard: it happened"


def test_under_block_it_is_refused_in_the_same_words_and_no_longer_in_progress(daemon: FakeDaemon) -> None:
    daemon.answers["tool.begin"] = {"stale": True, "refused": True, "message": STALE}
    daemon.answers["tool.end"] = {"warnings": [warned(7, "something else"), warned(8, STALE)]}
    edit = {"tool_name": "Edit", "tool_input": {"file_path": str(daemon.workspace / "f")}, "tool_use_id": "t"}
    first, second = (send(daemon, "claude-code", claude(daemon, "PreToolUse", **edit)) for _ in "12")
    assert first == second
    said = first["hookSpecificOutput"]
    assert said["permissionDecision"] == "deny" and STALE in said["permissionDecisionReason"]
    assert "refused" in said["permissionDecisionReason"]
    assert said["additionalContext"] == "fsguard: something else"
    assert [method for method, _ in daemon.calls] == ["tool.begin", "tool.end"]


def test_the_same_words_in_every_tool(daemon: FakeDaemon) -> None:
    daemon.answers["tool.begin"] = {"stale": True, "refused": True, "message": STALE}
    common = {"session_id": SESSION, "cwd": str(daemon.workspace)}
    edit = {"tool_name": "replace", "tool_input": {"file_path": "f"}}
    said = send(daemon, "gemini", {**common, "hook_event_name": "BeforeTool", **edit})
    assert said["decision"] == "deny" and STALE in said["reason"]
    same = said["reason"]
    patch = {"tool_name": "apply_patch", "tool_input": {"command": PATCH}, "tool_use_id": "c"}
    said = send(daemon, "codex", {**common, "hook_event_name": "PreToolUse", **patch})
    assert said["hookSpecificOutput"]["permissionDecisionReason"] == same
    write = {"tool_name": "Write", "tool_input": {"path": "f"}, "tool_use_id": "c"}
    said = send(
        daemon,
        "cursor",
        {
            "conversation_id": SESSION,
            "workspace_roots": [common["cwd"]],
            "hook_event_name": "preToolUse",
            **write,
        },
    )
    assert (said["permission"], said["agent_message"]) == ("deny", same)
    before = {
        "hook": "tool.execute.before",
        "directory": common["cwd"],
        "output": {"args": {"filePath": "f"}},
    }
    said = send(daemon, "opencode", {**before, "input": {"tool": "write", "sessionID": "s1", "callID": "c1"}})
    assert said == {"deny": same}


# ---- the other tools ------------------------------------------------------------------------------


def test_a_turn_of_codex(daemon: FakeDaemon) -> None:
    common = {"session_id": SESSION, "turn_id": "3", "cwd": str(daemon.workspace / "sub"), "model": "m"}
    patch = {"tool_name": "apply_patch", "tool_input": {"command": PATCH}, "tool_use_id": "call_1"}
    assert send(daemon, "codex", {**common, "hook_event_name": "PreToolUse", **patch}) is None
    assert asked(daemon) == [
        ("tool.begin", "codex-5e1f2a3b", "write", "sub/f", "False"),
        ("tool.begin", "codex-5e1f2a3b", "write", "sub/new", "False"),
    ]
    begun = [params["tool_use_id"] for _, params in daemon.calls]
    assert len(set(begun)) == 2
    daemon.answers["tool.end"] = {"warnings": [warned(1, "news")]}
    after = {**common, "hook_event_name": "PostToolUse", **patch, "tool_response": "Done"}
    answer = send(daemon, "codex", after)
    assert answer == {
        "hookSpecificOutput": {"hookEventName": "PostToolUse", "additionalContext": "fsguard: news"}
    }
    assert [p["tool_use_id"] for m, p in daemon.calls if m == "tool.end"] == begun
    worker = {**common, "agent_id": "w1", "agent_type": "worker", "hook_event_name": "PreToolUse"}
    bash = {"tool_name": "Bash", "tool_input": {"command": "make"}, "tool_use_id": "call_2"}
    answer = send(daemon, "codex", {**worker, **bash})["hookSpecificOutput"]
    assert answer["permissionDecision"] == "allow"
    assert answer["updatedInput"]["command"].startswith("export FSGUARD_TASK=codex-5e1f2a3b.w1 ")


def test_a_turn_of_gemini(daemon: FakeDaemon) -> None:
    common = {"session_id": SESSION, "cwd": str(daemon.workspace), "timestamp": "2026-01-31T00:00:00Z"}
    read = {
        "tool_name": "read_file",
        "tool_input": {"absolute_path": str(daemon.workspace / "f"), "limit": 2},
    }
    assert send(daemon, "gemini", {**common, "hook_event_name": "BeforeTool", **read}) is None
    assert asked(daemon) == [("tool.begin", "gemini-5e1f2a3b", "read", "f", "True")]
    daemon.answers["warnings"] = [warned(1, "news")]
    after = {
        **common,
        "hook_event_name": "AfterTool",
        **read,
        "tool_response": {"llmContent": "", "error": "no"},
    }
    answer = send(daemon, "gemini", after)
    assert answer["hookSpecificOutput"]["additionalContext"] == "fsguard: news"
    assert next(p for m, p in daemon.calls if m == "tool.end")["ok"] is False


def test_a_turn_of_cursor(daemon: FakeDaemon) -> None:
    common = {"conversation_id": SESSION, "workspace_roots": [str(daemon.workspace)], "cursor_version": "2"}
    daemon.answers["warnings"] = [warned(1, "news")]
    shell = {"tool_name": "Shell", "tool_input": {"command": "ls"}, "tool_use_id": "u1"}
    answer = send(daemon, "cursor", {**common, "hook_event_name": "preToolUse", **shell})
    assert answer["updated_input"]["command"] == "export FSGUARD_TASK=cursor-5e1f2a3b; ls"
    answer = send(daemon, "cursor", {**common, "hook_event_name": "postToolUse", **shell})
    assert answer == {"additional_context": "fsguard: news"}


# ---- where nothing is said -----------------------------------------------------------------------


def test_nothing_is_said_or_asked_about_what_is_outside(daemon: FakeDaemon, tmp_path: Path) -> None:
    (tmp_path / "ws-not").mkdir()
    for path in (
        "/etc/passwd",
        str(tmp_path / "ws-not" / "f"),
        str(daemon.workspace),
        "../x",
        "a\0b",
        "\ud800",
    ):
        event = claude(daemon, "PreToolUse", tool_name="Write", tool_input={"file_path": path})
        assert send(daemon, "claude-code", {**event, "cwd": str(daemon.workspace)}) is None
        assert daemon.calls == [], path
    outside = {"cwd": str(tmp_path), "tool_name": "Bash", "tool_input": {"command": "ls"}}
    assert send(daemon, "claude-code", {**claude(daemon, "PreToolUse"), **outside}) is None
    assert send(daemon, "claude-code", {**claude(daemon, "PostToolUse"), **outside}) is None
    assert daemon.calls == []
    named = {"cwd": str(tmp_path), "tool_name": "Bash", "tool_input": {"command": f"ls {daemon.workspace}"}}
    assert send(daemon, "claude-code", {**claude(daemon, "PreToolUse"), **named}) is not None


def test_links_are_followed_to_what_is_written(daemon: FakeDaemon, tmp_path: Path) -> None:
    (daemon.workspace / "link").symlink_to("sub/target")
    (tmp_path / "way-in").symlink_to(daemon.workspace)
    for path in (daemon.workspace / "link", tmp_path / "way-in" / "link", tmp_path / "way-in/sub/../link"):
        event = claude(daemon, "PreToolUse", tool_name="Write", tool_input={"file_path": str(path)})
        send(daemon, "claude-code", event)
        assert daemon.params("tool.begin")["path"] == "sub/target"
    delete = {"tool_name": "Delete", "tool_input": {"path": "link"}, "tool_use_id": "u"}
    common = {"conversation_id": SESSION, "workspace_roots": [str(tmp_path / "way-in")]}
    send(daemon, "cursor", {**common, "hook_event_name": "preToolUse", **delete})
    assert daemon.params("tool.begin")["path"] == "link"


def test_what_the_daemon_refuses_or_does_not_know_is_passed_over(daemon: FakeDaemon) -> None:
    def refuse(params: dict[str, Any]) -> Any:
        raise UsageError("no such thing")

    daemon.answers |= {"tool.begin": refuse, "tool.end": refuse, "task.start": refuse, "task.end": refuse}
    daemon.answers["warnings"] = [warned(1, "still told"), {"no": "message"}, None]
    write = {
        "tool_name": "Write",
        "tool_input": {"file_path": str(daemon.workspace / "f")},
        "tool_use_id": "t",
    }
    assert send(daemon, "claude-code", claude(daemon, "PreToolUse", **write)) is None
    answer = send(daemon, "claude-code", claude(daemon, "PostToolUse", **write))
    assert answer["hookSpecificOutput"]["additionalContext"] == "fsguard: still told"
    bash = {"tool_name": "Bash", "tool_input": {"command": "ls"}, "tool_use_id": "t"}
    assert send(daemon, "claude-code", claude(daemon, "PreToolUse", **bash)) is not None
    daemon.answers["warnings"] = "nonsense"
    assert send(daemon, "claude-code", claude(daemon, "PostToolUse", **bash)) is None


def test_switched_off_by_the_environment(daemon: FakeDaemon) -> None:
    bash = {"tool_name": "Bash", "tool_input": {"command": "ls"}, "tool_use_id": "t"}
    assert send(daemon, "claude-code", claude(daemon, "PreToolUse", **bash), FSGUARD_DISABLE="1") is None
    assert send(daemon, "claude-code", claude(daemon, "PreToolUse", **bash), FSGUARD_DISABLE="0") is not None


def test_a_session_in_a_run_is_its_child_and_its_shells_know(daemon: FakeDaemon, tmp_path: Path) -> None:
    file = tmp_path / "env.sh"
    file.write_text("export OTHER=1\n")
    for _ in "12":
        event = claude(daemon, "SessionStart", source="resume")
        send(daemon, "claude-code", event, FSGUARD_TASK="boss", CLAUDE_ENV_FILE=str(file))
        assert daemon.params("task.start")["parent"] == "boss"
    assert file.read_text() == f"export OTHER=1\nexport FSGUARD_TASK={ME} FSGUARD_PARENT=boss\n"
    event = claude(daemon, "PreToolUse", tool_name="Bash", tool_input={"command": "ls"})
    answer = send(daemon, "claude-code", event, FSGUARD_TASK="the boss's")
    command = answer["hookSpecificOutput"]["updatedInput"]["command"]
    assert command == f"export FSGUARD_TASK={ME} FSGUARD_PARENT='the boss'\\''s'; ls"
