"""Bytes: reading, writing, appending, truncating, holes, mappings, syncing."""

from __future__ import annotations

import _ctypes
import ctypes
import fcntl
import hashlib
import mmap
import os
import random
import resource
import shutil
import signal

import pytest

from tests.kit.posix import Places, Row, Table, as_user, attempt, check, elsewhere, get, libc, opened, put

table = Table()
GIB = 1 << 30

# ---- sizes around every border -----------------------------------------------------

for size in (0, 1, 511, 4095, 4096, 4097, 65535, 65537, 131072, 131073, 1048575, 1048577, 3000000):

    def write_and_read_row(d: str, size: int = size) -> object:
        data = random.Random(size).randbytes(size)
        put(d + "/f", data)
        with opened(d + "/f") as fd:
            tail = os.pread(fd, 100, max(0, size - 50))
        return get(d + "/f") == data, os.stat(d + "/f").st_size, tail == data[-50:] if size > 50 else tail

    table.add(f"write_and_read_{size}_bytes", write_and_read_row)

for seed in range(12):

    def random_access_row(d: str, seed: int = seed) -> object:
        """Two descriptors, random reads, writes, truncations, compared with a bytearray."""
        choose, model = random.Random(seed), bytearray()
        with opened(d + "/f", os.O_RDWR | os.O_CREAT) as a, opened(d + "/f", os.O_RDWR) as b:
            for step in range(120):
                fd = choose.choice((a, b))
                offset, length = choose.randrange(200_000), choose.randrange(1, 30_000)
                match choose.randrange(4):
                    case 0 | 1:
                        data = choose.randbytes(length)
                        os.pwrite(fd, data, offset)
                        if offset > len(model):
                            model.extend(bytes(offset - len(model)))
                        model[offset : offset + length] = data
                    case 2:
                        seen = os.pread(fd, length, offset)
                        if seen != model[offset : offset + length]:
                            return f"step {step}: {length} bytes at {offset} differ"
                    case 3 if choose.random() < 0.3:
                        os.ftruncate(fd, offset)
                        model = model[:offset].ljust(offset, b"\0")
        whole = get(d + "/f")
        return whole == model, hashlib.sha1(whole).hexdigest()

    table.add(f"random_access_seed_{seed}", random_access_row)

for seed in range(4):

    def mapped_access_row(d: str, seed: int = seed) -> object:
        """The same with a shared mapping beside the descriptor."""
        choose, size = random.Random(seed), 256 * 1024
        model = bytearray(size)
        put(d + "/f", bytes(size))
        with opened(d + "/f", os.O_RDWR) as fd, mmap.mmap(fd, size) as area:
            for step in range(150):
                offset, length = choose.randrange(size - 9000), choose.randrange(1, 9000)
                data = choose.randbytes(length)
                match choose.randrange(4):
                    case 0:
                        os.pwrite(fd, data, offset)
                        model[offset : offset + length] = data
                    case 1:
                        area[offset : offset + length] = data
                        model[offset : offset + length] = data
                    case 2:
                        if area[offset : offset + length] != model[offset : offset + length]:
                            return f"step {step}: the mapping differs at {offset}"
                    case 3:
                        if os.pread(fd, length, offset) != model[offset : offset + length]:
                            return f"step {step}: read differs at {offset}"
        return get(d + "/f") == model

    table.add(f"mapped_access_seed_{seed}", mapped_access_row)

# ---- reading and writing ---------------------------------------------------------------


@table.row
def reading_at_and_beyond_the_end(d: str) -> object:
    put(d + "/f", b"abc")
    with opened(d + "/f") as fd:
        return (
            os.pread(fd, 10, 3),
            os.pread(fd, 10, 2),
            os.pread(fd, 10, 10**9),
            attempt(os.pread, fd, 1, -1),
            os.pread(fd, 0, 0),
        )


