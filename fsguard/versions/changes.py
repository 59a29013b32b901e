"""What happens to the store, in order: a version is put by, columns change, versions are dropped."""

from __future__ import annotations

import logging
import sqlite3
from dataclasses import dataclass
from typing import Any

from .catalogue import Catalogue
from .journal import DROP, SET, put_line
from .retention import protected
from .rows import Row, to_line

__all__ = ["Batch", "Change", "Drop", "Put", "Set", "Take", "carry_over"]

log = logging.getLogger("fsguard.versions")


@dataclass(slots=True)
class Take:
    """What was taken: a version, and where its content lies.

    `temporary`: name in tmp/ of content whose digest is still to be computed; it
    begins with "l" when it is a hard link. `digest`: counted in `Pending`, and to
    be released once the version is in the catalogue.
    """

    row: Row
    temporary: bytes | None = None
    digest: bytes | None = None


@dataclass(slots=True)
class Put:
    take: Take

    def line(self, number: int) -> bytes:
        self.take.row["id"] = number
        return put_line(self.take.row, self.take.temporary)


@dataclass(slots=True)
class Set:
    ids: list[int]
    values: dict[str, Any]

    def line(self, number: int) -> bytes:
        values = {k: v.decode("latin-1") if isinstance(v, bytes) else v for k, v in self.values.items()}
        return to_line([number, SET, self.ids, values])


@dataclass(slots=True)
class Drop:
    """`gentle` leaves what is protected (see `retention.py`) at the moment when it is carried out."""

    ids: list[int]
    gentle: bool = False

    def line(self, number: int) -> bytes:
        return to_line([number, DROP, self.ids, int(self.gentle)])


Change = Put | Set | Drop
Batch = list[tuple[int, Change]]


def carry_over(catalogue: Catalogue, batch: Batch, last: int) -> set[bytes]:
    """Commit `batch`, whose last line is number `last`; returns the content that may be needed no more.

    Everything or nothing; but what SQLite won't take is left out.

    :raises sqlite3.Error: the catalogue is damaged, or can't be written now.
    """
    try:
        return _commit(catalogue, batch, last)
    except sqlite3.Error as e:
        if catalogue.is_damage(e) or isinstance(e, sqlite3.OperationalError):
            raise
    dropped: set[bytes] = set()
    for one in batch:
        try:
            dropped |= _commit(catalogue, [one], last)
        except sqlite3.Error as e:
            if catalogue.is_damage(e) or isinstance(e, sqlite3.OperationalError):
                raise
            log.exception("left out of the catalogue of versions: %r", one[1])
            if isinstance(one[1], Put) and one[1].take.digest is not None:
                dropped.add(one[1].take.digest)
    return dropped


def _commit(catalogue: Catalogue, batch: Batch, last: int) -> set[bytes]:
    dropped: set[bytes] = set()
    with catalogue.transaction():
        for _, change in batch:
            match change:
                case Put(take):
                    catalogue.put(take.row)
                case Set(ids, values):
                    catalogue.change(ids, values)
                case Drop(ids, gentle):
                    spared = protected(catalogue) if gentle else set()
                    dropped |= catalogue.drop(set(ids) - spared)
        catalogue.set_fact("applied", last)
    return dropped
