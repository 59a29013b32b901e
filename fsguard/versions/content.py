"""Bytes on disk: digests, copies, clones; and the few directories of a store.

    blobs/ab/cdef…    content that the store wrote itself (0600)
    linked/ab/cdef…   a further name of the inode that was destroyed; it keeps its
                      own mode and owner, which is why the store's directory is 0700
    tmp/              what is not complete yet

The names are the digests of the content. A linked inode could still be changed
by whoever holds a descriptor of it: it is read again before anything else is
said to be the same, and copied once it turns out to have another name left.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from hashlib import blake2b

__all__ = ["CHUNK", "Places", "TooLargeError", "clone", "copy", "created", "digest_of"]
__all__ += ["digest_of_fd", "digest_of_target", "write_all"]

CHUNK = 1 << 20
FICLONE = 0x40049409
_SYNC_FILE_RANGE_WRITE = 2
_libc = ctypes.CDLL(None, use_errno=True)
_libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_NO_COPY_RANGE = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}


def digest_of_target(target: bytes) -> bytes:
    """The digest of a symlink: never equal to that of a file."""
    return blake2b(target, digest_size=32, person=b"symlink").digest()


def digest_of(data: bytes) -> bytes:
    return blake2b(data, digest_size=32).digest()


def digest_of_fd(fd: int) -> tuple[bytes, int]:
    """Digest and size of all that `fd` leads to, from its beginning."""
    state, at = blake2b(digest_size=32), 0
    while chunk := os.pread(fd, CHUNK, at):
        state.update(chunk)
        at += len(chunk)
    return state.digest(), at


class TooLargeError(Exception):
    """There is more of it than may be kept."""


def clone(source: int, target: int) -> None:
    """Share the blocks of `source` (a reflink); OSError where the filesystem can't."""
    fcntl.ioctl(target, FICLONE, source)


def copy(source: int, target: int, limit: int) -> int:
    """Copy everything, within the kernel if it can; returns the size in bytes.

    :raises TooLargeError: there is more than `limit` bytes of it.
    """
    at = 0
    try:
        while at <= limit:
            count = os.copy_file_range(source, target, limit + 1 - at, at, at)
            if count == 0:
                break
            at += count
    except OSError as error:
        if error.errno not in _NO_COPY_RANGE:
            raise
    # Also after copy_file_range said "end": it does so at once for files of /proc and the like.
    while at <= limit and (chunk := os.pread(source, min(CHUNK, limit + 1 - at), at)):
        write_all(target, chunk, at)
        at += len(chunk)
    if at > limit:
        raise TooLargeError
    return at


