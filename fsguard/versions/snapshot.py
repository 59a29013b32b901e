"""The journal is shortened: what is left of its older lines is written anew, beside the running work.

It takes seconds at 100,000 versions, so it has a thread and a connection of its
own; a read transaction sees the catalogue as it was after one line of the
journal, whatever comes in meanwhile.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Iterator

from .catalogue import Catalogue
from .journal import Journal
from .rows import COLUMNS, Row

__all__ = ["Snapshots"]

log = logging.getLogger("fsguard.versions")

PAUSE = 30.0  # seconds between two attempts, should one fail
_ROWS = 200  # after as many the interpreter is left to others


class Snapshots:
    """Starts a snapshot when one is due; `tidy` and `stop` belong to the background thread's owner."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._thread: threading.Thread | None = None
        self._after = 0.0
        self._ending = False

    def tidy(self, catalogue: Catalogue) -> None:
        """Begin one, if it is due and none is being written."""
        if self._thread is not None and self._thread.is_alive():
            return
        self._thread = None
        if self.journal.long and not self._ending and time.monotonic() >= self._after:
            name = "fsguard-versions-journal"
            self._thread = threading.Thread(target=self._write, args=(catalogue,), name=name, daemon=True)
            self._thread.start()

    def stop(self, timeout: float) -> bool:
        """Give up what is being written; False when that takes longer (seconds)."""
        self._ending = True
        if self._thread is not None:
            self._thread.join(timeout)
        return self._thread is None or not self._thread.is_alive()

    def _write(self, catalogue: Catalogue) -> None:
        damaged, self.journal.damaged = self.journal.damaged, False
        try:
            connection = catalogue.connect()
            try:
                connection.execute("BEGIN")
                (upto,) = connection.execute("SELECT value FROM facts WHERE name = 'applied'").fetchone()
                self.journal.snapshot(_rows(connection), int(upto), lambda: self._ending)
            finally:
                connection.close()
            damaged = damaged and self._ending
        except (sqlite3.Error, OSError) as e:
            self._after = time.monotonic() + PAUSE
            log.warning("the journal of versions cannot be shortened: %s", e)
        finally:
            self.journal.damaged |= damaged


def _rows(connection: sqlite3.Connection) -> Iterator[Row]:
    """All versions, oldest first."""
    cursor = connection.execute(f"SELECT {', '.join(COLUMNS)} FROM versions ORDER BY id")
    while page := cursor.fetchmany(_ROWS):
        for values in page:
            yield dict(zip(COLUMNS, values, strict=True))
        time.sleep(0.0005)
