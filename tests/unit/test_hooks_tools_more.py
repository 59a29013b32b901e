"""Events of Gemini, Cursor and opencode, understood, and our words in their JSON; nonsense of all."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsguard.hooks import claude_code, codex, cursor, gemini, opencode
from fsguard.hooks.call import AFTER, ENDED, STARTED, Call, Event, Outcome

SESSION = "5e1f2a3b-1111-4222-8333-444455556666"
MODULES = [claude_code, codex, gemini, cursor, opencode]


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


PATCH = "*** Begin Patch\n*** Update File: a.py\n@@\n-x\n+y\n*** Delete File: b.py\n*** End Patch"

# ---- Gemini -----------------------------------------------------------------------------------


def of_gemini(name: str, tool: str = "", given: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    event = {"session_id": SESSION, "cwd": "/w", "hook_event_name": name, "timestamp": "t", **more}
    return event | ({"tool_name": tool, "tool_input": given or {}} if tool else {})


@pytest.mark.parametrize(
    ("tool", "given", "expected"),
    [
        ("read_file", {"absolute_path": "/w/f"}, [("read", "/w/f", False)]),
        ("read_file", {"file_path": "f", "offset": 1, "limit": 2}, [("read", "f", True)]),
        (
            "read_many_files",
            {"include": ["a", "src/*.py", "b"]},
            [("read", "a", False), ("read", "b", False)],
        ),
        ("write_file", {"file_path": "/w/f", "content": ""}, [("write", "/w/f", False)]),
        ("replace", {"file_path": "/w/f", "old_string": "a"}, [("write", "/w/f", False)]),
    ],
)
def test_gemini_file_tools(tool: str, given: dict[str, Any], expected: list[tuple[str, str, bool]]) -> None:
    before = understood(gemini, of_gemini("BeforeTool", tool, given))
    after = understood(gemini, of_gemini("AfterTool", tool, given, tool_response={"llmContent": "x"}))
    assert touches(before) == touches(after) == expected
    assert [t.id for t in before.touches] == [t.id for t in after.touches], "there is no id in the event"
    assert len({t.id for t in before.touches}) == len(expected)
    assert after.ok
    assert not understood(gemini, of_gemini("AfterTool", tool, given, tool_response={"error": {"m": 1}})).ok


def test_gemini_answers() -> None:
    shell = of_gemini("BeforeTool", "run_shell_command", {"command": "ls", "description": "list"})
    assert answered(gemini, shell, outcome(FSGUARD_TASK="gemini-5e1f2a3b")) == {
        "hookSpecificOutput": {
            "hookEventName": "BeforeTool",
            "tool_input": {"command": "export FSGUARD_TASK=gemini-5e1f2a3b; ls"},
        }
    }
    write = of_gemini("BeforeTool", "write_file", {"file_path": "f"})
    assert answered(gemini, write, outcome(refusal="no")) == {"decision": "deny", "reason": "no"}
    after = of_gemini("AfterTool", "glob", {"pattern": "*"})
    assert answered(gemini, after, outcome("look")) == {
        "hookSpecificOutput": {"hookEventName": "AfterTool", "additionalContext": "look"}
    }
    assert gemini.understand(Event(of_gemini("BeforeModel")), {}) is None
    assert understood(gemini, of_gemini("BeforeAgent", prompt="do it")).who.intent == "do it"
    assert understood(gemini, of_gemini("SessionEnd", reason="exit")).moment == ENDED


# ---- Cursor -----------------------------------------------------------------------------------


def of_cursor(name: str, tool: str = "", given: Any = None, **more: Any) -> dict[str, Any]:
    event = {"conversation_id": SESSION, "generation_id": "g", "hook_event_name": name, **more}
    event |= {"workspace_roots": ["/w", "/x"], "cursor_version": "2.4", "user_email": None}
    return event | ({"tool_name": tool, "tool_input": given or {}, "tool_use_id": "u1"} if tool else {})


def test_cursor_file_tools() -> None:
    call = understood(cursor, of_cursor("preToolUse", "Read", {"file_path": "f", "limit": 3}))
    assert (touches(call), call.cwd, call.who.task) == ([("read", "f", True)], "/w", "cursor-5e1f2a3b")
    call = understood(cursor, of_cursor("postToolUse", "Write", '{"path": "f"}', cwd="/w/sub"))
    assert (touches(call), call.cwd, call.moment) == ([("write", "f", False)], "/w/sub", AFTER)
    call = understood(cursor, of_cursor("preToolUse", "Delete", {"path": "link"}))
    assert touches(call) == [("write", "link", False)] and not call.touches[0].follow
    assert not understood(cursor, of_cursor("postToolUseFailure", "Shell", {"command": "x"})).ok


def test_cursor_subagents_are_conversations_of_their_own() -> None:
    start = of_cursor(
        "subagentStart",
        subagent_id="6f2a3b4c-1111-4222-8333-444455556666",
        subagent_type="explore",
        parent_conversation_id=SESSION,
        task="Look around\nwell",
    )
    call = understood(cursor, start)
    assert (call.moment, call.who.task, call.who.parent) == (STARTED, "cursor-6f2a3b4c", "cursor-5e1f2a3b")
    assert (call.who.name, call.who.intent) == ("explore", "Look around")
    stop = {**start, "hook_event_name": "subagentStop", "modified_files": ["f"]}
    assert understood(cursor, stop).moment == ENDED
    del stop["subagent_id"]
    assert cursor.understand(Event(stop), {}) is None, "the conversation may be the parent's"


def test_cursor_answers() -> None:
    shell = of_cursor("preToolUse", "Shell", {"command": "ls", "working_directory": "/w"})
    assert answered(cursor, shell, outcome(FSGUARD_TASK="cursor-5e1f2a3b")) == {
        "permission": "allow",
        "updated_input": {"command": "export FSGUARD_TASK=cursor-5e1f2a3b; ls", "working_directory": "/w"},
    }
    write = of_cursor("preToolUse", "Write", {"path": "f"})
    assert answered(cursor, write, outcome(refusal="no"))["permission"] == "deny"
    assert answered(cursor, write, outcome("look")) == {"permission": "allow", "agent_message": "look"}
    after = of_cursor("postToolUse", "Write", {"path": "f"})
    assert answered(cursor, after, outcome("look")) == {"additional_context": "look"}
    assert answered(cursor, after, outcome()) is None


# ---- opencode ---------------------------------------------------------------------------------


def of_opencode(hook: str, given: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"hook": hook, "directory": "/w", "input": {"sessionID": "s1", "callID": "c1", **given}, **more}


def test_opencode_events() -> None:
    before = of_opencode("tool.execute.before", {"tool": "edit"}, output={"args": {"filePath": "/w/f"}})
    assert touches(understood(opencode, before)) == [("write", "/w/f", False)]
    after = of_opencode("tool.execute.after", {"tool": "read", "args": {"filePath": "f", "offset": 2}})
    assert touches(understood(opencode, after)) == [("read", "f", True)]
    env = understood(opencode, of_opencode("shell.env", {"cwd": "/w/sub"}, parentID="s0"))
    assert (env.cwd, env.command, env.who.task, env.who.parent) == (
        "/w/sub",
        "",
        "opencode-s1",
        "opencode-s0",
    )
    patch = of_opencode("tool.execute.before", {"tool": "apply_patch"}, output={"args": {"patchText": PATCH}})
    assert [t.id for t in understood(opencode, patch).touches] == ["c1", "c1#2"]


def test_opencode_sessions() -> None:
    def event(kind: str, **properties: Any) -> dict[str, Any]:
        return {
            "hook": "event",
            "directory": "/w",
            "input": {"event": {"type": kind, "properties": properties}},
        }

    made = understood(
        opencode, event("session.created", info={"id": "s1", "parentID": "s0", "title": "Look"})
    )
    assert (made.moment, made.who.parent, made.who.intent) == (STARTED, "opencode-s0", "Look")
    idle = event("session.idle", sessionID="s1")
    assert opencode.understand(Event(idle), {}) is None, "it waits for its user"
    assert understood(opencode, {**idle, "parentID": "s0"}).moment == ENDED
    assert understood(opencode, event("session.deleted", info={"id": "s1"})).moment == ENDED


def test_opencode_answers() -> None:
    before = of_opencode("tool.execute.before", {"tool": "edit"}, output={"args": {"filePath": "/w/f"}})
    assert answered(opencode, before, outcome(refusal="no")) == {"deny": "no"}
    env = of_opencode("shell.env", {"cwd": "/w"})
    assert answered(opencode, env, outcome(FSGUARD_TASK="opencode-s1")) == {
        "env": {"FSGUARD_TASK": "opencode-s1"}
    }
    after = of_opencode("tool.execute.after", {"tool": "read", "args": {}})
    assert answered(opencode, after, outcome("look")) == {"context": "look"}


# ---- anything ---------------------------------------------------------------------------------

FIELDS = """session_id agent_id agent_type hook_event_name tool_name tool_input tool_use_id cwd prompt command
file_path path conversation_id subagent_id hook input output args event properties info sessionID tool
workspace_roots include"""
WORDS = """PreToolUse PostToolUse BeforeTool AfterTool preToolUse postToolUse SubagentStop subagentStart Bash
Read Write Shell run_shell_command apply_patch shell.env tool.execute.before event session.created"""
NAMES = st.sampled_from(FIELDS.split())
LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(WORDS.split())
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=12,
)


@pytest.mark.parametrize("module", MODULES)
@given(event=st.dictionaries(NAMES, VALUES, max_size=8))
def test_no_event_makes_a_hook_fail(module: ModuleType, event: dict[str, Any]) -> None:
    call = module.understand(Event(event), {})
    if call is not None:
        assert call.who.task.isprintable() and isinstance(call.cwd, str)
        for given in (outcome(), outcome("c", FSGUARD_TASK="t"), outcome("c", "r")):
            answer = module.answer(Event(event), call, given)
            assert answer is None or isinstance(answer, dict)
