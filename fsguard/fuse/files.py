"""Handlers of open files."""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from errno import EACCES, EEXIST, ENOSYS, ENXIO, EPERM, EROFS, ESTALE

import trio

from ..observer import Caller, Session
from ._library import pyfuse3
from .backing import proc_path
from .handles import Handle
from .lane import LANE_FH, Lane
from .nodes import Node
from .once import AGAIN, OnceHandlers
from .replies import async_handler, handler

__all__ = ["FileHandlers", "interrupt_request", "open_request"]

Context = pyfuse3.RequestContext

# include/uapi/linux/fuse.h
_WRITE_CACHE, _WRITE_KILL_SUIDGID = 1, 4
_OPEN_KILL_SUIDGID = 1

# Not O_DIRECT (it needs aligned buffers, and the kernel has done what it means
# to the caller), not O_CREAT, O_EXCL, O_TRUNC, which are done here by hand.
_PASSED = os.O_APPEND | os.O_SYNC | os.O_DSYNC | os.O_NOATIME | os.O_LARGEFILE
_SYNC_THREADS = 64


# include/uapi/linux/fuse.h: fuse_in_header, and what follows it.
_OPEN = struct.Struct("=IIQQIIIIII")
_INTERRUPT = struct.Struct("=IIQQIIIIQ")
_OPCODE_OPEN, _OPCODE_INTERRUPT = 14, 36
_OPCODE_WRITE, _OPCODE_CREATE = 16, 35


def open_request(caller: Caller, id_: int, flags: int, open_flags: int) -> bytes:
    """The request as the kernel has sent it, to be handled once more."""
    return _OPEN.pack(
        _OPEN.size,
        _OPCODE_OPEN,
        caller.unique,
        id_,
        caller.uid,
        caller.gid,
        caller.tid,
        0,
        flags & 0xFFFFFFFF,
        open_flags,
    )


def interrupt_request(unique: int) -> bytes:
    """That a signal has come for the caller of that request."""
    return _INTERRUPT.pack(_INTERRUPT.size, _OPCODE_INTERRUPT, unique | 1, 0, 0, 0, 0, 0, unique)


