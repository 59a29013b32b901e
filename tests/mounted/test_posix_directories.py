"""Reading directories: while they change, from every position, by many readers."""

from __future__ import annotations

import ctypes
import os
import threading

import pytest

from tests.kit.posix import Places, Row, Table, as_user, attempt, elsewhere, get, kind_of, libc, opened, put

table = Table()

libc.opendir.restype = ctypes.c_void_p
libc.opendir.argtypes = [ctypes.c_char_p]
libc.readdir.restype = ctypes.c_void_p
libc.readdir.argtypes = [ctypes.c_void_p]
libc.telldir.restype = ctypes.c_long
libc.telldir.argtypes = [ctypes.c_void_p]
libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
libc.rewinddir.argtypes = [ctypes.c_void_p]
libc.closedir.argtypes = [ctypes.c_void_p]

NAME_OFFSET, TYPE_OFFSET = 19, 18  # in struct dirent, 64-bit Linux


class Directory:
    """opendir(3) and friends, which os does not have."""

    def __init__(self, path: str) -> None:
        self.stream = libc.opendir(os.fsencode(path))
        assert self.stream

    def next(self) -> str | None:
        entry = libc.readdir(self.stream)
        return None if not entry else os.fsdecode(ctypes.string_at(entry + NAME_OFFSET))

    def rest(self) -> list[str]:
        names = []
        while (name := self.next()) is not None:
            names.append(name)
        return names

    def tell(self) -> int:
        return int(libc.telldir(self.stream))

    def seek(self, position: int) -> None:
        libc.seekdir(self.stream, position)

    def rewind(self) -> None:
        libc.rewinddir(self.stream)

    def close(self) -> None:
        libc.closedir(self.stream)


def fill(d: str, count: int) -> set[str]:
    names = {f"file-{number:05}" for number in range(count)}
    for name in names:
        os.close(os.open(f"{d}/{name}", os.O_CREAT | os.O_WRONLY))
    return names


def empty(d: str) -> None:
    for name in os.listdir(d):
        os.unlink(f"{d}/{name}")


for count in (0, 1, 2, 50, 500, 2500):

    def listing_row(d: str, count: int = count) -> object:
        names = fill(d, count)
        stream = Directory(d)
        listed = stream.rest()
        stream.close()
        twice = len(listed) - len(set(listed))
        result = set(listed) == names | {".", ".."}, twice, set(os.listdir(d)) == names
        empty(d)
        return result

    table.add(f"listing_{count}_entries", listing_row, limit=60)


@table.row
def dot_entries_and_types(d: str) -> object:
    put(d + "/file")
    os.mkdir(d + "/directory")
    os.symlink("x", d + "/symlink")
    os.mkfifo(d + "/fifo")
    stream = Directory(d)
    names = sorted(stream.rest())
    stream.close()
    types = {entry.name: (entry.is_file(), entry.is_dir(), entry.is_symlink()) for entry in os.scandir(d)}
    return names, dict(sorted(types.items()))


@table.row
def inode_numbers_of_entries_are_those_of_stat(d: str) -> object:
    for number in range(20):
        put(f"{d}/{number}")
    os.mkdir(d + "/sub")
    return all(entry.inode() == os.lstat(entry.path).st_ino for entry in os.scandir(d))


for step in (1, 7, 100):

    def deleting_row(d: str, step: int = step) -> object:
        """rm -r: remove what was read, go on reading: nothing is skipped, nothing comes twice."""
        names = fill(d, 600)
        stream, seen = Directory(d), []
        batch: list[str] = []
        while (name := stream.next()) is not None:
            if name in (".", ".."):
                continue
            seen.append(name)
            batch.append(name)
            if len(batch) >= step:
                for gone in batch:
                    os.unlink(f"{d}/{gone}")
                batch = []
        stream.close()
        for gone in batch:
            os.unlink(f"{d}/{gone}")
        return set(seen) == names, len(seen), os.listdir(d)

    table.add(f"deleting_while_reading_in_steps_of_{step}", deleting_row, limit=60)


@table.row
def entries_that_stay_are_seen_while_others_come_and_go(d: str) -> object:
    names = fill(d, 400)
    stays = {name for number, name in enumerate(sorted(names)) if number % 2}
    stream, seen = Directory(d), []
    for number in range(400):
        name = stream.next()
        if name is None:
            break
        seen.append(name)
        victim = sorted(names - stays)
        if number < len(victim):
            os.unlink(f"{d}/{victim[number]}")
            put(f"{d}/new-{number}")
    seen += stream.rest()
    stream.close()
    empty(d)
    return stays <= set(seen), len(seen) == len(set(seen))


@table.row
def telldir_and_seekdir(d: str) -> object:
    fill(d, 300)
    stream = Directory(d)
    order, places = [], []
    while True:
        places.append(stream.tell())
        name = stream.next()
        if name is None:
            break
        order.append(name)
    right = []
    for at in (0, 1, 2, 57, 150, 299, 300, 301, 10):
        stream.seek(places[at])
        right.append(stream.next() == order[at])
    stream.seek(places[200])
    right.append(stream.rest() == order[200:])
    stream.rewind()
    right.append(stream.rest() == order)
    stream.close()
    empty(d)
    return right, len(set(places)) == len(places)


@table.row
def seekdir_after_entries_vanished(d: str) -> object:
    fill(d, 300)
    stream = Directory(d)
    order = [stream.next() for _ in range(100)]
    place = stream.tell()
    rest = stream.rest()
    for name in order[:50] + rest[100:150]:
        if name not in (".", ".."):
            os.unlink(f"{d}/{name}")
    gone = set(rest[100:150])
    stream.seek(place)
    again = stream.rest()
    stream.close()
    empty(d)
    return len(again) == len(set(again)), set(rest) - gone <= set(again)


