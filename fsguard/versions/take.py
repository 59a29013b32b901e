"""Taking the content of a file that is about to be destroyed, as cheaply as can be had.

In this order: content that the store has already is not taken again; a reflink
shares the blocks (not tried for small files: btrfs and XFS write a file's dirty
pages to the disk before they share it, which takes longer than copying them); a
hard link keeps the inode itself, when the caller says that its only name is
going and nobody has it open for writing; else the bytes are copied.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field, replace
from typing import Any

from .content import Places, clone, copy, digest_of, digest_of_fd, digest_of_target, write_all
from .model import Facts, Limits, Source, Version

__all__ = ["Pending", "Take", "Taker", "size_text"]

SMALL = 64 << 10
_NO_CLONE = {
    errno.EOPNOTSUPP,
    errno.EXDEV,
    errno.EINVAL,
    errno.ENOTTY,
    errno.ENOSYS,
    errno.EPERM,
    errno.EACCES,
}
_FULL = {errno.ENOSPC, errno.EDQUOT}


@dataclass(slots=True)
class Take:
    """What was taken: a version without an id, and where its content lies.

    `temporary`: name in tmp/ of content whose digest is still to be computed.
    `digest`: counted as pending in `Pending`; it is released once the version is in the catalogue.
    """

    version: Version
    temporary: bytes | None = None
    digest: bytes | None = None
    linked: bool = False


@dataclass(slots=True)
class Pending:
    """Content that no row of the catalogue refers to yet: it must not be removed. Under the store's lock."""

    counts: dict[bytes, int] = field(default_factory=dict)

    def add(self, digest: bytes) -> None:
        self.counts[digest] = self.counts.get(digest, 0) + 1

    def release(self, digest: bytes) -> None:
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


