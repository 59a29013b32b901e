"""open(2): every kind of thing that can stand at the path, with every flag."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import stat
import tempfile
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from tests.kit.posix import Places, Row, Table, as_user, attempt, elsewhere, get, kind_of, opened, put

table = Table()

# ---- every kind × every flag ---------------------------------------------------


def nothing(path: str) -> None: ...
def a_file(path: str) -> None:
    put(path, b"0123456789")


def a_read_only_file(path: str) -> None:
    put(path, b"0123456789", 0o444)


def a_directory(path: str) -> None:
    os.mkdir(path)


def a_symlink_to_a_file(path: str) -> None:
    put(path + ".target", b"0123456789")
    os.symlink(os.path.basename(path) + ".target", path)


def a_symlink_to_a_directory(path: str) -> None:
    os.mkdir(path + ".target")
    os.symlink(os.path.basename(path) + ".target", path)


def a_dangling_symlink(path: str) -> None:
    os.symlink("nowhere", path)


def a_symlink_loop(path: str) -> None:
    os.symlink(os.path.basename(path), path)


def a_fifo(path: str) -> None:
    os.mkfifo(path)


def a_socket(path: str) -> None:
    os.chdir(os.path.dirname(path))
    socket.socket(socket.AF_UNIX).bind(os.path.basename(path))


KINDS = [
    nothing,
    a_file,
    a_read_only_file,
    a_directory,
    a_symlink_to_a_file,
    a_symlink_to_a_directory,
    a_dangling_symlink,
    a_symlink_loop,
    a_fifo,
    a_socket,
]
FLAGS = [
    "",
    "CREAT",
    "CREAT EXCL",
    "TRUNC",
    "CREAT TRUNC",
    "CREAT EXCL TRUNC",
    "APPEND",
    "CREAT APPEND TRUNC",
    "NOFOLLOW",
    "CREAT NOFOLLOW",
    "CREAT EXCL NOFOLLOW",
    "DIRECTORY",
    "DIRECTORY NOFOLLOW",
    "PATH",
    "PATH NOFOLLOW",
    "PATH DIRECTORY",
    "SYNC",
    "DSYNC",
    "NOATIME",
    "DIRECT",
]
MODES = {"RDONLY": os.O_RDONLY, "WRONLY": os.O_WRONLY, "RDWR": os.O_RDWR}
SHOWN = os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK | os.O_SYNC | os.O_DIRECT | os.O_NOATIME


def open_row(kind: Callable[[str], None], flags: str, mode: str) -> Callable[[str], object]:
    number = MODES[mode] | os.O_NONBLOCK
    for flag in flags.split():
        number |= getattr(os, "O_" + flag)

    def row(d: str) -> object:
        path = d + "/it"
        kind(path)
        fd = os.open(path, number, 0o640)
        st = os.fstat(fd)
        size = st.st_size if stat.S_ISREG(st.st_mode) else None
        return kind_of(st.st_mode), oct(st.st_mode), size, oct(fcntl.fcntl(fd, fcntl.F_GETFL) & SHOWN)

    return row


for kind in KINDS:
    for flags in FLAGS:
        for mode in MODES if flags.split()[-1:] in ([], ["CREAT"], ["TRUNC"]) else ["RDONLY", "RDWR"]:
            name = f"open_{kind.__name__}_{mode}_{flags.replace(' ', '_')}".rstrip("_")
            table.add(name, open_row(kind, flags, mode))

# ---- modes and umask -------------------------------------------------------------


def mode_row(how: str, mode: int, mask: int) -> Callable[[str], object]:
    def row(d: str) -> object:
        os.umask(mask)
        path = d + "/it"
        if how == "file":
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, mode))
        elif how == "directory":
            os.mkdir(path, mode)
        elif how == "fifo":
            os.mkfifo(path, mode)
        else:
            os.mknod(path, stat.S_IFREG | mode)
        return oct(os.lstat(path).st_mode)

    return row


for how in ("file", "directory", "fifo", "mknod"):
    for mask in (0, 0o022, 0o077, 0o777):
        for bits in (0o777, 0o666, 0o000) if mask in (0o022,) else (0o7777,):
            table.add(f"mode_of_new_{how}_{bits:04o}_umask_{mask:03o}", mode_row(how, bits, mask))

# ---- more about creating -------------------------------------------------------------


@table.row
def create_without_write_permission_can_still_write(d: str) -> object:
    fd = os.open(d + "/f", os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o000)
    os.write(fd, b"abc")
    os.fchmod(fd, 0o400)
    return get(d + "/f")


@table.row
def create_read_only_mode_open_for_reading_and_writing(d: str) -> object:
    fd = os.open(d + "/f", os.O_CREAT | os.O_RDWR, 0o444)
    return os.write(fd, b"abc"), os.pread(fd, 10, 0)


@table.row
def open_through_a_file_is_enotdir(d: str) -> object:
    put(d + "/f")
    return [attempt(os.open, d + "/f/x", flags) for flags in (os.O_RDONLY, os.O_CREAT | os.O_WRONLY)]


@table.row
def open_with_a_slash_behind(d: str) -> object:
    put(d + "/f")
    os.mkdir(d + "/dir")
    return [
        attempt(os.open, d + "/f/", os.O_RDONLY),
        attempt(os.open, d + "/new/", os.O_CREAT | os.O_WRONLY),
        attempt(os.open, d + "/dir/", os.O_CREAT | os.O_WRONLY),
        isinstance(attempt(os.open, d + "/dir/", os.O_RDONLY), int),
    ]


@table.row
def create_in_a_missing_directory(d: str) -> object:
    return attempt(os.open, d + "/no/f", os.O_CREAT | os.O_WRONLY)


@table.row
def create_in_a_removed_directory(d: str) -> object:
    os.mkdir(d + "/gone")
    fd = os.open(d + "/gone", os.O_RDONLY)
    os.rmdir(d + "/gone")
    return (
        attempt(os.open, "f", os.O_CREAT | os.O_WRONLY, dir_fd=fd),
        attempt(os.mkdir, "f", dir_fd=fd),
        attempt(os.symlink, "x", "f", dir_fd=fd),
        attempt(os.mkfifo, "f", dir_fd=fd),
        attempt(os.listdir, fd),
        attempt(os.fstat, fd).st_nlink,
    )


@table.row
def create_through_a_dangling_symlink_makes_the_target(d: str) -> object:
    os.symlink("made", d + "/link")
    put(d + "/link", b"x")
    return sorted(os.listdir(d)), get(d + "/made")


@table.row
def create_through_a_dangling_symlink_into_a_missing_directory(d: str) -> object:
    os.symlink("no/made", d + "/link")
    return attempt(put, d + "/link")


@table.row
def truncate_at_open_keeps_mode_and_links(d: str) -> object:
    put(d + "/f", b"x" * 100, 0o751)
    os.link(d + "/f", d + "/g")
    os.close(os.open(d + "/f", os.O_WRONLY | os.O_TRUNC))
    st = os.stat(d + "/g")
    return oct(st.st_mode), st.st_size, st.st_nlink


@table.row
def truncate_at_read_only_open(d: str) -> object:
    put(d + "/f", b"x" * 100)
    os.close(os.open(d + "/f", os.O_RDONLY | os.O_TRUNC))
    return os.stat(d + "/f").st_size


@table.row
def truncate_at_open_while_another_descriptor_reads(d: str) -> object:
    put(d + "/f", b"x" * 100)
    with opened(d + "/f") as fd:
        first = os.read(fd, 10)
        os.close(os.open(d + "/f", os.O_WRONLY | os.O_TRUNC))
        return first, os.read(fd, 10), os.fstat(fd).st_size


@table.row
def exclusive_create_after_a_failed_lookup(d: str) -> object:
    missing = attempt(os.stat, d + "/f")
    fd = os.open(d + "/f", os.O_CREAT | os.O_EXCL | os.O_RDWR)
    return missing, os.fstat(fd).st_size, attempt(os.open, d + "/f", os.O_CREAT | os.O_EXCL)


@table.row
def create_unlink_create_again(d: str) -> object:
    seen = []
    for number in range(20):
        put(d + "/f", b"%d" % number)
        seen.append(get(d + "/f"))
        os.unlink(d + "/f")
        seen.append(attempt(os.stat, d + "/f"))
    return seen


@table.row
def unnamed_temporary_file(d: str) -> object:
    fd = os.open(d, os.O_TMPFILE | os.O_RDWR, 0o600)
    os.write(fd, b"abc")
    os.link(f"/proc/self/fd/{fd}", d + "/named", follow_symlinks=True)
    return get(d + "/named")


@table.row
def unnamed_temporary_file_by_the_library(d: str) -> object:
    with tempfile.TemporaryFile(dir=d) as file:
        file.write(b"abc")
        file.seek(0)
        return file.read(), os.listdir(d)


@table.row
def named_temporary_file_by_the_library(d: str) -> object:
    with tempfile.NamedTemporaryFile(dir=d) as file:
        file.write(b"abc")
        file.flush()
        inside = get(file.name), oct(os.stat(file.name).st_mode)
    return inside, os.listdir(d)


@table.row
def path_descriptor_reads_nothing_but_stats(d: str) -> object:
    put(d + "/f")
    with opened(d + "/f", os.O_PATH) as fd:
        return (
            attempt(os.read, fd, 1),
            attempt(os.write, fd, b"x"),
            attempt(os.fchmod, fd, 0o600),
            os.fstat(fd).st_size,
            attempt(os.fsync, fd),
        )


@table.row
def path_descriptor_opens_again_through_proc(d: str) -> object:
    put(d + "/f")
    with opened(d + "/f", os.O_PATH) as fd:
        os.rename(d + "/f", d + "/g")
        return get(f"/proc/self/fd/{fd}"), os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))


@table.row
def path_descriptor_of_a_symlink_reads_the_link(d: str) -> object:
    os.symlink("there", d + "/link")
    with opened(d + "/link", os.O_PATH | os.O_NOFOLLOW) as fd:
        return kind_of(os.fstat(fd).st_mode), os.readlink("", dir_fd=fd)


@table.row
def proc_fd_reopens_with_other_flags(d: str) -> object:
    put(d + "/f", b"abc")
    with opened(d + "/f") as fd, opened(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_TRUNC) as other:
        os.write(other, b"xyz!")
        return os.pread(fd, 10, 0)


@table.row
def proc_fd_reopens_an_unlinked_file(d: str) -> object:
    put(d + "/f", b"abc")
    with opened(d + "/f", os.O_RDWR) as fd:
        os.unlink(d + "/f")
        with opened(f"/proc/self/fd/{fd}", os.O_RDWR) as other:
            os.pwrite(other, b"Z", 1)
            return os.pread(fd, 10, 0), os.fstat(other).st_nlink


@table.row
def proc_fd_empties_a_file_without_a_name_and_no_other(d: str) -> object:
    """After one of its descriptors was closed, and others were opened, which may get its number."""
    names = [f"{d}/f{i}" for i in range(40)]
    for name in names:
        put(name, b"abc")
    with ExitStack() as stack:
        first, second = (os.open(names[0], os.O_RDWR) for _ in range(2))
        os.pwrite(first, b"x", 0)
        os.unlink(names[0])
        os.close(first)
        for name in names[1:]:
            os.pwrite(stack.enter_context(opened(name, os.O_RDWR)), b"y", 0)
        with opened(f"/proc/self/fd/{second}", os.O_WRONLY | os.O_TRUNC) as other:
            os.pwrite(other, b"Z", 1)
        seen = os.pread(second, 10, 0), os.fstat(second).st_nlink
        os.close(second)
    return seen, [get(name) for name in names[1:]]


@table.row
def proc_fd_links_an_open_file(d: str) -> object:
    put(d + "/f", b"abc")
    with opened(d + "/f") as fd:
        os.link(f"/proc/self/fd/{fd}", d + "/g", follow_symlinks=True)
    return os.stat(d + "/f").st_nlink, os.path.samefile(d + "/f", d + "/g")


@table.row
def descriptor_number_and_position_are_shared_by_dup(d: str) -> object:
    put(d + "/f", b"0123456789")
    with opened(d + "/f") as fd:
        other = os.dup(fd)
        return os.read(fd, 3), os.read(other, 3), os.lseek(fd, 0, os.SEEK_CUR)


@table.row
def position_is_shared_with_a_child(d: str) -> object:
    put(d + "/f", b"0123456789")
    with opened(d + "/f") as fd:
        return elsewhere(lambda: os.read(fd, 4)), os.read(fd, 4)


@table.row
def append_can_be_switched_on_and_off(d: str) -> object:
    put(d + "/f", b"0123456789")
    with opened(d + "/f", os.O_RDWR) as fd:
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_APPEND)
        os.lseek(fd, 0, os.SEEK_SET)
        os.write(fd, b"end")
        fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~os.O_APPEND)
        os.lseek(fd, 0, os.SEEK_SET)
        os.write(fd, b"start")
    return get(d + "/f")


@table.slow_row
def thousands_of_open_files(d: str) -> object:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    count = min(3000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 100)
    fds = [os.open(f"{d}/{n}", os.O_CREAT | os.O_RDWR) for n in range(count)]
    for n, fd in enumerate(fds):
        os.write(fd, b"%d" % n)
    right = all(os.pread(fd, 10, 0) == b"%d" % n for n, fd in enumerate(fds))
    for n, fd in enumerate(fds):
        os.close(fd)
        os.unlink(f"{d}/{n}")
    return right, len(os.listdir(d))


# ---- permissions ---------------------------------------------------------------------

for bits in (0o400, 0o200, 0o600, 0o040, 0o020, 0o004, 0o002, 0o000, 0o604, 0o060):

    def permission_row(d: str, bits: int = bits) -> object:
        put(d + "/f")
        os.chown(d + "/f", 4001, 4002)
        os.chmod(d + "/f", bits)
        outcomes = {}
        for who, uid, gid in (("owner", 4001, 4009), ("group", 4005, 4002), ("other", 4005, 4009)):
            for mode, flag in MODES.items():
                outcomes[who, mode] = as_user(
                    uid, lambda flag=flag: os.close(os.open(d + "/f", flag)), gid=gid
                )
        return outcomes

    table.add(f"open_permissions_{bits:04o}", permission_row, root=True)


@table.root_row
def supplementary_groups_count(d: str) -> object:
    put(d + "/f")
    os.chown(d + "/f", 4001, 4002)
    os.chmod(d + "/f", 0o060)
    return [
        as_user(4005, lambda: os.close(os.open(d + "/f", os.O_RDWR)), gid=4009, groups=groups)
        for groups in ([], [4002], [4003, 4002])
    ]


@table.root_row
def creating_needs_write_and_search_on_the_directory(d: str) -> object:
    outcomes = {}
    for bits in (0o777, 0o755, 0o733, 0o766, 0o744, 0o711):
        sub = f"{d}/{bits:o}"
        os.mkdir(sub)
        put(sub + "/there", b"x", 0o666)
        os.chmod(sub, bits)
        outcomes[oct(bits)] = (
            as_user(4005, lambda sub=sub: os.close(os.open(sub + "/new", os.O_CREAT | os.O_WRONLY))),
            as_user(4005, lambda sub=sub: os.close(os.open(sub + "/there", os.O_RDWR))),
            as_user(4005, lambda sub=sub: sorted(os.listdir(sub))),
            as_user(4005, lambda sub=sub: os.stat(sub + "/there").st_size),
            as_user(4005, lambda sub=sub: os.unlink(sub + "/there")),
        )
    return outcomes


@table.root_row
def noatime_needs_the_owner(d: str) -> object:
    put(d + "/f", b"x", 0o666)
    return as_user(4005, lambda: os.close(os.open(d + "/f", os.O_RDONLY | os.O_NOATIME)))


@table.root_row
def new_things_belong_to_their_maker(d: str) -> object:
    os.chmod(d, 0o777)

    def make() -> object:
        put(d + "/file")
        os.mkdir(d + "/directory")
        os.symlink("x", d + "/symlink")
        os.mkfifo(d + "/fifo")
        os.mknod(d + "/node", stat.S_IFREG | 0o600)
        socket.socket(socket.AF_UNIX).bind(d + "/socket")
        return {n: (os.lstat(f"{d}/{n}").st_uid, os.lstat(f"{d}/{n}").st_gid) for n in sorted(os.listdir(d))}

    return as_user(4005, make, gid=4006)


@table.root_row
def setgid_directory_gives_its_group(d: str) -> object:
    os.chown(d, 0, 4100)
    os.chmod(d, 0o2777)

    def make() -> object:
        put(d + "/file")
        os.mkdir(d + "/directory")
        os.symlink("x", d + "/symlink")
        os.mkfifo(d + "/fifo")
        with opened(d + "/suid", os.O_CREAT | os.O_WRONLY, 0o6777):
            pass
        os.mkdir(d + "/dir2", 0o777)
        return {
            n: (os.lstat(f"{d}/{n}").st_gid, oct(os.lstat(f"{d}/{n}").st_mode)) for n in sorted(os.listdir(d))
        }

    return as_user(4005, make, gid=4006)


@table.root_row
def regular_files_of_others_in_a_sticky_directory(d: str) -> object:
    """fs.protected_regular and protected_fifos: O_CREAT on another's file."""
    sticky = d + "/tmp"
    os.mkdir(sticky)
    os.chmod(sticky, 0o1777)
    put(sticky + "/f", b"x", 0o666)
    os.chown(sticky + "/f", 4001, 4001)
    return as_user(4005, lambda: os.close(os.open(sticky + "/f", os.O_CREAT | os.O_RDWR)))


@table.root_row
def symlinks_of_others_in_a_sticky_directory(d: str) -> object:
    """fs.protected_symlinks: a link that another user planted is not followed."""
    sticky = d + "/tmp"
    os.mkdir(sticky)
    os.chmod(sticky, 0o1777)
    put(d + "/target", b"x", 0o666)
    as_user(4001, lambda: os.symlink("../target", sticky + "/link"))
    return as_user(4005, lambda: get(sticky + "/link")), as_user(4001, lambda: get(sticky + "/link"))


table.accept(
    "unnamed_temporary_file",
    "EOPNOTSUPP",
    "O_TMPFILE is not in pyfuse3; programs fall back to a named file, as the libraries do",
)


@pytest.mark.parametrize("row", table.rows, ids=lambda row: row.name)
def test_open_as_on_a_plain_directory(row: Row, places: Places) -> None:
    places.compare(table, row)
