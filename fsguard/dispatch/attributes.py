"""What a file's virtual attributes say: ``getfattr -n user.fsguard.writer FILE``.

For tools that know nothing of fsguard. They are not in the list of a file's
attributes, so that no copy takes them along, and they cannot be set.
"""

from __future__ import annotations

import os

from fsguard.core.guard import Guard
from fsguard.core.model import Task
from fsguard.observer import FileView

__all__ = ["ATTRIBUTES", "value"]

ATTRIBUTES = ("writer", "version", "warnings")

_LARGEST = 65_536  # XATTR_SIZE_MAX of the kernel


def value(guard: Guard, task: Task | None, file: FileView, name: str) -> bytes | None:
    """One of `ATTRIBUTES` of a file; None when there is none.

    ``writer``: the task that wrote it last, or ``external: COMMAND (pid N)``; none
    when nobody has since the mount. ``version``: a number that moves with each
    change of content, the N of PATH@N, 0 when it has not changed. ``warnings``: the
    sentences about it that wait to be told, to `task` or, asked by no task, to anybody.
    Asking marks nothing as told.
    """
    paths = file.paths()
    if not file.is_regular() or not paths:
        return None
    if name == "warnings":
        pending = guard.outbox.pending(task.id if task is not None else None)
        return _fitting([w.message for w in pending if not w.paths.keys().isdisjoint(paths)])
    states = [state for state in map(guard.ledger.find, paths) if state is not None]
    newest = max(states, key=lambda state: state.version, default=None)
    if name == "version":
        return b"%d" % (newest.version if newest is not None else 0)
    if name != "writer" or newest is None or not newest.writers:
        return None
    last = newest.writers[-1]
    text = last.author
    if text is None:
        text = f"external: {last.command.text} (pid {last.process.pid})"
    return os.fsencode(text)


def _fitting(messages: list[str]) -> bytes:
    """One after the other, as many whole ones as an attribute can hold."""
    found = b""
    for message in messages:
        line = message.encode("utf-8", "backslashreplace") + b"\n"
        if len(found) + len(line) > _LARGEST:
            break
        found += line
    return found
