"""Changes behind the mount, where Python keeps the node table: see DESIGN.md, "Changes from behind"."""

from __future__ import annotations

import logging
import os
import queue
import struct
import threading
import time
from collections.abc import Callable, Iterable

import trio

from ..observer import Outside
from .backing import Backing
from .fanotify import DATA, NAMES, OVERFLOW, Event, Group, Place
from .nodes import ROOT_ID, Node, NodeTable
from .outside import THERE, kinds
from .tracebacks import describe

__all__ = ["Watch"]

_log = logging.getLogger(__name__)

AGAIN_SECONDS = 0.04
PAUSE, LONGEST_PAUSE = 0.001, 0.01
PORTION = 200  # events after which others have their turn
_CREATE, _DELETE, _ONDIR = 0x100, 0x200, 0x40000000
_NOTIFY_INODE, _NOTIFY_ENTRY, _NOTIFY_EPOCH, _EXPIRE_ONLY = 2, 3, 8, 1


class Watch:
    """:param tell: takes what has happened (`Observer.outside`). Raises OSError: nothing can be watched."""

    def __init__(
        self, backing: Backing, nodes: NodeTable, tell: Callable[[Outside], Iterable[bytes]]
    ) -> None:
        self._backing, self._nodes, self._tell = backing, nodes, tell
        self._self = os.getpid()
        self._ids: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}
        self._refused: set[int] = set()
        self._teller: _Teller | None = None
        self.counts = {"own": 0, "foreign": 0, "overflows": 0, "refused": 0, "error": 0}
        self._group = Group()
        try:
            key = self._group.mark(backing.root_fd)
        except BaseException:
            self._group.close()
            raise
        self._ids[key], self._keys[ROOT_ID] = ROOT_ID, key

    def heard(self) -> dict[str, int]:
        return {"on": True, "directories": len(self._keys), "lost": 0, **self.counts}

    def add(self, node: Node, fd: int) -> None:
        """The directory is about to be looked into."""
        if node.id in self._keys or node.id in self._refused:
            return
        try:
            key = self._group.mark(fd)
        except OSError as error:
            self._refused.add(node.id)
            self.counts["refused"] += 1
            self.counts["error"] = error.errno or 0
            return
        before = self._ids.get(key)
        if before is not None:
            self._keys.pop(before, None)
        self._ids[key], self._keys[node.id] = node.id, key

    def forget(self, node: Node) -> None:
        """Nobody knows the directory any more. (A mark that cannot be reached goes with the mount.)"""
        self._refused.discard(node.id)
        key = self._keys.pop(node.id, None)
        if key is None or self._ids.get(key) != node.id:
            return
        del self._ids[key]
        if node.fd >= 0:
            try:
                self._group.unmark(node.fd)
            except OSError:
                pass  # it is gone, and the mark with it

    async def run(self, device: int) -> None:
        """Listen until cancelled; `device`: the FUSE descriptor, for what the kernel has to be told."""
        self._teller = teller = _Teller(device)
        pause = PAUSE
        try:
            while True:
                await trio.lowlevel.wait_readable(self._group.fd)
                events = self._group.read()
                foreign = False
                for number, event in enumerate(events, 1):
                    if event.pid == self._self:
                        self.counts["own"] += 1
                        continue
                    foreign = True
                    try:
                        self._happened(event, teller)
                    except Exception as error:  # the mount outlives a mistake in what is only heard of
                        _log.error("change from behind: %s", describe(error))
                    if number % PORTION == 0:
                        await trio.lowlevel.checkpoint()
                pause = PAUSE if foreign else min(pause * 2, LONGEST_PAUSE)
                await trio.sleep(pause)  # equal events merge meanwhile
        finally:
            teller.end()
            self._group.close()

    # ---- one event ----

    def _happened(self, event: Event, teller: _Teller) -> None:
        mask, now = event.mask, time.time()
        if mask & OVERFLOW:
            self.counts["overflows"] += 1
            teller.push((_NOTIFY_EPOCH, b""))
            for node in self._nodes:
                for parent, name in node.names:
                    teller.name(parent.id, name)
                teller.inode(node.id, True)
            self._tell(Outside(["lost"], b"", None, 0, now, False))
            return
        self.counts["foreign"] += 1
        source = self._at(event.source, mask, teller)
        target = self._at(event.target, mask, teller)
        if mask & _CREATE and mask & _DELETE and event.source and self._is_there(event.source):
            mask |= THERE
        if source is not None or target is not None:
            self._tell(Outside(kinds(mask), source, target, event.pid, now, bool(mask & _ONDIR)))

    def _node(self, place: Place) -> Node | None:
        id_ = self._ids.get(place.key)
        try:
            return self._nodes[id_] if id_ is not None else None
        except OSError:
            return None

    def _is_there(self, place: Place) -> bool:
        node = self._node(place)
        return node is not None and self._stat(node, place.name) is not None

    def _stat(self, node: Node, name: bytes) -> os.stat_result | None:
        try:
            return os.stat(name, dir_fd=self._backing.dir(node), follow_symlinks=False)
        except OSError:
            return None

    def _at(self, place: Place | None, mask: int, teller: _Teller) -> bytes | None:
        """What has to be forgotten of one place; its path."""
        node = self._node(place) if place is not None else None
        if place is None or node is None:
            return None
        paths = node.paths()
        if place.name == b".":
            teller.inode(node.id, False)
            return paths[0] if paths else None
        child = self._nodes.child(node, place.name)
        data = bool(mask & DATA)
        if mask & NAMES:
            teller.name(node.id, place.name)
            teller.inode(node.id, True)
        if child is not None:
            teller.inode(child.id, data)
        if mask & NAMES or child is None:
            st = self._stat(node, place.name)
            other = self._nodes.find(st) if st is not None else None
            if other is not None and other is not child:
                teller.inode(other.id, data)  # known by another name
            if child is not None and (st is None or not child.matches(st)):
                self._nodes.remove_name(child, node, place.name)
        return node.path_of(place.name) if paths else None


