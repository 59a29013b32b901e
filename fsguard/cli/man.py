"""fsguard man: the manual page, written from the commands' own parsers."""

from __future__ import annotations

import shutil
import sys

from fsguard.cli.base import EXITS, Parser, parser_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

__all__ = ["main", "page"]

_DESCRIPTION = """\
Several coding agents, their shell commands, formatters and people work on one directory tree, and silently
lose each other's work. fsguard mounts the tree through a passthrough filesystem that knows which task every
process works for, what each task has read, and who changed what since; and says so, by name, before a stale
write lands."""

_ENVIRONMENT = {
    "FSGUARD_TASK": "the task that a process and what it starts work for; set by fsguard run, or by whoever",
    "FSGUARD_PARENT": "the task that made it",
    "FSGUARD_INTENT": "what the task is about, as siblings are told",
    "FSGUARD_DISABLE": "1: no checks and no waits, for the whole mount or for one command",
    "FSGUARD_DEBUG": "1: errors of fsguard itself come with a traceback",
    "FSGUARD_RUNTIME_DIR": "where the notes and sockets of live mounts are",
    "XDG_STATE_HOME": "where kept versions and logs are: fsguard/ in it (default: ~/.local/state)",
    "NO_COLOR": "not empty: no colours",
}
_FILES = {
    "fsguard.toml": "the workspace's configuration; --config names another one",
    "~/.local/state/fsguard/": "kept versions and the daemons' logs",
}


def main(argv: list[str]) -> int:
    parser = Parser(
        "man",
        "Show the manual page; where the output is no terminal, print its source.",
        [
            "fsguard man",
            "fsguard man > /usr/local/share/man/man1/fsguard.1",
            "fsguard man | man -l -",
        ],
        [0, 2],
    )
    parser.parse(argv)
    text = page()
    viewer = shutil.which("man") if sys.stdout.isatty() else None
    if viewer is None:
        print(text, end="")
        return 0
    import subprocess

    return subprocess.run([viewer, "-l", "-"], input=text.encode(), check=False).returncode


def page() -> str:
    """The source of fsguard(1), for man(7)."""
    from fsguard import __version__
    from fsguard.cli import COMMANDS

    lines = [
        f'.TH FSGUARD 1 "" "fsguard {__version__}" "User Commands"',
        *(".SH NAME", "fsguard \\- guard a directory tree that several coding agents share"),
        *(".SH SYNOPSIS", ".B fsguard", "\\fICOMMAND\\fR [\\fIARGUMENTS\\fR]"),
        *(".SH DESCRIPTION", _text(_DESCRIPTION)),
        *(
            ".PP",
            "A workspace is found from --workspace, from a positional argument, or from the directory that",
        ),
        "you are in. Commands that take --json print one JSON value a line.",
        ".SH COMMANDS",
    ]
    for name, summary in COMMANDS.items():
        lines += _command(name, summary)
    lines += [".SH EXIT STATUS", *_tagged((str(code), text) for code, text in EXITS.items())]
    lines += [".TP", ".B 1", _text("no: a check that says yes, a command that failed")]
    lines += [".SH ENVIRONMENT", *_tagged(_ENVIRONMENT.items())]
    lines += [".SH FILES", *_tagged(_FILES.items())]
    lines += [".SH SEE ALSO", ".BR git (1),", ".BR mount (8),", ".BR fusermount3 (1)"]
    return "\n".join(lines) + "\n"


def _command(name: str, summary: str) -> list[str]:
    parser = parser_of(name)
    usage = " ".join(parser.format_usage().split()).removeprefix("usage: ")
    lines = [
        f'.SS "{_text(name)} \\- {_text(summary)}"',
        _text(usage),
        ".PP",
        _text(parser.description or ""),
    ]
    lines += _tagged(
        (_invocation(action), _help(action))
        for action in parser._actions
        if action.help != "==SUPPRESS==" and action.dest != "help"
    )
    lines += [".PP", "Examples:", ".PP", ".RS", ".EX", *map(_text, parser.examples), ".EE", ".RE"]
    codes = _tagged((str(code), text) for code, text in parser.exits.items())
    lines += [".PP", "Exit status:", ".RS", ".PD 0", *codes, ".PD", ".RE"]
    return lines


def _invocation(action: argparse.Action) -> str:
    value = action.metavar if isinstance(action.metavar, str) else None
    if value is None and action.choices is not None:
        value = "|".join(map(str, action.choices))
    if not action.option_strings:
        return value or action.dest
    names = ", ".join(action.option_strings)
    return names if action.nargs == 0 else f"{names} {value or action.dest.upper()}"


def _help(action: argparse.Action) -> str:
    text = action.help or ""
    return text % vars(action) if "%(" in text else text


def _tagged(items: Iterable[tuple[str, str]]) -> list[str]:
    lines = []
    for tag, text in items:
        lines += [".TP", f".B {_text(tag)}", _text(text)]
    return lines


def _text(text: str) -> str:
    """Plain text for troff: what means something to it is escaped."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    for mark, name in (("'", "\\(aq"), ("`", "\\(ga"), ("^", "\\(ha"), ("~", "\\(ti")):
        escaped = escaped.replace(mark, name)
    escaped = "".join(c if c.isascii() else f"\\[u{ord(c):04X}]" for c in escaped)
    return "\n".join(
        "\\&" + line if line.startswith(".") else line for line in escaped.splitlines() or ["\\&"]
    )
