"""Cursor: https://cursor.com/docs/hooks

A subagent has a conversation of its own, so its tasks are named like sessions,
and what it is a child of is said at its start.
"""

from __future__ import annotations

from fsguard.hooks import identity, shell
from fsguard.hooks.call import AFTER, BEFORE, ENDED, STARTED, Call, Event, Outcome, Touch, Who, first_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = ["answer", "understand"]

_SHELLS = ("Shell", "Bash", "run_terminal_cmd")
_READS = ("Read", "read_file")
_WRITES = ("Write", "Edit", "MultiEdit", "StrReplace", "EditNotebook", "edit_file", "search_replace")
_DELETES = ("Delete", "delete_file")
_PATH = ("file_path", "path", "filePath", "target_file", "target_notebook", "notebook_path")


def understand(event: Event, env: Mapping[str, str]) -> Call | None:
    name = event.text("hook_event_name")
    roots = event.texts("workspace_roots")
    cwd = event.text("cwd") or (roots[0] if roots else "")
    if name in ("subagentStart", "subagentStop"):
        return _subagent(event, name, cwd)
    session = event.text("subagent_id", "conversation_id", "session_id")
    if not session:
        return None
    task = identity.task_id("cursor", session)
    me = Who(task, identity.above(env, task), "Cursor")
    if event.has("subagent_id"):
        me = Who(task, _parent(event, task), event.text("subagent_type") or "subagent")
    if name == "preToolUse":
        given = event.part("tool_input")
        command = given.text("command") if event.text("tool_name") in _SHELLS else ""
        if command:
            me.doing = first_line(given.text("description", "explanation"))
        touches = _touches(event, given)
        return Call(BEFORE, me, cwd, touches, command or None) if touches or command else None
    if name in ("postToolUse", "postToolUseFailure"):
        given = event.part("tool_input")
        command = given.text("command") if event.text("tool_name") in _SHELLS else ""
        return Call(AFTER, me, cwd, _touches(event, given), command or None, ok=name == "postToolUse")
    if name in ("beforeSubmitPrompt", "sessionStart"):
        me.intent = first_line(event.text("prompt"))
        return Call(STARTED, me, cwd)
    return Call(ENDED, me, cwd) if name == "sessionEnd" else None


def answer(event: Event, call: Call, outcome: Outcome) -> dict[str, Any] | None:
    if call.moment == AFTER:
        return {"additional_context": outcome.context} if outcome.context else None
    if outcome.refusal:
        said = outcome.refusal + ("\n\n" + outcome.context if outcome.context else "")
        return {"permission": "deny", "user_message": outcome.refusal, "agent_message": said}
    more: dict[str, Any] = {}
    if outcome.variables and call.command is not None:
        changed = shell.belongs_to(outcome.variables, call.command)
        if changed != call.command:
            more["updated_input"] = {**event.part("tool_input").data, "command": changed}
    if outcome.context:
        more["agent_message"] = outcome.context
    return {"permission": "allow", **more} if more else None


def _subagent(event: Event, name: str, cwd: str) -> Call | None:
    own = event.text("subagent_id")
    if not own:
        return None  # the conversation may be the parent's
    task = identity.task_id("cursor", own)
    role = event.text("subagent_type") or "subagent"
    me = Who(task, _parent(event, task), role, first_line(event.text("task", "description", "prompt")))
    return Call(STARTED if name == "subagentStart" else ENDED, me, cwd)


def _parent(event: Event, task: str) -> str | None:
    parent = event.text("parent_conversation_id", "conversation_id")
    found = identity.task_id("cursor", parent) if parent else None
    return found if found != task else None


def _touches(event: Event, given: Event) -> list[Touch]:
    tool, path = event.text("tool_name"), given.text(*_PATH)
    number = event.text("tool_use_id") or f"{tool}:{path}"
    if path and tool in _READS:
        return [Touch(number, "read", path, partial=given.has("offset", "limit"))]
    if path and tool in _WRITES + _DELETES:
        return [Touch(number, "write", path, follow=tool not in _DELETES)]
    return []
