"""What can stand at the cursor: read off the parsers, and asked of the mounts there are."""

from __future__ import annotations

import argparse

from fsguard.cli import COMMANDS
from fsguard.cli.base import parser_of
from fsguard.errors import FsguardError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fsguard.cli.base import Parser
    from fsguard.control.registry import Mount

__all__ = ["COMMAND", "DIRECTORIES", "FILES", "at"]

FILES, DIRECTORIES, COMMAND = ":files", ":directories", ":command"
"""Instead of candidates: the shell's own for these. After COMMAND comes how many words stand before it."""

_QUESTION_SECONDS = 1.0

Candidates = list[tuple[str, str]]


def at(words: Sequence[str]) -> Candidates:
    """(word, what it is about) for the last of `words`, those before it having been typed.

    The first word is the command. What begins as it should is all that is given.
    """
    typed, current = _joined(words)
    if not typed:
        offered = [*COMMANDS.items(), ("help", "a command's help"), ("--help", ""), ("--version", "")]
        return _beginning(current, offered)
    if typed[0] == "help" and len(typed) == 1:
        return _beginning(current, list(COMMANDS.items()))
    if typed[0] not in COMMANDS:
        return []
    return _of_command(parser_of(typed[0]), typed, current)


def _joined(words: Sequence[str]) -> tuple[list[str], str]:
    """(the words before, the last one). bash makes three words of --flag=value."""
    *before, current = words or [""]
    typed: list[str] = []
    for word in before:
        if word == "=" and typed and typed[-1].startswith("--"):
            continue
        typed.append(word)
    if current == "=" and typed and typed[-1].startswith("--"):
        current = ""
    return typed, current


def _of_command(parser: Parser, typed: list[str], current: str) -> Candidates:
    options = {name: action for action in parser._actions for name in action.option_strings}
    positionals = [action for action in parser._actions if not action.option_strings]
    place = 0
    awaited: argparse.Action | None = None
    used: set[argparse.Action] = set()
    for index, word in enumerate(typed[1:], 1):
        if awaited is not None:
            awaited = None
        elif word == "--":
            if parser.prog == "fsguard run":
                return [(COMMAND, str(index + 2))]
            options = {}
        elif word.startswith("-") and word.partition("=")[0] in options:
            action = options[word.partition("=")[0]]
            used.add(action)
            awaited = action if action.nargs is None and "=" not in word else None
        elif parser.prog == "fsguard run":
            return [(COMMAND, str(index + 1))]
        else:
            place += 1
    if awaited is not None:
        return _values(parser, awaited, current, typed)
    flag, equals, value = current.partition("=")
    if equals and flag in options and options[flag].nargs is None:
        found = _values(parser, options[flag], value, typed)
        return [
            (f"{flag}={word}", about) if not word.startswith(":") else (word, about) for word, about in found
        ]
    found = []
    if current.startswith("-"):
        free = {name: action for name, action in options.items() if action not in used and len(name) > 2}
        found = [(name, _about(action)) for name, action in free.items() if action.help != argparse.SUPPRESS]
        return _beginning(current, found)
    here = _positional(positionals, place)
    if here is not None and here.help != argparse.SUPPRESS:
        return _values(parser, here, current, typed)
    return [(COMMAND, str(len(typed) + 1))] if parser.prog == "fsguard run" else []


def _positional(actions: Iterable[argparse.Action], place: int) -> argparse.Action | None:
    for action in actions:
        if place == 0 or action.nargs in ("*", "+", argparse.REMAINDER):
            return action
        place -= 1
    return None


def _values(parser: Parser, action: argparse.Action, current: str, typed: list[str]) -> Candidates:
    if action.choices is not None:
        return _beginning(current, [(str(choice), "") for choice in action.choices])
    kind = action.metavar if isinstance(action.metavar, str) else ""
    if kind in ("W", "WORKSPACE", "MOUNTPOINT"):
        mounted = [] if parser.prog == "fsguard mount" else _workspaces()
        return [*_beginning(current, mounted), (DIRECTORIES, "")]
    if kind == "ID":
        return _beginning(current, _tasks(typed))
    if kind in ("DIR", "DIRECTORY"):
        return [(DIRECTORIES, "")]
    return [(FILES, "")] if kind.startswith(("PATH", "FILE", "PATTERN")) else []


def _about(action: argparse.Action) -> str:
    return (
        (action.help or "") % {"default": action.default}
        if "%(" in (action.help or "")
        else action.help or ""
    )


def _beginning(current: str, offered: Iterable[tuple[str, str]]) -> Candidates:
    return [(word, about) for word, about in offered if word.startswith(current)]


# ---- what there is now: the shell waits, so a daemon that does not answer is passed over -----------


def _workspaces() -> Candidates:
    from fsguard.control import registry

    try:
        return [(mount.mountpoint, "guarded") for mount in registry.live()]
    except (FsguardError, OSError):
        return []


def _tasks(typed: list[str]) -> Candidates:
    from fsguard.control.client import Client

    try:
        with Client(_mount(typed), _QUESTION_SECONDS) as client:
            tasks = client.call("task.list")
        return [(str(task["task"]), str(task["name"] or task["state"])) for task in tasks]
    except (FsguardError, OSError, LookupError, TypeError):
        return []


def _mount(typed: list[str]) -> Mount:
    """The workspace that --workspace names, else where the user stands."""
    from fsguard.cli import where

    for index, word in enumerate(typed):
        if word == "--workspace" and index + 1 < len(typed):
            return where.locate(typed[index + 1])
        if word.startswith("--workspace="):
            return where.locate(word.partition("=")[2])
    return where.locate(None)
