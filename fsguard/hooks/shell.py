"""A shell command that belongs to a task: the same command, after an `export`.

A prefix leaves the command as it is: its exit code, `cd`, here-documents,
background jobs, `set -e`, aliases and shell functions mean what they meant.
(`env … sh -c` would start another shell, which loses cwd and functions.)
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["belongs_to", "exports", "quote"]


def quote(text: str) -> str:
    """`text` as one word of any POSIX shell. A zero byte cannot be said; it is left out."""
    return "'" + text.replace("\0", "").replace("'", "'\\''") + "'"


def exports(variables: Mapping[str, str]) -> str:
    """`export A='1' B='2'`"""
    return "export " + " ".join(f"{name}={quote(value)}" for name, value in variables.items())


def belongs_to(variables: Mapping[str, str], command: str) -> str:
    """`command` with the variables exported before it; once is enough."""
    prefix = exports(variables) + "; "
    return command if not variables or command.startswith(prefix) else prefix + command
