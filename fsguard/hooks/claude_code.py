"""Claude Code: https://code.claude.com/docs/en/hooks

Its subagents live in one process with it; only `agent_id` tells them apart.
"""

from __future__ import annotations

from fsguard.hooks import identity, shell
from fsguard.hooks.call import AFTER, BEFORE, ENDED, STARTED, Call, Event, Outcome, Touch, Who, first_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

__all__ = ["answer", "called", "ended_or_started", "understand", "who"]

_READS = ("Read", "NotebookRead")
_WRITES = ("Write", "Edit", "MultiEdit", "NotebookEdit")
_SHELLS = ("Bash",)


def understand(event: Event, env: Mapping[str, str]) -> Call | None:
    """The call that an event stands for; None: nothing of ours."""
    if event.has("cursor_version"):
        return None  # Cursor runs Claude Code's hooks too, and has its own
    me = who("claude", "Claude Code", event, env)
    if me is None:
        return None
    given = event.part("tool_input")
    command = given.text("command") if event.text("tool_name") in _SHELLS else ""
    return called(event, me, _touches(event, given), command or None) or ended_or_started(event, me, env)


def who(tool: str, role: str, event: Event, env: Mapping[str, str]) -> Who | None:
    """The session, or the subagent of it that the event comes from."""
    session, agent = event.text("session_id"), event.text("agent_id")
    if not session:
        return None
    whole = identity.task_id(tool, session)
    if agent:
        return Who(identity.task_id(tool, session, agent), whole, event.text("agent_type") or "subagent")
    return Who(whole, identity.above(env, whole), role)


def called(event: Event, me: Who, touches: Sequence[Touch], command: str | None) -> Call | None:
    """The call of a tool event; None when it is another event, or a tool to say nothing about."""
    name, cwd = event.text("hook_event_name"), event.text("cwd")
    if name == "PreToolUse":
        if command is not None:
            me.doing = first_line(event.part("tool_input").text("description"))
        return Call(BEFORE, me, cwd, touches, command) if touches or command else None
    if name in ("PostToolUse", "PostToolUseFailure"):
        return Call(AFTER, me, cwd, touches, command, ok=name == "PostToolUse")
    return None


def ended_or_started(event: Event, me: Who, env: Mapping[str, str]) -> Call | None:
    """The call of an event about a session or subagent."""
    name, cwd = event.text("hook_event_name"), event.text("cwd")
    agent = event.has("agent_id")
    if name == "UserPromptSubmit":
        me.intent = first_line(event.text("prompt"))
        return Call(STARTED, me, cwd) if me.intent else None
    if name == "SessionStart" and not agent:
        return Call(STARTED, me, cwd, env_file=env.get("CLAUDE_ENV_FILE", ""))
    if name == "SubagentStart" and agent:
        return Call(STARTED, me, cwd)
    if (name == "SubagentStop" and agent) or (name == "SessionEnd" and not agent):
        return Call(ENDED, me, cwd)
    return None


def answer(event: Event, call: Call, outcome: Outcome) -> dict[str, Any] | None:
    """Without `permissionDecision`, the user's own rules decide, as ever."""
    more: dict[str, Any] = {}
    if outcome.refusal:
        more |= {"permissionDecision": "deny", "permissionDecisionReason": outcome.refusal}
    elif outcome.variables and call.command is not None:
        changed = shell.belongs_to(outcome.variables, call.command)
        if changed != call.command:
            more["updatedInput"] = {**event.part("tool_input").data, "command": changed}
    if outcome.context:
        more["additionalContext"] = outcome.context
    return {"hookSpecificOutput": {"hookEventName": event.text("hook_event_name"), **more}} if more else None


def _touches(event: Event, given: Event) -> list[Touch]:
    tool, path = event.text("tool_name"), given.text("file_path", "notebook_path")
    number = event.text("tool_use_id") or f"{tool}:{path}"
    if path and tool in _READS:
        return [Touch(number, "read", path, partial=given.has("offset", "limit", "pages"))]
    if path and tool in _WRITES:
        return [Touch(number, "write", path)]
    return []