class FileHandlers(OnceHandlers):
    _sync_limit: trio.CapacityLimiter | None = None

    @async_handler
    async def open(self, id_: int, flags: int, ctx: Context) -> pyfuse3.FileInfo:
        kill = self.request.flags() & _OPEN_KILL_SUIDGID if self.peeking else ctx.uid != 0
        node = self.nodes[id_]
        if not node.is_regular():  # the kernel opens special files by itself
            raise OSError(ENXIO, "not a regular file")
        if self.lane is not None and flags & (os.O_ACCMODE | os.O_TRUNC) == os.O_RDONLY:
            return self._open_in_lane(self.lane, node, flags, ctx)
        self.revoke(node)
        caller = self.caller(ctx)
        opened = self.handles.files.get(self.answered_by(caller.unique))
        if opened is not None:
            return self._info(opened)
        if self.lane is not None:
            self.waiting[caller.unique] = (caller, id_, flags, self.request.flags())
        try:
            session = await self.observer.open(caller, node, flags)
        finally:
            self.waiting.pop(caller.unique, None)
        try:
            self.begin(_OPCODE_OPEN, node, unique=caller.unique)
            fd, readable = self._open_backing(node, flags)
            try:
                if flags & os.O_TRUNC:
                    self._empty(node, fd, flags)
                    if kill:
                        self.drop_suid(fd, ctx.gid, ctx.pid)
            except BaseException:
                os.close(fd)
                raise
        except BaseException:
            session.aborted()
            raise
        return self._opened(node, fd, flags, session, readable, ctx.pid)

    def _open_in_lane(self, lane: Lane, node: Node, flags: int, ctx: Context) -> pyfuse3.FileInfo:
        """An open for reading by a thread that the lane does not know yet."""
        fd = self.backing.open(node, flags & _PASSED | os.O_RDONLY)
        try:
            actor = self.observer.looked(self.caller(ctx), node)
            if actor is not None and ctx.pid > 0:
                lane.know(ctx.pid, actor)
            self.begin(_OPCODE_OPEN, node)
            fh = lane.add_handle(node.id, fd, actor)
        except BaseException:
            os.close(fd)
            raise
        return pyfuse3.FileInfo(fh=fh, keep_cache=self.settings.keep_cache)

    def _opened(
        self, node: Node, fd: int, flags: int, session: Session, readable: bool, tid: int
    ) -> pyfuse3.FileInfo:
        try:
            session.opened(node)
        except BaseException:
            os.close(fd)
            raise
        handle = self.handles.add(node, fd, flags, session, readable=readable, tid=tid)
        return self._info(handle)

    def _info(self, handle: Handle) -> pyfuse3.FileInfo:
        # A handle that may write too begins with an empty cache: its first READ is what tells of a look.
        keep = self.settings.keep_cache and not handle.writable
        return pyfuse3.FileInfo(fh=handle.fh, keep_cache=keep)

    def _open_backing(self, node: Node, flags: int) -> tuple[int, bool]:
        """(descriptor, readable). Write-only is opened for reading too: the guard compares."""
        passed, access = flags & _PASSED, flags & os.O_ACCMODE
        if access == os.O_RDONLY:
            return self.backing.open(node, passed | os.O_RDONLY), True
        try:
            return self.backing.open(node, passed | os.O_RDWR), True
        except OSError as error:
            if access != os.O_WRONLY or error.errno not in (EACCES, EPERM, EROFS):
                raise
        return self.backing.open(node, passed | os.O_WRONLY), False

    def _empty(self, node: Node, fd: int, flags: int) -> None:
        """What O_TRUNC does, after the descriptor was seen to be the right file's."""
        if flags & os.O_ACCMODE != os.O_RDONLY:
            os.ftruncate(fd, 0)
            return
        writable = self.backing.open(node, os.O_WRONLY)
        try:
            os.ftruncate(writable, 0)
        finally:
            os.close(writable)

    @async_handler
    async def create(
        self, parent_id: int, name: bytes, mode: int, flags: int, ctx: Context
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        parent = self.nodes[parent_id]
        caller = self.caller(ctx)
        opened = self.handles.files.get(self.answered_by(caller.unique))
        if opened is not None:
            return self._info(opened), self.entry(opened.node, os.fstat(opened.fd))
        session = await self.observer.create(caller, parent.path_of(name), flags)
        try:
            access = flags & os.O_ACCMODE
            how = flags & _PASSED | (os.O_RDONLY if access == os.O_RDONLY else os.O_RDWR)
            above = self.backing.dir(parent)
            try:
                with self.creating(ctx):
                    self.begin(_OPCODE_CREATE, unique=caller.unique)
                    fd = os.open(
                        name,
                        how | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
                        mode & 0o7777,
                        dir_fd=above,
                    )
            except FileExistsError:
                if not self.was_made(above, name, stat.S_IFREG, caller.unique):
                    if flags & os.O_EXCL:
                        raise
                    # Somebody was faster. The kernel takes ESTALE as "look again": it finds the
                    # file, checks the caller's permission on it and sends OPEN.
                    raise OSError(ESTALE, os.strerror(EEXIST)) from None
                fd = self._open_made(above, name, how, mode, ctx)
        except BaseException:
            session.aborted()
            raise
        st = os.fstat(fd)
        node = self.nodes.enter(parent, name, st, fresh=True)
        try:
            info = self._opened(node, fd, flags, session, readable=True, tid=ctx.pid)
        except BaseException:
            self.nodes.settle(node)
            raise
        return info, self.entry(node, st)

    def _open_made(self, above: int, name: bytes, how: int, mode: int, ctx: Context) -> int:
        """What this request has made already, whatever its mode says."""
        how |= os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(name, how, dir_fd=above)
        except PermissionError:
            if os.stat(name, dir_fd=above, follow_symlinks=False).st_size:
                raise
            # As long as nobody has it, another one will do.
            os.unlink(name, dir_fd=above)
            with self.creating(ctx):
                return os.open(name, how | os.O_CREAT | os.O_EXCL, mode & 0o7777, dir_fd=above)

    def _grant(self, handle: Handle, tid: int) -> None:
        """Where the next write of this thread would need no decision, let the lane do it."""
        if self.lane is not None and handle.writable and tid and handle.session.goes_on(tid):
            self.lane.grant(handle.node.id, handle.fh, handle.fd, tid, handle.append)
            handle.granted = True

    @handler
    def read(self, fh: int, offset: int, size: int) -> bytes:
        tid = self.request.tid() if self.peeking else 0
        handle = self.handles.file(fh)
        handle.session.reading(tid)
        return os.pread(handle.fd, size, offset)

    @handler
    def write(self, fh: int, offset: int, data: bytes) -> int:
        handle = self.handles.file(fh)
        self.revoke(handle.node)
        if self.peeking:
            how = self.request.flags()
            mapped = how & _WRITE_CACHE
            tid = 0 if mapped else self.request.tid()
            appends = bool(self.request.file_flags() & os.O_APPEND) and not mapped
        else:
            # Mapped pages can't be told from write(2); the kernel's offset is right for both,
            # unless somebody appends behind the mount.
            how, tid, appends = 0, 0, False
        fd = handle.fd
        past = self.past() if appends else None
        if past is not None:
            offset, appends = past.size, False  # what may have landed there lands there again
        elif appends:
            offset = os.fstat(fd).st_size
            self.begin(_OPCODE_WRITE, handle.node, offset)
        if appends != handle.append:
            self._set_append(handle, appends)
        handle.session.writing(tid, offset, data)
        done = os.pwrite(fd, data, offset)
        if done < len(data):
            done = self._go_on(fd, data, offset, done)
        handle.session.wrote(offset, done)
        if how & _WRITE_KILL_SUIDGID:
            self.drop_suid(fd, -1, tid)
        self._grant(handle, tid)
        return done

    def _go_on(self, fd: int, data: bytes, offset: int, done: int) -> int:
        """The rest of a short write; what has landed counts, even if the next piece fails."""
        view = memoryview(data)
        try:
            while 0 < done < len(data):
                more = os.pwrite(fd, view[done:], offset + done)
                if more == 0:
                    break
                done += more
        except OSError:
            pass
        return done

    def _set_append(self, handle: Handle, on: bool) -> None:
        """pwrite(2) on an O_APPEND descriptor appends, whatever the offset; pages of a mapping
        have to land where they were mapped, and fcntl(F_SETFL) changes the flag at any time."""
        flags = fcntl.fcntl(handle.fd, fcntl.F_GETFL)
        fcntl.fcntl(handle.fd, fcntl.F_SETFL, flags | os.O_APPEND if on else flags & ~os.O_APPEND)
        handle.append = on

    def drop_suid(self, fd: int, gid: int, tid: int) -> None:
        """What a write, truncation by one without CAP_FSETID does to set-user-ID files.

        The kernel leaves it to us (FUSE_HANDLE_KILLPRIV_V2); a root daemon's own write(2) would
        keep the bits. Capabilities are removed by the backing filesystem for any writer.
        """
        if not self.identity.is_root:
            return
        st = os.fstat(fd)
        mode = stat.S_IMODE(st.st_mode)
        if not mode & (stat.S_ISUID | stat.S_ISGID):
            return
        kept = mode & ~stat.S_ISUID
        # setattr_should_drop_sgid(), Linux ≥ 6.2; without group execution the bit once meant
        # mandatory locking and stays for members of the group.
        if mode & stat.S_ISGID and (mode & stat.S_IXGRP or not _in_group(st.st_gid, gid, tid)):
            kept &= ~stat.S_ISGID
        if kept != mode:
            os.chmod(proc_path(fd), kept)  # not fchmod: fd may be O_PATH

    def drop_sgid_of_stranger(self, fd: int, gid: int, tid: int) -> None:
        if not self.identity.is_root:
            return
        st = os.fstat(fd)
        if st.st_mode & stat.S_ISGID and not _in_group(st.st_gid, gid, tid):
            os.chmod(proc_path(fd), stat.S_IMODE(st.st_mode) & ~stat.S_ISGID)

    async def flush(self, fh: int) -> None:
        """ENOSYS: the kernel never asks again, and writes mapped pages back all the same."""
        self.counts["flush"] += 1
        raise pyfuse3.FUSEError(ENOSYS)

    @handler
    def release(self, fh: int) -> None:
        if self.lane is not None and fh not in self.handles.files and self.request.unique() & AGAIN:
            self.lane.close_handle(fh)  # it is released already
            return
        handle = self.handles.file(fh)
        self.revoke(handle.node)
        try:
            handle.session.released()
        finally:
            self.handles.remove(handle)
            if self.lane is not None and fh & LANE_FH:
                self.lane.close_handle(fh)
            self.nodes.settle(handle.node)

    @async_handler
    async def fsync(self, fh: int, datasync: bool) -> None:
        # The kernel holds the handle open until the reply.
        await self.sync(self.handles.file(fh).fd, datasync)

    async def sync(self, fd: int, datasync: bool) -> None:
        """fsync(2) takes as long as the disk does: in a thread of its own."""
        if self._sync_limit is None:
            self._sync_limit = trio.CapacityLimiter(_SYNC_THREADS)
        await trio.to_thread.run_sync(os.fdatasync if datasync else os.fsync, fd, limiter=self._sync_limit)


def _in_group(group: int, gid: int, tid: int) -> bool:
    if group == gid:
        return True
    try:
        with open(f"/proc/{tid}/status", "rb") as f:
            for line in f:
                if line.startswith((b"Gid:", b"Groups:")) and b"%d" % group in line.split()[1:]:
                    return True
    except OSError:
        pass
    return False
