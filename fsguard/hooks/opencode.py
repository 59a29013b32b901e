"""opencode, by way of a plugin (opencode.js beside this): https://opencode.ai/docs/plugins

The plugin passes what it is called with as {"hook", "directory", "input",
"output", "parentID"}, and does what the answer says: {"env"} for a shell,
{"deny"} is thrown, {"context"} is appended to a tool's output. A subagent is a
session of its own.
"""

from __future__ import annotations

from fsguard.hooks import identity, patch
from fsguard.hooks.call import AFTER, BEFORE, ENDED, STARTED, Call, Event, Outcome, Touch, Who, first_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = ["answer", "understand"]

_READS = ("read",)
_WRITES = ("write", "edit", "multiedit")
_PATCHES = ("patch", "apply_patch")


def understand(event: Event, env: Mapping[str, str]) -> Call | None:
    hook, given = event.text("hook"), event.part("input")
    if hook == "event":
        return _session(event, env)
    session = given.text("sessionID")
    if not session:
        return None
    me = _who(session, event.text("parentID"), env)
    cwd = given.text("cwd") or event.text("directory")
    if hook == "shell.env":
        return Call(BEFORE, me, cwd, command="")
    if hook not in ("tool.execute.before", "tool.execute.after"):
        return None
    args = event.part("output").part("args") if hook.endswith("before") else given.part("args")
    touches = _touches(given, args)
    if hook.endswith("after"):
        return Call(AFTER, me, cwd, touches, args.text("command") or None)
    return Call(BEFORE, me, cwd, touches) if touches else None


def answer(event: Event, call: Call, outcome: Outcome) -> dict[str, Any] | None:
    said: dict[str, Any] = {}
    if outcome.refusal:
        said["deny"] = outcome.refusal
    if outcome.variables:
        said["env"] = outcome.variables
    if outcome.context:
        said["context"] = outcome.context
    return said or None


def _who(session: str, parent: str, env: Mapping[str, str], title: str = "") -> Who:
    task = identity.task_id("opencode", session)
    if parent:
        return Who(task, identity.task_id("opencode", parent), "subagent", first_line(title))
    return Who(task, identity.above(env, task), "opencode", first_line(title))


def _session(event: Event, env: Mapping[str, str]) -> Call | None:
    given = event.part("input").part("event")
    kind, facts = given.text("type"), given.part("properties")
    info = facts.part("info")
    session = info.text("id") or facts.text("sessionID")
    parent = info.text("parentID") or event.text("parentID")
    if not session:
        return None
    cwd = info.text("directory") or event.text("directory")
    me = _who(session, parent, env, info.text("title"))
    if kind == "session.created":
        return Call(STARTED, me, cwd)
    # A subagent that has nothing more to do has ended; a session that waits for its user has not.
    if kind == "session.deleted" or (kind == "session.idle" and parent):
        return Call(ENDED, me, cwd)
    return None


def _touches(given: Event, args: Event) -> list[Touch]:
    tool, number = given.text("tool"), given.text("callID") or given.text("sessionID")
    if tool in _PATCHES:
        found = patch.patched(args.text("patchText", "patch", "input"))
        ids = [f"{number}#{index + 1}" if index else number for index in range(len(found))]
        return [Touch(i, "write", path, follow=follow) for i, (path, follow) in zip(ids, found, strict=True)]
    path = args.text("filePath", "file_path", "path")
    if path and tool in _READS:
        return [Touch(number, "read", path, partial=args.has("offset", "limit"))]
    return [Touch(number, "write", path)] if path and tool in _WRITES else []
