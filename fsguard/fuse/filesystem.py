"""What all request handlers share: nodes, handles, the backing directory, the observer."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass
from typing import Protocol

from ..observer import Caller, Observer
from ._library import interposed, pyfuse3, request
from .backing import Backing
from .credentials import Creator, Identity
from .handles import HandleTable
from .nodes import Node, NodeTable
from .replies import Attributes

__all__ = ["Filesystem", "Request", "Settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """How much the kernel may remember by itself.

    entry_timeout, attr_timeout: seconds for which a name and attributes are
    believed; 0 asks every time, so that changes behind the mount are seen at
    once. keep_cache: keep a file's pages from one open to the next (else only
    until the next open). directories: cached directory descriptors.
    """

    entry_timeout: float = 0.0
    attr_timeout: float = 0.0
    keep_cache: bool = False
    directories: int = 512


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
        self.backing = Backing(root_fd, self.settings.directories)
        self.nodes = NodeTable(self.backing)
        self.handles = HandleTable()
        self.identity = Identity()
        self.counts: dict[str, int] = defaultdict(int)
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
        return self.identity.creating(ctx.uid, ctx.gid, ctx.umask)

    def entry(self, node: Node, st: os.stat_result) -> pyfuse3.EntryAttributes:
        """A reply that hands the node to the kernel: one more lookup."""
        node.lookups += 1
        return self.attributes.entry(node, st)

    # ---- for status ----

    def open_handles(self) -> list[dict[str, object]]:
        """One dict per open file: fh, paths (bytes), flags as in open(2), the observer's session."""
        return [
            {"fh": h.fh, "paths": h.node.paths(), "flags": h.flags, "session": h.session}
            for h in self.handles
        ]

    def status(self) -> dict[str, object]:
        return {"requests": dict(self.counts), "nodes": len(self.nodes), "open_files": len(self.handles)}
