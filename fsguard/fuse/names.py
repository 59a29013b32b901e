"""Handlers that find, make, move and remove names."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from errno import EEXIST, EPERM
from stat import S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG, S_IFSOCK, S_ISDIR

from ..observer import Exchange, Linked, Made, Removed, Renamed
from . import syscalls
from ._library import pyfuse3
from .backing import proc_path
from .nodes import Node
from .once import OnceHandlers
from .replies import handler
from .tracebacks import describe

__all__ = ["NameHandlers"]

log = logging.getLogger(__name__)

Context = pyfuse3.RequestContext
Entry = pyfuse3.EntryAttributes

_MODE = 0o7777
_KINDS = {S_IFIFO: "fifo", S_IFSOCK: "socket", S_IFCHR: "device", S_IFBLK: "device"}
# include/uapi/linux/fuse.h
_SYMLINK, _MKNOD, _MKDIR, _UNLINK, _RMDIR, _RENAME, _LINK = 6, 8, 9, 10, 11, 12, 13
_NOREPLACE, _EXCHANGE = pyfuse3.RENAME_NOREPLACE, pyfuse3.RENAME_EXCHANGE


class NameHandlers(OnceHandlers):
    @handler
    def lookup(self, parent_id: int, name: bytes, ctx: Context) -> Entry:
        parent = self.nodes[parent_id]
        try:
            st = os.stat(name, dir_fd=self.backing.dir(parent), follow_symlinks=False)
        except FileNotFoundError:
            known = self.nodes.child(parent, name)
            if known is not None:  # deleted behind the mount
                self.nodes.remove_name(known, parent, name)
            self.observer.missed(self.caller(ctx), parent.path_of(name))
            raise
        return self.entry(self.nodes.enter(parent, name, st), st)

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        self.counts["forget"] += 1
        for id_, count in inode_list:
            try:
                self.nodes.forget(id_, count)
            except Exception as error:  # there is no reply that could carry it
                log.error("forget of node %d failed: %s", id_, describe(error))

    @handler
    def readlink(self, id_: int, ctx: Context) -> bytes:
        node = self.nodes[id_]
        target = self.backing.readlink(node)
        self.observer.readlink(self.caller(ctx), node)
        return target

    # ---- making ----

    def _made(self, parent: Node, name: bytes) -> Entry:
        st = os.stat(name, dir_fd=self.backing.dir(parent), follow_symlinks=False)
        return self.entry(self.nodes.enter(parent, name, st, fresh=True), st)

    @handler
    def mkdir(self, parent_id: int, name: bytes, mode: int, ctx: Context) -> Entry:
        parent = self.nodes[parent_id]
        above = self.backing.dir(parent)
        try:
            with self.creating(ctx):
                self.begin(_MKDIR)
                os.mkdir(name, mode & _MODE, dir_fd=above)
        except FileExistsError:
            if not self.was_made(above, name, S_IFDIR):
                raise
        return self._made(parent, name)

    @handler
    def mknod(self, parent_id: int, name: bytes, mode: int, rdev: int, ctx: Context) -> Entry:
        parent = self.nodes[parent_id]
        above = self.backing.dir(parent)
        made = Made(parent.path_of(name), _KINDS.get(S_IFMT(mode), "file"))
        with self.observer.changing(self.caller(ctx), made):
            try:
                with self.creating(ctx):
                    self.begin(_MKNOD)
                    os.mknod(name, mode, rdev, dir_fd=above)
            except FileExistsError:
                if not self.was_made(above, name, S_IFMT(mode) or S_IFREG):
                    raise
            return self._made(parent, name)

    @handler
    def symlink(self, parent_id: int, name: bytes, target: bytes, ctx: Context) -> Entry:
        parent = self.nodes[parent_id]
        above = self.backing.dir(parent)
        with self.observer.changing(self.caller(ctx), Made(parent.path_of(name), "symlink")):
            try:
                with self.creating(ctx):
                    self.begin(_SYMLINK)
                    os.symlink(target, name, dir_fd=above)
            except FileExistsError:
                if not self.was_made(above, name, S_IFLNK) or os.readlink(name, dir_fd=above) != target:
                    raise
            return self._made(parent, name)

    @handler
    def link(self, id_: int, parent_id: int, name: bytes, ctx: Context) -> Entry:
        node, parent = self.nodes[id_], self.nodes[parent_id]
        if node.is_dir:
            raise PermissionError(EPERM, "hard link to a directory")
        self.revoke(node)
        with (
            self.observer.changing(self.caller(ctx), Linked(parent.path_of(name), node)),
            self.backing.reach(node) as fd,
        ):
            # By descriptor: this very inode, whatever its old name leads to now.
            above = self.backing.dir(parent)
            self.begin(_LINK, node)
            try:
                os.link(proc_path(fd), name, dst_dir_fd=above, follow_symlinks=True)
            except FileExistsError:
                if self.past() is None or not node.matches(
                    os.stat(name, dir_fd=above, follow_symlinks=False)
                ):
                    raise
            self.nodes.add_name(node, parent, name)
        return self.entry(node, self.backing.stat(node))

    # ---- removing ----

    def _present(self, parent: Node, name: bytes) -> tuple[Node, os.stat_result]:
        st = os.stat(name, dir_fd=self.backing.dir(parent), follow_symlinks=False)
        node = self.nodes.enter(parent, name, st)
        self.revoke(node)
        return node, st

    def _before_losing(self, node: Node) -> bool:
        """Keep a descriptor of a node whose last known name may go; whether it is a new one.

        The kernel may go on using it: an unlinked open file, a removed working directory.
        """
        if node.lookups <= 0 or len(node.names) > 1 or node.pinned:
            return False
        self.backing.pin(node)
        return node.pinned

    def _left(self, parent: Node, path: bytes, name: bytes) -> None:
        """Nothing is at `path` any more; the lane has to tell if somebody may look there."""
        if self.lane is not None and self.observer.misses(path):
            self.lane.watch_miss(parent.id, name)

    def _lost(self, node: Node, parent: Node, name: bytes, st: os.stat_result) -> None:
        self.nodes.remove_name(node, parent, name)
        if node.is_dir or st.st_nlink <= 1:
            self.nodes.detach(node)

    @handler
    def unlink(self, parent_id: int, name: bytes, ctx: Context) -> None:
        parent = self.nodes[parent_id]
        past = self.past()
        if past is not None and self.removed_before(past, parent, name, ctx):
            self._left(parent, parent.path_of(name), name)
            return
        node, st = self._present(parent, name)
        try:
            path = parent.path_of(name)
            with self.observer.changing(self.caller(ctx), Removed(path, node)):
                pinned = self._before_losing(node)
                above = self.backing.dir(parent)
                with self.nodes.changing():
                    self.begin(_UNLINK, node)
                    try:
                        os.unlink(name, dir_fd=above)
                    except BaseException:
                        if pinned:
                            self.backing.unpin(node)
                        raise
                    self._lost(node, parent, name, st)
            self._left(parent, path, name)
        finally:
            self.nodes.settle(node)

    @handler
    def rmdir(self, parent_id: int, name: bytes, ctx: Context) -> None:
        parent = self.nodes[parent_id]
        past = self.past()
        if past is not None and self.removed_before(past, parent, name, ctx):
            return
        node, st = self._present(parent, name)
        try:
            pinned = node.is_dir and self._before_losing(node)
            above = self.backing.dir(parent)
            with self.nodes.changing():
                self.begin(_RMDIR, node)
                try:
                    os.rmdir(name, dir_fd=above)
                except BaseException:
                    if pinned:
                        self.backing.unpin(node)
                    raise
                self._lost(node, parent, name, st)
        finally:
            self.nodes.settle(node)

    # ---- moving ----

    @handler
    def rename(
        self, parent_id: int, name: bytes, new_parent_id: int, new_name: bytes, flags: int, ctx: Context
    ) -> None:
        parent, new_parent = self.nodes[parent_id], self.nodes[new_parent_id]
        past = self.past()
        if past is not None and self.renamed_before(past, parent, name, new_parent, new_name, flags, ctx):
            if not flags & _EXCHANGE:
                self._left(parent, parent.path_of(name), name)
            return
        node, _ = self._present(parent, name)
        there, there_st = None, None
        try:
            try:
                there, there_st = self._present(new_parent, new_name)
            except FileNotFoundError:
                if flags & _EXCHANGE:
                    raise
            if node.is_dir or (there is not None and there.is_dir):
                self.let_nobody_make()  # what is being written below moves along
            if there is node:
                # Two names of one file: rename(2) does nothing, and nothing is replaced.
                above, new_above = self.backing.dir(parent), self.backing.dir(new_parent)
                self.begin(_RENAME, node)
                self._rename(above, name, new_above, new_name, flags)
            elif flags & _EXCHANGE:
                assert there is not None
                self._exchange(parent, name, node, new_parent, new_name, there, ctx)
            elif there is not None and flags & _NOREPLACE:
                raise FileExistsError(EEXIST, "target exists")
            else:
                self._move(parent, name, node, new_parent, new_name, there, there_st, flags, ctx)
        finally:
            if there is not None:
                self.nodes.settle(there)
            self.nodes.settle(node)

    @staticmethod
    def _rename(source: int, name: bytes, target: int, new_name: bytes, flags: int) -> None:
        if flags:
            syscalls.renameat2(source, name, target, new_name, flags)
        else:
            os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=target)

    def _move(
        self,
        parent: Node,
        name: bytes,
        node: Node,
        new_parent: Node,
        new_name: bytes,
        there: Node | None,
        there_st: os.stat_result | None,
        flags: int,
        ctx: Context,
    ) -> None:
        event = Renamed(
            parent.path_of(name),
            new_parent.path_of(new_name),
            None if node.is_dir else node,
            None if there is None or there.is_dir else there,
            node.is_dir,
        )
        with self.observer.changing(self.caller(ctx), event):
            pinned = there is not None and self._before_losing(there)
            above, new_above = self.backing.dir(parent), self.backing.dir(new_parent)
            with self.nodes.changing():
                self.begin(_RENAME, node, 0 if there is None else there.id)
                try:
                    self._rename(above, name, new_above, new_name, flags)
                except BaseException:
                    if pinned and there is not None:
                        self.backing.unpin(there)
                    raise
                if there is not None and there_st is not None:
                    self._lost(there, new_parent, new_name, there_st)
                self.nodes.remove_name(node, parent, name)
                self.nodes.add_name(node, new_parent, new_name)
        self._left(parent, event.source, name)

    def _exchange(
        self,
        parent: Node,
        name: bytes,
        node: Node,
        new_parent: Node,
        new_name: bytes,
        there: Node,
        ctx: Context,
    ) -> None:
        event = Exchange(
            parent.path_of(name),
            new_parent.path_of(new_name),
            None if node.is_dir else node,
            None if there.is_dir else there,
            S_ISDIR(node.kind),
            S_ISDIR(there.kind),
        )
        with self.observer.changing(self.caller(ctx), event):
            above, new_above = self.backing.dir(parent), self.backing.dir(new_parent)
            with self.nodes.changing():
                self.begin(_RENAME, node, there.id)
                self._rename(above, name, new_above, new_name, _EXCHANGE)
                self.nodes.remove_name(node, parent, name)
                self.nodes.remove_name(there, new_parent, new_name)
                self.nodes.add_name(node, new_parent, new_name)
                self.nodes.add_name(there, parent, name)
