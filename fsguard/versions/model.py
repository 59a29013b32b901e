"""What the store takes and gives: sources, facts, versions, limits, errors."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol

from fsguard.errors import FsguardError

__all__ = ["DamagedError", "Facts", "Kept", "Limits", "NotKeptError", "Source", "Version"]

MIB = 1 << 20
DAY = 86400.0


class Source(Protocol):
    """The file or symlink whose content is about to be destroyed.

    Every method is one short system call on the inode itself, never on a name
    that could lead elsewhere meanwhile, and raises OSError as that call does.
    """

    def stat(self) -> os.stat_result:
        """Of the inode itself (lstat of a symlink)."""

    def open(self) -> int:
        """A new O_RDONLY descriptor, which the store closes."""

    def readlink(self) -> bytes:
        """The target of a symlink."""

    def link(self, dir_fd: int, name: bytes) -> None:
        """Make `name` in the directory `dir_fd` a further hard link of the inode."""

    def xattrs(self) -> dict[bytes, bytes]:
        """Extended attributes, POSIX ACLs among them."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Why a version is kept, in the words of whoever saw it happen.

    `path` is relative to the workspace; `version` is the ledger's number of the
    content that is kept. `task` destroys it (None: no task), `sibling` had
    written it (None: nobody known). `time` is in seconds since the epoch.
    `cause` is a word or two: "truncate", "write", "replace", "delete", "move
    away", "restore". `base_version` is the version of the path that `task` had
    seen; `warning` the number of the warning that was given.
    """

    path: bytes
    version: int
    task: str | None
    sibling: str | None
    command: str
    time: float
    cause: str
    conflict: bool = False
    base_version: int | None = None
    warning: int | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """The store's answer, before anything is destroyed.

    `digest` compares with `FileView.digest`; None when the content was not read
    (not kept), or is larger than `Limits.digest_bytes` (then it is computed in
    the background). `size` is in bytes. When `kept` is false, `reason` ends the
    sentence "… was not kept: ".
    """

    id: int
    digest: bytes | None
    size: int
    kept: bool
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Version:
    """A version on record; the first ten fields are those of `Facts` and `Kept`.

    `kind` is "file", "symlink" or "special" (a fifo, socket or device, which is
    never kept). `mode` holds the permission bits (0o7777), `mtime_ns` nanoseconds
    since the epoch, `target` where a symlink pointed.
    """

    id: int
    path: bytes
    version: int
    task: str | None
    sibling: str | None
    command: str
    time: float
    cause: str
    size: int
    kept: bool
    reason: str | None
    digest: bytes | None
    kind: str
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    xattrs: dict[bytes, bytes]
    target: bytes | None
    conflict: bool
    resolved: bool
    base_version: int | None
    warning: int | None


@dataclass(frozen=True, slots=True)
class Limits:
    """What the store may hold.

    :param file_bytes: a larger file is recorded, but not kept.
    :param digest_bytes: the digest of a larger file is left to the background.
    :param age: seconds until a version is dropped.
    :param per_path: kept versions of one path (and as many records of what was not kept).
    :param total_bytes: of all content together, each file counted in blocks of 4 KiB.
    :param free_share: share of the filesystem that stays free …
    :param free_bytes: … or this many bytes, whichever is less.
    """

    file_bytes: int = 64 * MIB
    digest_bytes: int = 16 * MIB
    age: float = 30 * DAY
    per_path: int = 100
    total_bytes: int = 2048 * MIB
    free_share: float = 0.05
    free_bytes: int = 1024 * MIB

    def floor(self, total: int) -> int:
        """Bytes that stay free on a filesystem of `total` bytes."""
        return int(min(self.free_bytes, total * self.free_share))


class NotKeptError(FsguardError):
    """There is a record of the version, or not even that, but not its content."""


class DamagedError(FsguardError):
    """The kept content is not what was kept: it is reported, never handed out."""
