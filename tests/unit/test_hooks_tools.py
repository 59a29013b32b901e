"""Events of Claude Code and Codex, understood, and our words in their JSON."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from fsguard.hooks import claude_code, codex
from fsguard.hooks.call import AFTER, BEFORE, ENDED, STARTED, Call, Event, Outcome

SESSION = "5e1f2a3b-1111-4222-8333-444455556666"


def understood(module: ModuleType, event: dict[str, Any], **env: str) -> Call:
    call = module.understand(Event({**event, "tomorrow": {"deep": [None]}}), env)
    assert isinstance(call, Call)
    return call


def touches(call: Call) -> list[tuple[str, str, bool]]:
    return [(touch.what, touch.path, touch.partial) for touch in call.touches]


def outcome(context: str = "", refusal: str = "", **variables: str) -> Outcome:
    result = Outcome()
    result.context, result.refusal, result.variables = context, refusal, variables
    return result


def answered(module: ModuleType, event: dict[str, Any], given: Outcome) -> Any:
    call = module.understand(Event(event), {})
    assert call is not None
    return module.answer(Event(event), call, given)


# ---- Claude Code ------------------------------------------------------------------------------


def claude(name: str, tool: str = "", given: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    event = {
        "session_id": SESSION,
        "cwd": "/w",
        "hook_event_name": name,
        "permission_mode": "default",
        **more,
    }
    return event | ({"tool_name": tool, "tool_input": given or {}, "tool_use_id": "toolu_1"} if tool else {})


@pytest.mark.parametrize(
    ("tool", "given", "expected"),
    [
        ("Read", {"file_path": "/w/f"}, ("read", "/w/f", False)),
        ("Read", {"file_path": "/w/f", "offset": 10}, ("read", "/w/f", True)),
        ("Read", {"file_path": "/w/f", "offset": 0, "limit": 5}, ("read", "/w/f", True)),
        ("Write", {"file_path": "/w/f", "content": "x"}, ("write", "/w/f", False)),
        ("Edit", {"file_path": "/w/f", "old_string": "a", "new_string": "b"}, ("write", "/w/f", False)),
        ("MultiEdit", {"file_path": "/w/f", "edits": []}, ("write", "/w/f", False)),
        ("NotebookEdit", {"notebook_path": "/w/n.ipynb"}, ("write", "/w/n.ipynb", False)),
    ],
)
def test_claude_file_tools(tool: str, given: dict[str, Any], expected: tuple[str, str, bool]) -> None:
    for name, moment in (("PreToolUse", BEFORE), ("PostToolUse", AFTER), ("PostToolUseFailure", AFTER)):
        call = understood(claude_code, claude(name, tool, given))
        assert (call.moment, touches(call), call.touches[0].id) == (moment, [expected], "toolu_1")
        assert call.ok is (name != "PostToolUseFailure")


def test_claude_sessions_and_subagents() -> None:
    session = understood(claude_code, claude("PreToolUse", "Read", {"file_path": "f"}), FSGUARD_TASK="A").who
    assert (session.task, session.parent, session.name) == ("claude-5e1f2a3b", "A", "Claude Code")
    agent = understood(
        claude_code,
        claude("PreToolUse", "Read", {"file_path": "f"}, agent_id="a7f3b2c", agent_type="Explore"),
        FSGUARD_TASK="A",
    ).who
    assert (agent.task, agent.parent, agent.name) == ("claude-5e1f2a3b.a7f3b2c", "claude-5e1f2a3b", "Explore")


@pytest.mark.parametrize(
    ("event", "moment", "task"),
    [
        (claude("SessionStart", source="startup"), STARTED, "claude-5e1f2a3b"),
        (claude("SubagentStart", agent_id="x", agent_type="Plan"), STARTED, "claude-5e1f2a3b.x"),
        (claude("SubagentStop", agent_id="x", stop_hook_active=False), ENDED, "claude-5e1f2a3b.x"),
        (claude("SessionEnd", reason="clear"), ENDED, "claude-5e1f2a3b"),
        (claude("UserPromptSubmit", prompt="\nFix it\nmore"), STARTED, "claude-5e1f2a3b"),
    ],
)
def test_claude_tasks_begin_and_end(event: dict[str, Any], moment: str, task: str) -> None:
    call = understood(claude_code, event)
    assert (call.moment, call.who.task) == (moment, task)
    if "prompt" in event:
        assert call.who.intent == "Fix it"


@pytest.mark.parametrize(
    "event",
    [
        {},
        claude("PreToolUse", "Grep", {"pattern": "x"}),
        claude("PreToolUse", "Bash", {"command": ["not", "text"]}),
        claude("PreToolUse", "Read", {"file_path": 7}),
        claude("SubagentStop"),  # of an old version, which does not say whose
        claude("Stop"),
        claude("AnEventOfTomorrow", "Write", {"file_path": "f"}),
        {**claude("PreToolUse", "Read", {"file_path": "f"}), "session_id": None},
        {**claude("PreToolUse", "Read", {"file_path": "f"}), "cursor_version": "2.1"},
    ],
)
def test_claude_events_to_say_nothing_about(event: dict[str, Any]) -> None:
    assert claude_code.understand(Event(event), {}) is None


def test_claude_answers() -> None:
    bash = claude("PreToolUse", "Bash", {"command": "ls -l", "timeout": 9, "description": "list"})
    assert answered(claude_code, bash, outcome(FSGUARD_TASK="claude-5e1f2a3b")) == {
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "updatedInput": {
                "command": "export FSGUARD_TASK=claude-5e1f2a3b; ls -l",
                "timeout": 9,
                "description": "list",
            },
        }
    }
    assert understood(claude_code, bash).who.doing == "list"
    write = claude("PreToolUse", "Write", {"file_path": "f", "content": "x"})
    assert answered(claude_code, write, outcome("look")) == {
        "hookSpecificOutput": {"hookEventName": "PreToolUse", "additionalContext": "look"}
    }
    assert answered(claude_code, write, outcome(refusal="no")) == {
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": "deny",
            "permissionDecisionReason": "no",
        }
    }
    failed = claude("PostToolUseFailure", "Bash", {"command": "x"}, error="boom")
    assert answered(claude_code, failed, outcome("look")) == {
        "hookSpecificOutput": {"hookEventName": "PostToolUseFailure", "additionalContext": "look"}
    }
    assert answered(claude_code, write, outcome()) is None


# ---- Codex ------------------------------------------------------------------------------------

PATCH = "*** Begin Patch\n*** Update File: a.py\n@@\n-x\n+y\n*** Delete File: b.py\n*** End Patch"


def test_codex_announces_each_file_of_a_patch() -> None:
    for tool, command in [
        ("apply_patch", PATCH),
        ("Bash", f"apply_patch <<'EOF'\n{PATCH}\nEOF"),
        ("shell", ["apply_patch", PATCH]),
    ]:
        event = claude("PreToolUse", tool, {"command": command}, turn_id="7", model="m")
        call = understood(codex, event)
        assert touches(call) == [("write", "a.py", False), ("write", "b.py", False)]
        assert [touch.id for touch in call.touches] == ["toolu_1", "toolu_1#2"]
        assert [touch.follow for touch in call.touches] == [True, False]
        assert call.command is None, "Codex applies it itself, as long as nothing stands before it"


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ({"command": "ls"}, {"command": "export FSGUARD_TASK=codex-5e1f2a3b; ls"}),
        ({"cmd": "ls", "yield_ms": 1}, {"cmd": "export FSGUARD_TASK=codex-5e1f2a3b; ls", "yield_ms": 1}),
        (
            {"command": ["bash", "-lc", "ls"]},
            {"command": ["bash", "-lc", "export FSGUARD_TASK=codex-5e1f2a3b; ls"]},
        ),
    ],
)
def test_codex_rewrites_a_command_and_allows_it(given: dict[str, Any], changed: dict[str, Any]) -> None:
    event = claude("PreToolUse", "Bash", given)
    assert answered(codex, event, outcome(FSGUARD_TASK="codex-5e1f2a3b")) == {
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": "allow",
            "updatedInput": changed,
        }
    }


def test_codex_takes_no_field_it_does_not_know() -> None:
    event = claude("PreToolUse", "apply_patch", {"command": PATCH})
    assert answered(codex, event, outcome("more", "no")) == {
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": "deny",
            "permissionDecisionReason": "no",
            "additionalContext": "more",
        }
    }
    after = claude("PostToolUse", "Bash", {"command": "ls"}, tool_response="")
    assert answered(codex, after, outcome("more")) == {
        "hookSpecificOutput": {"hookEventName": "PostToolUse", "additionalContext": "more"}
    }


def test_codex_commands_of_words_are_left_alone() -> None:
    for words in ({"command": ["ls", "-l"]}, {"command": []}, {"command": None}, {}):
        assert codex.understand(Event(claude("PreToolUse", "shell", words)), {}) is None


def test_codex_sessions_and_agents() -> None:
    time_based = "019a2b3c-4d5e-7f00-8123-456789abcdef"
    event = {**claude("PreToolUse", "Bash", {"command": "ls"}), "session_id": time_based}
    assert understood(codex, event).who.task == "codex-89abcdef"
    agent = understood(codex, {**event, "agent_id": "w1", "agent_type": "worker"}).who
    assert (agent.task, agent.parent, agent.name) == ("codex-89abcdef.w1", "codex-89abcdef", "worker")
