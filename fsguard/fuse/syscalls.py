"""System calls that Python's standard library lacks, by ctypes.

Each function raises OSError with the call's errno. Paths are bytes.
"""

from __future__ import annotations

import ctypes
import os

__all__ = [
    "AT_FDCWD",
    "CLONE_NEWNS",
    "MNT_DETACH",
    "MS_REC",
    "MS_SLAVE",
    "UMOUNT_NOFOLLOW",
    "UTIME_NOW",
    "UTIME_OMIT",
    "capget",
    "capset",
    "fallocate",
    "mount",
    "renameat2",
    "set_utimes",
    "setfsgid",
    "setfsuid",
    "setns",
    "umount",
    "unshare",
]

AT_FDCWD = -100
CLONE_NEWNS = 0x00020000
MS_REC = 0x4000
MS_SLAVE = 1 << 19
MNT_DETACH = 2
UMOUNT_NOFOLLOW = 8
UTIME_NOW = (1 << 30) - 1
UTIME_OMIT = (1 << 30) - 2

_libc = ctypes.CDLL(None, use_errno=True)
_int, _uint, _ulong, _str = ctypes.c_int, ctypes.c_uint, ctypes.c_ulong, ctypes.c_char_p

_libc.mount.argtypes = [_str, _str, _str, _ulong, _str]
_libc.umount2.argtypes = [_str, _int]
_libc.unshare.argtypes = [_int]
_libc.setns.argtypes = [_int, _int]
_libc.renameat2.argtypes = [_int, _str, _int, _str, _uint]
_libc.fallocate64.argtypes = [_int, _int, ctypes.c_int64, ctypes.c_int64]
_libc.setfsuid.argtypes = [_uint]
_libc.setfsgid.argtypes = [_uint]


class _Timespec(ctypes.Structure):
    _fields_ = [("sec", ctypes.c_long), ("nsec", ctypes.c_long)]


_Times = _Timespec * 2
_libc.utimensat.argtypes = [_int, _str, ctypes.POINTER(_Timespec), _int]


def _check(result: int) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def mount(source: bytes | None, target: bytes, kind: bytes | None, flags: int, data: bytes | None) -> None:
    _check(_libc.mount(source, target, kind, flags, data))


def umount(target: bytes, flags: int) -> None:
    _check(_libc.umount2(target, flags))


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags))


def setns(fd: int, kind: int) -> None:
    _check(_libc.setns(fd, kind))


def renameat2(source_dir: int, source: bytes, target_dir: int, target: bytes, flags: int) -> None:
    _check(_libc.renameat2(source_dir, source, target_dir, target, flags))


def fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    _check(_libc.fallocate64(fd, mode, offset, length))


def set_utimes(path: bytes, atime: tuple[int, int], mtime: tuple[int, int]) -> None:
    """utimensat(2): (seconds, nanoseconds) each; nanoseconds may be UTIME_NOW or UTIME_OMIT."""
    _check(_libc.utimensat(AT_FDCWD, path, _Times(_Timespec(*atime), _Timespec(*mtime)), 0))


# setfsuid and setfsgid report the previous id and no errors; both act on the
# calling thread alone, also in glibc.
def setfsuid(uid: int) -> None:
    _libc.setfsuid(uid)


def setfsgid(gid: int) -> None:
    _libc.setfsgid(gid)


class _CapHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _CapData(ctypes.Structure):
    _fields_ = [
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    ]


_CapDataPair = _CapData * 2
_cap_header = _CapHeader(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this thread


def capget() -> tuple[int, int, int]:
    """(effective, permitted, inheritable) capability masks of this thread."""
    data = _CapDataPair()
    _check(_libc.capget(ctypes.byref(_cap_header), data))
    low, high = data[0], data[1]
    return (
        low.effective | high.effective << 32,
        low.permitted | high.permitted << 32,
        low.inheritable | high.inheritable << 32,
    )


def capset(effective: int, permitted: int, inheritable: int) -> None:
    mask = 0xFFFFFFFF
    data = _CapDataPair(
        _CapData(effective & mask, permitted & mask, inheritable & mask),
        _CapData(effective >> 32, permitted >> 32, inheritable >> 32),
    )
    _check(_libc.capset(ctypes.byref(_cap_header), data))