@table.row
def wrong_direction(d: str) -> object:
    put(d + "/f", b"abc")
    with opened(d + "/f") as reader, opened(d + "/f", os.O_WRONLY) as writer:
        return (
            attempt(os.write, reader, b"x"),
            attempt(os.read, writer, 1),
            attempt(os.ftruncate, reader, 0),
            attempt(os.pwrite, writer, b"x", -1),
            attempt(os.ftruncate, writer, -1),
        )


@table.row
def reading_and_writing_directories(d: str) -> object:
    with opened(d) as fd:
        return (
            attempt(os.read, fd, 1),
            attempt(os.pread, fd, 1, 0),
            attempt(os.write, fd, b"x"),
            attempt(os.ftruncate, fd, 0),
            attempt(os.truncate, d, 0),
        )


@table.row
def vectors(d: str) -> object:
    with opened(d + "/f", os.O_RDWR | os.O_CREAT) as fd:
        counts = [os.writev(fd, [b"one", b"", b"two", b"x" * 5000]), os.pwritev(fd, [b"O", b"N"], 0)]
        buffers = [bytearray(2), bytearray(4), bytearray(10)]
        counts.append(os.preadv(fd, buffers, 0))
        os.lseek(fd, 1, os.SEEK_SET)
        more = [bytearray(3), bytearray(3)]
        counts.append(os.readv(fd, more))
        return counts, buffers, more


@table.row
def vector_with_flags(d: str) -> object:
    with opened(d + "/f", os.O_RDWR | os.O_CREAT) as fd:
        os.write(fd, b"0123456789")
        return (
            attempt(os.pwritev, fd, [b"end"], 0, os.RWF_APPEND),
            attempt(os.pwritev, fd, [b"D"], 1, os.RWF_DSYNC),
            attempt(os.preadv, fd, [bytearray(3)], 0, os.RWF_HIPRI),
            os.pread(fd, 99, 0),
        )


@table.row
def seeking(d: str) -> object:
    put(d + "/f", b"0123456789")
    with opened(d + "/f", os.O_RDWR) as fd:
        return (
            os.lseek(fd, 4, os.SEEK_SET),
            os.read(fd, 2),
            os.lseek(fd, -1, os.SEEK_CUR),
            os.lseek(fd, -3, os.SEEK_END),
            os.lseek(fd, 100, os.SEEK_END),
            attempt(os.lseek, fd, -1, os.SEEK_SET),
            attempt(os.lseek, fd, 0, 99),
            os.read(fd, 5),
            os.stat(d + "/f").st_size,
        )


@table.row
def appending(d: str) -> object:
    put(d + "/f", b"start")
    with opened(d + "/f", os.O_RDWR | os.O_APPEND) as fd:
        os.write(fd, b"-one")
        os.lseek(fd, 0, os.SEEK_SET)
        os.write(fd, b"-two")
        at = os.lseek(fd, 0, os.SEEK_CUR)
        os.pwrite(fd, b"-three", 0)  # Linux appends here too
        return get(d + "/f"), at


