"""Handlers of open directories.

A listing is a snapshot, taken when reading begins at the start: no entry comes
twice or is passed over because others come and go meanwhile, and positions
(telldir, seekdir) stay good. What has vanished since is left out.
"""

from __future__ import annotations

import os
from stat import S_IFDIR, S_IFLNK, S_IFREG

from ._library import pyfuse3
from .backing import proc_path
from .filesystem import Settings
from .handles import DirEntry, DirHandle
from .metadata import MetadataHandlers
from .replies import async_handler, handler

__all__ = ["DirectoryHandlers", "Settings"]

Context = pyfuse3.RequestContext


class DirectoryHandlers(MetadataHandlers):
    @handler
    def opendir(self, id_: int, ctx: Context) -> int:
        node = self.nodes[id_]
        self.backing.dir(node)
        return self.handles.add_directory(node).fh

    @handler
    def releasedir(self, fh: int) -> None:
        handle = self.handles.directory(fh)
        self.handles.remove_directory(handle)

    @async_handler
    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        fd = self.backing.open(self.handles.directory(fh).node, os.O_RDONLY)
        try:
            await self.sync(fd, datasync)
        finally:
            os.close(fd)

    @handler
    def readdir(self, fh: int, start: int, token: pyfuse3.ReaddirToken) -> None:
        handle = self.handles.directory(fh)
        if start == 0 or handle.entries is None:
            handle.entries = self._list(handle)
        # pyfuse3 always answers READDIRPLUS. Where the kernel may not believe the attributes
        # for a moment there is no use in them: node id 0 says "name and type only".
        if self.settings.entry_timeout > 0 or not self.peeking:
            self._reply_with_attributes(handle, handle.entries, start, token)
        else:
            self._reply_with_names(handle, handle.entries, start, token)

    def _list(self, handle: DirHandle) -> list[DirEntry]:
        node = handle.node
        fd = self.backing.dir(node)
        handle.changed = (os.fstat(fd).st_mtime_ns, node.removals)
        above = next(iter(node.names))[0] if node.names else node
        inode = self.attributes.inode
        entries = [
            (b".", inode(node.dev, node.ino), S_IFDIR),
            (b"..", inode(above.dev, above.ino), S_IFDIR),
        ]
        with os.scandir(proc_path(fd)) as found:
            entries.extend((e.name, e.inode(), _type(e)) for e in found)
        return entries

    def _reply_with_names(
        self, handle: DirHandle, entries: list[DirEntry], start: int, token: pyfuse3.ReaddirToken
    ) -> None:
        fd = self.backing.dir(handle.node)
        aged = handle.changed != (os.fstat(fd).st_mtime_ns, handle.node.removals)
        attr, reply = pyfuse3.EntryAttributes(), pyfuse3.readdir_reply
        attr.generation = 0
        for at in range(start, len(entries)):
            name, ino, kind = entries[at]
            if aged and at > 1 and not _exists(fd, name):
                continue
            attr.st_ino = ino
            attr.st_mode = kind
            if not reply(token, name, attr, at + 1):
                return

    def _reply_with_attributes(
        self, handle: DirHandle, entries: list[DirEntry], start: int, token: pyfuse3.ReaddirToken
    ) -> None:
        parent, reply = handle.node, pyfuse3.readdir_reply
        for at in range(start, len(entries)):
            name, ino, kind = entries[at]
            if at < 2:  # "." and "..": the kernel takes no lookup for them
                attr = pyfuse3.EntryAttributes()
                attr.st_ino, attr.st_mode, attr.generation = ino, kind, 0
                if not reply(token, name, attr, at + 1):
                    return
                continue
            try:
                st = os.stat(name, dir_fd=self.backing.dir(parent), follow_symlinks=False)
            except OSError:
                continue
            node = self.nodes.enter(parent, name, st)
            if not reply(token, name, self.attributes.entry(node, st), at + 1):
                self.nodes.settle(node)
                return
            node.lookups += 1


def _exists(fd: int, name: bytes) -> bool:
    try:
        os.stat(name, dir_fd=fd, follow_symlinks=False)
    except OSError:
        return False
    return True


def _type(entry: os.DirEntry[bytes]) -> int:
    """File type bits, from the directory itself where it records them."""
    try:
        if entry.is_file(follow_symlinks=False):
            return S_IFREG
        if entry.is_dir(follow_symlinks=False):
            return S_IFDIR
        if entry.is_symlink():
            return S_IFLNK
        return entry.stat(follow_symlinks=False).st_mode & 0o170000
    except OSError:
        return 0
