"""Where each tool keeps its hooks, what ours look like there, and how to tell them from others'.

An entry is ours when it runs `fsguard hook TOOL` and nothing else, whoever put it there.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys

from fsguard.errors import UsageError
from fsguard.hooks import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["TOOLS", "Tool", "command_line", "executable"]

_ALL_FILE_TOOLS = "Bash|Read|Edit|MultiEdit|Write|NotebookEdit"


class Tool:
    """How one tool is set up by entries in a JSON file.

    `groups` maps an event to its matcher: None where a group has none, False
    where entries stand in the event's array by themselves. `entry` is what each
    has besides its command; `top` is what a new file starts with. `home` names the
    variable that moves the tool's directory; `switches` are settings (name, value)
    with which the tool runs no hooks at all.
    """

    def __init__(
        self,
        name: str,
        title: str,
        file: str,
        groups: dict[str, Any],
        entry: dict[str, Any],
        notes: tuple[str, ...] = (),
        top: dict[str, Any] | None = None,
        home: str = "",
        switches: tuple[tuple[str, object], ...] = (),
    ) -> None:
        self.name = name
        self.title = title
        self.file = file
        self.groups = groups
        self.entry = entry
        self.notes = notes
        self.top = top or {}
        self.home = home
        self.switches = switches

    def path(self, scope: str, root: str) -> str:
        """The file for all of the user's projects, or for the one at `root`."""
        if scope == "project":
            return os.path.join(root, self.file)
        given = os.environ.get(self.home) if self.home else None
        if given:
            return os.path.join(given, os.path.basename(self.file))
        return os.path.join(os.path.expanduser("~"), self.file)

    def installed(self, text: str, fsguard: str) -> str:
        """`text` with all of ours in it, and none that is out of date."""
        for event in self.groups:
            wanted = self._wanted(event, fsguard)
            ours = self._ours(text, event)
            if [entry for _, entry in ours] == [wanted]:
                continue
            for path, _ in reversed(ours):
                text = jsontext.removed(text, path)
            if not text.strip():
                text = json.dumps(self.top, indent=2) + "\n"
            text = jsontext.added(text, ["hooks", event], wanted)
        return self._without_stray(text)

    def uninstalled(self, text: str) -> str:
        """`text` without ours."""
        return self._without(text, self._events(text))

    def missing(self, text: str, fsguard: str) -> list[str]:
        """The events for which ours is not there, or not as it should be."""
        return [
            event
            for event in self.groups
            if [entry for _, entry in self._ours(text, event)] != [self._wanted(event, fsguard)]
        ]

    def present(self, text: str) -> bool:
        """Is anything of ours there?"""
        return any(self._ours(text, event) for event in self._events(text))

    def switched_off(self, text: str) -> str | None:
        """The setting by which this file turns all hooks off."""
        for name, value in self.switches:
            node: Any = jsontext.parsed(text).plain() or {}
            for key in name.split("."):
                node = node.get(key) if isinstance(node, dict) else None
            if node is value:
                return name
        return None

    def _without_stray(self, text: str) -> str:
        return self._without(text, [event for event in self._events(text) if event not in self.groups])

    def _without(self, text: str, events: list[str]) -> str:
        for event in events:
            for path, _ in reversed(self._ours(text, event)):
                text = jsontext.removed(text, path)
        return text

    def _events(self, text: str) -> list[str]:
        hooks = jsontext.parsed(text).get("hooks")
        return list(hooks.keys) if hooks is not None else []

    def _wanted(self, event: str, fsguard: str) -> dict[str, Any]:
        entry = {**self.entry, "command": command_line(fsguard, self.name)}
        # In the order in which people write them.
        entry = {key: entry[key] for key in ("name", "type", "command", "timeout") if key in entry}
        matcher = self.groups[event]
        if matcher is False:
            return entry
        group: dict[str, Any] = {"matcher": matcher} if matcher is not None else {}
        return {**group, "hooks": [entry]}

    def _ours(self, text: str, event: str) -> list[tuple[list[str | int], Any]]:
        """(path to it, what is there) of each entry of ours, first to last.

        Where a group holds ours only, it is the group.
        """
        hooks = jsontext.parsed(text).get("hooks")
        groups = hooks.get(event) if hooks is not None else None
        found: list[tuple[list[str | int], Any]] = []
        for index, group in enumerate(groups.items if groups is not None and groups.kind == "array" else ()):
            at: list[str | int] = ["hooks", event, index]
            entries = group.get("hooks") if group.kind == "object" else None
            if entries is None or entries.kind != "array":
                if _runs_us(group.plain(), self.name):
                    found.append((at, group.plain()))
                continue
            ours = [n for n, entry in enumerate(entries.items) if _runs_us(entry.plain(), self.name)]
            if ours and len(ours) == len(entries.items):
                found.append((at, group.plain()))
            else:
                found += [([*at, "hooks", n], entries.items[n].plain()) for n in ours]
        return found