class _Teller:
    """Tells the kernel, in a thread of its own: that waits for locks of callers who may wait for us."""

    def __init__(self, device: int) -> None:
        self._device = os.dup(device)  # its own: the other may be closed under its hands
        self._queue: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="teller", daemon=True)
        self._thread.start()

    def push(self, notice: tuple[int, bytes]) -> None:
        self._queue.put(notice)

    def inode(self, id_: int, data: bool) -> None:
        self.push((_NOTIFY_INODE, struct.pack("=Qqq", id_, 0 if data else -1, 0)))

    def name(self, parent: int, name: bytes) -> None:
        self.push((_NOTIFY_ENTRY, struct.pack("=QII", parent, len(name), _EXPIRE_ONLY) + name + b"\0"))

    def end(self) -> None:
        self._queue.put(None)

    def _run(self) -> None:
        # Once more a moment later: a reply under way may bring the old state back after the first time.
        again: list[tuple[float, tuple[int, bytes]]] = []
        while True:
            try:
                notice = self._queue.get(timeout=AGAIN_SECONDS if again else None)
            except queue.Empty:
                notice = (0, b"")
            if notice is None:
                os.close(self._device)
                return
            now = time.monotonic()
            if notice[0]:
                self._write(notice)
                if not again or again[-1][1] != notice:
                    again.append((now + AGAIN_SECONDS, notice))
            due = [n for at, n in again if at <= now]
            del again[: len(due)]
            for n in due:
                self._write(n)

    def _write(self, notice: tuple[int, bytes]) -> None:
        code, body = notice
        try:
            os.write(self._device, struct.pack("=IiQ", 16 + len(body), code, 0) + body)
        except OSError:
            pass  # ENOENT: the kernel does not know it