def write_all(fd: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(fd, view, at)
        view, at = view[count:], at + count


def created(fd: int) -> int:
    """A file of ours, whatever umask the process has at the moment (it takes that of its callers)."""
    os.fchmod(fd, 0o600)
    return fd


class Places:
    """The directories of one store, reached by descriptors.

    The operations that a power cut tells apart go through `link`, `rename`,
    `unlink`, `sync_file` and `sync_dir`, so that a test can stand in for them.
    """

    def __init__(self, directory: bytes) -> None:
        self.directory = directory
        self._fds: dict[bytes, int] = {}
        self.root = self._fds[b""] = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.tmp = self.made(b"tmp")
            self.blobs = self.made(b"blobs")
            self.linked = self.made(b"linked")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

    def made(self, name: bytes) -> int:
        """A descriptor of the directory `name` (one or two components), made if need be."""
        fd = self._fds.get(name)
        if fd is None:
            try:
                self._mkdir(name)
            except FileExistsError:
                pass
            fd = self._fds[name] = os.open(name, _DIRECTORY, dir_fd=self.root)
        return fd

    def _mkdir(self, name: bytes) -> None:
        os.mkdir(name, 0o700, dir_fd=self.root)
        os.chmod(name, 0o700, dir_fd=self.root)

    # ---- names ----

    @staticmethod
    def name(kind: bytes, digest: bytes) -> bytes:
        text = digest.hex().encode()
        return kind + b"/" + text[:2] + b"/" + text[2:]

    def stat(self, name: bytes) -> os.stat_result | None:
        """Of a blob; None when there is none (anything but a regular file is none)."""
        try:
            st = os.stat(name, dir_fd=self.root, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return st if stat.S_ISREG(st.st_mode) else None

    def open(self, name: bytes) -> int:
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=self.root)

    def open_blob(self, digest: bytes) -> int:
        """Open the content called `digest`; FileNotFoundError when the store has none."""
        try:
            return self.open(self.name(b"blobs", digest))
        except FileNotFoundError:
            return self.open(self.name(b"linked", digest))

    def digest(self, name: bytes) -> tuple[bytes, int]:
        """Digest and size of a file of the store."""
        fd = self.open(name)
        try:
            return digest_of_fd(fd)
        finally:
            os.close(fd)

    def has(self, digest: bytes, size: int) -> bool:
        """Whether there is content of that name and size (bytes)."""
        names = (self.name(b"blobs", digest), self.name(b"linked", digest))
        return any((st := self.stat(name)) is not None and st.st_size == size for name in names)

    def contents(self) -> Iterator[tuple[bytes, bytes | None]]:
        """(name, digest) of everything in blobs/ and linked/; without a digest it does not belong there."""
        for tree in (b"blobs", b"linked"):
            for short in os.listdir(self.made(tree)):
                directory = tree + b"/" + os.fsencode(short)
                try:
                    fd = os.open(directory, _DIRECTORY, dir_fd=self.root)
                except NotADirectoryError:
                    yield directory, None
                    continue
                try:
                    names = os.listdir(fd)
                finally:
                    os.close(fd)
                for name in names:
                    right = len(short) == 2 and len(name) == 62
                    try:
                        digest = bytes.fromhex(short + name) if right else None
                    except ValueError:
                        digest = None
                    yield directory + b"/" + os.fsencode(name), digest

    # ---- changes ----

    def new(self, name: bytes) -> int:
        """A new, empty file in tmp/, open for writing."""
        return created(os.open(name, _NEW, 0o600, dir_fd=self.tmp))

    def rename(self, source: bytes, target: bytes) -> None:
        """Both relative to the store; the directory of `target` is made if need be."""
        try:
            os.rename(source, target, src_dir_fd=self.root, dst_dir_fd=self.root)
        except FileNotFoundError:
            self._mkdir(target.rpartition(b"/")[0])
            os.rename(source, target, src_dir_fd=self.root, dst_dir_fd=self.root)

    def move_away(self, source: bytes, target: bytes) -> bool:
        """A rename whose directories are known to be there; False when `source` is not."""
        try:
            os.rename(source, target, src_dir_fd=self.root, dst_dir_fd=self.root)
        except FileNotFoundError:
            return False
        return True

    def unlink(self, name: bytes) -> bool:
        """False when there was no such name."""
        try:
            os.unlink(name, dir_fd=self.root)
        except FileNotFoundError:
            return False
        return True

    def remove(self, name: bytes) -> None:
        """Remove what does not belong there, whatever it is; what can't be removed stays."""
        try:
            self.unlink(name)
        except OSError:
            shutil.rmtree(self.directory + b"/" + name, ignore_errors=True)

    def begin_writeback(self, name: bytes) -> None:
        """Have the kernel write the file's pages soon, without waiting for them."""
        fd = self.open(name)
        try:
            _libc.sync_file_range(fd, 0, 0, _SYNC_FILE_RANGE_WRITE)
        finally:
            os.close(fd)

    def sync_file(self, name: bytes) -> None:
        fd = self.open(name)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_all(self) -> None:
        """Everything on the store's filesystem, of whomever; OSError also for what others failed to write."""
        if _libc.syncfs(self.root):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def sync_dir(self, name: bytes) -> None:
        """`name` is relative to the store; empty for the store's directory itself."""
        fd = os.open(name or b".", _DIRECTORY, dir_fd=self.root)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def space(self) -> tuple[int, int]:
        """(free, total) bytes of the filesystem, as an ordinary user sees them."""
        st = os.fstatvfs(self.root)
        return st.f_bavail * st.f_frsize, st.f_blocks * st.f_frsize
