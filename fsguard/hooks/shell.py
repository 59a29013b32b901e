"""A shell command that belongs to a task: the same command, after an `export`.

A prefix leaves the command as it is: its exit code, `cd`, here-documents,
background jobs, `set -e`, aliases and shell functions mean what they meant.
(`env … sh -c` would start another shell, which loses cwd and functions.)

The words stay plain, without quotation marks, wherever they can: the tool quotes
the command once more for its own shell, and the mark must be found in that
shell's command line too. (The shell itself writes what is redirected, and its
environment, as the kernel shows it, is the one that it was started with.) Nor do
permission rules stumble over them. So what the task is about is not in there;
the daemon is told that by itself.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["belongs_to", "exports", "quote"]

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")
_NAMES = ("FSGUARD_TASK", "FSGUARD_PARENT")


def quote(text: str) -> str:
    """`text` as one word of any POSIX shell. A zero byte cannot be said; it is left out."""
    if text and _PLAIN.issuperset(text):
        return text
    return "'" + text.replace("\0", "").replace("'", "'\\''") + "'"


def exports(variables: Mapping[str, str]) -> str:
    """`export FSGUARD_TASK=A FSGUARD_PARENT=B`, of those that are there."""
    words = [f"{name}={quote(variables[name])}" for name in _NAMES if name in variables]
    return " ".join(["export", *words])


def belongs_to(variables: Mapping[str, str], command: str) -> str:
    """`command` with the variables exported before it; once is enough."""
    prefix = exports(variables) + "; "
    return command if not variables or command.startswith(prefix) else prefix + command
