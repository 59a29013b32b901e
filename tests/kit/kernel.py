"""Plays the kernel's part against the compiled lane: raw FUSE requests in, raw replies out, no mount.

The lane reads from one end of a socket pair as it would from /dev/fuse. There is
one lane a process, so a `Kernel` stays for as long as the process does.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
import time
from dataclasses import dataclass

from fsguard.lane import engine

__all__ = ["LOOKUP", "ME", "Kernel", "Reply", "attr_of", "entry_of", "known"]

ME = threading.get_native_id

LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, WRITE, STATFS = 1, 2, 3, 4, 14, 15, 16, 17
MKDIR, UNLINK, RMDIR, LINK = 9, 10, 11, 13
RELEASE, FSYNC, SETXATTR, REMOVEXATTR, GETXATTR, LISTXATTR, FLUSH, OPENDIR, READDIR, RELEASEDIR = (
    18,
    20,
    21,
    24,
    22,
    23,
    25,
    27,
    28,
    29,
)
FSYNCDIR, ACCESS, CREATE, BATCH_FORGET, READDIRPLUS, LSEEK = 30, 34, 35, 42, 44, 46
_HEADER = struct.Struct("=IIQQIIIHH")
_OUT = struct.Struct("=IiQ")
_ENTRY = struct.Struct("=QQQQII")
_ATTR = struct.Struct("=QQQQQQIIIIIIIIII")
SECONDS = 10.0


def known(actor: int, group: int = 0) -> None:
    """This thread is that actor's from now on."""
    assert engine.know(ME(), actor, group, 3600.0)


@dataclass
class Reply:
    """errno (0: none) and the body."""

    error: int
    body: bytes


@dataclass
class Attr:
    ino: int
    size: int
    mode: int
    nlink: int
    uid: int
    gid: int
    mtime: int


def attr_of(body: bytes, at: int = 0) -> Attr:
    f = _ATTR.unpack_from(body, at)
    return Attr(f[0], f[1], f[9], f[10], f[11], f[12], f[4])


def entry_of(body: bytes, at: int = 0) -> tuple[int, Attr]:
    """(node id, attributes) of a LOOKUP's reply."""
    return _ENTRY.unpack_from(body, at)[0], attr_of(body, at + _ENTRY.size)


