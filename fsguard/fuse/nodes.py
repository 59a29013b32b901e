"""The node table: what the kernel knows, under which names, for how long.

A node is one inode behind the mount. Its id is what the kernel calls it by; ids
are never used twice, while inode numbers are reused at once after an unlink.
The table holds a node as long as the kernel has a lookup on it, a handle is
open, or a child of it is held (so a held node always has its whole path).

    node.names      {(parent, name)}; several for hard links, none once unlinked
    node.children   {name: node} of a directory, as far as held
    node.fd         a descriptor that reaches the inode whatever happens to its
                    names: of an open handle, a cached directory (`Backing`), or
                    kept on purpose after the last name went ("pinned")

Names may lie after a change behind the mount; `Backing` drops those that turn
out not to lead to the inode any more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from errno import ENOENT, ESTALE
from stat import S_IFDIR, S_IFMT, S_IFREG
from typing import TYPE_CHECKING

from . import content

if TYPE_CHECKING:
    from .backing import Backing
    from .handles import Handle

__all__ = ["ROOT_ID", "Node", "NodeTable"]

ROOT_ID = 1

Name = tuple["Node", bytes]


class Node:
    """One inode behind the mount; also the guard's view of it (`observer.FileView`)."""

    __slots__ = (
        "_epoch",
        "_paths",
        "_table",
        "backing",
        "children",
        "dev",
        "fd",
        "handles",
        "id",
        "ino",
        "kind",
        "lookups",
        "names",
        "pinned",
        "removals",
    )

    def __init__(self, table: NodeTable, backing: Backing, id_: int, st: os.stat_result) -> None:
        self._table = table
        self.backing = backing
        self.id = id_
        self.dev = st.st_dev
        self.ino = st.st_ino
        self.kind = S_IFMT(st.st_mode)
        self.names: dict[Name, None] = {}
        self.children: dict[bytes, Node] = {}
        self.handles: dict[int, Handle] = {}
        self.lookups = 0
        self.fd = -1
        self.pinned = False
        self.removals = 0  # of names in this directory; tells a listing that it has aged
        self._paths: tuple[bytes, ...] | None = None
        self._epoch = -1

    def __repr__(self) -> str:
        return f"<Node {self.id} ino={self.ino} {self.paths()!r}>"

    # ---- observer.FileView ----

    def paths(self) -> tuple[bytes, ...]:
        """Workspace-relative names known to the mount; empty once unlinked."""
        epoch = self._table.epoch
        if self._paths is None or self._epoch != epoch:
            # Upwards first, without recursion: a path may have more components
            # than Python has stack.
            for parent, _ in self.names:
                parent._refresh(epoch)
            self._remember(epoch)
        return self._paths or ()

    def _refresh(self, epoch: int) -> None:
        stale = []
        node = self
        while node._paths is None or node._epoch != epoch:
            stale.append(node)
            if not node.names:
                break
            node = next(iter(node.names))[0]  # a directory has one name
        for node in reversed(stale):
            node._remember(epoch)

    def _remember(self, epoch: int) -> None:
        found = [] if self.id != ROOT_ID else [b""]
        for parent, name in self.names:
            above = parent._paths
            if above:
                found.append(above[0] + b"/" + name if above[0] else name)
        self._paths = tuple(found)
        self._epoch = epoch

    def is_regular(self) -> bool:
        return self.kind == S_IFREG

    def size(self) -> int:
        return content.size(self)

    def digest(self, limit: int) -> bytes | None:
        return content.digest(self, limit)

    def head(self, size: int) -> bytes:
        return content.pread(self, size, 0)

    def pread(self, size: int, offset: int) -> bytes:
        return content.pread(self, size, offset)

    def stat(self) -> os.stat_result:
        return self.backing.stat(self)

    def open(self) -> int:
        return content.open_to_read(self)

    def readlink(self) -> bytes:
        return self.backing.readlink(self)

    def link(self, dir_fd: int, name: bytes) -> None:
        content.link(self, dir_fd, name)

    def xattrs(self) -> dict[bytes, bytes]:
        return content.xattrs(self)

    def has_writers(self) -> bool:
        return any(handle.writable for handle in self.handles.values())

    # ---- for the filesystem ----

    @property
    def is_dir(self) -> bool:
        return self.kind == S_IFDIR

    def path_of(self, name: bytes) -> bytes:
        """The path of `name` in this directory; raises FileNotFoundError in a removed one."""
        above = self.paths()
        if not above:
            raise FileNotFoundError(ENOENT, "directory was removed")
        return above[0] + b"/" + name if above[0] else name

    def matches(self, st: os.stat_result) -> bool:
        return st.st_ino == self.ino and st.st_dev == self.dev and S_IFMT(st.st_mode) == self.kind

    def lost(self, parent: Node, name: bytes) -> None:
        """It turned out that `name` in `parent` leads elsewhere now."""
        self._table.remove_name(self, parent, name)

    def forget_paths(self) -> None:
        self._paths = None


