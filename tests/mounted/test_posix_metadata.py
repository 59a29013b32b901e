"""Modes, owners, times, extended attributes, ACLs, statvfs, access(2)."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import stat
import struct
import time
from collections.abc import Callable

import pytest

from tests.kit.posix import (
    AT_FDCWD,
    OLD,
    Places,
    Row,
    Table,
    as_user,
    attempt,
    check,
    elsewhere,
    get,
    libc,
    opened,
    put,
)

table = Table()
NOW, OMIT = (1 << 30) - 1, (1 << 30) - 2

# ---- chmod and chown -----------------------------------------------------------------


def modes(d: str, *names: str) -> dict[str, str]:
    return {name: oct(os.lstat(d + name).st_mode) for name in names}


@table.row
def every_mode_comes_back(d: str) -> object:
    put(d + "/f")
    os.mkdir(d + "/dir")
    seen = []
    for mode in (0, 0o777, 0o644, 0o4755, 0o2755, 0o6755, 0o1777, 0o7777, 0o111):
        os.chmod(d + "/f", mode)
        os.chmod(d + "/dir", mode)
        seen.append(modes(d, "/f", "/dir"))
    os.chmod(d + "/dir", 0o755)
    return seen


@table.row
def fchmod_of_a_read_only_descriptor(d: str) -> object:
    put(d + "/f")
    with opened(d + "/f") as fd:
        os.fchmod(fd, 0o640)
        return oct(os.fstat(fd).st_mode), modes(d, "/f")


@table.row
def chmod_errors(d: str) -> object:
    put(d + "/f")
    os.symlink("nowhere", d + "/s")
    return [attempt(os.chmod, d + name, 0o600) for name in ("/none", "/f/x", "/s", "/f/")]


@table.root_row
def chmod_and_chown_of_others(d: str) -> object:
    put(d + "/f", b"x", 0o666)
    os.chown(d + "/f", 4001, 4002)
    return {
        "chmod by another": as_user(4005, lambda: os.chmod(d + "/f", 0o600)),
        "chmod by the owner": as_user(4001, lambda: os.chmod(d + "/f", 0o660)),
        "owner gives it away": as_user(4001, lambda: os.chown(d + "/f", 4005, -1)),
        "owner to an own group": as_user(4001, lambda: os.chown(d + "/f", -1, 4007), groups=[4007]),
        "owner to a foreign group": as_user(4001, lambda: os.chown(d + "/f", -1, 4008), groups=[4007]),
        "another changes the group": as_user(4005, lambda: os.chown(d + "/f", -1, 4005)),
        "nothing changes": as_user(4001, lambda: os.chown(d + "/f", -1, -1)),
        "another, nothing": as_user(4005, lambda: os.chown(d + "/f", -1, -1)),
        "after": (os.stat(d + "/f").st_uid, os.stat(d + "/f").st_gid, oct(os.stat(d + "/f").st_mode)),
    }


@table.root_row
def chown_clears_setuid_and_setgid(d: str) -> object:
    seen = []
    for mode in (0o6755, 0o6644, 0o4755, 0o2755, 0o2745, 0o1755):
        put(d + "/f")
        os.chown(d + "/f", 4001, 4001)
        os.chmod(d + "/f", mode)
        os.chown(d + "/f", 4002, 4002)
        seen.append(modes(d, "/f"))
        os.unlink(d + "/f")
    os.mkdir(d + "/dir")
    os.chmod(d + "/dir", 0o6755)
    os.chown(d + "/dir", 4002, 4002)
    return seen, modes(d, "/dir")


@table.root_row
def chown_by_the_owner_clears_setuid(d: str) -> object:
    put(d + "/f")
    os.chown(d + "/f", 4001, 4001)
    os.chmod(d + "/f", 0o6755)
    result = as_user(4001, lambda: os.chown(d + "/f", -1, 4007), groups=[4007])
    return result, modes(d, "/f")


@table.root_row
def chmod_by_a_non_member_drops_setgid(d: str) -> object:
    put(d + "/f")
    os.chown(d + "/f", 4001, 4009)
    return as_user(4001, lambda: os.chmod(d + "/f", 0o2755)), modes(d, "/f")


def clearing_row(what: str, mode: int, uid: int) -> Callable[[str], object]:
    def act(path: str) -> object:
        if what == "write":
            with opened(path, os.O_WRONLY) as fd:
                return os.write(fd, b"x")
        if what == "append":
            with opened(path, os.O_WRONLY | os.O_APPEND) as fd:
                return os.write(fd, b"x")
        if what == "truncate":
            return os.truncate(path, 2)
        if what == "open_truncating":
            return os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))
        if what == "mapping":
            with opened(path, os.O_RDWR) as fd, mmap.mmap(fd, 0) as area:
                area[0:1] = b"Z"
            return None
        if what == "setxattr":
            return os.setxattr(path, "user.x", b"1")
        assert what == "utime"
        return os.utime(path)

    def row(d: str) -> object:
        put(d + "/f", b"content")
        os.chown(d + "/f", 4001, 4001)
        os.chmod(d + "/f", mode)
        result = act(d + "/f") if uid == 0 else as_user(uid, lambda: act(d + "/f"))
        return result, modes(d, "/f"), oct(elsewhere(lambda: os.stat(d + "/f").st_mode))

    return row


for what in ("write", "append", "truncate", "open_truncating", "mapping", "setxattr", "utime"):
    for mode in (0o6777, 0o2767):
        for uid in (0, 4001, 4005):
            table.add(f"setuid_after_{what}_{mode:o}_by_{uid}", clearing_row(what, mode, uid), root=True)


@table.root_row
def file_capabilities_survive_reading_and_fall_with_a_write(d: str) -> object:
    capability = struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0)
    put(d + "/f", b"content", 0o777)
    os.setxattr(d + "/f", "security.capability", capability)
    seen = [attempt(os.getxattr, d + "/f", "security.capability"), get(d + "/f")]
    seen.append(attempt(os.getxattr, d + "/f", "security.capability"))
    as_user(4005, lambda: put(d + "/f", b"changed"))
    seen.append(attempt(os.getxattr, d + "/f", "security.capability"))
    os.setxattr(d + "/f", "security.capability", capability)
    os.chown(d + "/f", 4001, 4001)
    seen.append(attempt(os.getxattr, d + "/f", "security.capability"))
    return seen


def append_to(path: str) -> None:
    with open(path, "ab") as file:
        file.write(b"y")


@table.root_row
def file_capabilities_fall_with_roots_write_and_truncate(d: str) -> object:
    capability = struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0)
    seen = []
    for act in (
        lambda p: os.truncate(p, 1),
        lambda p: put(p, b"x"),
        append_to,
        lambda p: os.chmod(p, 0o700),
    ):
        put(d + "/f", b"content", 0o777)
        os.setxattr(d + "/f", "security.capability", capability)
        act(d + "/f")
        seen.append(attempt(os.getxattr, d + "/f", "security.capability"))
    return seen


@table.row
def executing_needs_an_execute_bit(d: str) -> object:
    put(d + "/f", b"#!/bin/sh\nexit 7\n", 0o644)
    first = attempt(os.execv, d + "/f", ["f"])
    os.chmod(d + "/f", 0o755)
    return first, os.spawnv(os.P_WAIT, d + "/f", ["f"])


# ---- times -----------------------------------------------------------------------------


def utimensat(path: str, atime: tuple[int, int], mtime: tuple[int, int], flags: int = 0) -> None:
    times = (ctypes.c_long * 4)(*atime, *mtime)
    check(libc.utimensat(AT_FDCWD, os.fsencode(path), times, flags))


def times(path: str) -> tuple[int, int]:
    st = os.lstat(path)
    return st.st_atime_ns, st.st_mtime_ns


def is_now(value: int) -> bool:
    return abs(value - time.time_ns()) < 10 * 10**9


@table.row
def times_to_the_nanosecond(d: str) -> object:
    put(d + "/f")
    seen = []
    for moment in ((0, 0), (1, 999_999_999), (OLD, 123_456_789), (4_102_444_800, 1), (-1, 5)):
        utimensat(d + "/f", moment, moment)
        seen.append(times(d + "/f"))
    return seen


@table.row
def utimensat_omit_and_now(d: str) -> object:
    put(d + "/f")
    seen = []
    for atime, mtime in itertools.product((NOW, OMIT, 7), repeat=2):
        utimensat(d + "/f", (OLD, 1), (OLD, 2))
        utimensat(d + "/f", (OLD + 5, atime), (OLD + 6, mtime))
        seen.append(["now" if is_now(value) else value for value in times(d + "/f")])
    return seen


@table.row
def utime_without_times_and_of_symlinks(d: str) -> object:
    put(d + "/f")
    os.symlink("f", d + "/s")
    utimensat(d + "/s", (OLD, 1), (OLD, 2), 0x100)
    os.utime(d + "/f", (1, 1))
    os.utime(d + "/s")
    return times(d + "/s")[1], [is_now(value) for value in times(d + "/f")]


@table.row
def utime_errors(d: str) -> object:
    put(d + "/f")
    return (
        attempt(os.utime, d + "/none"),
        attempt(os.utime, d + "/f/x"),
        attempt(utimensat, d + "/f", (0, -5), (0, 0)),
        attempt(utimensat, d + "/f", (0, 10**9), (0, 0)),
    )


@table.root_row
def utime_by_others(d: str) -> object:
    put(d + "/f", b"x", 0o666)
    put(d + "/g", b"x", 0o644)
    return (
        as_user(4005, lambda: os.utime(d + "/f")),
        as_user(4005, lambda: os.utime(d + "/g")),
        as_user(4005, lambda: os.utime(d + "/f", (1, 1))),
        as_user(4005, lambda: utimensat(d + "/f", (0, NOW), (0, OMIT))),
        as_user(4005, lambda: utimensat(d + "/f", (0, OMIT), (0, OMIT))),
        as_user(4005, lambda: utimensat(d + "/g", (0, OMIT), (0, OMIT))),
    )


@table.row
def futimens_of_open_and_unlinked(d: str) -> object:
    put(d + "/f")
    with opened(d + "/f") as fd:
        os.utime(fd, ns=(1, 2))
        first = os.fstat(fd).st_mtime_ns
        os.unlink(d + "/f")
        os.utime(fd, ns=(3, 4))
        return first, os.fstat(fd).st_mtime_ns


def moved(path: str, act: Callable[[], object]) -> tuple[object, bool, bool, bool]:
    """Which times an action moves: atime, mtime, ctime."""
    utimensat(path, (OLD, 0), (OLD, 0), 0x100)
    before = os.lstat(path)
    time.sleep(0.012)
    result = act()
    after = os.lstat(path)
    return (
        result if isinstance(result, str | int | bytes) else None,
        after.st_atime_ns != before.st_atime_ns,
        after.st_mtime_ns != before.st_mtime_ns,
        after.st_ctime_ns != before.st_ctime_ns,
    )


@table.row
def which_times_move_on_files(d: str) -> object:
    path = put(d + "/f", b"0123456789")

    def write(flags: int = 0, data: bytes = b"x") -> int:
        with opened(path, os.O_WRONLY | flags) as fd:
            return os.write(fd, data)

    def touch_open() -> None:
        os.close(os.open(path, os.O_WRONLY))

    return {
        "open": moved(path, touch_open),
        "read": moved(path, lambda: get(path)),
        "write": moved(path, write),
        "append": moved(path, lambda: write(os.O_APPEND)),
        "write nothing": moved(path, lambda: write(0, b"")),
        "open truncating": moved(path, lambda: os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))),
        "truncate to more": moved(path, lambda: os.truncate(path, 50)),
        "truncate to the same": moved(path, lambda: os.truncate(path, 50)),
        "chmod": moved(path, lambda: os.chmod(path, 0o600)),
        "link": moved(path, lambda: os.link(path, d + "/l")),
        "unlink a link": moved(path, lambda: os.unlink(d + "/l")),
        "setxattr": moved(path, lambda: os.setxattr(path, "user.x", b"1")),
        "stat": moved(path, lambda: os.stat(path).st_size),
        "fsync": moved(path, lambda: elsewhere(lambda: os.fsync(os.open(path, os.O_RDWR)))),
    }


@table.row
def which_times_move_on_open_files(d: str) -> object:
    path = put(d + "/f", b"0123456789")
    with opened(path, os.O_RDWR) as fd:
        return {
            "write": moved(path, lambda: os.pwrite(fd, b"x", 0)),
            "write again": moved(path, lambda: os.pwrite(fd, b"x", 0)),
            "read": moved(path, lambda: os.pread(fd, 5, 0)),
            "ftruncate": moved(path, lambda: os.ftruncate(fd, 3)),
            "ftruncate to the same": moved(path, lambda: os.ftruncate(fd, 3)),
        }


@table.row
def which_times_move_on_directories(d: str) -> object:
    path = d + "/dir"
    os.mkdir(path)
    return {
        "create": moved(path, lambda: put(path + "/f")),
        "write below": moved(path, lambda: put(path + "/f", b"more")),
        "chmod below": moved(path, lambda: os.chmod(path + "/f", 0o600)),
        "mkdir": moved(path, lambda: os.mkdir(path + "/d")),
        "rename within": moved(path, lambda: os.rename(path + "/f", path + "/g")),
        "link": moved(path, lambda: os.link(path + "/g", path + "/h")),
        "unlink": moved(path, lambda: os.unlink(path + "/h")),
        "rename out": moved(path, lambda: os.rename(path + "/g", d + "/g")),
        "rmdir": moved(path, lambda: os.rmdir(path + "/d")),
        "symlink": moved(path, lambda: os.symlink("x", path + "/s")),
        "list": moved(path, lambda: len(os.listdir(path)))[0],
        "renamed itself": moved(path, lambda: os.rename(path, path)),
    }


@table.row
def rename_moves_the_ctime_of_the_file(d: str) -> object:
    path = put(d + "/f")
    before = os.stat(path).st_ctime_ns
    time.sleep(0.012)
    os.rename(path, d + "/g")
    return os.stat(d + "/g").st_ctime_ns != before


@table.row
def atime_follows_relatime(d: str) -> object:
    path = put(d + "/f", b"x" * 10)
    seen = []
    for ages in ((OLD, OLD), (time.time() - 100, time.time() - 200), (time.time() - 200, time.time() - 100)):
        os.utime(path, ages)
        before = os.stat(path).st_atime
        get(path)
        seen.append(os.stat(path).st_atime != before)
    return seen


@table.row
def noatime_leaves_the_atime(d: str) -> object:
    path = put(d + "/f", b"x" * 10)
    os.utime(path, (OLD, OLD))
    with opened(path, os.O_RDONLY | os.O_NOATIME) as fd:
        os.read(fd, 10)
    return os.stat(path).st_atime


@table.row
def times_are_todays(d: str) -> object:
    put(d + "/f")
    os.mkdir(d + "/dir")
    os.symlink("x", d + "/s")
    return [[is_now(value) for value in times(d + name)] for name in ("/f", "/dir", "/s")]


# ---- stat -------------------------------------------------------------------------------


@table.row
def stat_by_path_and_descriptor_agree(d: str) -> object:
    put(d + "/f", b"x" * 5000)
    with opened(d + "/f") as fd, opened(d) as directory:
        return (
            os.fstat(fd) == os.stat(d + "/f") == os.stat("f", dir_fd=directory),
            os.fstat(fd).st_blksize > 0,
            os.fstat(fd).st_blocks * 512 >= 4096,
        )


@table.row
def inode_numbers_are_stable_and_distinct(d: str) -> object:
    for number in range(200):
        put(f"{d}/{number}", b"x")
    first = {entry.name: entry.inode() for entry in os.scandir(d)}
    second = {name: os.stat(f"{d}/{name}").st_ino for name in os.listdir(d)}
    return first == second, len(set(first.values())), os.stat(d).st_ino not in first.values()


@table.row
def device_is_one(d: str) -> object:
    put(d + "/f")
    os.mkdir(d + "/dir")
    return os.stat(d + "/f").st_dev == os.stat(d + "/dir").st_dev == os.stat(d).st_dev


@table.row
def blocks_grow_with_the_file(d: str) -> object:
    put(d + "/f", b"x" * 1_000_000)
    os.sync()
    return os.stat(d + "/f").st_blocks * 512 >= 1_000_000


@table.row
def statvfs_is_of_the_filesystem_behind(d: str) -> object:
    st = os.statvfs(d)
    with opened(d) as fd:
        return st.f_bsize, st.f_frsize, st.f_blocks, st.f_files, st.f_namemax, os.fstatvfs(fd).f_blocks


@table.row
def pathconf(d: str) -> object:
    names = ("PC_NAME_MAX", "PC_PATH_MAX", "PC_PIPE_BUF", "PC_NO_TRUNC", "PC_CHOWN_RESTRICTED")
    return [os.pathconf(d, name) for name in names]


# ---- access(2) -----------------------------------------------------------------------------


@table.row
def access_for_root_or_owner(d: str) -> object:
    put(d + "/f", b"x", 0o600)
    put(d + "/x", b"x", 0o700)
    os.mkdir(d + "/dir")
    return {
        name: [os.access(d + name, bits) for bits in (os.F_OK, os.R_OK, os.W_OK, os.X_OK)]
        for name in ("/f", "/x", "/dir", "/none", "/f/x")
    }


@table.root_row
def access_for_others(d: str) -> object:
    outcomes = {}
    for mode in (0o000, 0o400, 0o040, 0o004, 0o002, 0o001, 0o755, 0o641):
        path = put(f"{d}/{mode:o}", b"x")
        os.chown(path, 4001, 4002)
        os.chmod(path, mode)
        for who, uid, gid in (("owner", 4001, 4009), ("group", 4005, 4002), ("other", 4005, 4009)):
            outcomes[oct(mode), who] = as_user(
                uid, lambda path=path: [os.access(path, b) for b in (os.R_OK, os.W_OK, os.X_OK)], gid=gid
            )
    return outcomes


@table.root_row
def access_uses_the_real_user(d: str) -> object:
    put(d + "/f", b"x", 0o600)

    def act() -> object:
        os.setresuid(4005, 0, 0)
        return (
            os.access(d + "/f", os.R_OK),
            os.access(d + "/f", os.R_OK, effective_ids=True),
            attempt(get, d + "/f"),
        )

    return elsewhere(act)


# ---- extended attributes ----------------------------------------------------------------------


@table.row
def xattrs_set_get_list_remove(d: str) -> object:
    path = put(d + "/f")
    os.setxattr(path, "user.one", b"1")
    os.setxattr(path, "user.two", bytes(range(256)))
    os.setxattr(path, "user.empty", b"")
    seen = sorted(os.listxattr(path)), [os.getxattr(path, n) for n in sorted(os.listxattr(path))]
    os.setxattr(path, "user.one", b"replaced")
    os.removexattr(path, "user.two")
    return seen, os.getxattr(path, "user.one"), sorted(os.listxattr(path))


@table.row
def xattr_flags_and_errors(d: str) -> object:
    path = put(d + "/f")
    os.setxattr(path, "user.x", b"1")
    return (
        attempt(os.setxattr, path, "user.x", b"2", os.XATTR_CREATE),
        attempt(os.setxattr, path, "user.y", b"2", os.XATTR_REPLACE),
        attempt(os.setxattr, path, "user.z", b"2", os.XATTR_CREATE),
        attempt(os.setxattr, path, "user.z", b"3", os.XATTR_REPLACE),
        attempt(os.setxattr, path, "user.z", b"3", 8),
        attempt(os.getxattr, path, "user.none"),
        attempt(os.removexattr, path, "user.none"),
        attempt(os.getxattr, d + "/none", "user.x"),
        attempt(os.setxattr, path, "nonsense", b"1"),
        attempt(os.setxattr, path, "unknown.x", b"1"),
        attempt(os.setxattr, path, "user.", b"1"),
        attempt(os.setxattr, path, "user." + "n" * 251, b"1"),
        attempt(os.setxattr, path, "user." + "n" * 250, b"1"),
        attempt(os.setxattr, path, "user.big", b"x" * 70_000),
        attempt(os.setxattr, path, "user.big", b"x" * 65_536),
    )


@table.row
def xattr_sizes_and_small_buffers(d: str) -> object:
    path = put(d + "/f")
    os.setxattr(path, "user.x", b"0123456789")
    buffer, encoded = ctypes.create_string_buffer(5), os.fsencode(path)
    return (
        check(libc.getxattr(encoded, b"user.x", None, 0)),
        attempt(lambda: check(libc.getxattr(encoded, b"user.x", buffer, 5))),
        check(libc.listxattr(encoded, None, 0)),
        attempt(lambda: check(libc.listxattr(encoded, buffer, 5))),
    )


@table.row
def xattrs_of_directories_symlinks_and_fifos(d: str) -> object:
    os.symlink("x", d + "/s")
    os.mkfifo(d + "/p")
    os.setxattr(d, "user.dir", b"1")
    seen = os.getxattr(d, "user.dir")
    os.removexattr(d, "user.dir")
    return (
        seen,
        attempt(os.setxattr, d + "/s", "user.x", b"1", follow_symlinks=False),
        attempt(os.listxattr, d + "/s", follow_symlinks=False),
        attempt(os.setxattr, d + "/p", "user.x", b"1"),
        attempt(os.listxattr, d + "/p"),
    )


@table.root_row
def trusted_and_security_xattrs(d: str) -> object:
    path = put(d + "/f", b"x", 0o666)
    os.setxattr(path, "trusted.x", b"1")
    os.setxattr(path, "security.x", b"1")
    os.symlink("x", d + "/s")
    os.setxattr(d + "/s", "trusted.x", b"1", follow_symlinks=False)
    return (
        sorted(os.listxattr(path)),
        os.listxattr(d + "/s", follow_symlinks=False),
        as_user(4005, lambda: os.getxattr(path, "trusted.x")),
        as_user(4005, lambda: os.setxattr(path, "trusted.y", b"1")),
        as_user(4005, lambda: os.setxattr(path, "security.y", b"1")),
        as_user(4005, lambda: os.getxattr(path, "security.x")),
        as_user(4005, lambda: sorted(os.listxattr(path))),
    )


@table.root_row
def xattrs_need_permission(d: str) -> object:
    path = put(d + "/f", b"x", 0o640)
    os.setxattr(path, "user.x", b"1")
    seen = [
        as_user(4005, lambda: os.getxattr(path, "user.x")),
        as_user(4005, lambda: os.setxattr(path, "user.x", b"2")),
        as_user(4005, lambda: os.listxattr(path)),
    ]
    os.chmod(path, 0o644)
    seen += [
        as_user(4005, lambda: os.getxattr(path, "user.x")),
        as_user(4005, lambda: os.setxattr(path, "user.x", b"2")),
        as_user(4005, lambda: os.removexattr(path, "user.x")),
    ]
    return seen


@table.row
def xattrs_stay_over_rename_and_link(d: str) -> object:
    os.setxattr(put(d + "/f"), "user.x", b"1")
    os.rename(d + "/f", d + "/g")
    os.link(d + "/g", d + "/h")
    return os.getxattr(d + "/h", "user.x"), os.getxattr(d + "/g", "user.x")


# ---- ACLs ------------------------------------------------------------------------------------------

USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER = 1, 2, 4, 8, 16, 32
NO_ID = 0xFFFFFFFF
ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"


def acl(*entries: tuple[int, int, int]) -> bytes:
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def usual(user: int, bits: int, mask: int = 7, other: int = 0) -> bytes:
    return acl(
        (USER_OBJ, 7, NO_ID),
        (USER, bits, user),
        (GROUP_OBJ, 5, NO_ID),
        (MASK, mask, NO_ID),
        (OTHER, other, NO_ID),
    )


@table.root_row
def access_acl_lets_a_named_user_in(d: str) -> object:
    path = put(d + "/f", b"x", 0o600)
    seen = [as_user(4005, lambda: get(path))]
    os.setxattr(path, ACCESS, usual(4005, 6))
    seen += [
        as_user(4005, lambda: get(path)),
        as_user(4005, lambda: put(path, b"changed")),
        as_user(4006, lambda: get(path)),
        oct(os.stat(path).st_mode),
        os.getxattr(path, ACCESS) == usual(4005, 6),
    ]
    os.chmod(path, 0o700)  # the mask goes, the entry stays
    seen += [as_user(4005, lambda: get(path)), os.getxattr(path, ACCESS) == usual(4005, 6, mask=0)]
    os.removexattr(path, ACCESS)
    return seen, attempt(os.getxattr, path, ACCESS), oct(os.stat(path).st_mode)


@table.root_row
def access_acl_denies_a_named_user(d: str) -> object:
    path = put(d + "/f", b"x", 0o644)
    os.setxattr(
        path,
        ACCESS,
        acl(
            (USER_OBJ, 6, NO_ID), (USER, 0, 4005), (GROUP_OBJ, 4, NO_ID), (MASK, 4, NO_ID), (OTHER, 4, NO_ID)
        ),
    )
    return as_user(4005, lambda: get(path)), as_user(4006, lambda: get(path))


@table.root_row
def named_group_in_an_acl(d: str) -> object:
    path = put(d + "/f", b"x", 0o600)
    os.setxattr(
        path,
        ACCESS,
        acl(
            (USER_OBJ, 6, NO_ID), (GROUP_OBJ, 0, NO_ID), (GROUP, 4, 4100), (MASK, 4, NO_ID), (OTHER, 0, NO_ID)
        ),
    )
    return [as_user(4005, lambda: get(path), groups=groups) for groups in ([], [4100])]


@table.row
def default_acl_is_inherited(d: str) -> object:
    os.mkdir(d + "/dir")
    os.setxattr(d + "/dir", DEFAULT, usual(4005, 6))
    os.umask(0o077)
    put(d + "/dir/file")
    os.close(os.open(d + "/dir/narrow", os.O_CREAT | os.O_WRONLY, 0o600))
    os.mkdir(d + "/dir/sub")
    put(d + "/dir/sub/file")
    os.mkfifo(d + "/dir/fifo")
    os.symlink("x", d + "/dir/symlink")
    seen = {}
    for top, _, files in os.walk(d + "/dir"):
        for path in (top, *(os.path.join(top, name) for name in files)):
            facts = [oct(os.lstat(path).st_mode)]
            facts += [attempt(os.getxattr, path, kind, follow_symlinks=False) for kind in (ACCESS, DEFAULT)]
            seen[path[len(d) :]] = facts
    return seen


@table.root_row
def default_acl_works_for_the_named_user(d: str) -> object:
    os.mkdir(d + "/dir")
    os.setxattr(d + "/dir", ACCESS, usual(4005, 7))
    os.setxattr(d + "/dir", DEFAULT, usual(4005, 7))
    put(d + "/dir/f", b"x")
    return (
        as_user(4005, lambda: get(d + "/dir/f")),
        as_user(4006, lambda: get(d + "/dir/f")),
        as_user(4005, lambda: put(d + "/dir/new")),
        as_user(4006, lambda: put(d + "/dir/other")),
    )


@table.row
def acl_errors(d: str) -> object:
    path = put(d + "/f")
    os.symlink("f", d + "/s")
    return (
        attempt(os.setxattr, path, DEFAULT, usual(4005, 6)),
        attempt(os.setxattr, path, ACCESS, b"nonsense"),
        attempt(os.setxattr, path, ACCESS, acl((USER, 7, 4005))),
        attempt(os.getxattr, path, ACCESS),
        attempt(os.getxattr, d, DEFAULT),
        attempt(os.removexattr, path, DEFAULT),
        attempt(os.removexattr, path, ACCESS),
        attempt(os.setxattr, d + "/s", ACCESS, usual(1, 1), follow_symlinks=False),
    )


@table.row
def minimal_acl_is_only_a_mode(d: str) -> object:
    path = put(d + "/f", b"x", 0o600)
    os.setxattr(path, ACCESS, acl((USER_OBJ, 6, NO_ID), (GROUP_OBJ, 4, NO_ID), (OTHER, 4, NO_ID)))
    return oct(os.stat(path).st_mode), os.listxattr(path)


@table.root_row
def acl_of_others_may_not_be_set(d: str) -> object:
    path = put(d + "/f", b"x", 0o666)
    return as_user(4005, lambda: os.setxattr(path, ACCESS, usual(4005, 7))), oct(os.stat(path).st_mode)


@table.root_row
def setgid_falls_when_an_acl_is_set_by_a_non_member(d: str) -> object:
    path = put(d + "/f")
    os.chown(path, 4001, 4009)
    os.chmod(path, 0o2755)
    return as_user(4001, lambda: os.setxattr(path, ACCESS, usual(4005, 5, 5, 5))), oct(os.stat(path).st_mode)


@table.root_row
def sticky_and_setgid_bits_on_directories_by_their_owner(d: str) -> object:
    os.mkdir(d + "/dir")
    os.chown(d + "/dir", 4001, 4001)
    return (
        as_user(4001, lambda: os.chmod(d + "/dir", 0o3775)),
        oct(os.stat(d + "/dir").st_mode),
        as_user(4001, lambda: os.mkdir(d + "/dir/sub")),
        stat.S_IMODE(os.stat(d + "/dir/sub").st_mode),
    )


@pytest.mark.parametrize("row", table.rows, ids=lambda row: row.name)
def test_metadata_as_on_a_plain_directory(row: Row, places: Places) -> None:
    places.compare(table, row)
