"""The background thread: what was kept becomes durable, then visible.

It works in batches: the content (`settle.py`), then the journal, then the
catalogue. Only what has gone all the way is in the catalogue. It also drops what
the limits say, shortens the journal, and fills a damaged catalogue anew.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from functools import partial

from .catalogue import Catalogue
from .changes import Batch, Change, Drop, Put, Set, Take, carry_over
from .content import Places
from .journal import SYNCED, Journal
from .model import Limits
from .retention import PAUSE, Housekeeper
from .rows import Row, to_line
from .settle import Settler
from .snapshot import Snapshots
from .take import Pending, Taker, is_full, why_not

__all__ = ["Background"]

log = logging.getLogger("fsguard.versions")

GATHER = 0.01  # seconds to wait for company before the disk is made busy
RETRY = 1.0
RENEW_PAUSE = 30.0
IDLE = 300.0
HELD = 20_000


class Background:
    """Hands out the numbers of the journal and owns the catalogue's writer.

    `submit`, `flush` and `stop` may be called by any thread; all else happens in
    the thread that `start` starts. `refill` fills the catalogue anew with what
    is durable up to a line of the journal.
    """

    def __init__(
        self,
        places: Places,
        journal: Journal,
        catalogue: Catalogue,
        limits: Limits,
        clock: Callable[[], float],
        refill: Callable[[int], None],
    ) -> None:
        self.places = places
        self.journal = journal
        self.catalogue = catalogue
        self.limits = limits
        self.clock = clock
        self.pending = Pending()
        self.taker = Taker(places, limits, self.pending)
        self._keeper = Housekeeper(catalogue, limits, places)
        self.taker.stored = self._keeper.stored
        self._refill = refill
        self._settler = Settler(places, limits)
        self._lock = threading.Lock()  # the journal's order and the queue's are the same
        self._queue: Batch = []
        self.in_flight: dict[int, Row] = {}  # kept, but not in the catalogue yet
        self._held: Batch = []
        self._wake = threading.Event()
        self._hurry = threading.Event()
        self._done = threading.Condition()
        self._applied = self._submitted = journal.number
        self._ending = False
        self._renewed = time.monotonic() if catalogue.lodging else -RENEW_PAUSE
        self._snapshots = Snapshots(journal)
        self._said = ""
        self._thread = threading.Thread(target=self._run, name="fsguard-versions", daemon=True)

    def start(self) -> None:
        self._thread.start()

    # ---- from outside ----

    def submit(self, change: Change) -> int:
        """Put `change` on record; returns its number. What can't be recorded was not kept."""
        with self._lock:
            number = self.journal.number + 1
            try:
                self.journal.append(change.line(number))
            except OSError as e:
                if isinstance(change, Put) and change.take.row["kept"]:
                    change.take.row.update(kept=0, reason=why_not(e))
            self.journal.number = self._submitted = number
            self._queue.append((number, change))
            if isinstance(change, Put):
                self.in_flight[number] = change.take.row
        if not self._wake.is_set():
            self._wake.set()
        return number

    def flush(self, timeout: float) -> bool:
        target = self._submitted
        if self._applied < target:
            self._hurry.set()
            self._wake.set()
            with self._done:
                self._done.wait_for(lambda: self._applied >= target, timeout)
        return self._applied >= target

    def stop(self, timeout: float) -> bool:
        """End the thread after what is queued; False when that takes longer (seconds)."""
        self._ending = True
        self._hurry.set()
        self._wake.set()
        self._thread.join(timeout)
        return self._snapshots.stop(timeout) and not self._thread.is_alive()

    @property
    def settled(self) -> bool:
        """Nothing is left to be carried over."""
        return not self._held and not self._queue

    # ---- the thread ----

    def _run(self) -> None:
        while True:
            self._wake.wait(
                RETRY if self._held or self.catalogue.damaged else PAUSE if self._keeper.full else IDLE
            )
            if not self._hurry.is_set():
                self._hurry.wait(GATHER)
            self._hurry.clear()
            self._wake.clear()
            ending = self._ending
            self._round()
            if ending and (self._held or not self._queue):
                return

    def _round(self) -> None:
        try:
            self._held += self._next()
            if self.catalogue.damaged:
                self._renew()
            elif self.catalogue.lodging and time.monotonic() >= self._renewed + RENEW_PAUSE:
                self._come_home()
            if self._held:
                self._carry_over()
            self._tidy()
        except sqlite3.Error as e:
            if self.catalogue.is_damage(e):
                log.error("the catalogue of versions is damaged: %s", e)
                self.catalogue.damaged = True
            self._wait(e)
        except OSError as e:
            self._wait(e)
        except Exception:
            log.exception("the store of versions could not be brought up to date")

    def _next(self) -> Batch:
        """What is queued; the segment of the journal that it is in is closed when it has grown long."""
        with self._lock:
            batch, self._queue = self._queue, []
            if not batch:
                return batch
            if self.journal.full or self.journal.closed:
                self.journal.restart()
        return batch

    def _carry_over(self) -> None:
        batch = self._held
        self._settle([change.take for _, change in batch if isinstance(change, Put)])
        self.journal.sync()
        last = batch[-1][0]
        dropped = carry_over(self.catalogue, batch, last)
        self._held = []
        puts = [change.take for _, change in batch if isinstance(change, Put)]
        for take in puts:
            self.in_flight.pop(take.row["id"], None)
            if take.temporary is not None:
                self.places.unlink(b"tmp/" + take.temporary)  # it was not kept after all
            if take.digest is not None:
                self.pending.release(take.digest)
                if not take.row["kept"]:
                    dropped.add(take.digest)
        with self._lock:
            self.journal.number += 1
            try:
                self.journal.append(to_line([self.journal.number, SYNCED, last]))
            except OSError:
                log.debug("the journal is full", exc_info=True)
        self._keeper.kept([take.row for take in puts])
        self._collect(dropped)
        self._said = ""
        with self._done:
            self._applied = last
            self._done.notify_all()

    def _settle(self, takes: list[Take]) -> None:
        """Make the content of `takes` durable; what can't be is not kept after all."""
        fresh: dict[bytes, list[Take]] = {}
        for take in takes:
            if take.row["kept"] and take.temporary is not None:
                try:
                    done = self.taker.finish(take, partial(self._digested, take.row["id"]))
                except OSError as e:
                    if is_full(e):
                        raise  # what is in tmp/ can wait for better times
                    self._lost([take], e)
                    continue
                take.digest, take.temporary = done.digest, None
            if take.row["kept"] and take.digest is not None:
                fresh.setdefault(take.digest, []).append(take)
        for digest, error in self._settler.sync(fresh).items():
            self._lost(fresh[digest], error)

    def _digested(self, id_: int, digest: bytes) -> None:
        self.submit(Set([id_], {"digest": digest}))

    def _lost(self, takes: list[Take], error: OSError) -> None:
        reason = why_not(error)
        for take in takes:
            take.row.update(kept=0, reason=reason)
        self.submit(Set([take.row["id"] for take in takes], {"kept": 0, "reason": reason}))

    def _collect(self, digests: set[bytes]) -> None:
        """Remove content that nothing refers to."""
        for digest in digests:
            if not self.catalogue.refers(digest):
                self._keeper.stored -= self._settler.remove(digest, self.pending)

    # ---- housekeeping and trouble ----

    def _tidy(self) -> None:
        if self._ending:
            return
        ids = self._keeper.due(self.clock())
        if ids:
            self.submit(Drop(ids, gentle=True))
        self.taker.stored = self._keeper.stored
        self._snapshots.tidy(self.catalogue)

    def _wait(self, error: Exception) -> None:
        """Try again later; what was not kept anyway is forgotten first when that becomes too much."""
        if str(error) != self._said:
            self._said = str(error)
            log.warning("the store of versions is waiting: %s", error)
        if len(self._held) > HELD:
            kept = [b for b in self._held if not isinstance(b[1], Put) or b[1].take.row["kept"]]
            self._held = kept or self._held[-1:]

    def _renew(self) -> None:
        """Fill a damaged catalogue anew; not too often, should that fail."""
        if time.monotonic() < self._renewed + RENEW_PAUSE:
            raise OSError("the catalogue is damaged")
        self._renewed = time.monotonic()
        log.log(
            logging.DEBUG if self.catalogue.lodging else logging.ERROR,
            "the catalogue of versions is filled anew from the journal",
        )
        self._refill(self._applied)

    def _come_home(self) -> None:
        """A catalogue that lodged elsewhere for want of room: is there room now?"""
        try:
            self._renew()
            log.warning("the catalogue of versions is back in its place")
        except (sqlite3.Error, OSError) as e:
            if self.catalogue.damaged:
                raise
            log.debug("still no room: %s", e)
