"""Taking the content of a file that is about to be destroyed, as cheaply as can be had.

In this order: small content that the store has already is not written again; a
reflink shares the blocks (not tried for small files: btrfs and XFS write a file's
dirty pages to the disk before they share it, which takes longer than copying
them); a hard link keeps the inode itself, when the caller says that its only name
is going and nobody has it open for writing; else the bytes are copied.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from .changes import Take
from .content import Places, TooLargeError, clone, copy, digest_of, digest_of_target, write_all
from .model import Facts, Limits, Source
from .rows import Row, blank, number, xattrs_text

__all__ = ["Pending", "Taker", "is_full", "size_text", "why_not"]

log = logging.getLogger("fsguard.versions")

SMALL = 64 << 10
_NO_CLONE = {errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM}


@dataclass(slots=True)
class Pending:
    """Content that no row of the catalogue refers to yet, and that must not be removed."""

    counts: dict[bytes, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, digest: bytes) -> None:
        with self.lock:
            self.counts[digest] = self.counts.get(digest, 0) + 1

    def release(self, digest: bytes) -> None:
        with self.lock:
            left = self.counts.get(digest, 0) - 1
            if left > 0:
                self.counts[digest] = left
            else:
                self.counts.pop(digest, None)


class _NotKept(Exception):
    """Carries the reason."""


def size_text(size: int) -> str:
    """A number of bytes for people: "64 MiB"."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size} bytes"


def is_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def why_not(error: OSError) -> str:
    """The end of the sentence "… was not kept: ", for a failure of the store."""
    if is_full(error):
        return "disk full"
    return f"the store failed: {_strerror(error)}"


def _strerror(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)


