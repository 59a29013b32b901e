"""fanotify(7) as far as the Python filesystem needs it: marks on directories, events with names.

The lane has the same in C (`lane/watch.c`). Linux 5.17, for FAN_RENAME; works
without privileges, too, where events of others carry no process id.
"""

from __future__ import annotations

import ctypes
import os
import struct
from errno import EINVAL, EPERM, EREMOTE
from typing import NamedTuple

__all__ = ["DATA", "NAMES", "OVERFLOW", "Event", "Group", "Place", "is_shared", "parse"]

# include/uapi/linux/fanotify.h
MODIFY, ATTRIB, CLOSE_WRITE, CREATE, DELETE, OVERFLOW = 0x2, 0x4, 0x8, 0x100, 0x200, 0x4000
ON_CHILD, RENAME, ON_DIR = 0x08000000, 0x10000000, 0x40000000
NAMES, DATA = CREATE | DELETE | RENAME, MODIFY | CLOSE_WRITE
_MASK = NAMES | DATA | ATTRIB | ON_DIR | ON_CHILD
_INIT = 0x1 | 0x2 | 0xC00  # CLOEXEC, NONBLOCK, REPORT_DFID_NAME
_UNLIMITED_MARKS = 0x20
_ADD, _REMOVE, _ONLY_DIRECTORY = 0x1, 0x2, 0x8
_DFID_NAME, _OLD, _NEW = 2, 10, 12
_AT_EMPTY_PATH, _AT_HANDLE_FID = 0x1000, 0x200
_EVENT = struct.Struct("=IBBHQii")
_HANDLE_MAX = 128
_BUFFER = 65536
# Others may change these without this kernel's knowing: see lane/watch.c.
_SHARED = {
    *(0x6969, 0xFF534D42, 0xFE534D42, 0x517B, 0x01021997, 0x65735546, 0x00C36400, 0x0BD00BD0),
    *(0x7461636F, 0x01161970, 0x5346414F, 0x6B414653, 0x73757245, 0x786F4256, 0x19830326, 0x47504653),
}

_libc = ctypes.CDLL(None, use_errno=True)
_int, _uint = ctypes.c_int, ctypes.c_uint
_libc.fanotify_mark.argtypes = [_int, _uint, ctypes.c_uint64, _int, ctypes.c_char_p]
_libc.name_to_handle_at.argtypes = [_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(_int), _int]


class Place(NamedTuple):
    """A name in a directory; `key` is as `Group.mark` has given it."""

    key: bytes
    name: bytes


class Event(NamedTuple):
    """`target` is where FAN_RENAME has led; None: to where nobody listens (or from where, `source`)."""

    mask: int
    pid: int
    source: Place | None
    target: Place | None


def _check(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


class Group:
    """Raises OSError where fanotify cannot be had."""

    def __init__(self) -> None:
        try:
            self.fd = _check(_libc.fanotify_init(_INIT | _UNLIMITED_MARKS, os.O_CLOEXEC))
        except OSError as error:
            if error.errno != EPERM:
                raise
            self.fd = _check(_libc.fanotify_init(_INIT, os.O_CLOEXEC))

    def mark(self, directory: int) -> bytes:
        """Hear of what happens in the directory of an O_PATH descriptor; how events will name it.

        Raises OSError: EREMOTE where other machines may change it.
        """
        key = _key(directory)
        _check(_libc.fanotify_mark(self.fd, _ADD | _ONLY_DIRECTORY, _MASK, directory, b"."))
        return key

    def unmark(self, directory: int) -> None:
        """No more. OSError: it has no mark."""
        _check(_libc.fanotify_mark(self.fd, _REMOVE | _ONLY_DIRECTORY, _MASK, directory, b"."))

    def read(self) -> list[Event]:
        """What there is; empty: nothing."""
        try:
            return parse(os.read(self.fd, _BUFFER))
        except BlockingIOError:
            return []

    def close(self) -> None:
        os.close(self.fd)


def _key(directory: int) -> bytes:
    """Filesystem id and file handle, as they stand in events."""
    fsid = os.fstatvfs(directory).f_fsid
    if is_shared(directory):
        raise OSError(EREMOTE, "other machines may change it")
    handle = (ctypes.c_char * (8 + _HANDLE_MAX))()
    mount_id = _int()
    for flags in (_AT_EMPTY_PATH | _AT_HANDLE_FID, _AT_EMPTY_PATH):
        struct.pack_into("=I", handle, 0, _HANDLE_MAX)
        if _libc.name_to_handle_at(directory, b"", handle, ctypes.byref(mount_id), flags) == 0:
            break
        if ctypes.get_errno() != EINVAL or flags == _AT_EMPTY_PATH:
            _check(-1)
    (size,) = struct.unpack_from("=I", handle)
    return struct.pack("=Q", fsid & 0xFFFFFFFFFFFFFFFF) + handle.raw[: 8 + size]


class _Statfs(ctypes.Structure):
    _fields_ = [("type", ctypes.c_long), ("rest", ctypes.c_char * 248)]


def is_shared(fd: int) -> bool:
    """Whether others may change the filesystem without this kernel's knowing."""
    found = _Statfs()
    _check(_libc.fstatfs(fd, ctypes.byref(found)))
    return int(found.type) & 0xFFFFFFFF in _SHARED


def parse(buffer: bytes) -> list[Event]:
    """Events as read(2) gives them; what makes no sense ends it."""
    events = []
    at = 0
    while at + _EVENT.size <= len(buffer):
        length, version, _, head, mask, _, pid = _EVENT.unpack_from(buffer, at)
        end = at + length
        if length < _EVENT.size or end > len(buffer) or not _EVENT.size <= head <= length or version != 3:
            break
        places: dict[int, Place] = {}
        info = at + head
        while info + 4 <= end:
            kind, _, size = struct.unpack_from("=BBH", buffer, info)
            if size < 4 or info + size > end:
                break
            place = _place(buffer[info + 4 : info + size])
            if place is not None:
                places[kind] = place
            info += size
        source, target = places.get(_DFID_NAME) or places.get(_OLD), places.get(_NEW)
        if source is not None or target is not None or mask & OVERFLOW:
            events.append(Event(mask, pid, source, target))
        at = end
    return events


def _place(body: bytes) -> Place | None:
    if len(body) < 16:
        return None
    (size,) = struct.unpack_from("=I", body, 8)
    name, end, _ = body[16 + size :].partition(b"\0")
    return Place(body[: 16 + size], name) if end and size <= _HANDLE_MAX else None
