"""rename(2), renameat2(2), link(2), unlink(2), mkdir(2), rmdir(2): every kind over every other."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Callable

import pytest

from tests.kit.posix import (
    EXCHANGE,
    NOREPLACE,
    WHITEOUT,
    Places,
    Row,
    Table,
    as_user,
    attempt,
    get,
    kind_of,
    opened,
    put,
    rename,
)

table = Table()

# ---- everything over everything -------------------------------------------------


def nothing(path: str) -> None: ...
def file(path: str) -> None:
    put(path, os.path.basename(path).encode())


def empty_directory(path: str) -> None:
    os.mkdir(path)


def full_directory(path: str) -> None:
    os.mkdir(path)
    put(path + "/inside", os.path.basename(path).encode())


def symlink(path: str) -> None:
    put(path + ".target")
    os.symlink(os.path.basename(path) + ".target", path)


def dangling_symlink(path: str) -> None:
    os.symlink("nowhere", path)


def symlink_to_directory(path: str) -> None:
    os.mkdir(path + ".target")
    os.symlink(os.path.basename(path) + ".target", path)


def fifo(path: str) -> None:
    os.mkfifo(path)


def unix_socket(path: str) -> None:
    os.chdir(os.path.dirname(path))
    socket.socket(socket.AF_UNIX).bind(os.path.basename(path))


SOURCES = [nothing, file, empty_directory, full_directory, symlink, dangling_symlink, fifo]
TARGETS = [*SOURCES, symlink_to_directory, unix_socket]
HOW = {"rename": 0, "noreplace": NOREPLACE, "exchange": EXCHANGE}


def rename_row(
    source: Callable[[str], None], target: Callable[[str], None], flags: int, across: bool
) -> Callable[[str], object]:
    def row(d: str) -> object:
        os.mkdir(d + "/here")
        os.mkdir(d + "/there")
        old = d + "/here/old"
        new = d + ("/there/new" if across else "/here/new")
        source(old)
        target(new)
        outcome = attempt(rename, old, new, flags)
        after = {}
        for path in (old, new):
            st = attempt(os.lstat, path)
            after[os.path.basename(path)] = st if isinstance(st, str) else (kind_of(st.st_mode), st.st_nlink)
        return outcome, after, sorted(os.listdir(d + "/here")), sorted(os.listdir(d + "/there"))

    return row


for how, flags in HOW.items():
    for source in SOURCES:
        for target in TARGETS:
            across = (SOURCES.index(source) + TARGETS.index(target)) % 2 == 0
            table.add(
                f"{how}_{source.__name__}_over_{target.__name__}" + ("_across" if across else ""),
                rename_row(source, target, flags, across),
            )

# ---- renames with a twist ----------------------------------------------------------


@table.row
def rename_onto_itself(d: str) -> object:
    put(d + "/f")
    return [attempt(rename, d + "/f", d + "/f", flags) for flags in HOW.values()]


@table.row
def rename_onto_a_hard_link_of_itself_does_nothing(d: str) -> object:
    put(d + "/f")
    os.link(d + "/f", d + "/g")
    return attempt(os.rename, d + "/f", d + "/g"), sorted(os.listdir(d)), os.stat(d + "/f").st_nlink


@table.row
def exchange_of_hard_links_of_one_file(d: str) -> object:
    put(d + "/f")
    os.link(d + "/f", d + "/g")
    return attempt(rename, d + "/f", d + "/g", EXCHANGE), sorted(os.listdir(d)), os.stat(d + "/f").st_nlink


@table.row
def rename_into_its_own_subdirectory(d: str) -> object:
    os.makedirs(d + "/a/b")
    return (
        attempt(rename, d + "/a", d + "/a/b/c"),
        attempt(rename, d + "/a", d + "/a/b"),
        attempt(rename, d + "/a/b", d + "/a"),
        attempt(rename, d + "/a", d + "/a/b", EXCHANGE),
    )


@table.row
def rename_over_an_ancestor(d: str) -> object:
    os.makedirs(d + "/a/b")
    put(d + "/a/b/f")
    return attempt(rename, d + "/a/b/f", d + "/a"), attempt(rename, d + "/a/b/f", d + "/a/b")


@table.row
def rename_of_dot_and_dotdot(d: str) -> object:
    os.mkdir(d + "/a")
    return attempt(rename, d + "/a/.", d + "/b"), attempt(rename, d + "/a/..", d + "/b")


@table.row
def rename_with_slashes_behind(d: str) -> object:
    put(d + "/f")
    os.mkdir(d + "/dir")
    return (
        attempt(rename, d + "/f/", d + "/g"),
        attempt(rename, d + "/f", d + "/g/"),
        attempt(rename, d + "/dir/", d + "/dir2/"),
        sorted(os.listdir(d)),
    )


@table.row
def rename_with_unknown_flags(d: str) -> object:
    put(d + "/f")
    return [attempt(rename, d + "/f", d + "/g", flags) for flags in (8, NOREPLACE | EXCHANGE, 1 << 30)]


@table.root_row
def rename_with_whiteout(d: str) -> object:
    put(d + "/f")
    return attempt(rename, d + "/f", d + "/g", WHITEOUT)


@table.row
def renamed_open_file_stays_open(d: str) -> object:
    put(d + "/f", b"abc")
    with opened(d + "/f", os.O_RDWR) as fd:
        os.rename(d + "/f", d + "/g")
        os.pwrite(fd, b"Z", 0)
        return os.pread(fd, 5, 0), get(d + "/g"), os.fstat(fd).st_nlink


@table.row
def rename_over_an_open_file_keeps_the_old_one_readable(d: str) -> object:
    put(d + "/old", b"old")
    put(d + "/new", b"new")
    with opened(d + "/old", os.O_RDWR) as fd:
        os.rename(d + "/new", d + "/old")
        os.pwrite(fd, b"OLD!", 0)
        return os.pread(fd, 5, 0), os.fstat(fd).st_nlink, get(d + "/old"), sorted(os.listdir(d))


@table.row
def rename_over_an_open_file_thrice(d: str) -> object:
    fds = []
    for number in range(4):
        put(f"{d}/n{number}", b"%d" % number)
        os.rename(f"{d}/n{number}", d + "/f")
        fds.append(os.open(d + "/f", os.O_RDONLY))
    return [os.pread(fd, 5, 0) for fd in fds], [os.fstat(fd).st_nlink for fd in fds]


@table.row
def open_directory_moves_along(d: str) -> object:
    os.makedirs(d + "/a/b")
    os.mkdir(d + "/to")
    with opened(d + "/a", os.O_RDONLY) as fd:
        os.rename(d + "/a", d + "/to/moved")
        os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        return sorted(os.listdir(fd)), sorted(os.listdir(d + "/to/moved"))


@table.row
def files_below_a_renamed_directory_are_found_at_once(d: str) -> object:
    os.makedirs(d + "/a/b/c")
    put(d + "/a/b/c/f", b"deep")
    seen = [get(d + "/a/b/c/f")]
    os.rename(d + "/a", d + "/z")
    seen += [get(d + "/z/b/c/f"), attempt(get, d + "/a/b/c/f")]
    os.mkdir(d + "/a")
    return seen, attempt(os.listdir, d + "/a"), os.stat(d + "/z/b/c/f").st_size


@table.row
def rename_changes_dotdot(d: str) -> object:
    os.makedirs(d + "/a/sub")
    os.mkdir(d + "/b")
    os.rename(d + "/a/sub", d + "/b/sub")
    up = os.stat(d + "/b/sub/..")
    return os.path.samestat(up, os.stat(d + "/b")), os.stat(d + "/a").st_nlink, os.stat(d + "/b").st_nlink


@table.row
def inode_number_stays_over_a_rename(d: str) -> object:
    put(d + "/f")
    before = os.stat(d + "/f").st_ino
    os.rename(d + "/f", d + "/g")
    return os.stat(d + "/g").st_ino == before


@table.row
def rename_a_hundred_times(d: str) -> object:
    put(d + "/0", b"x")
    for number in range(100):
        os.rename(f"{d}/{number}", f"{d}/{number + 1}")
    return os.listdir(d), get(d + "/100")


@table.row
def rename_case_only(d: str) -> object:
    put(d + "/readme", b"x")
    os.rename(d + "/readme", d + "/README")
    return os.listdir(d), attempt(get, d + "/readme")


@table.row
def exchange_swaps_contents_and_open_descriptors_stay(d: str) -> object:
    put(d + "/a", b"A")
    put(d + "/b", b"B")
    with opened(d + "/a") as fd:
        rename(d + "/a", d + "/b", EXCHANGE)
        return get(d + "/a"), get(d + "/b"), os.pread(fd, 1, 0)


@table.row
def exchange_of_a_file_and_a_full_directory(d: str) -> object:
    put(d + "/a", b"A")
    full_directory(d + "/b")
    rename(d + "/a", d + "/b", EXCHANGE)
    return get(d + "/b"), os.listdir(d + "/a"), get(d + "/a/inside")


@table.row
def backup_and_save_as_an_editor_does(d: str) -> object:
    put(d + "/f", b"one", 0o755)
    os.rename(d + "/f", d + "/f~")
    put(d + "/f", b"two")
    os.chmod(d + "/f", 0o755)
    os.unlink(d + "/f~")
    return get(d + "/f"), os.listdir(d)


@table.root_row
def sticky_directory_protects_the_files_of_others(d: str) -> object:
    sticky = d + "/tmp"
    os.mkdir(sticky)
    os.chmod(sticky, 0o1777)
    as_user(4001, lambda: put(sticky + "/f"))
    as_user(4005, lambda: put(sticky + "/g"))
    return (
        as_user(4005, lambda: os.unlink(sticky + "/f")),
        as_user(4005, lambda: os.rename(sticky + "/f", sticky + "/h")),
        as_user(4005, lambda: os.rename(sticky + "/g", sticky + "/f")),
        as_user(4005, lambda: rename(sticky + "/g", sticky + "/f", EXCHANGE)),
        as_user(4001, lambda: os.rename(sticky + "/f", sticky + "/h")),
        as_user(4001, lambda: os.unlink(sticky + "/h")),
    )


@table.root_row
def renaming_a_directory_of_another_needs_write_on_it(d: str) -> object:
    os.chmod(d, 0o777)
    os.mkdir(d + "/theirs", 0o755)
    os.mkdir(d + "/to")
    os.chmod(d + "/to", 0o777)
    return (
        as_user(4005, lambda: os.rename(d + "/theirs", d + "/to/theirs")),
        as_user(4005, lambda: os.rename(d + "/theirs", d + "/renamed")),
    )


# ---- hard links ------------------------------------------------------------------------


@table.row
def hard_links_share_everything(d: str) -> object:
    put(d + "/a", b"one")
    os.link(d + "/a", d + "/b")
    put(d + "/b", b"three")
    os.chmod(d + "/a", 0o640)
    st = os.stat(d + "/b")
    same = os.path.samefile(d + "/a", d + "/b")
    return get(d + "/a"), oct(st.st_mode), st.st_nlink, same


@table.row
def unlink_one_hard_link(d: str) -> object:
    put(d + "/a", b"one")
    os.link(d + "/a", d + "/b")
    os.link(d + "/a", d + "/c")
    os.unlink(d + "/a")
    return get(d + "/b"), os.stat(d + "/c").st_nlink, attempt(get, d + "/a")


@table.row
def link_errors(d: str) -> object:
    put(d + "/f")
    os.mkdir(d + "/dir")
    os.symlink("nowhere", d + "/dangling")
    return {
        "over a file": attempt(os.link, d + "/f", d + "/f"),
        "of a directory": attempt(os.link, d + "/dir", d + "/dir2"),
        "of nothing": attempt(os.link, d + "/none", d + "/x"),
        "into nothing": attempt(os.link, d + "/f", d + "/no/x"),
        "over a dangling link": attempt(os.link, d + "/f", d + "/dangling"),
        "through a file": attempt(os.link, d + "/f", d + "/f/x"),
        "of a dangling link": attempt(os.link, d + "/dangling", d + "/y", follow_symlinks=True),
    }


@table.row
def link_of_a_symlink_links_the_link(d: str) -> object:
    os.symlink("target", d + "/s")
    os.link(d + "/s", d + "/t", follow_symlinks=False)
    return os.readlink(d + "/t"), os.lstat(d + "/s").st_nlink


@table.row
def link_of_a_fifo(d: str) -> object:
    os.mkfifo(d + "/p")
    os.link(d + "/p", d + "/q")
    return os.lstat(d + "/q").st_nlink, kind_of(os.lstat(d + "/q").st_mode)


@table.row
def link_across_directories_and_write_through_both(d: str) -> object:
    os.mkdir(d + "/x")
    put(d + "/f", b"1234567890")
    os.link(d + "/f", d + "/x/f")
    with opened(d + "/f", os.O_RDWR) as a, opened(d + "/x/f", os.O_RDWR) as b:
        os.pwrite(a, b"A", 0)
        os.pwrite(b, b"B", 1)
        return os.pread(a, 20, 0), os.pread(b, 20, 0)


@table.row
def a_thousand_hard_links(d: str) -> object:
    put(d + "/f", b"x")
    for number in range(1000):
        os.link(d + "/f", f"{d}/l{number}")
    count = os.stat(d + "/f").st_nlink
    for number in range(0, 1000, 2):
        os.unlink(f"{d}/l{number}")
    rest = os.stat(d + "/l1").st_nlink
    for number in range(1, 1000, 2):
        os.unlink(f"{d}/l{number}")
    return count, rest, os.listdir(d)


@table.root_row
def linking_files_of_others_is_protected(d: str) -> object:
    os.chmod(d, 0o777)
    put(d + "/f", b"x", 0o644)
    put(d + "/g", b"x", 0o666)
    put(d + "/suid", b"x", 0o4777)
    return [as_user(4005, lambda n=n: os.link(f"{d}/{n}", f"{d}/{n}2")) for n in ("f", "g", "suid")]


# ---- unlink -----------------------------------------------------------------------------


@table.row
def unlink_errors(d: str) -> object:
    os.mkdir(d + "/dir")
    put(d + "/f")
    return [
        attempt(os.unlink, d + name) for name in ("/none", "/dir", "/f/x", "/f/", "/dir/", "/dir/.", "/no/x")
    ]


@table.row
def unlinked_open_file_reads_writes_truncates_and_stats(d: str) -> object:
    put(d + "/f", b"abc")
    with opened(d + "/f", os.O_RDWR) as fd:
        os.unlink(d + "/f")
        os.pwrite(fd, b"defg", 3)
        os.ftruncate(fd, 6)
        os.fchmod(fd, 0o600)
        os.utime(fd, (1, 2))
        os.fsync(fd)
        st = os.fstat(fd)
        return os.pread(fd, 99, 0), st.st_size, st.st_nlink, oct(st.st_mode), st.st_mtime, os.listdir(d)


@table.row
def unlinked_open_file_and_a_new_one_of_the_same_name(d: str) -> object:
    put(d + "/f", b"old")
    with opened(d + "/f", os.O_RDWR) as fd:
        os.unlink(d + "/f")
        put(d + "/f", b"newer")
        os.pwrite(fd, b"OLD", 0)
        return os.pread(fd, 9, 0), get(d + "/f"), os.fstat(fd).st_size, os.stat(d + "/f").st_size


@table.row
def unlinked_open_file_takes_xattrs(d: str) -> object:
    put(d + "/f", b"old")
    with opened(d + "/f", os.O_RDWR) as fd:
        os.unlink(d + "/f")
        os.setxattr(fd, "user.x", b"1")
        return os.getxattr(fd, "user.x"), os.listxattr(fd)


@table.row
def unlinked_file_cannot_be_linked_back(d: str) -> object:
    put(d + "/f", b"old")
    with opened(d + "/f", os.O_RDWR) as fd:
        os.unlink(d + "/f")
        return attempt(os.link, f"/proc/self/fd/{fd}", d + "/g", follow_symlinks=True)


@table.row
def removing_a_directory_that_held_an_open_file(d: str) -> object:
    os.mkdir(d + "/dir")
    put(d + "/dir/f", b"abc")
    with opened(d + "/dir/f") as fd:
        os.unlink(d + "/dir/f")
        return os.listdir(d + "/dir"), attempt(os.rmdir, d + "/dir"), os.read(fd, 9)


@table.row
def unlink_symlink_fifo_and_socket(d: str) -> object:
    os.symlink("x", d + "/s")
    fifo(d + "/p")
    unix_socket(d + "/u")
    for name in "spu":
        os.unlink(f"{d}/{name}")
    return os.listdir(d)


@table.root_row
def unlink_needs_write_on_the_directory_not_the_file(d: str) -> object:
    os.mkdir(d + "/open")
    os.mkdir(d + "/shut")
    for sub in ("open", "shut"):
        put(f"{d}/{sub}/f", b"x", 0o000)
    os.chmod(d + "/open", 0o777)
    os.chmod(d + "/shut", 0o755)
    return [as_user(4005, lambda s=s: os.unlink(f"{d}/{s}/f")) for s in ("open", "shut")]


# ---- mkdir and rmdir ------------------------------------------------------------------------


@table.row
def mkdir_errors(d: str) -> object:
    put(d + "/f")
    os.mkdir(d + "/dir")
    os.symlink("nowhere", d + "/dangling")
    names = ("/f", "/dir", "/dangling", "/f/x", "/no/x", "/dir/.", "/dir/..", "/dir/new/")
    return {name: attempt(os.mkdir, d + name) for name in names}


@table.row
def rmdir_errors(d: str) -> object:
    put(d + "/f")
    os.mkdir(d + "/full")
    put(d + "/full/f")
    os.mkdir(d + "/dir")
    os.symlink("dir", d + "/link")
    names = ("/f", "/full", "/link", "/link/", "/none", "/f/x", "/dir/.", "/full/..", "/dir")
    return {name: attempt(os.rmdir, d + name) for name in names}


@table.row
def links_of_directories_count_subdirectories(d: str) -> object:
    os.mkdir(d + "/dir")
    counts = [os.stat(d + "/dir").st_nlink]
    for number in range(5):
        os.mkdir(f"{d}/dir/{number}")
        counts.append(os.stat(d + "/dir").st_nlink)
    for number in range(5):
        os.rmdir(f"{d}/dir/{number}")
        counts.append(os.stat(d + "/dir").st_nlink)
    return counts


@table.row
def mkdir_with_every_bit(d: str) -> object:
    os.umask(0)
    os.mkdir(d + "/a", 0o7777)
    os.mkdir(d + "/b", 0o1777)
    return [oct(os.stat(d + name).st_mode) for name in ("/a", "/b")]


@table.row
def rmdir_and_mkdir_again(d: str) -> object:
    for _ in range(20):
        os.mkdir(d + "/x")
        put(d + "/x/f")
        os.unlink(d + "/x/f")
        os.rmdir(d + "/x")
    return os.listdir(d), attempt(os.stat, d + "/x")


@table.row
def removing_a_deep_tree(d: str) -> object:
    for number in range(12):
        os.makedirs(f"{d}/t/{number % 3}/{number}/x")
        put(f"{d}/t/{number % 3}/{number}/x/f")
    shutil.rmtree(d + "/t")
    return os.listdir(d)


# ---- special files ---------------------------------------------------------------------------


@table.row
def fifo_carries_bytes(d: str) -> object:
    os.mkfifo(d + "/p")
    reader = os.open(d + "/p", os.O_RDONLY | os.O_NONBLOCK)
    with opened(d + "/p", os.O_WRONLY) as fd:
        os.write(fd, b"through")
    return os.read(reader, 99), os.read(reader, 99)


@table.row
def fifo_without_a_reader(d: str) -> object:
    os.mkfifo(d + "/p")
    return attempt(os.open, d + "/p", os.O_WRONLY | os.O_NONBLOCK)


@table.row
def socket_carries_bytes(d: str) -> object:
    os.chdir(d)
    server = socket.socket(socket.AF_UNIX)
    server.bind("s")
    server.listen(1)
    client = socket.socket(socket.AF_UNIX)
    client.connect("s")
    client.sendall(b"hello")
    return server.accept()[0].recv(99), kind_of(os.stat("s").st_mode), attempt(os.open, "s", os.O_RDONLY)


@table.row
def socket_bound_twice_and_dead(d: str) -> object:
    os.chdir(d)
    server = socket.socket(socket.AF_UNIX)
    server.bind("s")
    twice = attempt(socket.socket(socket.AF_UNIX).bind, "s")
    server.close()
    return twice, attempt(socket.socket(socket.AF_UNIX).connect, "s")


@table.root_row
def device_nodes_work(d: str) -> object:
    os.mknod(d + "/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(d + "/zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    os.mknod(d + "/block", stat.S_IFBLK | 0o600, os.makedev(7, 200))
    st = os.stat(d + "/null")
    return (
        kind_of(st.st_mode),
        os.major(st.st_rdev),
        os.minor(st.st_rdev),
        attempt(lambda: open(d + "/zero", "rb").read(4)),
        attempt(lambda: open(d + "/null", "wb").write(b"x")),
        kind_of(os.stat(d + "/block").st_mode),
    )


@table.root_row
def device_nodes_are_for_root(d: str) -> object:
    os.chmod(d, 0o777)
    return as_user(4005, lambda: os.mknod(d + "/null", stat.S_IFCHR | 0o666, os.makedev(1, 3)))


@table.row
def mknod_errors(d: str) -> object:
    put(d + "/f")
    return (
        attempt(os.mknod, d + "/f", stat.S_IFREG | 0o600),
        attempt(os.mknod, d + "/dir", stat.S_IFDIR | 0o700),
        attempt(os.mknod, d + "/lnk", stat.S_IFLNK | 0o700),
        attempt(os.mkfifo, d + "/no/p"),
        attempt(os.mkfifo, d + "/f"),
    )


@pytest.mark.parametrize("row", table.rows, ids=lambda row: row.name)
def test_names_as_on_a_plain_directory(row: Row, places: Places) -> None:
    places.compare(table, row)
