"""The seam between the filesystem and the guard.

`fsguard.fuse` tells an `Observer` what processes are about to do and what they
did; `fsguard.dispatch` is the observer that judges, `NullObserver` is the one
that does nothing (``FSGUARD_DISABLE=1``: plain passthrough). The filesystem
knows nothing about tasks, the guard knows nothing about FUSE.

Rules of the seam:

* Every intended change is announced before anything changes and confirmed
  after it happened. If the system call in between fails, the change is
  abandoned and the guard's ledger stays as it was.
* A refusal is an `OSError` raised by the announcing call, with the errno that
  the caller of the system call shall see (EBUSY, EAGAIN, EINTR).
* Only `Observer.open` and `Observer.create` may wait. While anything else
  waits in the daemon the kernel holds locks that block the whole directory
  (measured, Linux 6.18).
* Paths are bytes, relative to the workspace, without a leading slash.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple, Protocol

__all__ = [
    "Caller",
    "Change",
    "Exchange",
    "FileView",
    "Linked",
    "Made",
    "NullObserver",
    "Observer",
    "Outside",
    "Removed",
    "Renamed",
    "Session",
    "Truncated",
]


class Caller(NamedTuple):
    """Who sent a FUSE request.

    `tid` is the thread id as the daemon's pid namespace sees it (0: not
    visible from here); the process has to be looked up while the request is
    open, because the thread is blocked until the reply. `unique` is the
    request's own number (0: not known).
    """

    tid: int
    uid: int
    gid: int
    umask: int = 0o022
    unique: int = 0


class FileView(Protocol):
    """What the guard may ask about a file (or symlink) behind the mount.

    Implemented by the filesystem's node. Every method is a plain, short system
    call on the backing directory; none goes through the mount.
    """

    @property
    def ino(self) -> int:
        """Inode number of the backing file (what /proc/locks shows)."""

    def paths(self) -> Sequence[bytes]:
        """Every name of this file known to the mount; empty once unlinked."""

    def is_regular(self) -> bool: ...

    def size(self) -> int:
        """Size in bytes now; 0 when it cannot be said."""

    def digest(self, limit: int) -> bytes | None:
        """Digest of the present content (for a symlink: of its target).

        None for a file larger than `limit` bytes or one that can't be read.
        Equal content gives equal digests, whatever the file is called.
        """

    def head(self, size: int) -> bytes:
        """The first `size` bytes; empty when they can't be read."""

    def pread(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes at `offset`; empty when they can't be read."""

    def stat(self) -> os.stat_result:
        """As lstat(2). OSError when it is gone."""

    def open(self) -> int:
        """A new descriptor for reading; the caller closes it. OSError when that can't be had."""

    def readlink(self) -> bytes: ...

    def link(self, dir_fd: int, name: bytes) -> None:
        """Make `name` in the directory a further hard link. OSError: EXDEV, EPERM, EMLINK…"""

    def xattrs(self) -> dict[bytes, bytes]:
        """Extended attributes, as far as they can be read."""

    def has_writers(self) -> bool:
        """True while a handle is open for writing."""


class Session(Protocol):
    """One open file description, from OPEN or CREATE to RELEASE."""

    def opened(self, file: FileView) -> None:
        """The backing file is open (and truncated or created, if so asked)."""

    def aborted(self) -> None:
        """The open failed after all; nothing happened."""

    def reading(self, tid: int) -> None:
        """A READ request arrived, before its bytes are taken."""

    def writing(self, tid: int, offset: int, data: bytes) -> None:
        """A WRITE is about to land at `offset`.

        `tid` is the thread that called write(2), 0 when the kernel flushes a
        mapping. Raises OSError to refuse.
        """

    def wrote(self, offset: int, size: int) -> None:
        """`size` bytes have landed (short writes: what really landed)."""

    def goes_on(self, tid: int) -> bool:
        """Whether further writes of this thread through the handle could be told in one, later:
        nothing would be decided about them as long as nothing else concerns the file."""

    def went_on(self, last: float) -> None:
        """Such writes have come to an end; `last`: when the last one was (monotonic seconds; 0: there
        was none)."""

    def released(self) -> None:
        """The last reference is gone; called before the backing fd is closed."""


@dataclass(frozen=True, slots=True)
class Truncated:
    """truncate(2) or ftruncate(2); `session` is the handle for ftruncate."""

    file: FileView
    size: int
    session: Session | None


@dataclass(frozen=True, slots=True)
class Removed:
    """unlink(2) of a non-directory."""

    path: bytes
    file: FileView


@dataclass(frozen=True, slots=True)
class Renamed:
    """rename(2); `replaced` is what stood at `target`, if anything.

    `directory` is true when a directory moves (all paths below move along).
    """

    source: bytes
    target: bytes
    file: FileView | None
    replaced: FileView | None
    directory: bool


@dataclass(frozen=True, slots=True)
class Exchange:
    """renameat2(RENAME_EXCHANGE)."""

    first: bytes
    second: bytes
    first_file: FileView | None
    second_file: FileView | None
    first_is_dir: bool
    second_is_dir: bool


@dataclass(frozen=True, slots=True)
class Linked:
    """link(2): `target` becomes a further name of `file`."""

    target: bytes
    file: FileView


@dataclass(frozen=True, slots=True)
class Made:
    """symlink(2) or mknod(2) made something new at `path`."""

    path: bytes
    kind: str  # "symlink", "fifo", "socket", "device", "file"


Change = Truncated | Removed | Renamed | Exchange | Linked | Made


class Outside(NamedTuple):
    """What somebody did to the backing directory, past the mount; heard of, not asked about.

    `kinds`, in order: create, write, delete, rename, attributes; lost: some changes were not heard of.
    `path` is None for what came from where nobody listens, `target` for what went there. `pid`: whose
    process it was, 0 where that is not told, and `author` what /proc/PID said of it then, by file name;
    `at`: seconds since the epoch.
    """

    kinds: Sequence[str]
    path: bytes | None
    target: bytes | None
    pid: int
    at: float
    directory: bool
    author: Mapping[str, bytes] = {}


class Observer(Protocol):
    def missed(self, caller: Caller, path: bytes) -> None:
        """A lookup of `path` found nothing."""

    def readlink(self, caller: Caller, file: FileView) -> None:
        """The target of a symlink is handed out."""

    def looked(self, caller: Caller, file: FileView) -> Hashable | None:
        """open(2) for reading only, where no session is wanted.

        Gives whom the filesystem may name in `looks` for further opens by this
        thread; None: it has to ask each time.
        """

    def looks(self, looks: Iterable[tuple[Hashable, Sequence[bytes], float]]) -> None:
        """Opens for reading that were not announced one by one: (who, paths, seconds since the epoch)."""

    def outside(self, change: Outside) -> Iterable[bytes]:
        """Somebody has changed something past the mount. Gives paths for which `misses` may now hold."""

    def makes_freely(self) -> bool:
        """Whether a new file can be told of afterwards: nothing would be refused, nobody has to wait."""

    def made(self, who: Hashable | None, path: bytes, file: FileView | None, at: float, wrote: bool) -> None:
        """A file was made, perhaps written, and closed; nobody else had to do with it meanwhile.

        `who` as `looked` has given (None: not known any more), `file` None: it is gone again;
        `at` in seconds since the epoch. So with the next three.
        """

    def making(
        self,
        who: Hashable | None,
        paths: Sequence[bytes],
        file: FileView,
        flags: int,
        tid: int,
        at: float,
        wrote: bool,
    ) -> Session:
        """A file was made and is open still: what comes through the handle is announced from now on."""

    def found(self, tid: int, file: FileView, flags: int) -> Session:
        """A file is open, by this thread, and nobody remembers how that came about."""

    def removed(self, who: Hashable | None, path: bytes, at: float) -> None:
        """A task has removed what it had made and was alone with."""

    def linked(self, who: Hashable | None, path: bytes, file: FileView, at: float) -> None:
        """It has given that a further name."""

    def misses(self, path: bytes) -> bool:
        """Whether `missed` wants to hear of lookups of `path`, where there is nothing now."""

    async def open(self, caller: Caller, file: FileView, flags: int) -> Session:
        """open(2) of an existing file, before the backing file is opened.

        `flags` are the caller's (O_ACCMODE, O_TRUNC, O_APPEND, ...). May wait;
        raises OSError to refuse. The filesystem answers with `Session.opened`
        or `Session.aborted`, exactly once.
        """

    async def create(self, caller: Caller, path: bytes, flags: int) -> Session:
        """open(2) with O_CREAT of a path that the kernel believes absent."""

    def attribute(self, caller: Caller, file: FileView, name: str) -> bytes | None:
        """The virtual attribute ``user.fsguard.NAME``; None: there is none of that name."""

    def interrupted(self, unique: int) -> None:
        """A signal reached the thread whose request has this number."""

    def changing(self, caller: Caller, change: Change) -> AbstractContextManager[object]:
        """Announce a change; the body of the `with` carries it out.

        Entering judges it (OSError refuses), leaving without an exception
        confirms it, leaving with one abandons it.
        """


class _NullSession:
    def opened(self, file: FileView) -> None: ...
    def aborted(self) -> None: ...
    def reading(self, tid: int) -> None: ...
    def writing(self, tid: int, offset: int, data: bytes) -> None: ...
    def wrote(self, offset: int, size: int) -> None: ...
    def goes_on(self, tid: int) -> bool:
        return True

    def went_on(self, last: float) -> None: ...
    def released(self) -> None: ...


class NullObserver:
    """Observes nothing: the plain passthrough of ``FSGUARD_DISABLE=1``."""

    _session = _NullSession()

    def missed(self, caller: Caller, path: bytes) -> None: ...

    def readlink(self, caller: Caller, file: FileView) -> None: ...

    def looked(self, caller: Caller, file: FileView) -> Hashable | None:
        return "nobody"

    def looks(self, looks: Iterable[tuple[Hashable, Sequence[bytes], float]]) -> None: ...

    def outside(self, change: Outside) -> Iterable[bytes]:
        return ()

    def makes_freely(self) -> bool:
        return True

    def made(
        self, who: Hashable | None, path: bytes, file: FileView | None, at: float, wrote: bool
    ) -> None: ...

    def making(
        self,
        who: Hashable | None,
        paths: Sequence[bytes],
        file: FileView,
        flags: int,
        tid: int,
        at: float,
        wrote: bool,
    ) -> Session:
        return self._session

    def found(self, tid: int, file: FileView, flags: int) -> Session:
        return self._session

    def removed(self, who: Hashable | None, path: bytes, at: float) -> None: ...

    def linked(self, who: Hashable | None, path: bytes, file: FileView, at: float) -> None: ...

    def misses(self, path: bytes) -> bool:
        return False

    async def open(self, caller: Caller, file: FileView, flags: int) -> Session:
        return self._session

    async def create(self, caller: Caller, path: bytes, flags: int) -> Session:
        return self._session

    def attribute(self, caller: Caller, file: FileView, name: str) -> bytes | None:
        return None

    def interrupted(self, unique: int) -> None: ...

    def changing(self, caller: Caller, change: Change) -> AbstractContextManager[object]:
        return nullcontext()
