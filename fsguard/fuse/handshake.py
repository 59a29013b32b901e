"""FUSE_INIT, negotiated over the head of libfuse.

pyfuse3 leaves no choice of most features, and libfuse does not know all of
them. So the request and the reply pass through here once:

    /dev/fuse → request, some offers taken out → socket pair → libfuse
    /dev/fuse ← reply, some wishes put in      ← socket pair ← libfuse

Then the real descriptor takes the place of libfuse's end of the pair.
"""

from __future__ import annotations

import os
import socket
import struct
from errno import EAGAIN
from typing import NamedTuple

import trio

from ..errors import MissingError
from ._library import interposed

__all__ = ["FLAGS", "Agreement", "Handshake", "patch_reply", "patch_request"]

# include/uapi/linux/fuse.h, by name, for status and doctor.
FLAGS = {
    "async_read": 0,
    "posix_locks": 1,
    "atomic_o_trunc": 3,
    "export_support": 4,
    "big_writes": 5,
    "dont_mask": 6,
    "splice_write": 7,
    "splice_move": 8,
    "splice_read": 9,
    "flock_locks": 10,
    "auto_inval_data": 12,
    "readdirplus": 13,
    "readdirplus_auto": 14,
    "async_dio": 15,
    "writeback_cache": 16,
    "parallel_dirops": 18,
    "handle_killpriv": 19,
    "posix_acl": 20,
    "no_opendir": 24,
    "max_pages": 22,
    "handle_killpriv_v2": 28,
    "init_ext": 30,
}

# Kept from libfuse. Splice: it would read the socket pair by splice(2), and requests in a pipe
# can't be looked at. Killpriv, version 1: says "the filesystem drops set-user-ID by itself" and
# then nothing with each request; version 2 (Linux ≥ 5.11) says in each request when to.
_WITHHELD = sum(
    1 << FLAGS[f]
    for f in ("splice_write", "splice_move", "splice_read", "handle_killpriv", "handle_killpriv_v2")
)
# Asked for on libfuse's behalf, as far as the kernel offers them. Dont_mask: the umask is applied
# behind the mount, where a default ACL takes its place.
_WANTED = sum(1 << FLAGS[f] for f in ("dont_mask", "parallel_dirops", "auto_inval_data"))
# Only where each request can be looked at for it; else the kernel drops set-user-ID by SETATTR.
_WANTED_WITH_PEEK = 1 << FLAGS["handle_killpriv_v2"]

_HEADER = 40  # fuse_in_header
_REPLY_HEADER = 16  # fuse_out_header
_OPCODE_INIT = 26
_FLAGS_IN = _HEADER + 12
_FLAGS_OUT = _REPLY_HEADER + 12
_BUFFER = 1 << 17  # FUSE_MIN_READ_BUFFER is 8 KiB; an INIT request is 104 bytes


def patch_request(request: bytes) -> tuple[bytes, int]:
    """(the request with some offers taken out, the flags that the kernel offered)."""
    length, opcode = struct.unpack_from("=II", request)
    if opcode != _OPCODE_INIT or length != len(request) or length < _FLAGS_IN + 4:
        raise MissingError(f"the kernel's first FUSE request is {opcode}, not FUSE_INIT")
    (offered,) = struct.unpack_from("=I", request, _FLAGS_IN)
    patched = bytearray(request)
    struct.pack_into("=I", patched, _FLAGS_IN, offered & ~_WITHHELD)
    return bytes(patched), offered


def patch_reply(reply: bytes, offered: int, peeking: bool) -> tuple[bytes, int]:
    """(libfuse's reply with our wishes put in, the flags agreed).

    `peeking`: requests pass through `_request`, which sees what pyfuse3 drops.
    """
    if len(reply) < _FLAGS_OUT + 4:
        raise MissingError("libfuse refused FUSE_INIT: kernel and libfuse do not fit together")
    (agreed,) = struct.unpack_from("=I", reply, _FLAGS_OUT)
    agreed |= (_WANTED | (_WANTED_WITH_PEEK if peeking else 0)) & offered
    patched = bytearray(reply)
    struct.pack_into("=I", patched, _FLAGS_OUT, agreed)
    return bytes(patched), agreed


class Agreement(NamedTuple):
    """What the kernel has offered and was answered, for a program that goes on with the connection."""

    request: bytes  # as libfuse was given it
    offered: int
    agreed: int
    protocol: tuple[int, int]
    max_write: int


class Handshake:
    """Negotiates for the descriptor `fuse_fd`, which it takes over.

    `libfuse_fd` is what libfuse gets; after `finish` it is the connection.
    `past`: the kernel has agreed already, with the program before; only libfuse is
    to be told, and what it answers goes nowhere.
    """

    def __init__(self, fuse_fd: int, past: Agreement | None = None) -> None:
        self.fuse_fd = fuse_fd
        self._past = past
        self._request = past.request if past is not None else b""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._pair = ours
        self.libfuse_fd = theirs.detach()
        self._offered = 0
        self.agreed = 0
        self.protocol = (0, 0)
        self.max_write = 0

    async def start(self) -> None:
        """Take FUSE_INIT from the kernel and give it to libfuse."""
        if self._past is not None:
            self._offered = self._past.offered
            self._pair.send(self._request)
            return
        while True:
            await trio.lowlevel.wait_readable(self.fuse_fd)
            try:
                request = os.read(self.fuse_fd, _BUFFER)
                break
            except OSError as error:
                if error.errno != EAGAIN:
                    raise
        self._request, self._offered = patch_request(request)
        self._pair.send(self._request)

    async def finish(self) -> None:
        """Take libfuse's reply, give it to the kernel, and connect the two directly."""
        self._pair.setblocking(False)
        await trio.lowlevel.wait_readable(self._pair)
        said = self._pair.recv(4096)
        if self._past is not None:
            self.agreed, self.protocol, self.max_write = self._past[2:]
        else:
            reply, self.agreed = patch_reply(said, self._offered, interposed())
            os.write(self.fuse_fd, reply)
            self.protocol = struct.unpack_from("=II", reply, _REPLY_HEADER)
            (self.max_write,) = struct.unpack_from("=I", reply, _REPLY_HEADER + 20)
        if interposed():
            # What poll(2) announced may be gone again at read(2); EAGAIN is taken care of there.
            os.set_blocking(self.fuse_fd, False)
        trio.lowlevel.notify_closing(self.fuse_fd)
        trio.lowlevel.notify_closing(self._pair)
        os.dup2(self.fuse_fd, self.libfuse_fd, inheritable=False)
        self.close()

    def close(self) -> None:
        if self.fuse_fd >= 0:
            os.close(self.fuse_fd)
            self.fuse_fd = -1
        self._pair.close()

    def agreement(self) -> Agreement:
        """For who goes on with the connection; complete after `finish`."""
        return Agreement(self._request, self._offered, self.agreed, self.protocol, self.max_write)

    def offers(self, feature: str) -> bool:
        """Whether the kernel has it, asked for or not."""
        return bool(self._offered >> FLAGS[feature] & 1)

    def features(self) -> dict[str, bool]:
        return {name: bool(self.agreed >> bit & 1) for name, bit in FLAGS.items()}
