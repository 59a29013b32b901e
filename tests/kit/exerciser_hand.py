"""One process of the file exerciser: carries out calls that it is sent, and sends back what came of them.

Started as a program (perhaps below `fsguard run`), with the directory as its
argument; calls come on stdin, answers go to stdout, each a length and a
marshalled tuple. An answer is ("is", value) or ("errno", number).

Mappings are made by mmap(2) itself: Python's mmap keeps a descriptor of its own, and
what happens to a mapping whose file was closed is what matters here.
"""

from __future__ import annotations

import ctypes
import marshal
import mmap
import os
import struct
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

__all__ = ["EXCHANGE", "PAGE", "Hand", "receive", "send"]

PAGE = mmap.PAGESIZE
EXCHANGE = 2

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.fallocate64.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_libc.renameat2.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
_SYNC = 4  # MS_SYNC


def _check(result: int) -> int:
    if result == -1:
        raise OSError(ctypes.get_errno(), "")
    return result


def send(stream: BinaryIO, value: object) -> None:
    data = marshal.dumps(value)
    stream.write(struct.pack("=I", len(data)) + data)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """None: the other side has ended."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    return marshal.loads(stream.read(struct.unpack("=I", head)[0]))


class Hand:
    """The calls by name; handles and mappings have the numbers that the caller gave them."""

    def __init__(self) -> None:
        self.fds: dict[int, int] = {}
        self.maps: dict[int, tuple[int, int]] = {}
        self._aligned = mmap.mmap(-1, 1 << 20)  # what O_DIRECT reads into and writes from

    def call(self, name: str, *args: Any) -> tuple[str, Any]:
        function: Callable[..., Any] = getattr(self, f"do_{name}")
        try:
            return "is", function(*args)
        except OSError as error:
            return "errno", error.errno

    # ---- handles ----

    def do_open(self, handle: int, name: str, flags: int) -> None:
        self.fds[handle] = os.open(name, flags | os.O_CLOEXEC, 0o644)

    def do_close(self, handle: int) -> None:
        os.close(self.fds.pop(handle))

    def do_pread(self, handle: int, offset: int, length: int) -> bytes:
        return os.pread(self.fds[handle], length, offset)

    def do_preadv(self, handle: int, offset: int, lengths: list[int]) -> bytes:
        parts = [bytearray(length) for length in lengths]
        count = os.preadv(self.fds[handle], parts, offset)
        return b"".join(parts)[:count]

    def do_pwrite(self, handle: int, offset: int, data: bytes) -> int:
        return os.pwrite(self.fds[handle], data, offset)

    def do_pwritev(self, handle: int, offset: int, parts: list[bytes]) -> int:
        return os.pwritev(self.fds[handle], parts, offset)

    def do_read(self, handle: int, length: int) -> bytes:
        return os.read(self.fds[handle], length)

    def do_write(self, handle: int, data: bytes) -> int:
        return os.write(self.fds[handle], data)

    def do_direct_read(self, handle: int, offset: int, length: int) -> bytes:
        with memoryview(self._aligned)[:length] as view:
            count = os.preadv(self.fds[handle], [view], offset)
            return bytes(view[:count])

    def do_direct_write(self, handle: int, offset: int, data: bytes) -> int:
        with memoryview(self._aligned)[: len(data)] as view:
            view[:] = data
            return os.pwritev(self.fds[handle], [view], offset)

    def do_seek(self, handle: int, offset: int, whence: int) -> int:
        return os.lseek(self.fds[handle], offset, whence)

    def do_ftruncate(self, handle: int, size: int) -> None:
        os.ftruncate(self.fds[handle], size)

    def do_fstat(self, handle: int) -> tuple[int, int]:
        st = os.fstat(self.fds[handle])
        return st.st_size, st.st_nlink

    def do_fsync(self, handle: int) -> None:
        os.fsync(self.fds[handle])

    def do_fdatasync(self, handle: int) -> None:
        os.fdatasync(self.fds[handle])

    def do_fallocate(self, handle: int, mode: int, offset: int, length: int) -> None:
        _check(_libc.fallocate64(self.fds[handle], mode, offset, length))

    def do_copy_range(self, source: int, at: int, target: int, to: int, length: int) -> int:
        return os.copy_file_range(self.fds[source], self.fds[target], length, at, to)

    def do_sendfile(self, source: int, at: int, target: int, length: int) -> int:
        return os.sendfile(self.fds[target], self.fds[source], at, length)

    def do_splice(self, source: int, at: int, target: int, to: int, length: int) -> int:
        """Through a pipe; less than a pipe holds."""
        out, into = os.pipe()
        try:
            count = os.splice(self.fds[source], into, length, offset_src=at)
            done = 0
            while done < count:
                done += os.splice(out, self.fds[target], count - done, offset_dst=to + done)
            return done
        finally:
            os.close(out)
            os.close(into)

    # ---- mappings ----

    def do_map(self, mapping: int, handle: int, start: int, length: int, writable: bool) -> None:
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        address = _libc.mmap(None, length, prot, mmap.MAP_SHARED, self.fds[handle], start)
        if address in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), "mmap")
        self.maps[mapping] = address, length

    def do_load(self, mapping: int, at: int, length: int) -> bytes:
        return ctypes.string_at(self.maps[mapping][0] + at, length)

    def do_store(self, mapping: int, at: int, data: bytes) -> None:
        ctypes.memmove(self.maps[mapping][0] + at, data, len(data))

    def do_msync(self, mapping: int) -> None:
        address, length = self.maps[mapping]
        _check(_libc.msync(address, length, _SYNC))

    def do_unmap(self, mapping: int) -> None:
        _check(_libc.munmap(*self.maps.pop(mapping)))

    # ---- names ----

    def do_truncate(self, name: str, size: int) -> None:
        os.truncate(name, size)

    def do_rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def do_exchange(self, one: str, other: str) -> None:
        _check(_libc.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), EXCHANGE))

    def do_link(self, old: str, new: str) -> None:
        os.link(old, new)

    def do_unlink(self, name: str) -> None:
        os.unlink(name)

    def do_stat(self, name: str) -> tuple[int, int]:
        st = os.stat(name)
        return st.st_size, st.st_nlink

    def do_list(self) -> list[str]:
        return sorted(os.listdir("."))

    def do_content(self, name: str) -> bytes:
        with open(name, "rb") as file:
            return file.read()


def main() -> None:
    os.chdir(sys.argv[1])
    hand = Hand()
    calls, answers = sys.stdin.buffer, sys.stdout.buffer
    while (call := receive(calls)) is not None:
        send(answers, hand.call(*call))


if __name__ == "__main__":
    main()
