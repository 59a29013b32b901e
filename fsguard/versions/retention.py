"""What is dropped, and when: by age, by number, by bytes, by free space.

A version is protected while it is

* the newest kept one of an unresolved conflict, one for each path and each
  sibling whose content was destroyed there; or
* the kept content that the destroying task had seen before that conflict (the
  base of a three-way merge).

Everything else goes when a limit says so, oldest first. A version that shares
its content with one that stays costs nothing, so bytes are counted, and freed,
by content: whole blocks of 4 KiB, each content once; the content that was last
kept longest ago goes first, with all versions that have it. Content of which a
protected version needs a part stays whole.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from .catalogue import Catalogue
from .content import Places
from .model import Limits
from .rows import Row

__all__ = ["PAUSE", "Housekeeper", "choose", "plan", "protected", "stored_bytes"]

EVERY = 300.0  # seconds between two looks …
KEEPS = 500  # … or a tenth of that, after this many versions …
PAUSE = 2.0  # … or this, while there is too little room
BATCH = 1000  # versions dropped at once
_BLOCK = 4096
_COST = f"(size + {_BLOCK - 1}) / {_BLOCK} * {_BLOCK}"
_FILES = "kept AND kind = 'file'"
_LAST = "SELECT max(id) FROM versions WHERE conflict AND NOT resolved AND kept GROUP BY path, sibling"
_PROTECTED = f"""
{_LAST} UNION
SELECT b.id FROM versions c JOIN versions b ON b.path = c.path AND b.version = c.base_version
 WHERE b.kept AND c.id IN ({_LAST})
"""


class Housekeeper:
    """When to look what is to be dropped, and how much of it at once. Belongs to the background thread.

    `stored`: bytes in the store, about; exact after each look.
    """

    def __init__(self, catalogue: Catalogue, limits: Limits, places: Places) -> None:
        self.catalogue = catalogue
        self.limits = limits
        self.places = places
        self.stored = stored_bytes(catalogue)
        self._keeps = 0
        self._short = False  # something was not kept for want of room
        self._looked = -EVERY
        self._doomed: list[int] = []

    @property
    def full(self) -> bool:
        return self._short or self.stored > self.limits.total_bytes

    def kept(self, rows: Iterable[Row]) -> None:
        """These versions have come in."""
        for row in rows:
            self._keeps += 1
            if row["kept"]:
                self.stored += row["size"]
            elif str(row["reason"]).startswith("disk"):
                self._short = True

    def due(self, now: float) -> list[int]:
        """The versions to drop now, at most BATCH; `now` is in seconds since the epoch."""
        since = time.monotonic() - self._looked
        many = self._keeps >= KEEPS and since >= EVERY / 10
        if many or since >= EVERY or (self.full and since >= PAUSE):
            self._doomed = plan(self.catalogue, self.limits, self.places, now)
            self._keeps, self._looked, self._short = 0, time.monotonic(), False
            self.stored = stored_bytes(self.catalogue)
        ids, self._doomed = self._doomed[:BATCH], self._doomed[BATCH:]
        return ids


def protected(catalogue: Catalogue) -> set[int]:
    """The versions that no limit drops."""
    return {row[0] for row in catalogue.writer.execute(_PROTECTED)}


def stored_bytes(catalogue: Catalogue) -> int:
    """Bytes of all content, each once, in whole blocks."""
    each = f"SELECT max({_COST}) AS cost FROM versions WHERE {_FILES} GROUP BY digest"
    (total,) = catalogue.writer.execute(f"SELECT sum(cost) FROM ({each})").fetchone()
    return int(total or 0)


def plan(catalogue: Catalogue, limits: Limits, places: Places, now: float) -> list[int]:
    """The versions that are to be dropped, oldest first; `now` is in seconds since the epoch."""
    free, total = places.space()
    return choose(catalogue, limits, now, free, total)


def choose(catalogue: Catalogue, limits: Limits, now: float, free: int, total: int) -> list[int]:
    """`plan`, for a filesystem with `free` of `total` bytes."""
    run = catalogue.writer.execute
    safe = protected(catalogue)
    chosen = {row[0] for row in run("SELECT id FROM versions WHERE time < ?", (now - limits.age,))}
    many = "SELECT path, kept, count(*) FROM versions GROUP BY path, kept HAVING count(*) > ?"
    for path, kept, count in run(many, (limits.per_path,)).fetchall():
        oldest = "SELECT id FROM versions WHERE path = ? AND kept = ? ORDER BY id LIMIT ?"
        chosen.update(row[0] for row in run(oldest, (path, kept, count - limits.per_path)))
    chosen -= safe
    before = stored_bytes(catalogue)
    if before > limits.total_bytes or free < limits.floor(total):
        _fill(catalogue, "chosen", chosen)
        _fill(catalogue, "safe", safe)
        chosen.update(_by_bytes(catalogue, limits, before, limits.floor(total) - free))
    return sorted(chosen)


def _fill(catalogue: Catalogue, table: str, ids: Iterable[int]) -> None:
    run = catalogue.writer
    run.execute(f"CREATE TEMP TABLE IF NOT EXISTS {table} (id INTEGER PRIMARY KEY)")
    run.execute(f"DELETE FROM temp.{table}")
    run.execute("BEGIN")
    run.executemany(f"INSERT INTO temp.{table} VALUES (?)", [(id_,) for id_ in ids])
    run.execute("COMMIT")


def _by_bytes(catalogue: Catalogue, limits: Limits, before: int, lacking: int) -> list[int]:
    """The versions that have to go, beside those in the table `chosen`, until what is left fits.

    :param before: bytes in the store now.
    :param lacking: bytes that the filesystem lacks.
    """
    run = catalogue.writer.execute
    left = f"SELECT digest, max({_COST}) AS cost, max(id) AS last FROM versions WHERE {_FILES}"
    left += " AND id NOT IN (SELECT id FROM temp.chosen) GROUP BY digest"
    used = int(run(f"SELECT sum(cost) FROM ({left})").fetchone()[0] or 0)
    over = max(used - limits.total_bytes, lacking - (before - used))
    if over <= 0:
        return []
    needed = f"SELECT digest FROM versions WHERE {_FILES} AND id IN (SELECT id FROM temp.safe)"
    victims = []
    for digest, cost in run(
        f"SELECT digest, cost FROM ({left}) WHERE digest NOT IN ({needed}) ORDER BY last"
    ):
        victims.append(digest)
        over -= cost
        if over <= 0:
            break
    of = f"SELECT id FROM versions WHERE {_FILES} AND digest = ?"
    return [row[0] for digest in victims for row in run(of, (digest,))]
