"""Each request is done exactly once, although the process that did it died before it answered.

Such a request comes again. The lane's journal tells what had been begun (`engine.past`), and the
directory whether it was done; then it is answered as if it had just been: table and observer are
told, and nothing is done twice.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

from ..lane import engine
from ..observer import Change, Exchange, Removed, Renamed
from ._library import pyfuse3
from .filesystem import Filesystem
from .nodes import Node

__all__ = ["AGAIN", "OnceHandlers", "Past"]

AGAIN = 1 << 63
"""In a request's number: it comes again (FUSE_UNIQUE_RESEND)."""

_EXCHANGE = pyfuse3.RENAME_EXCHANGE


class Past(NamedTuple):
    """What a process before was about to do: when (CLOCK_REALTIME ns), to which inode; how large the
    file was that it appended to, or which node a rename was about to replace."""

    opcode: int
    began: int
    ino: int
    size: int


class OnceHandlers(Filesystem):
    """Mixin: what handlers need that change something. Without the lane nothing comes again."""

    def begin(self, opcode: int, node: Node | None = None, size: int = 0, unique: int | None = None) -> None:
        """Right before something is changed for the current request (or that number, after an await).

        From here to the answer nothing may be awaited.
        """
        if self.lane is not None and self.peeking:
            number = self.request.unique() if unique is None else unique
            engine.began(number, opcode, node.ino if node else 0, size, node.id if node else 0)
            self.begun = True

    def past(self) -> Past | None:
        """Of the current request, if it comes again and may have been done."""
        if self.lane is None or not self.peeking:
            return None
        unique = self.request.unique()
        found = engine.past(unique) if unique & AGAIN else None
        return Past(*found) if found is not None else None

    def was_made(self, above: int, name: bytes, kind: int, unique: int | None = None) -> bool:
        """Whether what stands in the way was made for this very request; `kind`: its type (S_IFMT)."""
        if self.lane is None or not self.peeking:
            return False
        number = self.request.unique() if unique is None else unique
        return bool(number & AGAIN) and engine.made(number, above, name, kind)

    def answered_by(self, unique: int) -> int:
        """The handle that an OPEN or CREATE had led to before it was answered; 0: none."""
        return engine.asked(unique) if unique & AGAIN and self.lane is not None else 0

    # ---- what was done, and the table may not know yet ----

    def _announce(self, change: Change, ctx: pyfuse3.RequestContext) -> None:
        """It was judged when it was done."""
        with suppress(OSError), self.observer.changing(self.caller(ctx), change):
            pass

    def _gone(self, node: Node, parent: Node, name: bytes) -> None:
        """As after the removal; how many names are left on disk can only be asked of the node."""
        self.nodes.remove_name(node, parent, name)
        try:
            left = 0 if node.is_dir else self.backing.stat(node).st_nlink
        except OSError:
            left = 0
        if not left:
            self.nodes.detach(node)

    def removed_before(self, past: Past, parent: Node, name: bytes, ctx: pyfuse3.RequestContext) -> bool:
        """Whether `name` was removed; false: it is still there."""
        try:
            st = os.stat(name, dir_fd=self.backing.dir(parent), follow_symlinks=False)
            if st.st_ino == past.ino:
                return False
        except FileNotFoundError:
            pass
        node = self.nodes.child(parent, name)
        if node is not None and node.ino == past.ino:
            path = parent.path_of(name)
            with self.nodes.changing():
                self._gone(node, parent, name)
        else:
            node, path = self._node(self._past_node()), parent.path_of(name)
        if node is not None and not node.is_dir:
            self._announce(Removed(path, node), ctx)
        return True

    def _past_node(self) -> int:
        return engine.past_node(self.request.unique())

    def _node(self, id_: int) -> Node | None:
        """The kernel waits for an answer that is about it, and so has not forgotten it."""
        try:
            return self.nodes[id_] if id_ else None
        except OSError:
            return None

    def renamed_before(
        self,
        past: Past,
        parent: Node,
        name: bytes,
        new_parent: Node,
        new_name: bytes,
        flags: int,
        ctx: pyfuse3.RequestContext,
    ) -> bool:
        """Whether it was renamed; false: it is still to be."""
        source, target = self._inode(parent, name), self._inode(new_parent, new_name)
        if target != past.ino or source == past.ino or (flags & _EXCHANGE and not source):
            return False
        node, there = self.nodes.child(parent, name), self.nodes.child(new_parent, new_name)
        paths = parent.path_of(name), new_parent.path_of(new_name)
        if node is not None and node.ino == past.ino:
            there = None if there is node else there
            self._move_before(node, parent, name, there, new_parent, new_name, bool(flags & _EXCHANGE))
        else:  # the table knows
            node, there = self._node(self._past_node()), self._node(past.size)
        if node is None:
            return True
        file, other = (None if n is None or n.is_dir else n for n in (node, there))
        if flags & _EXCHANGE:
            moved_dir = there is not None and there.is_dir
            self._announce(Exchange(*paths, file, other, node.is_dir, moved_dir), ctx)
        else:
            self._announce(Renamed(*paths, file, other, node.is_dir), ctx)
        return True

    def _move_before(
        self,
        node: Node,
        parent: Node,
        name: bytes,
        there: Node | None,
        new_parent: Node,
        new_name: bytes,
        exchange: bool,
    ) -> None:
        with self.nodes.changing():
            self.nodes.remove_name(node, parent, name)
            if there is not None and exchange:
                self.nodes.remove_name(there, new_parent, new_name)
            elif there is not None:
                self._gone(there, new_parent, new_name)
            self.nodes.add_name(node, new_parent, new_name)
            if there is not None and exchange:
                self.nodes.add_name(there, parent, name)

    def _inode(self, parent: Node, name: bytes) -> int:
        try:
            return os.stat(name, dir_fd=self.backing.dir(parent), follow_symlinks=False).st_ino
        except FileNotFoundError:
            return 0
