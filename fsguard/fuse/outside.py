"""What fanotify says of changes behind the mount, in the words of the observer."""

from __future__ import annotations

from ..observer import Outside

__all__ = ["change"]

# include/uapi/linux/fanotify.h
_MODIFY, _ATTRIB, _CLOSE_WRITE = 0x2, 0x4, 0x8
_CREATE, _DELETE, _OVERFLOW = 0x100, 0x200, 0x4000
_RENAME, _ONDIR = 0x10000000, 0x40000000
_THERE = 1 << 62  # `lane/watch.c`: created and deleted, in whatever order, and there now


def change(mask: int, path: bytes | None, target: bytes | None, pid: int, at: float) -> Outside:
    """Equal events merge into one, so several things may have happened; they are put in the likely order."""
    kinds = []
    if mask & _OVERFLOW:
        kinds.append("lost")
    if mask & _RENAME:
        kinds.append("rename")
    if mask & _DELETE and mask & _THERE:
        kinds.append("delete")
    if mask & _CREATE:
        kinds.append("create")
    if mask & _MODIFY or (mask & _CLOSE_WRITE and not mask & _CREATE):
        kinds.append("write")
    if mask & _ATTRIB and not mask & (_CREATE | _MODIFY | _DELETE):
        kinds.append("attributes")
    if mask & _DELETE and not mask & _THERE:
        kinds.append("delete")
    return Outside(kinds, path, target, pid, at, bool(mask & _ONDIR))