def command_line(fsguard: str, tool: str) -> str:
    """What the tool's shell runs: nothing at all, and no error, where there is no fsguard."""
    word = shlex.quote(fsguard)
    return f"command -v {word} >/dev/null 2>&1 || exit 0; exec {word} hook {tool}"


def _runs_us(entry: Any, tool: str) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("command"), str):
        return False
    command = entry["command"]
    arguments = entry.get("args")
    if arguments is not None:
        return _is_fsguard(command) and arguments == ["hook", tool]
    guarded = re.fullmatch(r"command -v (.+) >/dev/null 2>&1 \|\| exit 0; exec (.+)", command)
    if guarded is not None:
        command = guarded[2]
    try:
        words = shlex.split(command)
    except ValueError:
        return False
    return len(words) == 3 and _is_fsguard(words[0]) and words[1:] == ["hook", tool]


def _is_fsguard(word: str) -> bool:
    return os.path.basename(word) == "fsguard"


def executable() -> str:
    """How hooks are to call us: `fsguard` where PATH has it, else by its place."""
    if shutil.which("fsguard"):
        return "fsguard"
    for candidate in (sys.argv[0], os.path.join(os.path.dirname(sys.executable), "fsguard")):
        if _is_fsguard(candidate) and os.access(candidate, os.X_OK):
            return os.path.abspath(candidate)
    raise UsageError(
        "no `fsguard` command for the hooks to call: it is not in PATH, and not beside this Python",
        "install it (`pipx install .`), or put it into PATH",
    )


TOOLS = {
    tool.name: tool
    for tool in (
        Tool(
            "claude-code",
            "Claude Code",
            ".claude/settings.json",
            {
                "PreToolUse": _ALL_FILE_TOOLS,
                "PostToolUse": "*",
                "PostToolUseFailure": "*",
                "UserPromptSubmit": None,
                "SubagentStart": None,
                "SubagentStop": None,
                "SessionStart": None,
                "SessionEnd": None,
            },
            {"type": "command", "timeout": 5},
            (
                "Bash commands in a guarded workspace get `export FSGUARD_TASK=…; ` before them. Where your"
                " permission rules allow commands by name, allow that too: Bash(export FSGUARD_TASK=*)",
                "sessions that run already take hooks up when they are started anew",
            ),
            home="CLAUDE_CONFIG_DIR",
            switches=(("disableAllHooks", True),),
        ),
        Tool(
            "codex",
            "Codex CLI",
            ".codex/hooks.json",
            {
                "PreToolUse": "*",
                "PostToolUse": "*",
                "UserPromptSubmit": None,
                "SubagentStart": None,
                "SubagentStop": None,
                "SessionStart": None,
                "SessionEnd": None,
            },
            {"type": "command", "timeout": 5},
            ("Codex runs hooks once you have trusted them: /hooks in Codex",),
            home="CODEX_HOME",
        ),
        Tool(
            "gemini",
            "Gemini CLI",
            ".gemini/settings.json",
            {
                "BeforeTool": "run_shell_command|read_file|read_many_files|write_file|replace",
                "AfterTool": ".*",
                "BeforeAgent": None,
                "SessionEnd": None,
            },
            {"name": "fsguard", "type": "command", "timeout": 5000},
            switches=(("tools.enableHooks", False), ("hooksConfig.enabled", False), ("hooks.enabled", False)),
        ),
        Tool(
            "cursor",
            "Cursor",
            ".cursor/hooks.json",
            dict.fromkeys(
                (
                    "preToolUse",
                    "postToolUse",
                    "postToolUseFailure",
                    "subagentStart",
                    "subagentStop",
                    "sessionEnd",
                ),
                False,
            ),
            {"timeout": 5},
            top={"version": 1},
        ),
    )
}