class Kernel:
    """:param root: the workspace, which the lane serves."""

    def __init__(self, root: str, *, believe: float = 1.0, threads: int = 3) -> None:
        self.root = root
        self.root_fd = os.open(root, os.O_PATH | os.O_DIRECTORY)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        theirs.setblocking(False)
        # Never closed: the lane reads from it for as long as the process lives.
        self._socket, device = ours, theirs.detach()
        believe_ns = round(believe * 1e9)
        engine.start(
            root_fd=self.root_fd, entry_ns=believe_ns, attr_ns=believe_ns, open_flags=0, opendir_flags=0
        )
        with contextlib.suppress(OSError):  # not everywhere; the tests that need it ask
            engine.watch()
        engine.serve(device, threads, (1 << 20) + 8192)
        self.notices: list[tuple[int, bytes]] = []  # (FUSE_NOTIFY_*, body)
        self._unique = 0
        self._replies: dict[int, Reply] = {}

    def send(
        self, opcode: int, node: int, body: bytes = b"", *, pid: int = 0, uid: int = 0, gid: int = 0
    ) -> int:
        """The request's number; nothing is waited for."""
        self._unique += 2
        header = _HEADER.pack(_HEADER.size + len(body), opcode, self._unique, node, uid, gid, pid, 0, 0)
        self._socket.send(header + body)
        return self._unique

    def raw(self, request: bytes) -> None:
        self._socket.send(request)

    def reply(self, unique: int, seconds: float = SECONDS) -> Reply | None:
        """The reply to a request; None: it went to Python."""
        end = time.monotonic() + seconds
        wanted = [self._socket.fileno(), engine.eventfd()]
        while unique not in self._replies:
            ready = select.select(wanted, [], [], max(0.0, end - time.monotonic()))[0]
            if self._socket.fileno() in ready:
                packet = self._socket.recv(2 << 20)
                _, error, number = _OUT.unpack_from(packet)
                if number == 0:
                    self.notices.append((error, packet[_OUT.size :]))
                else:
                    self._replies[number] = Reply(-error, packet[_OUT.size :])
            elif ready:
                request = engine.next_request()
                if request is not None and _HEADER.unpack_from(request)[2] == unique:
                    return None
            else:
                raise TimeoutError(f"no reply to request {unique}")
        return self._replies.pop(unique)

    def ask(self, opcode: int, node: int, body: bytes = b"", **who: int) -> Reply | None:
        return self.reply(self.send(opcode, node, body, **who))

    def rel(self, path: os.PathLike[str]) -> str:
        """The path as the lane's own records name it."""
        return os.path.relpath(path, self.root)

    # ---- the usual ones ----

    def lookup(self, path: str) -> int:
        """The node id of a path, 0: not there. Each component gets a lookup more."""
        node = 1
        for name in path.split("/"):
            reply = self.ask(LOOKUP, node, os.fsencode(name) + b"\0")
            assert reply is not None
            if reply.error or not entry_of(reply.body)[0]:
                return 0
            node = entry_of(reply.body)[0]
        return node

    def forget(self, node: int, count: int = 1) -> None:
        before = engine.state(node)[0]
        self.send(FORGET, node, struct.pack("=Q", count))
        end = time.monotonic() + SECONDS
        while engine.state(node)[0] == before:  # there is no reply to wait for
            assert time.monotonic() < end, "a FORGET was not heeded"
            os.sched_yield()

    def getattr(self, node: int) -> Reply:
        reply = self.ask(GETATTR, node, struct.pack("=IIQ", 0, 0, 0))
        assert reply is not None
        return reply

    def open(self, node: int, pid: int, flags: int = os.O_RDONLY) -> int | None:
        """The handle; None: Python is asked."""
        reply = self.ask(OPEN, node, struct.pack("=II", flags, 0), pid=pid)
        if reply is None:
            return None
        assert not reply.error, os.strerror(reply.error)
        return int(struct.unpack_from("=Q", reply.body)[0])

    def read(self, node: int, fh: int, size: int, offset: int = 0) -> bytes:
        reply = self.ask(READ, node, struct.pack("=QQIIQII", fh, offset, size, 0, 0, 0, 0))
        assert reply is not None and not reply.error
        return reply.body

    def write(
        self, node: int, fh: int, data: bytes, offset: int = 0, *, pid: int, flags: int = 1
    ) -> Reply | None:
        return self.ask(
            WRITE, node, struct.pack("=QQIIQII", fh, offset, len(data), 0, 0, flags, 0) + data, pid=pid
        )

    def create(
        self,
        parent: int,
        name: bytes,
        mode: int = 0o644,
        flags: int = os.O_WRONLY | os.O_CREAT | os.O_EXCL,
        umask: int = 0o022,
        **who: int,
    ) -> Reply | None:
        return self.ask(CREATE, parent, struct.pack("=IIII", flags, mode, umask, 0) + name + b"\0", **who)

    def made(self, parent: int, name: bytes, **how: int) -> tuple[int, int]:
        """(node, handle) of a file that the lane has made."""
        reply = self.create(parent, name, pid=ME(), **how)
        assert reply is not None and not reply.error, reply
        return entry_of(reply.body)[0], int(struct.unpack_from("=Q", reply.body, 128)[0])

    def mkdir(self, parent: int, name: bytes, mode: int = 0o755, umask: int = 0, **who: int) -> Reply | None:
        return self.ask(MKDIR, parent, struct.pack("=II", mode, umask) + name + b"\0", **who)

    def unlink(self, parent: int, name: bytes) -> Reply | None:
        return self.ask(UNLINK, parent, name + b"\0", pid=ME())

    def rmdir(self, parent: int, name: bytes) -> Reply | None:
        return self.ask(RMDIR, parent, name + b"\0", pid=ME())

    def link(self, node: int, parent: int, name: bytes) -> Reply | None:
        return self.ask(LINK, parent, struct.pack("=Q", node) + name + b"\0", pid=ME())

    def release(self, node: int, fh: int) -> Reply | None:
        return self.ask(RELEASE, node, struct.pack("=QIIQ", fh, 0, 0, 0))

    def listing(self, node: int) -> list[tuple[str, int]]:
        """(name, node id) by READDIRPLUS; each but "." and ".." gets a lookup more."""
        reply = self.ask(OPENDIR, node, struct.pack("=II", 0, 0))
        assert reply is not None and not reply.error
        offset, found = 0, []
        while True:
            entries, offset = self.page(node, offset)
            if not entries:
                break
            found += entries
        self.ask(RELEASEDIR, node, struct.pack("=QIIQ", 0, 0, 0, 0))
        return found

    def page(self, node: int, offset: int, size: int = 4096) -> tuple[list[tuple[str, int]], int]:
        """What one READDIRPLUS gives from a position on, and the position after it."""
        page = self.ask(READDIRPLUS, node, struct.pack("=QQIIQII", 0, offset, size, 0, 0, 0, 0))
        assert page is not None and not page.error
        at, found = 0, []
        while at < len(page.body):
            id_ = _ENTRY.unpack_from(page.body, at)[0]
            at += 128
            _, offset, length, _ = struct.unpack_from("=QQII", page.body, at)
            found.append((os.fsdecode(page.body[at + 24 : at + 24 + length]), id_))
            at += (24 + length + 7) & ~7
        return found, offset