@table.row
def rewinddir_sees_what_is_new(d: str) -> object:
    put(d + "/a")
    stream = Directory(d)
    first = sorted(stream.rest())
    put(d + "/b")
    os.unlink(d + "/a")
    stream.rewind()
    second = sorted(stream.rest())
    stream.close()
    return first, second


@table.row
def listing_of_a_removed_directory_is_empty(d: str) -> object:
    os.mkdir(d + "/x")
    with opened(d + "/x") as fd:
        before = os.listdir(fd)
        os.rmdir(d + "/x")
        return before, attempt(os.listdir, fd), attempt(os.stat, d + "/x"), os.fstat(fd).st_nlink


@table.row
def listing_through_a_descriptor_after_a_rename(d: str) -> object:
    os.mkdir(d + "/x")
    put(d + "/x/f")
    with opened(d + "/x") as fd:
        os.rename(d + "/x", d + "/y")
        put(d + "/y/g")
        os.mkdir(d + "/x")
        return sorted(os.listdir(fd)), os.listdir(d + "/x")


@table.row
def descriptor_of_a_directory_lists_twice(d: str) -> object:
    put(d + "/f")
    with opened(d) as fd:
        first = os.listdir(fd)
        put(d + "/g")
        return first, sorted(os.listdir(fd))


@table.row
def listing_errors(d: str) -> object:
    put(d + "/f")
    os.symlink("nowhere", d + "/s")
    return [attempt(os.listdir, d + name) for name in ("/f", "/none", "/s", "/f/x")]


@table.root_row
def listing_needs_read_permission(d: str) -> object:
    os.mkdir(d + "/x")
    put(d + "/x/f", b"x", 0o644)
    seen = []
    for bits in (0o755, 0o711, 0o744, 0o700):
        os.chmod(d + "/x", bits)
        seen.append((as_user(4005, lambda: os.listdir(d + "/x")), as_user(4005, lambda: get(d + "/x/f"))))
    return seen


@table.row
def many_threads_create_list_and_delete(d: str) -> object:
    trouble: list[object] = []

    def work(who: int) -> None:
        try:
            for number in range(60):
                put(f"{d}/{who}-{number}", b"%d" % number)
                if f"{who}-{number}" not in os.listdir(d):
                    trouble.append("a new file is not listed")
                os.rename(f"{d}/{who}-{number}", f"{d}/{who}-{number}.x")
                if get(f"{d}/{who}-{number}.x") != b"%d" % number:
                    trouble.append("another content")
                os.unlink(f"{d}/{who}-{number}.x")
        except OSError as error:
            trouble.append(repr(error))

    threads = [threading.Thread(target=work, args=(who,)) for who in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return trouble, os.listdir(d)


@table.row
def two_processes_make_one_directory(d: str) -> object:
    """Exactly one of many mkdir calls wins."""
    receive, send = os.pipe()
    children = []
    for _ in range(8):
        pid = os.fork()
        if pid == 0:
            won = sum(attempt(os.mkdir, f"{d}/{number}") is None for number in range(40))
            os.write(send, bytes([won]))
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    return sum(os.read(receive, 99)), len(os.listdir(d))


@table.row
def two_processes_create_exclusively(d: str) -> object:
    receive, send = os.pipe()
    children = []
    for _ in range(8):
        pid = os.fork()
        if pid == 0:
            won = 0
            for number in range(40):
                fd = attempt(os.open, f"{d}/{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
                won += isinstance(fd, int)
            os.write(send, bytes([won]))
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    return sum(os.read(receive, 99)), len(os.listdir(d))


# ---- the working directory ----------------------------------------------------------------


@table.row
def working_directory_moves_along(d: str) -> object:
    os.makedirs(d + "/a/b")
    os.chdir(d + "/a/b")
    os.rename(d + "/a", d + "/z")
    put("f", b"x")
    return os.getcwd(), get(d + "/z/b/f"), sorted(os.listdir(".."))


@table.row
def working_directory_that_was_removed(d: str) -> object:
    os.mkdir(d + "/x")
    os.chdir(d + "/x")
    os.rmdir(d + "/x")
    return (
        attempt(os.getcwd),
        attempt(os.listdir, "."),
        attempt(put, "f"),
        attempt(os.stat, ".").st_nlink,
        attempt(lambda: os.path.samefile("..", d)),
        attempt(os.chdir, ".."),
    )


@table.row
def working_directory_removed_and_made_again_is_another(d: str) -> object:
    os.mkdir(d + "/x")
    os.chdir(d + "/x")
    os.rmdir(d + "/x")
    os.mkdir(d + "/x")
    put(d + "/x/f")
    return attempt(os.listdir, "."), attempt(get, "f"), os.listdir(d + "/x")


@table.root_row
def chroot_into_the_tree(d: str) -> object:
    os.mkdir(d + "/root")
    put(d + "/root/f", b"inside")

    def act() -> object:
        os.chroot(d + "/root")
        os.chdir("/")
        return os.listdir("/"), get("/f"), attempt(os.stat, "/etc")

    return elsewhere(act)


@table.row
def kinds_by_the_directory_descriptor(d: str) -> object:
    with opened(d) as fd:
        os.mkdir("sub", dir_fd=fd)
        os.symlink("sub", "link", dir_fd=fd)
        os.close(os.open("sub/f", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        os.rename("sub/f", "g", src_dir_fd=fd, dst_dir_fd=fd)
        return [kind_of(os.stat(n, dir_fd=fd, follow_symlinks=False).st_mode) for n in ("sub", "link", "g")]


@pytest.mark.parametrize("row", table.rows, ids=lambda row: row.name)
def test_directories_as_on_a_plain_directory(row: Row, places: Places) -> None:
    places.compare(table, row)
