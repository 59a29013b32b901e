"""Gemini CLI: https://geminicli.com/docs/hooks/reference

Calls have no ids, and subagents none either; a call is told by its session,
tool and path.
"""

from __future__ import annotations

from fsguard.hooks import identity, shell
from fsguard.hooks.call import AFTER, BEFORE, ENDED, STARTED, Call, Event, Outcome, Touch, Who, first_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = ["answer", "understand"]

_SHELLS = ("run_shell_command",)
_READS = ("read_file", "read_many_files")
_WRITES = ("write_file", "replace", "edit", "smart_edit")


def understand(event: Event, env: Mapping[str, str]) -> Call | None:
    session, name, cwd = event.text("session_id"), event.text("hook_event_name"), event.text("cwd")
    if not session:
        return None
    task = identity.task_id("gemini", session)
    me = Who(task, identity.above(env, task), "Gemini CLI")
    if name in ("BeforeTool", "AfterTool"):
        given = event.part("tool_input")
        command = given.text("command") if event.text("tool_name") in _SHELLS else ""
        touches = _touches(event, given)
        if name == "AfterTool":
            ok = not event.part("tool_response").has("error")
            return Call(AFTER, me, cwd, touches, command or None, ok=ok)
        if command:
            me.doing = first_line(given.text("description"))
        return Call(BEFORE, me, cwd, touches, command or None) if touches or command else None
    if name == "BeforeAgent":
        me.intent = first_line(event.text("prompt"))
        return Call(STARTED, me, cwd) if me.intent else None
    if name == "SessionStart":
        return Call(STARTED, me, cwd)
    return Call(ENDED, me, cwd) if name == "SessionEnd" else None


def answer(event: Event, call: Call, outcome: Outcome) -> dict[str, Any] | None:
    """`tool_input` is merged into the model's own, so only what changes is in it."""
    more: dict[str, Any] = {}
    if outcome.context:
        more["additionalContext"] = outcome.context
    if outcome.variables and call.command is not None and not outcome.refusal:
        changed = shell.belongs_to(outcome.variables, call.command)
        if changed != call.command:
            more["tool_input"] = {"command": changed}
    said: dict[str, Any] = {}
    if outcome.refusal:
        said |= {"decision": "deny", "reason": outcome.refusal}
    if more:
        said["hookSpecificOutput"] = {"hookEventName": event.text("hook_event_name"), **more}
    return said or None


def _touches(event: Event, given: Event) -> list[Touch]:
    tool = event.text("tool_name")
    path = given.text("file_path", "absolute_path", "path")
    paths = [path] if path else []
    if tool == "read_many_files":
        patterns = given.texts("include", "paths")
        paths = [pattern for pattern in patterns if not set("*?[{").intersection(pattern)]
    if tool not in _READS + _WRITES:
        return []
    what = "read" if tool in _READS else "write"
    partial = what == "read" and given.has("offset", "limit", "start_line", "end_line")
    return [Touch(f"{tool}:{path}", what, path, partial=partial) for path in paths]
