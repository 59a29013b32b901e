"""Which task a shell works for, when its own script begins with saying so.

Agents' hooks write ``export FSGUARD_TASK=… FSGUARD_PARENT=…; `` before a shell
command. What the shell executes has that in its environment. The shell itself,
and what it forks for a redirection or a subshell, does not: the kernel shows the
environment with which a process was executed. But its command line holds the words.

This claims no more than the `export` itself does, which every child of that shell
carries: no security boundary, as FSGUARD_TASK in an environment is none. It only
has to be told from words that the shell merely handles. So it counts in the script
of ``sh -c`` and nowhere else, and only where a command can begin: at the script's
start, after ``;``, ``&&``, ``{`` or a newline, or as what `eval` is given, since
tools hand a command on in those ways. A quotation after another command
(``grep 'export FSGUARD_TASK=…'``) is none of these.
"""

from __future__ import annotations

import re

from fsguard.attribution.procfs import Stat

__all__ = ["is_shell", "marked", "script", "unmarked"]

_SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh", "ksh93", "mksh", "ash", "fish"))
_WITH_VALUE = frozenset((b"--rcfile", b"--init-file", b"--emulate"))
_LIMIT = 200
# The hooks write plain words wherever they can (`fsguard.hooks.shell`); a quoted parent is known by
# other means, a quoted task is not to be had from here.
_MARK = re.compile(
    rb"(?:^\s*|[;&|(\n]\s*|\{\s+|\beval\s+(?:--\s+)?\$?['\"])"
    rb"(?P<mark>export FSGUARD_TASK=(?P<task>[\w.-]{1,%d})(?: FSGUARD_PARENT=(?:(?P<parent>[\w.-]{1,%d})|"
    rb"[^;\n]{1,800}))?; )" % (_LIMIT, _LIMIT)
)


def is_shell(stat: Stat) -> bool:
    """By the name of what was executed: a look at the command line costs a read."""
    return stat.comm in _SHELLS


def script(cmdline: bytes) -> bytes | None:
    """The script of ``sh [OPTIONS] -c SCRIPT``, from a ``/proc/PID/cmdline``; None when there is none."""
    words = iter(cmdline.split(b"\0")[1:])
    commands = False
    for word in words:
        if word in (b"-", b"--"):  # the end of the options
            return next(words, None) if commands else None
        if word[:1] not in (b"-", b"+"):
            return word if commands else None
        if word in _WITH_VALUE:
            next(words, None)
        elif not word.startswith(b"--"):
            commands = commands or (word.startswith(b"-") and b"c" in word)
            if word[-1:] in (b"o", b"O"):  # set -o NAME, shopt -O NAME
                next(words, None)
    return None


def marked(cmdline: bytes) -> dict[bytes, bytes]:
    """FSGUARD_TASK (and FSGUARD_PARENT) as a shell's script exports them; empty when it does not."""
    text = script(cmdline)
    found = _MARK.search(text) if text is not None else None
    if found is None or text is None:
        return {}
    if {other["task"] for other in _MARK.finditer(text)} != {found["task"]}:
        return {}  # a script that works for several, one after the other: not known for which now
    env = {b"FSGUARD_TASK": found["task"]}
    if found["parent"]:
        env[b"FSGUARD_PARENT"] = found["parent"]
    return env


def unmarked(cmdline: bytes) -> bytes:
    """The command line as the agent knows it: what others are told should not be about us."""
    text = script(cmdline)
    found = _MARK.search(text) if text is not None else None
    if found is None or text is None:
        return cmdline
    return cmdline.replace(text, text[: found.start("mark")] + text[found.end("mark") :], 1)
