"""Codex CLI: https://developers.openai.com/codex/hooks

Speaks as Claude Code does, but takes no field that it does not know, wants
`permissionDecision: allow` beside `updatedInput` (its own approvals follow
all the same), and edits by `apply_patch`, whose text names the files.
"""

from __future__ import annotations

from fsguard.hooks import claude_code, patch, shell
from fsguard.hooks.call import Call, Event, Outcome, Touch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = ["answer", "understand"]

_SHELLS = ("Bash", "shell", "shell_command", "local_shell", "exec_command", "unified_exec")
_COMMAND = ("command", "cmd")


def understand(event: Event, env: Mapping[str, str]) -> Call | None:
    me = claude_code.who("codex", "Codex", event, env)
    if me is None:
        return None
    tool, given = event.text("tool_name"), event.part("tool_input")
    text = given.text(*_COMMAND, "patch", "input") or "\n".join(given.texts(*_COMMAND))
    touches: list[Touch] = []
    command = None
    if tool == "apply_patch" or (tool in _SHELLS and _patches(text)):
        # A patch in a shell command is taken out and applied by Codex itself, as
        # long as nothing stands before it.
        touches = _touches(event, text)
    elif tool in _SHELLS:
        command = _script(given)
    elif tool in ("view_image", "read_file"):
        path = given.text("path", "file_path")
        touches = [Touch(_number(event, 0), "read", path, partial=given.has("offset"))] if path else []
    call = claude_code.called(event, me, touches, command)
    return call or claude_code.ended_or_started(event, me, env)


def answer(event: Event, call: Call, outcome: Outcome) -> dict[str, Any] | None:
    given = event.part("tool_input").data
    more: dict[str, Any] = {}
    if outcome.refusal:
        more |= {"permissionDecision": "deny", "permissionDecisionReason": outcome.refusal}
    elif outcome.variables and call.command is not None:
        changed = shell.belongs_to(outcome.variables, call.command)
        name = next(name for name in _COMMAND if given.get(name))
        words = given[name]
        new = changed if isinstance(words, str) else [*words[:-1], changed]
        if changed != call.command:
            more |= {"permissionDecision": "allow", "updatedInput": {**given, name: new}}
    if outcome.context:
        more["additionalContext"] = outcome.context
    return {"hookSpecificOutput": {"hookEventName": event.text("hook_event_name"), **more}} if more else None


def _script(given: Event) -> str | None:
    """The shell script of a command: itself, or the last word of [bash, -lc, SCRIPT]."""
    words = given.texts(*_COMMAND)
    if words and len(words) == 3 and words[1] in ("-c", "-lc"):
        return words[2]
    return given.text(*_COMMAND) or None


def _patches(text: str) -> bool:
    return patch.BEGIN in text and "apply_patch" in text[: text.index(patch.BEGIN)]


def _touches(event: Event, text: str) -> list[Touch]:
    found = patch.patched(text)
    return [
        Touch(_number(event, index), "write", path, follow=follow)
        for index, (path, follow) in enumerate(found)
    ]


def _number(event: Event, index: int) -> str:
    """The call's id; with a number for the second path and on."""
    call = event.text("tool_use_id", "turn_id")
    return f"{call}#{index + 1}" if index else call
