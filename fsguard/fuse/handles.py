"""Open file descriptions and open directories, by the number the kernel knows them by."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from errno import EBADF

from ..lane import engine
from ..observer import Session
from .nodes import Node

__all__ = ["DirEntry", "DirHandle", "Handle", "HandleTable"]


@dataclass(slots=True, eq=False)
class Handle:
    """One open(2) of a regular file: its backing descriptor, flags as the caller gave them."""

    fh: int
    node: Node
    fd: int
    flags: int
    session: Session
    readable: bool
    append: bool = field(init=False)
    granted: bool = False  # the lane may have written through it

    def __post_init__(self) -> None:
        self.append = bool(self.flags & os.O_APPEND)

    @property
    def writable(self) -> bool:
        return self.flags & os.O_ACCMODE != os.O_RDONLY


_OF_THE_LANE = 1 << 62  # lane.h: LANE_FH

DirEntry = tuple[bytes, int, int]  # name, inode number, file type bits (0: unknown)


@dataclass(slots=True, eq=False)
class DirHandle:
    """One opendir(3): `entries` as they were when reading (last) began at the start."""

    fh: int
    node: Node
    entries: list[DirEntry] | None = None
    changed: tuple[int, int] = (0, 0)  # mtime of the directory and removals from it, at that moment


class HandleTable:
    """Numbers are never used twice.

    `noting`: what is open is noted in the lane, where it outlives this process.
    """

    def __init__(self, noting: bool = False) -> None:
        self._noting = noting
        self.given: Callable[[Handle], int] = lambda handle: 0
        """Told of each that gets its number; 0, or the number that its session had before."""
        self.files: dict[int, Handle] = {}
        self._dirs: dict[int, DirHandle] = {}
        self._next = 1

    def __iter__(self) -> Iterator[Handle]:
        return iter(list(self.files.values()))

    def __len__(self) -> int:
        return len(self.files)

    def file(self, fh: int) -> Handle:
        try:
            return self.files[fh]
        except KeyError:
            raise OSError(EBADF, f"unknown handle {fh}") from None

    def directory(self, fh: int) -> DirHandle:
        try:
            return self._dirs[fh]
        except KeyError:
            raise OSError(EBADF, f"unknown directory handle {fh}") from None

    def _number(self) -> int:
        fh = self._next
        self._next += 1
        return fh

    def add(
        self, node: Node, fd: int, flags: int, session: Session, *, readable: bool, tid: int = 0
    ) -> Handle:
        """`tid`: the thread that opens it, 0: not known."""
        handle = Handle(self._number(), node, fd, flags, session, readable)
        self._enter(handle, tid)
        self._give(handle)
        return handle

    def adopt(self, fh: int, node: Node, fd: int, flags: int, session: Session, tid: int = 0) -> Handle:
        """A handle under the number that the lane has given it."""
        handle = Handle(fh, node, fd, flags, session, readable=True, granted=True)
        self._enter(handle, tid)
        self._give(handle)
        return handle

    def _give(self, handle: Handle) -> None:
        """A worker that died before it could answer may have opened the same for the same request."""
        before = self.files.get(self.given(handle))
        if before is not None and before is not handle:
            self.remove(before)

    def _enter(self, handle: Handle, tid: int) -> None:
        node = handle.node
        if self._noting:  # without memory for that it lives as long as this process
            engine.note_handle(handle.fh, node.id, handle.fd, handle.flags & 0xFFFFFFFF, handle.readable, tid)
        self.files[handle.fh] = handle
        node.handles[handle.fh] = handle
        node.backing.rely_on_handle(node)

    def restore(self, handle: Handle) -> None:
        """One that another program has given its number."""
        self._enter(handle, 0)
        self._next = max(self._next, handle.fh + 1) if handle.fh < _OF_THE_LANE else self._next

    def skip_numbers(self) -> None:
        """What was given since the last that is known must not be given again."""
        self._next += 1 << 32

    def add_directory(self, node: Node) -> DirHandle:
        handle = DirHandle(self._number(), node)
        self._dirs[handle.fh] = handle
        return handle

    def remove(self, handle: Handle) -> None:
        """Close the backing descriptor; an unlinked node stays reachable for whom still knows it."""
        node = handle.node
        if self._noting:
            engine.unnote_handle(handle.fh)
        del self.files[handle.fh]
        del node.handles[handle.fh]
        if node.fd == handle.fd:
            node.fd = -1
            node.backing.rely_on_handle(node)
            if node.fd < 0 and not node.names and node.lookups > 0:
                node.backing.pin_from(node, handle.fd)
        if node.names:
            os.close(handle.fd)
        else:
            node.backing.reaper.close(handle.fd)

    def remove_directory(self, handle: DirHandle) -> None:
        del self._dirs[handle.fh]
