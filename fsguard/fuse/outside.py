"""What fanotify says of changes behind the mount, in the words of the observer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from ..observer import Outside

__all__ = ["THERE", "Outsides", "kinds"]

MAX_AUTHORS = 256

# include/uapi/linux/fanotify.h
_MODIFY, _ATTRIB, _CLOSE_WRITE = 0x2, 0x4, 0x8
_CREATE, _DELETE, _OVERFLOW = 0x100, 0x200, 0x4000
_RENAME, _ONDIR = 0x10000000, 0x40000000
# lane/watch.c: created and deleted, in whatever order, and there now; no change, but a file of /proc/PID.
THERE, _AUTHOR = 1 << 62, 1 << 61


class Outsides:
    """Remembers what /proc said of the last authors."""

    def __init__(self) -> None:
        self._authors: OrderedDict[int, dict[str, bytes]] = OrderedDict()

    def read(
        self, changes: Iterable[tuple[int, bytes | None, bytes | None, int, float]]
    ) -> Iterator[Outside]:
        """Changes as the lane gives them (`engine.take_changes`)."""
        for mask, path, target, pid, at in changes:
            if mask & _AUTHOR:
                self._note(pid, (path or b"").decode("ascii"), target or b"")
            else:
                yield Outside(
                    kinds(mask), path, target, pid, at, bool(mask & _ONDIR), self._authors.get(pid, {})
                )

    def _note(self, pid: int, name: str, text: bytes) -> None:
        if name == "stat" or pid not in self._authors:  # the first that is read
            self._authors[pid] = {}
            self._authors.move_to_end(pid)
            if len(self._authors) > MAX_AUTHORS:
                self._authors.popitem(last=False)
        self._authors[pid][name] = text


def kinds(mask: int) -> list[str]:
    """Equal events merge into one, so several things may have happened; they are put in the likely order."""
    found = []
    if mask & _OVERFLOW:
        found.append("lost")
    if mask & _RENAME:
        found.append("rename")
    if mask & _DELETE and mask & THERE:
        found.append("delete")
    if mask & _CREATE:
        found.append("create")
    if mask & _MODIFY or (mask & _CLOSE_WRITE and not mask & _CREATE):
        found.append("write")
    if mask & _ATTRIB and not mask & (_CREATE | _MODIFY | _DELETE):
        found.append("attributes")
    if mask & _DELETE and not mask & THERE:
        found.append("delete")
    return found