@table.row
def two_appenders_lose_nothing(d: str) -> object:
    a = os.open(d + "/f", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    b = os.open(d + "/f", os.O_WRONLY | os.O_APPEND)
    for number in range(50):
        os.write(a, b"a%d\n" % number)
        os.write(b, b"b%d\n" % number)
    return get(d + "/f")


@table.row
def appenders_in_four_processes_lose_nothing(d: str) -> object:
    put(d + "/f", b"")
    children = []
    for who in range(4):
        pid = os.fork()
        if pid == 0:
            with opened(d + "/f", os.O_WRONLY | os.O_APPEND) as fd:
                for number in range(200):
                    os.write(fd, b"%d %d\n" % (who, number))
            os._exit(0)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    lines = get(d + "/f").split(b"\n")[:-1]
    os.unlink(d + "/f")  # the order of its lines is nobody's
    return codes, len(lines), len(set(lines))


@table.row
def append_after_another_descriptor_truncated(d: str) -> object:
    put(d + "/f", b"0123456789")
    with opened(d + "/f", os.O_WRONLY | os.O_APPEND) as fd:
        os.write(fd, b"A")
        os.truncate(d + "/f", 2)
        os.write(fd, b"B")
        return get(d + "/f")


@table.row
def append_through_an_inherited_descriptor(d: str) -> object:
    with opened(d + "/f", os.O_WRONLY | os.O_APPEND | os.O_CREAT) as fd:
        os.write(fd, b"parent\n")
        elsewhere(lambda: os.write(fd, b"child\n"))
        os.write(fd, b"parent again\n")
        return get(d + "/f")


@table.row
def writes_are_seen_at_once_by_other_readers(d: str) -> object:
    put(d + "/f", b"aaaa")
    with opened(d + "/f") as reader, opened(d + "/f", os.O_WRONLY) as writer:
        seen = [os.pread(reader, 9, 0)]
        os.pwrite(writer, b"bb", 1)
        seen.append(os.pread(reader, 9, 0))
        os.pwrite(writer, b"tail", 4)
        seen.append(os.pread(reader, 9, 0))
        sizes = os.fstat(reader).st_size, os.stat(d + "/f").st_size
        return seen, sizes


@table.row
def writes_are_seen_at_once_by_other_processes(d: str) -> object:
    put(d + "/f", b"aaaa")
    with opened(d + "/f", os.O_RDWR) as fd:
        os.pwrite(fd, b"Z", 0)
        first = elsewhere(lambda: get(d + "/f"))
        elsewhere(lambda: put(d + "/f", b"child"))
        return first, os.pread(fd, 9, 0), os.fstat(fd).st_size


@table.row
def read_after_close_and_reopen_with_the_same_size(d: str) -> object:
    seen = []
    for number in range(30):
        put(d + "/f", b"%02d" % number)
        seen.append(get(d + "/f"))
    return seen


@table.row
def sendfile_splice_and_copy_file_range(d: str) -> object:
    data = random.Random(1).randbytes(300_000)
    put(d + "/f", data)
    with opened(d + "/f") as source:
        with opened(d + "/sent", os.O_WRONLY | os.O_CREAT) as to:
            sent = 0
            while part := os.sendfile(to, source, sent, len(data) - sent):
                sent += part
        with opened(d + "/copied", os.O_WRONLY | os.O_CREAT) as to:
            copied = 0
            while part := os.copy_file_range(source, to, len(data) - copied, copied):
                copied += part
        with opened(d + "/spliced", os.O_WRONLY | os.O_CREAT) as to:
            a, b = os.pipe()
            moved = 0
            while part := os.splice(source, b, 60_000, offset_src=moved):
                while part:
                    done = os.splice(a, to, part)
                    part, moved = part - done, moved + done
    return sent, copied, moved, [get(d + n) == data for n in ("/sent", "/copied", "/spliced")]


@table.row
def copy_file_range_within_a_file_and_its_errors(d: str) -> object:
    put(d + "/f", b"0123456789" * 10)
    with opened(d + "/f", os.O_RDWR) as fd, opened(d + "/f") as reader, opened(d) as directory:
        return (
            os.copy_file_range(fd, fd, 5, 0, 50),
            attempt(os.copy_file_range, fd, fd, 20, 0, 10),
            attempt(os.copy_file_range, fd, reader, 5, 0, 50),
            attempt(os.copy_file_range, directory, fd, 5),
            os.pread(fd, 10, 48),
        )


@table.row
def library_copies(d: str) -> object:
    put(d + "/f", random.Random(2).randbytes(500_000), 0o751)
    os.utime(d + "/f", (1_000_000_000, 1_000_000_001))
    shutil.copyfile(d + "/f", d + "/a")
    shutil.copy2(d + "/f", d + "/b")
    st = os.stat(d + "/b")
    return get(d + "/a") == get(d + "/f") == get(d + "/b"), oct(st.st_mode), st.st_mtime


@table.row
def direct_io_aligned(d: str) -> object:
    area = mmap.mmap(-1, 8192)
    area.write(b"d" * 8192)
    with opened(d + "/f", os.O_RDWR | os.O_CREAT | os.O_DIRECT) as fd:
        wrote = os.write(fd, area)
        os.lseek(fd, 0, os.SEEK_SET)
        return wrote, os.readv(fd, [area]), area[:] == b"d" * 8192


@table.row
def direct_io_beside_cached_io(d: str) -> object:
    put(d + "/f", b"a" * 8192)
    area = mmap.mmap(-1, 4096)
    area.write(b"b" * 4096)
    with opened(d + "/f", os.O_RDWR) as cached, opened(d + "/f", os.O_RDWR | os.O_DIRECT) as direct:
        first = os.pread(cached, 8192, 0)
        os.pwrite(direct, area, 4096)
        second = os.pread(cached, 8192, 0)
        os.pwrite(cached, b"c" * 4096, 0)
        os.preadv(direct, [area], 0)
        return first == b"a" * 8192, second == b"a" * 4096 + b"b" * 4096, area[:] == b"c" * 4096


@table.row
def direct_io_misaligned(d: str) -> object:
    put(d + "/f", b"a" * 8192)
    with opened(d + "/f", os.O_RDWR | os.O_DIRECT) as fd:
        return attempt(os.pwrite, fd, b"odd", 1)


@table.row
def synchronous_writes(d: str) -> object:
    with opened(d + "/f", os.O_RDWR | os.O_CREAT | os.O_SYNC) as fd:
        os.write(fd, b"abc")
        os.fsync(fd)
        os.fdatasync(fd)
    return get(d + "/f")


@table.row
def syncing_everything(d: str) -> object:
    put(d + "/f")
    os.mkfifo(d + "/p")
    with opened(d) as directory, opened(d + "/f") as fd, opened(d + "/p", os.O_RDONLY | os.O_NONBLOCK) as p:
        return (
            attempt(os.fsync, directory),
            attempt(os.fdatasync, directory),
            attempt(os.fsync, fd),
            attempt(os.fsync, p),
            attempt(lambda: check(libc.syncfs(fd))),
            attempt(lambda: check(libc.sync_file_range(fd, ctypes.c_int64(0), ctypes.c_int64(0), 7))),
        )


@table.row
def advice_and_readahead(d: str) -> object:
    put(d + "/f", b"x" * 100_000)
    with opened(d + "/f") as fd:
        return (
            [attempt(os.posix_fadvise, fd, 0, 0, advice) for advice in range(6)],
            attempt(lambda: check(libc.readahead(fd, ctypes.c_int64(0), 50_000))),
            len(os.read(fd, 100_001)),
        )


# ---- large and sparse ---------------------------------------------------------------------


@table.row
def beyond_four_gib(d: str) -> object:
    with opened(d + "/f", os.O_RDWR | os.O_CREAT) as fd:
        os.pwrite(fd, b"first", 0)
        os.pwrite(fd, b"over 2", 2 * GIB - 3)
        os.pwrite(fd, b"over 4", 4 * GIB - 3)
        os.pwrite(fd, b"far", 100 * GIB)
        seen = [os.pread(fd, 6, at) for at in (0, 2 * GIB - 3, 4 * GIB - 3, 5 * GIB, 100 * GIB)]
        size = os.fstat(fd).st_size
        sparse = os.fstat(fd).st_blocks < 1000
        os.ftruncate(fd, 5 * GIB + 1)
        return seen, size, sparse, os.stat(d + "/f").st_size, os.lseek(fd, 0, os.SEEK_END)


@table.row
def beyond_the_largest_file(d: str) -> object:
    with opened(d + "/f", os.O_RDWR | os.O_CREAT) as fd:
        return attempt(os.ftruncate, fd, (1 << 63) - 1), attempt(os.pwrite, fd, b"x", (1 << 63) - 2)


@table.row
def file_size_limit_of_the_process(d: str) -> object:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    with opened(d + "/f", os.O_RDWR | os.O_CREAT) as fd:
        return (
            attempt(os.write, fd, b"x" * 800),
            attempt(os.write, fd, b"x" * 800),
            attempt(os.write, fd, b"x" * 800),
            attempt(os.ftruncate, fd, 2000),
            os.fstat(fd).st_size,
        )


@table.row
def holes_read_as_zeros(d: str) -> object:
    with opened(d + "/f", os.O_RDWR | os.O_CREAT) as fd:
        os.pwrite(fd, b"end", 100_000)
        return os.pread(fd, 10, 50_000), len(get(d + "/f")), get(d + "/f").count(0)


@table.row
def seeking_holes(d: str) -> object:
    with opened(d + "/f", os.O_RDWR | os.O_CREAT) as fd:
        os.pwrite(fd, b"x" * 4096, 0)
        os.pwrite(fd, b"x" * 4096, 1 << 20)
        os.fsync(fd)
        return (
            os.lseek(fd, 0, os.SEEK_DATA),
            os.lseek(fd, 0, os.SEEK_HOLE),
            os.lseek(fd, 8192, os.SEEK_DATA),
            attempt(os.lseek, fd, 2 << 20, os.SEEK_DATA),
        )


table.accept(
    "seeking_holes",
    [0, (1 << 20) + 4096, 8192, "ENXIO"],
    "while it is open for reading and writing: only the kernel knows what is stored through a mapping",
)


@table.row
def seeking_holes_of_a_file_that_nobody_changes(d: str) -> object:
    with opened(d + "/f", os.O_RDWR | os.O_CREAT) as fd:
        os.pwrite(fd, b"x" * 4096, 0)
        os.pwrite(fd, b"x" * 4096, 1 << 20)
    with opened(d + "/f") as fd:
        return [os.lseek(fd, at, how) for at in (0, 8192, 1 << 20) for how in (os.SEEK_DATA, os.SEEK_HOLE)]


@table.row
def a_sparse_copy_has_what_was_stored_through_a_mapping(d: str) -> object:
    copied = {}
    with opened(d + "/f", os.O_RDWR | os.O_CREAT) as fd, opened(d + "/f") as reader:
        os.ftruncate(fd, 1 << 20)
        with mmap.mmap(fd, 0) as mapped:
            mapped[500_000:500_005] = b"bytes"
            at = 0
            while isinstance(start := attempt(os.lseek, reader, at, os.SEEK_DATA), int):
                at = os.lseek(reader, start, os.SEEK_HOLE)
                copied[start] = os.pread(reader, at - start, start)
    return any(b"bytes" in part for part in copied.values())


@table.row
def seeking_data_and_holes_in_a_full_file(d: str) -> object:
    put(d + "/f", b"x" * 10_000)
    with opened(d + "/f") as fd:
        return (
            os.lseek(fd, 100, os.SEEK_DATA),
            os.lseek(fd, 100, os.SEEK_HOLE),
            attempt(os.lseek, fd, 10_000, os.SEEK_DATA),
            attempt(os.lseek, fd, 10_001, os.SEEK_HOLE),
        )


@table.row
def preallocation_by_the_kernel(d: str) -> object:
    with opened(d + "/f", os.O_RDWR | os.O_CREAT) as fd:
        check(libc.fallocate(fd, 0, ctypes.c_int64(0), ctypes.c_int64(100_000)))
        return os.fstat(fd).st_size


@table.row
def punching_a_hole(d: str) -> object:
    put(d + "/f", b"x" * 100_000)
    with opened(d + "/f", os.O_RDWR) as fd:
        check(libc.fallocate(fd, 3, ctypes.c_int64(4096), ctypes.c_int64(4096)))
    return get(d + "/f").count(0)


@table.row
def preallocation_by_the_library(d: str) -> object:
    with opened(d + "/f", os.O_RDWR | os.O_CREAT) as fd:
        os.pwrite(fd, b"keep", 10)
        os.posix_fallocate(fd, 0, 100_000)
        return os.fstat(fd).st_size, os.pread(fd, 4, 10)


# ---- truncating -----------------------------------------------------------------------------


@table.row
def truncating_by_path_and_descriptor(d: str) -> object:
    put(d + "/f", b"0123456789")
    seen = []
    with opened(d + "/f", os.O_RDWR) as fd:
        for how, size in (("p", 5), ("f", 8), ("p", 20_000), ("f", 0), ("f", 3), ("p", 3)):
            os.truncate(d + "/f", size) if how == "p" else os.ftruncate(fd, size)
            seen.append((os.fstat(fd).st_size, os.pread(fd, 9, 0), len(get(d + "/f"))))
    return seen


@table.row
def shrinking_and_growing_shows_zeros_not_old_bytes(d: str) -> object:
    put(d + "/f", b"secret" * 2000)
    with opened(d + "/f", os.O_RDWR) as fd:
        os.read(fd, 12_000)
        os.ftruncate(fd, 3)
        os.ftruncate(fd, 9000)
        return os.pread(fd, 12_000, 0) == b"sec" + bytes(8997), get(d + "/f") == b"sec" + bytes(8997)


@table.row
def truncate_errors(d: str) -> object:
    os.mkdir(d + "/dir")
    os.symlink("nowhere", d + "/dangling")
    os.mkfifo(d + "/p")
    put(d + "/f")
    names = ("/dir", "/none", "/dangling", "/p", "/f/x", "/f/")
    return {n: attempt(os.truncate, d + n, 0) for n in names}, attempt(os.truncate, d + "/f", -1)


@table.row
def truncate_through_a_symlink(d: str) -> object:
    put(d + "/f", b"0123456789")
    os.symlink("f", d + "/s")
    os.truncate(d + "/s", 4)
    return get(d + "/f")


@table.root_row
def truncate_needs_write_permission(d: str) -> object:
    put(d + "/f", b"0123456789", 0o644)
    put(d + "/g", b"0123456789", 0o666)
    return [as_user(4005, lambda n=n: os.truncate(d + n, 4)) for n in ("/f", "/g")]


@table.root_row
def ftruncate_needs_only_the_descriptor(d: str) -> object:
    os.chmod(d, 0o777)

    def act() -> object:
        fd = os.open(d + "/f", os.O_RDWR | os.O_CREAT, 0o444)
        os.write(fd, b"0123456789")
        os.ftruncate(fd, 4)
        return os.fstat(fd).st_size, attempt(os.truncate, d + "/f", 1)

    return as_user(4005, act)


# ---- mappings -----------------------------------------------------------------------------------


@table.row
def shared_mapping_and_descriptor_see_each_other(d: str) -> object:
    put(d + "/f", b"a" * 10_000)
    with opened(d + "/f", os.O_RDWR) as fd, mmap.mmap(fd, 10_000) as area:
        area[5000:5004] = b"MMAP"
        first = os.pread(fd, 4, 5000)
        os.pwrite(fd, b"FILE", 7000)
        second = area[7000:7004]
        area.flush()
        return first, second, get(d + "/f")[5000:5004]


@table.row
def shared_mapping_outlives_close_and_unlink(d: str) -> object:
    put(d + "/f", b"a" * 8192)
    os.link(d + "/f", d + "/g")
    fd = os.open(d + "/f", os.O_RDWR)
    area = mmap.mmap(fd, 8192)
    os.close(fd)
    os.unlink(d + "/f")
    area[0:3] = b"new"
    area.close()
    return get(d + "/g")[:5]


@table.row
def mapping_stored_after_close_reaches_the_file(d: str) -> object:
    put(d + "/f", b"a" * 8192)
    with open(d + "/f", "r+b") as file:
        area = mmap.mmap(file.fileno(), 8192)
    area[4096:4100] = b"late"
    area.close()
    return get(d + "/f")[4096:4102]


@table.row
def private_mapping_changes_nothing(d: str) -> object:
    put(d + "/f", b"a" * 5000)
    with (
        opened(d + "/f") as fd,
        mmap.mmap(fd, 5000, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as area,
    ):
        area[0:3] = b"own"
        return area[0:4], get(d + "/f")[:4]


@table.row
def mapping_errors(d: str) -> object:
    put(d + "/f", b"a" * 5000)
    with opened(d + "/f") as reader, opened(d + "/f", os.O_WRONLY) as writer, opened(d) as directory:
        return (
            attempt(mmap.mmap, reader, 5000, mmap.MAP_SHARED, mmap.PROT_WRITE | mmap.PROT_READ),
            attempt(mmap.mmap, writer, 5000, mmap.MAP_SHARED, mmap.PROT_WRITE),
            attempt(lambda: check(libc.mmap(None, 4096, 1, 1, directory, 0) & -1 or 0)),
        )


@table.row
def mapping_beyond_the_end_is_a_bus_error(d: str) -> object:
    put(d + "/f", b"a" * 10)

    def touch() -> None:
        with opened(d + "/f") as fd:
            area = mmap.mmap(fd, 10)
            os.truncate(d + "/f", 0)
            area[0]

    pid = os.fork()
    if pid == 0:
        touch()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@table.row
def mapping_shared_between_processes(d: str) -> object:
    put(d + "/f", b"a" * 4096)
    with opened(d + "/f", os.O_RDWR) as fd, mmap.mmap(fd, 4096) as area:

        def other() -> object:
            with opened(d + "/f", os.O_RDWR) as mine, mmap.mmap(mine, 4096) as view:
                seen = view[0:3]
                view[10:13] = b"kid"
                return seen

        area[0:3] = b"dad"
        return elsewhere(other), area[10:13]


@table.row
def mapping_then_write_by_path(d: str) -> object:
    put(d + "/f", b"a" * 4096)
    with opened(d + "/f") as fd, mmap.mmap(fd, 4096, prot=mmap.PROT_READ) as area:
        before = area[0:2]
        with opened(d + "/f", os.O_WRONLY) as writer:
            os.pwrite(writer, b"ZZ", 0)
        return before, area[0:2]


@table.row
def mapping_grows_with_the_file(d: str) -> object:
    put(d + "/f", b"a" * 4096)
    with opened(d + "/f", os.O_RDWR) as fd, mmap.mmap(fd, 4096) as area:
        os.ftruncate(fd, 12_288)
        area.resize(12_288)
        area[12_000:12_003] = b"end"
        area.flush()
    return get(d + "/f")[12_000:12_003], os.stat(d + "/f").st_size


# ---- what a write does to times and bits -----------------------------------------------------------


@table.row
def executable_as_a_shared_library(d: str) -> object:
    if not getattr(_ctypes, "__file__", None):
        return "built in"
    shutil.copyfile(_ctypes.__file__, d + "/lib.so")
    return bool(ctypes.CDLL(d + "/lib.so"))


@table.row
def dnotify_and_leases(d: str) -> object:
    put(d + "/f")
    with opened(d + "/f") as fd:
        return attempt(fcntl.fcntl, fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)


table.accept(
    "direct_io_misaligned",
    3,
    "O_DIRECT is served, but without the alignment that the disk behind would demand",
)
table.accept("punching_a_hole", "EOPNOTSUPP", "fallocate(2) is not in pyfuse3")


@pytest.mark.parametrize("row", table.rows, ids=lambda row: row.name)
def test_data_as_on_a_plain_directory(row: Row, places: Places) -> None:
    places.compare(table, row)
