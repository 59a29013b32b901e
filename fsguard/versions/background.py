"""The background thread: what was kept becomes durable, then visible.

It works in batches. First the content: write-back is begun for all files of the
batch, then each is synced, then the directories with their names. Then the
journal, then the catalogue. Only what has gone all the way is in the catalogue.

On ext4 (data=ordered) the sync of a file commits the running transaction, which
usually is the very one that the destructive step of the user belongs to: the new
names of the store and the loss of the old content reach the disk together, and
file data is written before the transaction that refers to it. So also between
the destructive step and this thread there is little to lose by a power cut; on
filesystems without that order it is what was destroyed in the last moment.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from .catalogue import Catalogue
from .content import Places, copy, digest_of_fd
from .journal import DROP, SET, SYNCED, Journal, put_line
from .model import Limits
from .rows import to_line
from .take import Pending, Take, Taker

__all__ = ["Background", "Drop", "Put", "Set"]

log = logging.getLogger("fsguard.versions")

GATHER = 0.01  # seconds to wait for company before the disk is made busy
RETRY = 1.0
RETAIN_EVERY = 300.0  # seconds
RETAIN_KEEPS = 200
HELD = 20_000


@dataclass(slots=True)
class Put:
    take: Take

    def line(self, number: int) -> bytes:
        self.take.version = replace(self.take.version, id=number)
        return put_line(self.take.version, self.take.temporary)


@dataclass(slots=True)
class Set:
    ids: list[int]
    values: dict[str, Any]

    def line(self, number: int) -> bytes:
        values = {k: v.decode("latin-1") if isinstance(v, bytes) else v for k, v in self.values.items()}
        return to_line([number, SET, self.ids, values])


@dataclass(slots=True)
class Drop:
    ids: list[int]

    def line(self, number: int) -> bytes:
        return to_line([number, DROP, self.ids])


Change = Put | Set | Drop


class Background:
    """Owns the journal's order and the catalogue's writer.

    `submit` may be called by any thread; all else happens in the thread that
    `start` starts and `stop` ends.
    """

    def __init__(
        self,
        places: Places,
        journal: Journal,
        catalogue: Catalogue,
        limits: Limits,
        retain: Callable[[Catalogue], tuple[list[int], bool]],
        rebuild: Callable[[], Catalogue],
    ) -> None:
        self.places = places
        self.journal = journal
        self.catalogue = catalogue
        self.limits = limits
        self.pending = Pending()
        self.lock = threading.Lock()
        self.taker = Taker(places, limits, self.pending, self.lock)
        self.retain = retain
        self.rebuild = rebuild
        self._queue: list[tuple[int, Change]] = []
        self._held: list[tuple[int, Change]] = []
        self._orphans: set[bytes] = set()
        self._wake = threading.Event()
        self._hurry = threading.Event()
        self._done = threading.Condition()
        self._applied = self._submitted = journal.number
        self._ending = False
        self._keeps = 0
        self._retained = 0.0
        self._thread = threading.Thread(target=self._run, name="fsguard-versions", daemon=True)

    def start(self) -> None:
        self._thread.start()

    # ---- from outside ----

    def submit(self, change: Change) -> int:
        """Put `change` on record; returns its number. A version that can't be recorded was not kept."""
        with self.lock:
            number = self.journal.number + 1
            try:
                self.journal.append(change.line(number))
            except OSError as e:
                if isinstance(change, Put) and change.take.version.kept:
                    take = change.take
                    take.version = replace(take.version, kept=False, reason=self.taker.why(e))
            self.journal.number = self._submitted = number
            self._queue.append((number, change))
        if not self._wake.is_set():
            self._wake.set()
        return number

    def flush(self, timeout: float) -> bool:
        target = self._submitted
        self._hurry.set()
        self._wake.set()
        with self._done:
            return self._done.wait_for(lambda: self._applied >= target, timeout)

    def stop(self, timeout: float) -> bool:
        self._ending = True
        self._hurry.set()
        self._wake.set()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def settled(self) -> bool:
        """Nothing is left to be carried over."""
        return not self._held and not self._queue

    # ---- the thread ----

    def _run(self) -> None:
        while True:
            self._wake.wait(RETRY if self._held else RETAIN_EVERY)
            if not self._hurry.is_set():
                self._hurry.wait(GATHER)
            self._hurry.clear()
            self._wake.clear()
            ending = self._ending
            try:
                self._round()
            except Exception:
                log.exception("the store of versions could not be brought up to date")
            if ending:
                return

    def _round(self) -> None:
        batch = self._held + self._next()
        self._held = []
        if batch:
            try:
                self._batch(batch)
            except sqlite3.DatabaseError as e:
                self._recover(batch, e)
            except OSError as e:
                self._hold(batch, e)
        now = time.monotonic()
        if self._keeps >= RETAIN_KEEPS or now - self._retained >= RETAIN_EVERY:
            self._keeps, self._retained = 0, now
            ids, more = self.retain(self.catalogue)
            if ids:
                self.submit(Drop(ids))
            if more:
                self._keeps = RETAIN_KEEPS

    def _next(self) -> list[tuple[int, Change]]:
        """What is queued, after the segment of the journal that it is in has been made durable."""
        rotated = b""
        with self.lock:
            batch, self._queue = self._queue, []
            segment = self.journal.segment
            if batch and self.journal.full:
                rotated = self.journal.start(self.journal.number)
        if batch:
            self.places.sync_file(segment)
        if rotated:
            self.places.sync_dir(b"journal")
        return batch

    def _batch(self, batch: list[tuple[int, Change]]) -> None:
        self._sync([change.take for _, change in batch if isinstance(change, Put)])
        last = batch[-1][0]
        catalogue, released, dropped = self.catalogue, list[bytes](), set[bytes]()
        catalogue.begin()
        try:
            for _, change in batch:
                match change:
                    case Put(take):
                        catalogue.put(take.version)
                        if take.digest is not None:
                            released.append(take.digest)
                            if not take.version.kept:
                                dropped.add(take.digest)
                    case Set(ids, values):
                        catalogue.change(ids, values)
                    case Drop(ids):
                        dropped |= catalogue.digests(ids)
                        catalogue.drop(ids)
            catalogue.set_fact("applied", last)
            catalogue.commit()
        except BaseException:
            catalogue.rollback()
            raise
        with self.lock:
            for digest in released:
                self.pending.release(digest)
            self.journal.number += 1
            try:
                self.journal.append(to_line([self.journal.number, SYNCED, last]))
            except OSError:
                pass
        self._keeps += len(released)
        self._collect(dropped)
        with self._done:
            self._applied = last
            self._done.notify_all()

    # ---- content ----

    def _sync(self, takes: list[Take]) -> None:
        """Make the content of `takes` durable; what can't be is not kept after all."""
        fresh: dict[bytes, list[Take]] = {}
        for take in takes:
            if not take.version.kept or take.version.kind != "file":
                continue
            if take.temporary is not None:
                self._finish(take)
            if take.digest is not None and take.version.kept:
                fresh.setdefault(take.digest, []).append(take)
        directories: dict[bytes, list[Take]] = {}
        names: dict[bytes, bytes] = {}
        for digest, those in fresh.items():
            try:
                names[digest] = name = self._settle(digest, those)
                self.places.begin_writeback(name)
            except OSError as e:
                self._lost(those, e)
        for digest, name in names.items():
            try:
                self.places.sync_file(name)
                directories.setdefault(name.rpartition(b"/")[0], []).extend(fresh[digest])
            except OSError as e:
                self._lost(fresh[digest], e)
        for directory, those in directories.items():
            for name in (directory, directory.partition(b"/")[0]):
                try:
                    self.places.sync_dir(name)
                except OSError as e:
                    self._lost(those, e)

    def _finish(self, take: Take) -> None:
        try:
            done = self.taker.finish(take)
        except OSError as e:
            self._lost([take], e)
            return
        take.version, take.digest, take.temporary = done.version, done.digest, None
        self.submit(Set([take.version.id], {"digest": take.digest}))

    def _lost(self, takes: list[Take], error: OSError) -> None:
        reason = self.taker.why(error)
        for take in takes:
            take.version = replace(take.version, kept=False, reason=reason)
        self.submit(Set([take.version.id for take in takes], {"kept": 0, "reason": reason}))

    def _settle(self, digest: bytes, takes: list[Take]) -> bytes:
        """The name of the content; a linked inode that still has another name is copied first."""
        blob, linked = self.places.name(b"blobs", digest), self.places.name(b"linked", digest)
        if self.places.stat(blob) is not None:
            return blob
        st = self.places.stat(linked)
        if st is None or st.st_nlink == 1:
            return linked
        source = self.places.open(linked)
        try:
            name = b"own-%s" % digest.hex().encode()
            self.places.unlink(b"tmp/" + name)
            target = self.places.new(name)
            try:
                copy(source, target, self.limits.file_bytes)
            finally:
                os.close(target)
            check = self.places.open(b"tmp/" + name)
            try:
                good = digest_of_fd(check)[0] == digest
            finally:
                os.close(check)
        finally:
            os.close(source)
        if not good:
            self.places.unlink(b"tmp/" + name)
            raise OSError("it changed while it was being kept")
        self.places.rename(b"tmp/" + name, blob)
        self.places.unlink(linked)
        return blob

    def _collect(self, digests: set[bytes]) -> None:
        """Remove content that nothing refers to."""
        for digest in digests:
            if self.catalogue.refers(digest):
                continue
            gone = b"tmp/gone-" + digest.hex().encode()
            for tree in (b"blobs", b"linked"):
                with self.lock:
                    if digest in self.pending.counts:
                        break
                    try:
                        self.places.rename_away(self.places.name(tree, digest), gone)
                    except FileNotFoundError:
                        continue
                self.places.unlink(gone)

    # ---- trouble ----

    def _hold(self, batch: list[tuple[int, Change]], error: Exception) -> None:
        """Try again later; what was not kept anyway is forgotten first when that becomes too much."""
        log.warning("the store of versions is waiting: %s", error)
        if len(batch) > HELD:
            batch = [b for b in batch if not isinstance(b[1], Put) or b[1].take.version.kept]
        self._held = batch

    def _recover(self, batch: list[tuple[int, Change]], error: sqlite3.DatabaseError) -> None:
        if isinstance(error, sqlite3.OperationalError):
            self._hold(batch, error)
            return
        log.error("the catalogue of versions is damaged (%s): it is filled anew from the journal", error)
        self._held = batch
        self.catalogue = self.rebuild()
