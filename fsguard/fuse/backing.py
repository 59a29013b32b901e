"""The backing directory, reached below one descriptor opened before the mount.

Symlink-safe because every access is an ``*at()`` call with one path component,
or goes through a descriptor; components are opened with O_NOFOLLOW and compared
with the inode that the node stands for. So there is no PATH_MAX either, and the
daemon never resolves a path that could lead through its own mount.

ESTALE is the answer when a name no longer leads to its node (something changed
behind the mount): the kernel then looks the path up afresh and tries once more.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EISDIR, ELOOP, EMFILE, ENFILE, ENOENT, ENOTDIR, ENXIO, ESTALE
from typing import TYPE_CHECKING

from .reaper import Reaper

if TYPE_CHECKING:
    from .nodes import Node

__all__ = ["Backing", "proc_path"]

# Python's os module does not name it.
O_PATH: int = os.O_PATH
_DIRECTORY = O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ANY = O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: should a FIFO have taken the file's place since it was looked at,
# the daemon must not wait for its other end. No effect on regular files.
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
# ENXIO: a socket or a FIFO is there now; EISDIR: a directory.
_GONE = {ENOENT, ENOTDIR, ELOOP, ENXIO, EISDIR}


def proc_path(fd: int) -> bytes:
    """A path that leads to the very inode of `fd`, also of a symlink (O_PATH) or a deleted file."""
    return b"/proc/self/fd/%d" % fd


def _stale(node: Node) -> OSError:
    return OSError(ESTALE, f"node {node.id} is not where it was")


class Backing:
    """Descriptors of directories (a cache, least recently used first) and access to nodes.

    `root_fd` is an O_PATH descriptor of the workspace and stays the caller's;
    `directories` bounds the number of cached directory descriptors.
    """

    def __init__(self, root_fd: int, directories: int = 512) -> None:
        if directories < 8:
            raise ValueError("a rename alone needs two directories at once")
        self.root_fd = root_fd
        self.root_dev = os.fstat(root_fd).st_dev
        self._limit = directories
        self._cache: OrderedDict[Node, None] = OrderedDict()
        self.reaper = Reaper()
        self.opened: Callable[[Node, int], object] = lambda node, fd: None  # before it is looked into
        self.closing: Callable[[Node], object] = lambda node: None  # nobody knows it any more

    def close_all(self) -> None:
        while self._cache:
            self._close_oldest()
        self.reaper.finish()

    # ---- directories ----

    def dir(self, node: Node) -> int:
        """An O_PATH descriptor of the directory, good until the call after the next."""
        if node.fd >= 0:
            if node in self._cache:
                self._cache.move_to_end(node)
            return node.fd
        if not node.is_dir:
            raise NotADirectoryError(ENOTDIR, "not a directory")
        self._hold(node, self._walk(node))
        return node.fd

    def _hold(self, node: Node, fd: int) -> None:
        self.opened(node, fd)
        node.fd = fd
        self._cache[node] = None
        if len(self._cache) > self._limit:
            self._close_oldest()

    def _close_oldest(self) -> None:
        node, _ = self._cache.popitem(last=False)
        fd, node.fd = node.fd, -1
        os.close(fd)

    def _walk(self, node: Node) -> int:
        """Open `node` from the nearest ancestor with a descriptor, one component at a time."""
        steps = []
        while node.fd < 0:
            if not node.names:
                raise _stale(node)
            parent, name = next(iter(node.names))
            steps.append((node, parent, name))
            node = parent
        fd = os.dup(node.fd)
        try:
            for node, parent, name in reversed(steps):
                try:
                    below = os.open(name, _DIRECTORY, dir_fd=fd)
                except OSError as error:
                    if error.errno in _GONE:
                        node.lost(parent, name)
                        raise _stale(node) from None
                    raise
                os.close(fd)
                fd = below
                if not node.matches(os.fstat(fd)):
                    node.lost(parent, name)
                    raise _stale(node)
        except BaseException:
            os.close(fd)
            raise
        return fd

    # ---- any node ----

    def open(self, node: Node, flags: int) -> int:
        """A descriptor of the node's inode, verified; `flags` must not truncate or create."""
        if node.is_dir:
            return os.open(b".", flags | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.dir(node))
        if node.fd >= 0 and not node.names:  # unlinked: through the descriptor that is left
            return os.open(proc_path(node.fd), flags | os.O_CLOEXEC | os.O_NONBLOCK)
        for parent, name in list(node.names):
            above = self.dir(parent)
            try:
                fd = os.open(name, flags | (_ANY if flags & O_PATH else _FILE), dir_fd=above)
            except OSError as error:
                if error.errno not in _GONE:
                    raise
            else:
                if node.matches(os.fstat(fd)):
                    return fd
                os.close(fd)
            node.lost(parent, name)
        raise _stale(node)

    @contextmanager
    def reach(self, node: Node) -> Iterator[int]:
        """A descriptor (perhaps O_PATH) for the length of a ``with``."""
        if node.fd >= 0:
            yield node.fd
            return
        if node.is_dir:
            yield self.dir(node)
            return
        fd = self.open(node, O_PATH)
        try:
            yield fd
        finally:
            os.close(fd)

    def stat(self, node: Node) -> os.stat_result:
        if node.fd >= 0:
            return os.fstat(node.fd)
        for parent, name in list(node.names):
            above = self.dir(parent)
            try:
                st = os.stat(name, dir_fd=above, follow_symlinks=False)
            except OSError as error:
                if error.errno not in _GONE:
                    raise
            else:
                if node.matches(st):
                    return st
            node.lost(parent, name)
        raise _stale(node)

    def leads_to(self, node: Node, parent: Node, name: bytes) -> bool:
        """Whether `name` in `parent` is still this node's inode."""
        try:
            return node.matches(os.stat(name, dir_fd=self.dir(parent), follow_symlinks=False))
        except OSError:
            return False

    # ---- descriptors that outlive names ----

    def pin(self, node: Node) -> None:
        """Keep the inode reachable without a name; no effect while a handle does that anyway."""
        if node.pinned or (node.fd >= 0 and not node.is_dir):
            return
        try:
            if node.is_dir:
                self.dir(node)
                del self._cache[node]
            else:
                node.fd = self.open(node, O_PATH)
        except OSError as error:
            if error.errno not in (EMFILE, ENFILE, ESTALE):
                raise
            return  # fstat on the unlinked file will answer ESTALE
        node.pinned = True

    def pin_from(self, node: Node, fd: int) -> None:
        """Pin by an open descriptor that is about to be closed."""
        try:
            node.fd = os.open(proc_path(fd), O_PATH | os.O_CLOEXEC)
        except OSError:
            return
        node.pinned = True

    def unpin(self, node: Node) -> None:
        if not node.pinned:
            return
        node.pinned = False
        if node.is_dir:
            self._hold(node, node.fd)
            return
        fd, node.fd = node.fd, -1
        os.close(fd)
        self.rely_on_handle(node)

    def rely_on_handle(self, node: Node) -> None:
        """Let the node be reached through one of its open handles, if it has any."""
        if not node.pinned and not node.is_dir:
            node.fd = next((h.fd for h in node.handles.values()), -1)

    def close(self, node: Node) -> None:
        """The node is dropped from the table."""
        if node.is_dir:
            self.closing(node)
        if node.pinned or node in self._cache:
            fd, node.fd = node.fd, -1
            if node.pinned:
                self.reaper.close(fd)
            else:
                del self._cache[node]
                os.close(fd)
            node.pinned = False

    def readlink(self, node: Node) -> bytes:
        with self.reach(node) as fd:
            return os.readlink(b"", dir_fd=fd)  # Linux ≥ 2.6.39: the symlink that fd stands for