class NodeTable:
    """All nodes held, by id, by (device, inode) and by name."""

    def __init__(self, backing: Backing) -> None:
        self._backing = backing
        self._by_id: dict[int, Node] = {}
        self._by_key: dict[tuple[int, int], Node] = {}
        self._next_id = ROOT_ID
        self.epoch = 0  # moves when a directory changes its name: all cached paths are void
        self.root = self._make(os.fstat(backing.root_fd))
        self.root.fd = backing.root_fd
        self.root.pinned = True

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Node]:
        return iter(list(self._by_id.values()))

    def __getitem__(self, id_: int) -> Node:
        """Raises OSError(ESTALE) for an id that is not held (never so for the kernel's own)."""
        try:
            return self._by_id[id_]
        except KeyError:
            raise OSError(ESTALE, f"unknown node {id_}") from None

    def child(self, parent: Node, name: bytes) -> Node | None:
        """The node that `name` in `parent` is known to lead to."""
        return parent.children.get(name)

    def creating(self) -> None:
        """Something is about to be made, and entered as `fresh`."""

    def changing(self) -> AbstractContextManager[None]:
        """A name changes on disk and then in the table, within the ``with``."""
        return nullcontext()

    def hand_out(self, node: Node) -> None:
        """The kernel gets one more lookup of it."""
        node.lookups += 1

    def find(self, st: os.stat_result) -> Node | None:
        node = self._by_key.get((st.st_dev, st.st_ino))
        return node if node is not None and node.kind == S_IFMT(st.st_mode) else None

    def _make(self, st: os.stat_result) -> Node:
        node = Node(self, self._backing, self._next_id, st)
        self._next_id += 1
        self._by_id[node.id] = node
        self._by_key[st.st_dev, st.st_ino] = node
        return node

    def enter(self, parent: Node, name: bytes, st: os.stat_result, *, fresh: bool = False) -> Node:
        """The node that `name` in `parent` leads to, as `st` shows it now.

        `fresh`: it has just been created, so a node that is known under this
        inode number belonged to a file that was deleted behind the mount.
        """
        node = parent.children.get(name)
        if node is not None and not fresh and node.matches(st):
            if len(node.names) > st.st_nlink and not node.is_dir:
                self._drop_stale_names(node, keep=(parent, name), nlink=st.st_nlink)
            return node
        node = self._by_key.get((st.st_dev, st.st_ino))
        if node is not None and (fresh or node.kind != S_IFMT(st.st_mode)):
            self.detach(node)
            node = None
        if node is None:
            node = self._make(st)
        elif node.is_dir:
            # A directory has one name: it was renamed behind the mount.
            for known in list(node.names):
                self.remove_name(node, *known)
            self._break_cycle(node, parent)
        self.add_name(node, parent, name)
        if len(node.names) > st.st_nlink and not node.is_dir:
            self._drop_stale_names(node, keep=(parent, name), nlink=st.st_nlink)
        return node

    def _break_cycle(self, node: Node, parent: Node) -> None:
        """`parent` may be known as lying below `node`: then that is what has changed, too."""
        below = parent
        while below is not node:
            if not below.names:
                return
            above, name = next(iter(below.names))
            if above is node:
                self.remove_name(below, above, name)
                return
            below = above

    def _drop_stale_names(self, node: Node, keep: Name, nlink: int) -> None:
        for known in list(node.names):
            if known != keep and (nlink == 1 or not self._backing.leads_to(node, *known)):
                self.remove_name(node, *known)

    def add_name(self, node: Node, parent: Node, name: bytes) -> None:
        there = parent.children.get(name)
        if there is not None and there is not node:
            self.remove_name(there, parent, name)
            self.settle(there)
        parent.children[name] = node
        node.names[parent, name] = None
        node.forget_paths()
        if node.children:
            self.epoch += 1
        if node.pinned:
            self._backing.unpin(node)

    def remove_name(self, node: Node, parent: Node, name: bytes) -> None:
        node.names.pop((parent, name), None)
        parent.removals += 1
        if parent.children.get(name) is node:
            del parent.children[name]
        node.forget_paths()
        if node.children:
            self.epoch += 1

    def detach(self, node: Node) -> None:
        """The inode is gone: its number may mean another file from now on."""
        for known in list(node.names):
            self.remove_name(node, *known)
        key = (node.dev, node.ino)
        if self._by_key.get(key) is node:
            del self._by_key[key]

    def forget(self, id_: int, count: int) -> None:
        """The kernel gives `count` lookups back."""
        node = self._by_id.get(id_)
        if node is None or id_ == ROOT_ID:
            return
        node.lookups -= count
        self.settle(node)

    def settle(self, node: Node) -> None:
        """Drop the node, and directories above it, if nothing holds them."""
        while node.lookups <= 0 and not node.handles and not node.children and node.id != ROOT_ID:
            if self._by_id.pop(node.id, None) is None:
                return
            parents = [parent for parent, _ in node.names]
            self.detach(node)
            self._backing.close(node)
            for parent in parents[1:]:
                self.settle(parent)
            if not parents:
                return
            node = parents[0]
