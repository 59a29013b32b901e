"""Handlers of attributes, extended attributes and the filesystem's numbers."""

from __future__ import annotations

import errno
import os

from ..observer import Truncated
from . import syscalls
from ._library import pyfuse3
from .backing import proc_path
from .files import FileHandlers
from .handles import Handle
from .nodes import Node
from .replies import handler

__all__ = ["MetadataHandlers"]

Context = pyfuse3.RequestContext
Entry = pyfuse3.EntryAttributes

# include/uapi/linux/fuse.h
_ATIME_NOW, _MTIME_NOW, _KILL_SUIDGID = 1 << 7, 1 << 8, 1 << 11
_SETXATTR, _REMOVEXATTR = 21, 24  # opcodes
_ACCESS_ACL = b"system.posix_acl_access"
_NANO = 1_000_000_000

VIRTUAL = b"user.fsguard."
"""What attributes begin with that are answered by the guard, and by no file: not listed, so that
`cp -a`, `rsync -X` and archives do not take them along, and not to be set or removed."""


class MetadataHandlers(FileHandlers):
    @handler
    def getattr(self, id_: int, ctx: Context) -> Entry:
        node = self.nodes[id_]
        return self.attributes.entry(node, self.backing.stat(node))

    @handler
    def setattr(
        self, id_: int, attr: Entry, fields: pyfuse3.SetattrFields, fh: int | None, ctx: Context
    ) -> Entry:
        valid = self.request.flags() if self.peeking else 0
        node = self.nodes[id_]
        handle = self.handles.files.get(fh) if fh is not None else None
        with self.backing.reach(node) as reached:
            fd = handle.fd if handle is not None else reached
            path = proc_path(fd)
            if fields.update_size:
                self._truncate(node, handle, path, attr.st_size, ctx)
                if valid & _KILL_SUIDGID:
                    self.drop_suid(fd, ctx.gid, ctx.pid)
            if fields.update_uid or fields.update_gid:
                os.chown(
                    path,
                    attr.st_uid if fields.update_uid else -1,
                    attr.st_gid if fields.update_gid else -1,
                )
            if fields.update_mode:
                os.chmod(path, attr.st_mode & 0o7777)
            if fields.update_atime or fields.update_mtime:
                syscalls.set_utimes(
                    path,
                    _time(fields.update_atime, valid & _ATIME_NOW, attr.st_atime_ns),
                    _time(fields.update_mtime, valid & _MTIME_NOW, attr.st_mtime_ns),
                )
            return self.attributes.entry(node, os.fstat(fd))

    def _truncate(self, node: Node, handle: Handle | None, path: bytes, size: int, ctx: Context) -> None:
        session = handle.session if handle is not None else None
        self.revoke(node)
        with self.observer.changing(self.caller(ctx), Truncated(node, size, session)):
            if handle is not None:
                os.ftruncate(handle.fd, size)  # moves mtime even if the size stays
            else:
                os.truncate(path, size)

    @handler
    def access(self, id_: int, mode: int, ctx: Context) -> bool:
        # With default_permissions the kernel decides by itself; what is left is existence.
        self.backing.stat(self.nodes[id_])
        return True

    @handler
    def statfs(self, ctx: Context) -> pyfuse3.StatvfsData:
        st, reply = os.fstatvfs(self.backing.root_fd), pyfuse3.StatvfsData()
        for field in (
            "f_bsize",
            "f_frsize",
            "f_blocks",
            "f_bfree",
            "f_bavail",
            "f_files",
            "f_ffree",
            "f_favail",
            "f_namemax",
        ):
            setattr(reply, field, getattr(st, field))
        return reply

    # ---- extended attributes, POSIX ACLs among them ----

    @handler
    def getxattr(self, id_: int, name: bytes, ctx: Context) -> bytes:
        if name.startswith(VIRTUAL):
            return self._virtual(id_, name, ctx)
        with self.backing.reach(self.nodes[id_]) as fd:
            return os.getxattr(proc_path(fd), name)

    def _virtual(self, id_: int, name: bytes, ctx: Context) -> bytes:
        asked = os.fsdecode(name.removeprefix(VIRTUAL))
        found = self.observer.attribute(self.caller(ctx), self.nodes[id_], asked)
        if found is None:
            raise OSError(errno.ENODATA, "no such attribute")
        return found

    @handler
    def setxattr(self, id_: int, name: bytes, value: bytes, ctx: Context) -> None:
        _settable(name)
        # pyfuse3 has asked for XATTR_CREATE and XATTR_REPLACE by getxattr; here they are atomic.
        flags = self.request.flags() & (os.XATTR_CREATE | os.XATTR_REPLACE) if self.peeking else 0
        with self.backing.reach(self.nodes[id_]) as fd:
            self.begin(_SETXATTR, self.nodes[id_])
            try:
                os.setxattr(proc_path(fd), name, value, flags)
            except OSError as error:  # XATTR_CREATE: it was us
                if error.errno != errno.EEXIST or self.past() is None:
                    raise
            if name == _ACCESS_ACL and ctx.uid != 0:
                # posix_acl_update_mode(): to a caller outside the group a new ACL costs the setgid
                # bit. The kernel would tell (FUSE_SETXATTR_EXT), but libfuse does not pass it on.
                self.drop_sgid_of_stranger(fd, ctx.gid, ctx.pid)

    @handler
    def listxattr(self, id_: int, ctx: Context) -> list[bytes]:
        with self.backing.reach(self.nodes[id_]) as fd:
            names = [os.fsencode(name) for name in os.listxattr(proc_path(fd))]
        # One that a file has of its own, from elsewhere, could not be read by who sees it in the list.
        names = [name for name in names if not name.startswith(VIRTUAL)]
        if ctx.uid != 0:  # as the kernel does for whom lacks CAP_SYS_ADMIN
            names = [name for name in names if not name.startswith(b"trusted.")]
        return names

    @handler
    def removexattr(self, id_: int, name: bytes, ctx: Context) -> None:
        _settable(name)
        with self.backing.reach(self.nodes[id_]) as fd:
            self.begin(_REMOVEXATTR, self.nodes[id_])
            try:
                os.removexattr(proc_path(fd), name)
            except OSError as error:  # it was us
                if error.errno != errno.ENODATA or self.past() is None:
                    raise


def _settable(name: bytes) -> None:
    if name.startswith(VIRTUAL):
        raise OSError(errno.EOPNOTSUPP, "this attribute is read-only")


def _time(update: object, now: int, ns: int) -> tuple[int, int]:
    if not update:
        return 0, syscalls.UTIME_OMIT
    if now:
        return 0, syscalls.UTIME_NOW
    return divmod(ns, _NANO)