class Taker:
    """Puts content into `places`; `take` belongs to one thread, `finish` to any."""

    def __init__(self, places: Places, limits: Limits, pending: Pending) -> None:
        self.places = places
        self.limits = limits
        self.pending = pending
        self.stored = 0  # bytes in the store that may be dropped, about; set by the background
        self._no_clones: set[int] = set()  # filesystems that could not clone into this store
        self._count = 0

    def take(self, source: Source, facts: Facts, may_link: bool) -> Take:
        """Never raises OSError: what could not be kept says why."""
        row = blank(facts)
        try:
            st = source.stat()
            _describe(row, st)
            if row["kind"] == "special":
                raise _NotKept("it is no regular file")
            try:
                row["xattrs"] = xattrs_text(source.xattrs())
            except OSError:
                log.debug("no extended attributes of %r", facts.path, exc_info=True)
            if row["kind"] == "symlink":
                target = source.readlink()
                row.update(target=target, size=len(target), digest=digest_of_target(target), kept=1)
                return Take(row)
            self._check_space(st.st_size, facts.conflict)
            fd = source.open()
        except (_NotKept, OSError) as e:
            row["reason"] = str(e) if isinstance(e, _NotKept) else f"cannot be read: {_strerror(e)}"
            return Take(row)
        try:
            return self._take_file(source, fd, row, may_link and st.st_nlink == 1)
        except TooLargeError:
            row["reason"] = f"larger than {size_text(self.limits.file_bytes)}"
        except OSError as e:
            row["reason"] = why_not(e)
        finally:
            os.close(fd)
        row.update(kept=0, digest=None)
        return Take(row)

    def _check_space(self, size: int, conflict: bool) -> None:
        if size > self.limits.file_bytes:
            raise _NotKept(f"larger than {size_text(self.limits.file_bytes)}")
        if not size:
            return
        free, total = self.places.space()
        # Older versions make room in the background. The content of a conflict is
        # kept as long as there is any room at all.
        if not conflict and free + self.stored - size < self.limits.floor(total):
            raise _NotKept(f"disk nearly full, {size_text(free)} left")

    def _take_file(self, source: Source, fd: int, row: Row, may_link: bool) -> Take:
        if row["size"] <= SMALL:
            data = _read(fd, SMALL)
            if data is not None:
                return self._take_small(source, fd, row, data, may_link)
        name = self._name(b"c")
        if not self._clone(fd, name):
            linked = self._name(b"l")
            if may_link and self._link(source, fd, linked):
                name = linked
            else:
                row["size"] = self._copy(fd, name)
        try:
            row["kept"] = 1
            if row["size"] <= self.limits.digest_bytes:
                return self._named(Take(row, temporary=name))
            row["size"] = os.stat(name, dir_fd=self.places.tmp).st_size
            if row["size"] > self.limits.file_bytes:
                raise TooLargeError
            return Take(row, temporary=name)
        except BaseException:
            self.places.unlink(b"tmp/" + name)
            raise

    def _take_small(self, source: Source, fd: int, row: Row, data: bytes, may_link: bool) -> Take:
        digest = digest_of(data)
        row.update(size=len(data), digest=digest, kept=1)
        self.pending.add(digest)  # from here on the background won't remove it
        try:
            if not self._has(digest, len(data)):
                name = self._name(b"l")
                if not (may_link and self._link(source, fd, name)):
                    name = self._name(b"c")
                    self._write(name, data)
                self._move(name, digest)
        except BaseException:
            self.pending.release(digest)
            raise
        return Take(row, digest=digest)

    def finish(self, take: Take, announce: Callable[[bytes], object]) -> Take:
        """Compute the digest that was left to the background, and give the content its name.

        :param announce: told the digest before the name in tmp/ goes.
        :raises OSError: it can't be read, or not be renamed.
        """
        return self._named(take, announce)

    def _named(self, take: Take, announce: Callable[[bytes], object] | None = None) -> Take:
        name, row = take.temporary, take.row
        assert name is not None
        digest, size = self.places.digest(b"tmp/" + name)
        if announce is not None:
            announce(digest)
        self.pending.add(digest)
        try:
            if self._has(digest, size):
                self.places.unlink(b"tmp/" + name)
            else:
                self.places.rename(b"tmp/" + name, self.places.name(_tree(name), digest))
        except BaseException:
            self.pending.release(digest)
            raise
        row.update(digest=digest, size=size)
        return Take(row, digest=digest)

    def _has(self, digest: bytes, size: int) -> bool:
        """Whether good content of that name is there. A linked one is read again; a bad one goes."""
        st = self.places.stat(self.places.name(b"blobs", digest))
        if st is not None:
            return st.st_size == size
        name = self.places.name(b"linked", digest)
        st = self.places.stat(name)
        if st is None:
            return False
        if st.st_size == size <= self.limits.digest_bytes and self.places.digest(name)[0] == digest:
            return True
        self.places.unlink(name)
        return False

    # ---- ways ----

    def _name(self, kind: bytes) -> bytes:
        self._count += 1
        return kind + b"%x" % self._count

    def _clone(self, fd: int, name: bytes) -> bool:
        device = os.fstat(fd).st_dev
        if device in self._no_clones:
            return False
        target = self.places.new(name)
        try:
            clone(fd, target)
        except OSError as e:
            self.places.unlink(b"tmp/" + name)
            if e.errno not in _NO_CLONE:
                raise
            self._no_clones.add(device)
            return False
        finally:
            os.close(target)
        return True

    def _link(self, source: Source, fd: int, name: bytes) -> bool:
        try:
            source.link(self.places.tmp, name)
        except OSError:
            return False  # EXDEV, EPERM, EMLINK, …: then by copying
        there, here = self.places.stat(b"tmp/" + name), os.fstat(fd)
        if there is not None and os.path.samestat(there, here):
            return True
        self.places.unlink(b"tmp/" + name)  # another file took its name meanwhile
        return False

    def _copy(self, fd: int, name: bytes) -> int:
        target = self.places.new(name)
        try:
            return copy(fd, target, self.limits.file_bytes)
        except BaseException:
            self.places.unlink(b"tmp/" + name)
            raise
        finally:
            os.close(target)

    def _write(self, name: bytes, data: bytes) -> None:
        target = self.places.new(name)
        try:
            write_all(target, data, 0)
        except BaseException:
            self.places.unlink(b"tmp/" + name)
            raise
        finally:
            os.close(target)

    def _move(self, name: bytes, digest: bytes) -> None:
        try:
            self.places.rename(b"tmp/" + name, self.places.name(_tree(name), digest))
        except BaseException:
            self.places.unlink(b"tmp/" + name)
            raise


def _tree(temporary: bytes) -> bytes:
    return b"linked" if temporary.startswith(b"l") else b"blobs"


def _describe(row: Row, st: os.stat_result) -> None:
    kind = stat.S_IFMT(st.st_mode)
    row["size"] = st.st_size
    row["kind"] = "file" if kind == stat.S_IFREG else "symlink" if kind == stat.S_IFLNK else "special"
    row["mode"] = stat.S_IMODE(st.st_mode)
    row["uid"], row["gid"] = st.st_uid, st.st_gid
    row["mtime_ns"] = number(st.st_mtime_ns)


def _read(fd: int, limit: int) -> bytes | None:
    """All there is; None when that is more than `limit`."""
    data = os.pread(fd, limit + 1, 0)
    while len(data) <= limit:
        chunk = os.pread(fd, limit + 1 - len(data), len(data))
        if not chunk:
            return data
        data += chunk
    return None
