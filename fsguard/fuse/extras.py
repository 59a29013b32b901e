"""Requests that pyfuse3 has no handlers for: FUSE_LSEEK and FUSE_FALLOCATE.

They are answered past it (see `_request`); where that is not to be had the kernel
goes without, as it does for every filesystem of pyfuse3: no holes are seen, and
posix_fallocate(3) writes zeros.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Callable
from errno import EBADF, EIO, ENXIO, EOPNOTSUPP

from ..observer import Caller, Truncated
from . import syscalls
from ._library import request
from .filesystem import Filesystem
from .lane import LANE_FH
from .tracebacks import describe

__all__ = ["ExtraHandlers"]

log = logging.getLogger(__name__)

# include/uapi/linux/fuse.h
_FALLOCATE, _LSEEK = 43, 46
_LSEEK_IN, _LSEEK_OUT = struct.Struct("=QqII"), struct.Struct("=q")
_FALLOCATE_IN = struct.Struct("=QQQII")
_KEEP_SIZE = 1


class ExtraHandlers(Filesystem):
    """Mixin; `init` is what pyfuse3 calls while it answers FUSE_INIT."""

    def init(self) -> None:
        if self.peeking:
            request.answer(self.answer, 1 << _FALLOCATE | 1 << _LSEEK)

    def answer(self, opcode: int, id_: int, body: bytes) -> bytes | int:
        """The reply's body, or an errno."""
        name, fn = self._extras[opcode]
        self.counts[name] += 1
        try:
            return fn(self, id_, body)
        except OSError as error:
            return error.errno or EIO
        except Exception as error:
            log.error("%s failed: %s", name, describe(error))
            return EIO

    def lseek(self, id_: int, body: bytes) -> bytes:
        """SEEK_HOLE and SEEK_DATA; the others the kernel does by itself.

        What was stored through a mapping may be in the kernel's cache alone, and it does not
        write it back before it asks for holes: a file that may be mapped so shows none.
        """
        fh, offset, whence, _ = _LSEEK_IN.unpack_from(body)
        handle = self.handles.files.get(fh)
        if handle is None and (self.lane is None or not fh & LANE_FH):
            raise OSError(EBADF, f"unknown handle {fh}")
        node = self.nodes[id_] if handle is None else handle.node
        fd = self.backing.open(node, os.O_RDONLY) if handle is None else handle.fd
        try:
            if not any(other.flags & os.O_ACCMODE == os.O_RDWR for other in node.handles.values()):
                return _LSEEK_OUT.pack(os.lseek(fd, offset, whence))
            size = os.fstat(fd).st_size
            if not 0 <= offset < size:
                raise OSError(ENXIO, "beyond the end")
            return _LSEEK_OUT.pack(offset if whence == os.SEEK_DATA else size)
        finally:
            if handle is None:
                os.close(fd)

    def fallocate(self, id_: int, body: bytes) -> bytes:
        """Reserving space. Punching and zeroing are refused: programs then write zeros, which
        goes past the observer like any other write."""
        fh, offset, length, mode, _ = _FALLOCATE_IN.unpack_from(body)
        handle = self.handles.file(fh)
        if mode & ~_KEEP_SIZE:
            raise OSError(EOPNOTSUPP, "only reserving")
        end = offset + length
        if mode & _KEEP_SIZE or end <= os.fstat(handle.fd).st_size:
            syscalls.fallocate(handle.fd, mode, offset, length)
            return b""
        self.revoke(handle.node)
        caller = Caller(self.request.tid(), -1, -1)
        with self.observer.changing(caller, Truncated(handle.node, end, handle.session)):
            syscalls.fallocate(handle.fd, mode, offset, length)
        return b""

    _extras: dict[int, tuple[str, Callable[[ExtraHandlers, int, bytes], bytes]]] = {
        _FALLOCATE: ("fallocate", fallocate),
        _LSEEK: ("lseek", lseek),
    }
