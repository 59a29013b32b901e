"""Nodes, where the lane keeps the table: the same interface as `nodes` and `backing`, asked for there.

A `LaneNode` exists as long as Python uses it, and holds its node in the lane for
that long. What the kernel was told, names and children are the lane's; open
handles and their descriptors are Python's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import ESTALE
from stat import S_IFREG
from typing import Any
from weakref import WeakValueDictionary

from ..lane import engine
from .backing import Backing
from .handles import Handle
from .nodes import ROOT_ID, Name, Node

__all__ = ["GoneNode", "LaneBacking", "LaneNode", "LaneTable"]


class LaneNode(Node):
    """A node of the lane's table, while Python uses it."""

    __slots__ = ("__weakref__", "_fd")

    _table: LaneTable  # type: ignore[assignment]

    def __init__(self, table: LaneTable, backing: Backing, id_: int, dev: int, ino: int, kind: int) -> None:
        self._table = table
        self.backing = backing
        self.id = id_
        self.dev = dev
        self.ino = ino
        self.kind = kind
        self.handles: dict[int, Handle] = {}
        self._fd = -1

    forsaken = False  # the lane's memory is another process's

    def __del__(self) -> None:
        if not self.forsaken:
            engine.release(self.id)

    # What is a plain attribute of Node is asked for here.

    @property
    def names(self) -> dict[Name, None]:  # type: ignore[override]
        table = self._table
        return {(table[parent], name): None for parent, name in engine.names(self.id)}

    @property
    def lookups(self) -> int:  # type: ignore[override]
        return engine.state(self.id)[0]

    @property
    def pinned(self) -> bool:  # type: ignore[override]
        return engine.state(self.id)[2]

    @property
    def removals(self) -> int:  # type: ignore[override]
        return engine.state(self.id)[3]

    @property
    def fd(self) -> int:
        return self._fd if self._fd >= 0 else engine.pinned_fd(self.id)

    @fd.setter
    def fd(self, fd: int) -> None:
        self._fd = fd

    def paths(self) -> tuple[bytes, ...]:
        return engine.paths(self.id)


class GoneNode(Node):
    """A file that had a number once: nothing leads to it, and nothing is in it."""

    def __init__(self, id_: int) -> None:
        self.id = id_
        self.dev = self.ino = 0
        self.kind = S_IFREG
        self.names: dict[Name, None] = {}
        self.handles = {}
        self.lookups = self.removals = 0
        self.pinned = False
        self.fd = -1

    def paths(self) -> tuple[bytes, ...]:
        return ()

    def stat(self) -> os.stat_result:
        raise OSError(ESTALE, f"node {self.id} is gone")

    def open(self) -> int:
        raise OSError(ESTALE, f"node {self.id} is gone")


class LaneBacking(Backing):
    """Descriptors of directories are borrowed from the lane, and so are those that outlive names."""

    def __init__(self, root_fd: int) -> None:
        super().__init__(root_fd)
        self._borrowed: dict[int, int] = {}

    def give_back(self) -> None:
        """No directory is in use: between two requests."""
        while self._borrowed:
            engine.release_dir(self._borrowed.popitem()[0])

    def close_all(self) -> None:
        self.give_back()
        super().close_all()

    def dir(self, node: Node) -> int:
        if node.id == ROOT_ID:
            return self.root_fd
        fd = self._borrowed.get(node.id)
        if fd is None:
            fd = engine.acquire_dir(node.id)
            if fd < 0:
                raise OSError(-fd, os.strerror(-fd))
            self._borrowed[node.id] = fd
        return fd

    def pin(self, node: Node) -> None:
        engine.pin(node.id)  # on failure fstat on the unlinked file will answer ESTALE

    def pin_from(self, node: Node, fd: int) -> None:
        """Every node that lost its last name while the kernel knew it is pinned already."""

    def unpin(self, node: Node) -> None:
        engine.unpin(node.id)

    def rely_on_handle(self, node: Node) -> None:
        if not node.is_dir:
            fd = node.fd = next((h.fd for h in node.handles.values()), -1)
            engine.opened_by(node.id, fd)

    def close(self, node: Node) -> None:
        """The lane closes what it has opened."""


class LaneTable:
    """The lane's node table as `nodes.NodeTable` presents it."""

    def __init__(self, backing: Backing) -> None:
        self._backing = backing
        self._nodes: WeakValueDictionary[int, LaneNode] = WeakValueDictionary()
        self._since = 0
        self.kind = LaneNode
        self._gone_kind = GoneNode
        self._gone: dict[int, GoneNode] = {}
        self.root = self[ROOT_ID]
        self.root.fd = backing.root_fd

    def __len__(self) -> int:
        return engine.load()["nodes"]

    def __getitem__(self, id_: int) -> LaneNode:
        node = self._nodes.get(id_)
        if node is None:
            found = engine.hold(id_)
            if found is None:
                raise OSError(ESTALE, f"unknown node {id_}")
            node = self._nodes[id_] = self.kind(self, self._backing, id_, *found)
        return node

    def seen_as(self, view: Callable[[Any], Any]) -> None:
        """What is asked of nodes passes through `view`, which makes a kind of node of each kind."""
        self.kind, self._gone_kind = view(LaneNode), view(GoneNode)

    def or_gone(self, id_: int) -> Node:
        """The node, or one that has no name and no content any more; the same one each time."""
        try:
            return self[id_]
        except OSError:
            return self._gone.setdefault(id_, self._gone_kind(id_))

    def _taken(self, id_: int) -> LaneNode:
        """The node of an id that the lane has handed out held."""
        node = self[id_]
        engine.release(id_)
        return node

    def creating(self) -> None:
        """Something is about to be made: nodes known by now are of older files."""
        self._since = engine.next_id()

    @contextmanager
    def changing(self) -> Iterator[None]:
        engine.names_change(True)
        try:
            yield
        finally:
            engine.names_change(False)

    def find(self, st: os.stat_result) -> Node | None:
        id_ = engine.find(st.st_dev, st.st_ino, st.st_mode)
        return self._taken(id_) if id_ else None

    def child(self, parent: Node, name: bytes) -> Node | None:
        id_ = engine.child(parent.id, name)
        return self._taken(id_) if id_ else None

    def enter(self, parent: Node, name: bytes, st: os.stat_result, *, fresh: bool = False) -> Node:
        since = self._since if fresh else 0
        id_ = engine.enter(parent.id, name, st.st_dev, st.st_ino, st.st_mode, st.st_nlink, since)
        if not id_:
            raise OSError(ESTALE, f"node {parent.id} is not where it was")
        return self._taken(id_)

    def add_name(self, node: Node, parent: Node, name: bytes) -> None:
        engine.add_name(node.id, parent.id, name)

    def remove_name(self, node: Node, parent: Node, name: bytes) -> None:
        engine.remove_name(node.id, parent.id, name)

    def detach(self, node: Node) -> None:
        engine.detach(node.id)

    def hand_out(self, node: Node) -> None:
        engine.hand_out(node.id)

    def forget(self, id_: int, count: int) -> None:
        engine.forget(id_, count)

    def settle(self, node: Node) -> None:
        """The lane does that by itself when Python's last reference goes."""
