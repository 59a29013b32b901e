"""What the guard may ask about a node: its bytes, behind the mount.

Nothing here moves an access time, as far as the daemon may prevent it: only a
file's owner (and root) may ask for O_NOATIME.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EPERM
from fcntl import F_GETFL, F_SETFL, fcntl
from hashlib import blake2b
from stat import S_IFLNK, S_IFREG
from typing import TYPE_CHECKING

from .backing import proc_path

if TYPE_CHECKING:
    from .nodes import Node

__all__ = ["digest", "link", "open_to_read", "pread", "size", "xattrs"]

_CHUNK = 1 << 20


@contextmanager
def _without_atime(fd: int) -> Iterator[None]:
    flags = fcntl(fd, F_GETFL)
    try:
        fcntl(fd, F_SETFL, flags | os.O_NOATIME)
    except OSError:  # EPERM
        yield
        return
    try:
        yield
    finally:
        fcntl(fd, F_SETFL, flags)


@contextmanager
def _reading(node: Node) -> Iterator[int]:
    """A readable descriptor of a regular file: an open handle's, or one of our own."""
    for handle in node.handles.values():
        if handle.readable:
            with _without_atime(handle.fd):
                yield handle.fd
            return
    fd = open_to_read(node)
    try:
        yield fd
    finally:
        os.close(fd)


def open_to_read(node: Node) -> int:
    """A new descriptor, the caller's to close. Raises OSError."""
    try:
        return node.backing.open(node, os.O_RDONLY | os.O_NOATIME)
    except OSError as error:
        if error.errno != EPERM:
            raise
        return node.backing.open(node, os.O_RDONLY)


def size(node: Node) -> int:
    try:
        return node.backing.stat(node).st_size
    except OSError:
        return 0


def digest(node: Node, limit: int) -> bytes | None:
    """blake2b of the content, at most `limit` bytes of it; of a symlink: of its target."""
    try:
        if node.kind == S_IFLNK:
            target = node.backing.readlink(node)
            return blake2b(target, digest_size=32, person=b"symlink").digest()
        if node.kind != S_IFREG or node.backing.stat(node).st_size > limit:
            return None
        state, at = blake2b(digest_size=32), 0
        with _reading(node) as fd:
            while chunk := os.pread(fd, min(_CHUNK, limit + 1 - at), at):
                state.update(chunk)
                at += len(chunk)
                if at > limit:  # it grew meanwhile
                    return None
        return state.digest()
    except OSError:
        return None


def pread(node: Node, length: int, offset: int) -> bytes:
    try:
        if node.kind == S_IFLNK:
            return node.backing.readlink(node)[offset : offset + length]
        if node.kind != S_IFREG:
            return b""
        with _reading(node) as fd:
            return os.pread(fd, length, offset)
    except OSError:
        return b""


def link(node: Node, dir_fd: int, name: bytes) -> None:
    """Make `name` in the directory a further hard link. Raises OSError."""
    with node.backing.reach(node) as fd:
        os.link(proc_path(fd), name, dst_dir_fd=dir_fd, follow_symlinks=True)


def xattrs(node: Node) -> dict[bytes, bytes]:
    """Extended attributes, as far as they can be read."""
    found: dict[bytes, bytes] = {}
    with suppress(OSError), node.backing.reach(node) as fd:
        for name in os.listxattr(proc_path(fd)):
            with suppress(OSError):
                found[os.fsencode(name)] = os.getxattr(proc_path(fd), name)
    return found
