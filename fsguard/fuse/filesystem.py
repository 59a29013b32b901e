"""What all request handlers share: nodes, handles, the backing directory, the observer."""

from __future__ import annotations

import fcntl
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..lane import engine
from ..observer import Caller, NullObserver, Observer
from ._library import interposed, pyfuse3, request
from .backing import Backing
from .credentials import Creator, Identity
from .handles import Handle, HandleTable
from .lane import Lane, Left, Record
from .nodes import Node, NodeTable
from .replies import Attributes
from .shared import LaneBacking, LaneNode, LaneTable
from .tracebacks import describe
from .watch import Watch

__all__ = ["Filesystem", "Request", "Settings"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Settings:
    """How much the kernel may remember by itself.

    entry_timeout, attr_timeout: seconds for which a name and attributes are
    believed; 0 asks every time, so that changes behind the mount are seen at
    once. keep_cache: keep a file's pages from one open to the next (else only
    until the next open). directories: cached directory descriptors. lane: what
    needs no decision is answered without Python (one such filesystem a process).
    watch: listen for changes behind the mount; watched_timeout: for how long names
    and attributes are believed where that works. lane_state: what the lane of the
    program before has known (`Lane.dump`). lane_memory: a memfd in which the lane keeps
    all that it knows; lane_goes_on: with what is in there; workers_before: processes that
    did this before.
    """

    entry_timeout: float = 0.0
    attr_timeout: float = 0.0
    keep_cache: bool = False
    directories: int = 512
    lane: bool = False
    watch: bool = False
    watched_timeout: float = 0.0
    lane_state: bytes | None = None
    lane_memory: int | None = None
    lane_goes_on: bool = False
    workers_before: tuple[int, ...] = ()


class Request(Protocol):
    """The current request (`_request`); valid until a handler's first await."""

    def tid(self) -> int: ...
    def flags(self) -> int: ...
    def file_flags(self) -> int: ...
    def unique(self) -> int: ...


class Filesystem(pyfuse3.Operations):
    """State of one mount. `root_fd` is an O_PATH descriptor of the workspace."""

    supports_dot_lookup = False
    enable_writeback_cache = False
    enable_acl = True

    def __init__(
        self,
        root_fd: int,
        observer: Observer,
        settings: Settings | None = None,
        *,
        peek: Request | None = None,
    ) -> None:
        super().__init__()
        self.settings = settings or Settings()
        self.observer = observer
        self.lane: Lane | None = None
        self._watch: Watch | None = None
        self.unwatched: OSError | None = None  # why nothing is heard of changes behind the mount
        self.backing: Backing
        self.nodes: NodeTable | LaneTable
        if self.settings.lane:
            s = self.settings
            self.lane = Lane(
                root_fd,
                s.entry_timeout,
                s.attr_timeout,
                s.keep_cache,
                s.watched_timeout,
                s.watch,
                s.lane_state,
                s.lane_memory,
                s.lane_goes_on,
                s.workers_before,
            )
            self.unwatched = self.lane.unwatched
            self.backing = LaneBacking(root_fd)
            self.nodes = LaneTable(self.backing)
        else:
            self.backing = Backing(root_fd, self.settings.directories)
            self.nodes = table = NodeTable(self.backing)
            if self.settings.watch:
                try:
                    self._watch = watch = Watch(self.backing, table, observer.outside)
                    self.backing.opened, self.backing.closing = watch.add, watch.forget
                except OSError as error:
                    self.unwatched = error
        self.handles = HandleTable(noting=self.settings.lane)
        self.identity = Identity()
        self.counts: dict[str, int] = defaultdict(int)
        self.begun = False  # something was changed whose request may not be known to be answered
        self.told = 0  # records of what was done past us
        self.telling: Callable[[int], object] = lambda number: None  # told the number of each before it is
        self.is_noted: Callable[[], bool] = lambda: True  # what was told would not be lost with this process
        self.told_before = 0  # the last one that a worker before has told
        self._telling = 0
        self.under_way = 0  # requests whose handler may wait
        # Opens among them, by number: what `files.open_request` takes.
        self.waiting: dict[int, tuple[Caller, int, int, int]] = {}
        self.request: Request = peek if peek is not None else request
        # Without interposition there is no separate node id, and no request to look at.
        self.peeking = peek is not None or interposed()
        self.attributes = Attributes(
            self.backing.root_dev,
            self.settings.entry_timeout,
            self.settings.attr_timeout,
            separate_ids=self.peeking,
        )

    def caller(self, ctx: pyfuse3.RequestContext) -> Caller:
        unique = self.request.unique() if self.peeking else 0
        return Caller(ctx.pid, ctx.uid, ctx.gid, ctx.umask, unique)

    def creating(self, ctx: pyfuse3.RequestContext) -> Creator:
        self.nodes.creating()
        return self.identity.creating(ctx.uid, ctx.gid, ctx.umask)

    def entry(self, node: Node, st: os.stat_result) -> pyfuse3.EntryAttributes:
        """A reply that hands the node to the kernel: one more lookup."""
        self.nodes.hand_out(node)
        entry = self.attributes.entry(node, st)
        if self.lane is not None:
            entry.entry_timeout, entry.attr_timeout = self.lane.lifetimes(node.id, st.st_nlink)
        return entry

    def take_records(self) -> None:
        """Tell the observer what came about past us, in order: what the lane did, and changes from behind."""
        lane = self.lane
        if lane is None:
            return
        records = [record for record in lane.take_records() if record.number > self.told_before]
        self._telling += 1
        try:
            for change in lane.take_changes():
                earlier = next((i for i, r in enumerate(records) if r.time > change.at), len(records))
                now, records = records[:earlier], records[earlier:]
                self._tell(lane, now)
                self.told += 1
                for path in self.observer.outside(change):
                    lane.watch_miss_at(path)
        except Exception as error:
            log.error("changes from behind are lost: %s", describe(error))
        try:
            self._tell(lane, records)
        finally:
            self._telling -= 1
        if not self._telling and self.is_noted():  # judging what is told takes what there is by then
            lane.told()

    def _tell(self, lane: Lane, records: Iterable[Record]) -> None:
        """One that cannot be told must not cost the others, nor the loop that asks for them."""
        looks: list[tuple[Hashable, Sequence[bytes], float]] = []
        last = 0
        for record in records:
            self.told += 1
            if record.kind == "looked":
                if record.who is not None:
                    looks.append((record.who, record.paths, record.time))
                    last = record.number
                continue
            if looks:
                self.telling(last)
                self.observer.looks(looks)
                looks = []
            self.telling(record.number)
            try:
                self._tell_one(lane, record)
            except Exception as error:
                log.error("%s: node %d: what was done is lost: %s", record.kind, record.node, describe(error))
        if looks:
            self.telling(last)
            self.observer.looks(looks)

    def _tell_one(self, lane: Lane, record: Record) -> None:
        observer = self.observer
        kind, who, paths, at = record[:4]
        if kind == "opened":
            self._adopt(lane, record)
        elif not paths:
            pass  # it went behind the mount
        elif kind == "made":
            observer.made(who, paths[0], self._there(record.node), at, record.wrote)
        elif kind == "linked":
            node = self._there(record.node)
            if node is not None:
                observer.linked(who, paths[0], node, at)
            else:  # nobody else had seen it: there are no looks to carry over
                observer.made(who, paths[0], None, at, False)
        else:
            observer.removed(who, paths[0], at)
            if observer.misses(paths[0]):
                lane.watch_miss_at(paths[0])

    def _there(self, id_: int) -> Node | None:
        try:
            return self.nodes[id_]
        except OSError:  # the kernel has forgotten it already
            return None

    def _adopt(self, lane: Lane, record: Record) -> None:
        """Go on with a file that the lane has made, and that something else concerns now."""
        node = self._there(record.node)
        try:
            fd, flags, tid = lane.making(record.fh)
        except OSError as error:
            log.error("handle %d is lost: %s", record.fh, error)
            return
        if node is None:  # not while its handle lives
            os.close(fd)
            return
        session = self.observer.making(record.who, record.paths, node, flags, tid, record.time, record.wrote)
        self.handles.adopt(record.fh, node, fd, flags, session, tid)

    def revoke(self, node: Node) -> None:
        """What is decided next about the file has to know of all writes, and comes before further ones."""
        if self.lane is None:
            return
        last = self.lane.revoke(node.id)
        self.take_records()  # it may have been made there
        for handle in node.handles.values():
            if handle.granted:
                handle.granted = False
                handle.session.went_on(last)

    def let_nobody_make(self) -> None:
        """What is asked or told next concerns everything: nothing is made or written past us."""
        if self.lane is not None:
            self.lane.let_make(False)
            self.lane.revoke_all()
            self.take_records()

    def between_requests(self) -> None:
        """Called before the next request is waited for; those that were handled are answered."""
        if self.begun:
            engine.answered()
            self.begun = False
        if isinstance(self.backing, LaneBacking):
            self.backing.give_back()
            self.take_records()  # the lane wakes us when there are many, even without a request
            if self.lane is not None and not self.lane.makes and self.observer.makes_freely():
                self.lane.let_make(True)

    def settle_down(self) -> None:
        """All that the lane did is told, and what it was granted is taken back; it is paused."""
        for handle in self.handles:
            if handle.granted:
                self.revoke(handle.node)
        self.let_nobody_make()
        if isinstance(self.backing, LaneBacking):
            self.backing.give_back()

    def adopt_handles(
        self, handles: Iterable[tuple[int, int, int, int, bool]], sessions: Mapping[int, Handle]
    ) -> None:
        """Go on with files that the program before had open: (number, node, descriptor, flags, readable).

        One without a session is served, and not watched.
        """
        for fh, id_, fd, flags, readable in handles:
            os.set_inheritable(fd, False)
            node = self.nodes[id_]
            handle = sessions.get(fh)
            if handle is None:
                session = NullObserver().making(None, (), node, flags, 0, 0.0, False)
                handle = Handle(fh, node, fd, flags, session, readable)
            self.handles.restore(handle)

    def node_or_gone(self, id_: int) -> Node:
        """The node of that number, or one that has no name and no content any more."""
        return self.nodes.or_gone(id_) if isinstance(self.nodes, LaneTable) else self.nodes[id_]

    def take_over_handles(self, left: Iterable[Left]) -> None:
        """Go on with the files that are open, whatever is on record of them: as much as a dead worker
        could leave (`Lane.left`)."""
        known, self.handles.files = self.handles.files, {}
        new: list[tuple[Left, Node]] = []
        for one in left:
            try:
                node = self.nodes[one.node]
            except OSError as error:  # the kernel holds every node of an open file
                log.error("handle %d is lost: %s", one.fh, error)
                continue
            handle = known.get(one.fh)
            if handle is None or handle.node is not node:
                new.append((one, node))
                continue
            del known[one.fh]
            handle.fd = one.fd
            handle.granted = False
            self._restore(handle)
            if one.last:
                handle.session.went_on(one.last)
        self.handles.skip_numbers()
        self.take_records()
        for one, node in new:
            if one.fh not in self.handles.files:  # none that the lane has just handed over
                log.info("handle %d of node %d: nothing is on record of it", one.fh, one.node)
                session = self.observer.found(one.tid, node, one.flags)
                handle = Handle(one.fh, node, one.fd, one.flags, session, one.readable)
                self._restore(handle)
                self.handles.given(handle)
        for handle in known.values():
            handle.session.released()

    def _restore(self, handle: Handle) -> None:
        """What `handle.append` stands for may have changed since it was written down."""
        handle.append = bool(fcntl.fcntl(handle.fd, fcntl.F_GETFL) & os.O_APPEND)
        self.handles.restore(handle)

    def leave_the_lane_alone(self) -> None:
        """In a child that only reads: the lane's memory is not its own."""
        LaneNode.forsaken = True

    async def listen(self, device: int) -> None:
        """Hear of changes behind the mount, until cancelled; `device`: the FUSE descriptor.

        (The lane does so by itself.)
        """
        if self._watch is not None:
            await self._watch.run(device)

    # ---- for status ----

    def heard(self) -> dict[str, int]:
        """What is watched, and how much was heard of it."""
        if self.lane is not None:
            return self.lane.heard()
        return self._watch.heard() if self._watch is not None else {}

    def reading(self) -> list[tuple[Hashable, Sequence[bytes]]]:
        """(who, paths) of what the lane has open for reading."""
        return self.lane.reading() if self.lane is not None else []

    def open_handles(self) -> list[dict[str, object]]:
        """One dict per open file: fh, paths (bytes), flags as in open(2), the observer's session."""
        return [
            {"fh": h.fh, "paths": h.node.paths(), "flags": h.flags, "session": h.session}
            for h in self.handles
        ]

    def status(self) -> dict[str, object]:
        return {"requests": self.requests(), "nodes": len(self.nodes), "open_files": self.open_files()}

    def requests(self) -> dict[str, int]:
        """How many requests of each kind were answered."""
        total = dict(self.counts)
        for name, count in (self.lane.counts() if self.lane is not None else {}).items():
            total[name] = total.get(name, 0) + count
        return total

    def decisions(self) -> dict[str, int]:
        """Those of them that came to Python."""
        return dict(self.counts)

    def open_files(self) -> int:
        return len(self.handles) + (self.lane.load()["handles"] if self.lane is not None else 0)
