"""The store of kept versions.

    store = Store.open(directory, limits=Limits())
    kept = store.keep(source, facts, may_link=False)   # just before the destructive step
    …
    store.catalogue.conflicts()                        # what is durable
    store.read(kept.id, 0, 4096)
    store.close()

`keep` is synchronous, because nothing of the content may be missed, and it never
fails: the write that the user asked for must not depend on it. It makes the
content safe against a killed daemon; a background thread makes it safe against a
power cut a few milliseconds later, and only then shows it in the catalogue
(`flush` waits for that). See `background.py` for what that means in between.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

from fsguard.errors import BusyError

from .background import Background
from .catalogue import Catalogue
from .changes import Drop, Put, Set, Take
from .content import CHUNK, Places, created, digest_of_fd
from .journal import Journal
from .model import DamagedError, Facts, Kept, Limits, NotKeptError, Source, Version
from .repair import fill_anew, open_catalogue
from .rows import blank, to_version

__all__ = ["Store"]

log = logging.getLogger("fsguard.versions")

_VERIFIED = 256  # contents whose digest need not be computed again for the next piece


class Store:
    """Made by `Store.open`; `catalogue` answers queries.

    `keep` belongs to one thread; everything else may be called from any.
    """

    def __init__(self, places: Places, lock_fd: int, limits: Limits, clock: Callable[[], float]) -> None:
        self.limits = limits
        self.clock = clock
        self._places = places
        self._lock_fd = lock_fd
        self._journal = Journal(places)
        catalogue = open_catalogue(places, limits, self._journal, clock())
        self._journal.restart(resume=True)
        try:
            places.sync_dir(b"")
        except OSError as e:
            log.warning("the store of versions cannot be synced: %s", e)
        self._background = Background(
            places,
            self._journal,
            catalogue,
            limits,
            clock,
            lambda upto: fill_anew(places, limits, self._journal, catalogue, upto, clock()),
        )
        self._verified: OrderedDict[bytes, tuple[int, int, int, int]] = OrderedDict()
        self._reading = threading.Lock()
        self._background.start()

    @classmethod
    def open(
        cls,
        directory: str | bytes | os.PathLike[str],
        *,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.time,
        wait: float = 5.0,
    ) -> Store:
        """Open the store in `directory` (made if need be), repairing what is torn.

        :param wait: seconds to wait for another process to let go of it.
        :raises BusyError: another process still uses it.
        :raises OSError: the directory can't be made, read or written.
        """
        path = os.path.abspath(os.fsencode(directory))
        os.makedirs(path, 0o700, exist_ok=True)
        os.chmod(path, 0o700)
        lock = os.open(path + b"/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            created(lock)
            _lock(lock, path, wait)
            places = Places(path)
            try:
                return cls(places, lock, limits or Limits(), clock)
            except sqlite3.Error as e:
                places.close()
                raise OSError(errno.EIO, f"the catalogue of versions: {e}", os.fsdecode(path)) from e
            except BaseException:
                places.close()
                raise
        except BaseException:
            os.close(lock)
            raise

    def close(self, timeout: float = 30.0) -> None:
        """Make everything durable, and end.

        What takes longer than `timeout` seconds is carried over at the next start.
        """
        if self._lock_fd < 0:
            return
        ended = self._background.stop(timeout)
        if ended:
            catalogue = self.catalogue
            try:
                catalogue.set_fact("snapshot due", int(self._journal.damaged))
                catalogue.set_fact("clean", int(self._background.settled))
            except sqlite3.Error as e:
                log.warning("the catalogue of versions was not closed cleanly: %s", e)
            catalogue.close()
            self._journal.close()
            self._places.close()
        os.close(self._lock_fd)
        self._lock_fd = -1

    @property
    def catalogue(self) -> Catalogue:
        return self._background.catalogue

    @property
    def stored_bytes(self) -> int:
        """Bytes of all kept content, about; each file counted in blocks."""
        return self._background.taker.stored

    # ---- keeping ----

    def keep(self, source: Source, facts: Facts, *, may_link: bool) -> Kept:
        """Keep the content of `source`, now; call it just before the step that destroys it.

        :param may_link: the step takes the file's only name away (rename over it,
            unlink) and nobody has it open for writing: its inode may be kept.
        :returns: whether it was kept, and if not, why. Never raises for what the
            store or the file lack.
        """
        try:
            take = self._background.taker.take(source, facts, may_link)
        except Exception as e:
            log.exception("a version could not be kept")
            take = Take(blank(facts, f"the store failed: {type(e).__name__}"))
        number = self._background.submit(Put(take))
        row = take.row
        return Kept(number, row["digest"], row["size"], bool(row["kept"]), row["reason"])

    def withdraw(self, ids: Iterable[int]) -> None:
        """The destructive step failed: these versions need not be kept."""
        self._submit(Drop(list(ids)))

    def set_resolved(self, ids: Iterable[int], resolved: bool = True) -> None:
        self._submit(Set(list(ids), {"resolved": int(resolved)}))

    def set_warning(self, id_: int, warning: int | None) -> None:
        self._submit(Set([id_], {"warning": warning}))

    def set_conflict(
        self, id_: int, conflict: bool = True, *, base_version: int | None = None, sibling: str | None = None
    ) -> None:
        """It turned out to be (or not to be) a conflict; None leaves what is on record."""
        more = {"base_version": base_version, "sibling": sibling}
        given = {name: value for name, value in more.items() if value is not None}
        self._submit(Set([id_], {"conflict": int(conflict), **given}))

    def _submit(self, change: Set | Drop) -> None:
        if change.ids:
            self._background.submit(change)

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait (seconds) until all that was kept and set so far is durable and visible; False: it is not."""
        return self._background.flush(timeout)

    # ---- reading ----

    def read(self, id_: int, offset: int = 0, size: int = -1) -> bytes:
        """Up to `size` bytes at `offset` of a version's content (of a symlink: of its target); -1: all.

        This works at once, also before the version is durable and visible in the catalogue.

        :raises NotKeptError: there is no such version, or its content was not kept.
        :raises DamagedError: the content is not what was kept.
        """
        version = self._find(id_)
        if version is None:
            raise NotKeptError(f"there is no version number {id_} in the store")
        if not version.kept:
            raise NotKeptError(f"this version was not kept: {version.reason}")
        if version.kind == "symlink":
            target = version.target or b""
            return target[offset:] if size < 0 else target[offset : offset + size]
        return self._read(version, offset, version.size if size < 0 else size)

    def _find(self, id_: int) -> Version | None:
        row = self._background.in_flight.get(id_)
        if row is not None and row["digest"] is not None:
            return to_version(list(row.values()))
        return self.catalogue.get(id_)

    def _read(self, version: Version, offset: int, size: int) -> bytes:
        damaged = DamagedError(
            f"the kept content of version {version.id} is damaged",
            "The store's disk may be failing; other versions of the file may be whole.",
        )
        if version.digest is None:
            raise damaged
        try:
            fd = self._places.open_blob(version.digest)
        except OSError as e:
            raise _unreadable(version.id, e) from e
        try:
            if not self._verify(fd, version.digest, version.size):
                raise damaged
            return _pread(fd, offset, max(0, min(size, version.size - offset)))
        except OSError as e:
            raise _unreadable(version.id, e) from e
        finally:
            os.close(fd)

    def _verify(self, fd: int, digest: bytes, size: int) -> bool:
        """Whether the file holds what its name says; computed once as long as stat shows no change."""
        st = os.fstat(fd)
        seen = (st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns)
        with self._reading:
            if self._verified.get(digest) == seen:
                self._verified.move_to_end(digest)
                return True
        if st.st_size != size or digest_of_fd(fd) != (digest, size):
            return False
        with self._reading:
            self._verified[digest] = seen
            while len(self._verified) > _VERIFIED:
                self._verified.popitem(last=False)
        return True


def _unreadable(id_: int, error: OSError) -> DamagedError:
    return DamagedError(f"the kept content of version {id_} cannot be read: {error.strerror}")


def _pread(fd: int, offset: int, size: int) -> bytes:
    pieces = []
    while size > 0 and (piece := os.pread(fd, min(size, CHUNK), offset)):
        pieces.append(piece)
        offset += len(piece)
        size -= len(piece)
    return b"".join(pieces)


def _lock(fd: int, path: bytes, wait: float) -> None:
    until = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                where = os.fsdecode(path)
                raise BusyError(f"another fsguard uses the store of versions in {where}") from None
        time.sleep(0.02)