class Taker:
    """Puts content into `places`; called by one thread; `lock` guards `pending`."""

    def __init__(self, places: Places, limits: Limits, pending: Pending, lock: Any) -> None:
        self.places = places
        self.limits = limits
        self.pending = pending
        self.lock = lock
        self.clones = True
        self._devices: set[int] = set()  # filesystems that could not clone into this store
        self._count = 0
        self.stored = 0  # bytes in the store, about; kept up by the background

    def take(self, source: Source, facts: Facts, may_link: bool) -> Take:
        """Never raises OSError: what could not be kept says why."""
        version = _blank(facts)
        try:
            st = source.stat()
            version = _described(version, st)
            if version.kind == "special":
                raise _NotKept("it is no regular file")
            version = replace(version, xattrs=_xattrs(source))
            if version.kind == "symlink":
                target = source.readlink()
                return Take(
                    replace(
                        version,
                        target=target,
                        size=len(target),
                        digest=digest_of_target(target),
                        kept=True,
                        reason=None,
                    )
                )
            self._check_space(version.size, facts.conflict)
            fd = source.open()
        except _NotKept as e:
            return Take(replace(version, reason=str(e)))
        except OSError as e:
            return Take(replace(version, reason=f"cannot be read: {_strerror(e)}"))
        try:
            return self._take_file(source, fd, version, may_link and st.st_nlink == 1)
        except _NotKept as e:
            return Take(replace(version, reason=str(e)))
        except OSError as e:
            return Take(replace(version, reason=self.why(e)))
        finally:
            os.close(fd)

    @staticmethod
    def blank(facts: Facts, reason: str) -> Version:
        """A record of which nothing but `facts` is known."""
        return replace(_blank(facts), reason=reason)

    def why(self, error: OSError) -> str:
        if error.errno in _FULL:
            return "disk full"
        if error.errno == errno.EFBIG:
            return f"larger than {size_text(self.limits.file_bytes)}"
        return f"the store failed: {_strerror(error)}"

    def _check_space(self, size: int, conflict: bool) -> None:
        if size > self.limits.file_bytes:
            raise _NotKept(f"larger than {size_text(self.limits.file_bytes)}")
        free, total = self.places.space()
        # Older versions make room in the background. The content of a conflict is
        # kept as long as there is any room at all.
        if not conflict and size and free + self.stored - size < self.limits.floor(total):
            raise _NotKept(f"disk nearly full ({size_text(free)} left)")

    def _take_file(self, source: Source, fd: int, version: Version, may_link: bool) -> Take:
        if version.size <= SMALL:
            data = _read(fd, SMALL)
            if data is not None:
                return self._take_small(source, fd, replace(version, size=len(data)), data, may_link)
        self._count += 1
        name = b"%x" % self._count
        linked, size = False, version.size
        try:
            if not self._clone(fd, name):
                linked = may_link and self._link(source, fd, name)
                if not linked:
                    size = self._copy(fd, name)
            if size > self.limits.digest_bytes:
                return Take(_kept(version, size, None), temporary=name, linked=linked)
            digest, size = self._digest(b"tmp/" + name)
            return self._name(name, _kept(version, size, digest), digest, linked)
        except BaseException:
            self.places.unlink(b"tmp/" + name)
            raise

    def _take_small(self, source: Source, fd: int, version: Version, data: bytes, may_link: bool) -> Take:
        digest = digest_of(data)
        version = _kept(version, len(data), digest)
        with self.lock:
            self.pending.add(digest)  # from here on the background won't remove it
        try:
            if not self._has(digest, len(data)):
                self._count += 1
                name = b"%x" % self._count
                linked = may_link and self._link(source, fd, name)
                try:
                    if not linked:
                        self._write(name, data)
                    self.places.rename(b"tmp/" + name, self.places.name(_tree(linked), digest))
                except BaseException:
                    self.places.unlink(b"tmp/" + name)
                    raise
                return Take(version, digest=digest, linked=linked)
        except BaseException:
            with self.lock:
                self.pending.release(digest)
            raise
        return Take(version, digest=digest)

    def _name(self, name: bytes, version: Version, digest: bytes, linked: bool) -> Take:
        """Give what lies in tmp/ the name of its digest."""
        with self.lock:
            self.pending.add(digest)
        try:
            if self._has(digest, version.size):
                self.places.unlink(b"tmp/" + name)
                return Take(version, digest=digest)
            self.places.rename(b"tmp/" + name, self.places.name(_tree(linked), digest))
        except BaseException:
            with self.lock:
                self.pending.release(digest)
            raise
        return Take(version, digest=digest, linked=linked)

    def finish(self, take: Take) -> Take:
        """Compute the digest that was left to the background; OSError when that fails."""
        name = take.temporary
        assert name is not None
        digest, size = self._digest(b"tmp/" + name)
        return self._name(name, replace(take.version, digest=digest, size=size), digest, take.linked)

    def _has(self, digest: bytes, size: int) -> bool:
        """Whether good content of that name is there. A linked one is read again; a bad one goes."""
        st = self.places.stat(self.places.name(b"blobs", digest))
        if st is not None:
            return st.st_size == size
        name = self.places.name(b"linked", digest)
        st = self.places.stat(name)
        if st is None:
            return False
        if st.st_size == size and st.st_size <= self.limits.digest_bytes and self._digest(name)[0] == digest:
            return True
        self.places.unlink(name)
        return False

    def _digest(self, name: bytes) -> tuple[bytes, int]:
        fd = self.places.open(name)
        try:
            return digest_of_fd(fd)
        finally:
            os.close(fd)

    # ---- ways ----

    def _clone(self, fd: int, name: bytes) -> bool:
        if not self.clones or (device := os.fstat(fd).st_dev) in self._devices:
            return False
        target = self.places.new(name)
        try:
            clone(fd, target)
        except OSError as e:
            self.places.unlink(b"tmp/" + name)
            if e.errno not in _NO_CLONE:
                raise
            self._devices.add(device)
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
        finally:
            os.close(target)

    def _write(self, name: bytes, data: bytes) -> None:
        target = self.places.new(name)
        try:
            write_all(target, data, 0)
        finally:
            os.close(target)


def _tree(linked: bool) -> bytes:
    return b"linked" if linked else b"blobs"


def _blank(facts: Facts) -> Version:
    return Version(
        id=0,
        path=facts.path,
        version=facts.version,
        task=facts.task,
        sibling=facts.sibling,
        command=facts.command,
        time=facts.time,
        cause=facts.cause,
        size=0,
        kept=False,
        reason=None,
        digest=None,
        kind="file",
        mode=0,
        uid=0,
        gid=0,
        mtime_ns=0,
        xattrs={},
        target=None,
        conflict=facts.conflict,
        resolved=False,
        base_version=facts.base_version,
        warning=facts.warning,
    )


def _described(version: Version, st: os.stat_result) -> Version:
    kind = "file" if stat.S_ISREG(st.st_mode) else "symlink" if stat.S_ISLNK(st.st_mode) else "special"
    return replace(
        version,
        size=st.st_size,
        kind=kind,
        mode=stat.S_IMODE(st.st_mode),
        uid=st.st_uid,
        gid=st.st_gid,
        mtime_ns=st.st_mtime_ns,
    )


def _kept(version: Version, size: int, digest: bytes | None) -> Version:
    return replace(version, size=size, digest=digest, kept=True, reason=None)


def _xattrs(source: Source) -> dict[bytes, bytes]:
    try:
        return source.xattrs()
    except OSError:
        return {}


def _read(fd: int, limit: int) -> bytes | None:
    """All there is; None when that is more than `limit`."""
    data = b""
    while len(data) <= limit:
        chunk = os.pread(fd, limit + 1 - len(data), len(data))
        if not chunk:
            return data
        data += chunk
    return None


def _strerror(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)
