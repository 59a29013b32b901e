"""Lines of the journal that the catalogue has not seen are carried over to it, at start or all anew."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from typing import Any

from .catalogue import Catalogue
from .changes import Take
from .content import Places
from .journal import DROP, PUT, SET, SYNCED, Journal, row_of
from .model import Limits
from .retention import protected
from .rows import Row
from .settle import Settler
from .take import Pending, Taker

__all__ = ["LOST", "replay"]

log = logging.getLogger("fsguard.versions")

LOST = "it was lost when fsguard or the machine stopped"


def replay(
    places: Places,
    limits: Limits,
    journal: Journal,
    catalogue: Catalogue,
    after: int,
    upto: int | None = None,
) -> int:
    """Carry lines after number `after` over to the catalogue; returns the number of the last line.

    Content that is known to be durable is checked by its size, the rest byte by
    byte; then it is made durable.
    """

    def lines() -> Iterator[list[Any]]:
        return (e for e in journal.read(after) if upto is None or e[0] <= upto)

    tail: list[list[Any]] = []
    for entry in lines():
        tail.append(entry)
        if entry[1] == SYNCED and isinstance(entry[2], int):
            tail = [e for e in tail if e[0] > entry[2]]
    taker = Taker(places, limits, Pending())
    doubtful = _doubtful(taker, tail)
    last = after
    with catalogue.transaction():
        for entry in lines():
            last = max(last, entry[0])
            _apply(catalogue, taker, entry, doubtful)
        catalogue.set_fact("applied", last)
    return last


def _doubtful(taker: Taker, entries: list[list[Any]]) -> dict[int, Row]:
    """The versions in `entries`, with what is left of their content made durable."""
    digests = {e[2][0]: e[3]["digest"] for e in entries if e[1] == SET and "digest" in e[3]}
    rows: dict[int, Row] = {}
    fresh: dict[bytes, list[Row]] = {}
    for entry in entries:
        if entry[1] != PUT or (row := row_of(entry)) is None:
            continue
        rows[row["id"]] = row
        if row["kept"] and row["kind"] == "file":
            if row["digest"] is None and row["id"] in digests:
                row["digest"] = digests[row["id"]].encode("latin-1")
            if _whole(taker, row, entry[3]):
                fresh.setdefault(row["digest"], []).append(row)
            else:
                row.update(kept=0, reason=LOST)
    for digest in Settler(taker.places, taker.limits).sync(fresh):
        for row in fresh[digest]:
            row.update(kept=0, reason=LOST)
    return rows


def _whole(taker: Taker, row: Row, temporary: str | None) -> bool:
    """Whether the content of `row` is there, byte by byte; content without a name gets it."""
    places, size = taker.places, row["size"]
    try:
        if temporary is not None and places.stat(b"tmp/" + temporary.encode()) is not None:
            taker.finish(Take(row, temporary=temporary.encode()), lambda digest: None)
            return bool(row["size"] == size)
        digest = row["digest"]
        if digest is None:
            return False
        names = (places.name(b"blobs", digest), places.name(b"linked", digest))
        for name in names:
            if places.stat(name) is not None:
                if places.digest(name) == (digest, size):
                    return True
                places.unlink(name)
    except OSError:
        log.debug("unreadable", exc_info=True)
    return False


def _apply(catalogue: Catalogue, taker: Taker, entry: list[Any], doubtful: dict[int, Row]) -> None:
    what = entry[1]
    try:
        if what == PUT:
            row = doubtful.get(entry[0]) or row_of(entry)
            if row is None:
                return
            durable = entry[0] not in doubtful and row["kept"] and row["digest"] and row["kind"] == "file"
            if durable and not taker.places.has(row["digest"], row["size"]):
                row.update(kept=0, reason=LOST)
            catalogue.put(row)
        elif what == SET:
            values = dict(entry[3])
            if isinstance(values.get("digest"), str):
                values["digest"] = values["digest"].encode("latin-1")
            catalogue.change(entry[2], values)
        elif what == DROP:
            gentle = len(entry) > 3 and entry[3]
            catalogue.drop(set(entry[2]) - protected(catalogue) if gentle else entry[2])
    except (ValueError, TypeError, IndexError, sqlite3.IntegrityError, sqlite3.InterfaceError):
        log.warning("left out of the catalogue of versions: %.200r", entry)
