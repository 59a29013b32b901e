"""Making a store whole at start, whatever the last end was like."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from typing import Any

from .catalogue import Catalogue
from .changes import Take
from .content import Places
from .journal import DROP, PUT, SET, SYNCED, Journal, row_of
from .model import Facts, Limits
from .retention import protected
from .rows import Row, blank
from .settle import Settler
from .take import Pending, Taker

__all__ = ["fill_anew", "open_catalogue", "repair", "replay"]

log = logging.getLogger("fsguard.versions")

NAME = b"catalogue.sqlite3"
NEW = b"catalogue-new.sqlite3"
SUFFIXES = (b"", b"-wal", b"-shm", b"-journal")
LOST = "it was lost when fsguard or the machine stopped"
ASIDES = 3  # damaged catalogues that are left for whoever wants to look at them


def open_catalogue(places: Places, limits: Limits, journal: Journal, now: float) -> Catalogue:
    """The catalogue, whole and up to date with the journal, after a repair if the last end was not clean.

    A damaged one is set aside and filled anew. `now` is in seconds since the epoch.
    """
    path = places.directory + b"/" + NAME
    anew = places.stat(NAME) is None and bool(journal.segments())
    for attempt in (1, 2):
        try:
            if anew:
                build(places, limits, journal, places.directory + b"/" + NEW)
                set_aside(places, now)
                places.rename(NEW, NAME)
            catalogue = Catalogue(path)
            try:
                _check(catalogue, places, limits, journal, anew, now)
            except BaseException:
                catalogue.close()
                raise
            return catalogue
        except (sqlite3.Error, OSError) as e:
            if Catalogue.is_trouble(e):
                return _lodge(places, limits, journal, e)
            if attempt == 2:
                raise
            log.warning("the catalogue of versions is damaged (%s): it is filled anew from the journal", e)
            anew = True
    raise AssertionError


def _lodge(places: Places, limits: Limits, journal: Journal, error: Exception) -> Catalogue:
    """A catalogue elsewhere, filled from the journal, until there is room for one in the store."""
    log.error("the catalogue of versions cannot be opened (%s): one in memory takes its place", error)
    for parent in (b"/dev/shm", os.fsencode(tempfile.gettempdir())):
        try:
            lodging = tempfile.mkdtemp(prefix=b"fsguard-versions-", dir=parent)
        except OSError:
            continue
        path = lodging + b"/" + NAME
        try:
            journal.number = build(places, limits, journal, path)
            catalogue = Catalogue(path)
            catalogue.lodging = lodging
            return catalogue
        except (sqlite3.Error, OSError):
            shutil.rmtree(lodging, ignore_errors=True)
    raise error


def _check(
    catalogue: Catalogue, places: Places, limits: Limits, journal: Journal, anew: bool, now: float
) -> None:
    (found,) = catalogue.writer.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise sqlite3.DatabaseError(found)
    clean = bool(catalogue.fact("clean"))
    applied = catalogue.fact("applied")
    journal.damaged = (
        anew or bool(catalogue.fact("snapshot due")) or (bool(applied) and not journal.segments())
    )
    journal.number = replay(places, limits, journal, catalogue, applied)
    if not clean:
        repair(places, catalogue, journal, now if anew else None)
        catalogue.set_fact("applied", journal.number)
    catalogue.set_fact("clean", 0)


def fill_anew(
    places: Places, limits: Limits, journal: Journal, catalogue: Catalogue, upto: int, now: float
) -> None:
    """Fill a new file from the lines up to number `upto`, and put it in place of an open catalogue's."""
    build(places, limits, journal, places.directory + b"/" + NEW, upto)

    def swap() -> None:
        set_aside(places, now)
        places.rename(NEW, NAME)

    catalogue.renew(places.directory + b"/" + NAME, swap)
    journal.damaged = True


def build(places: Places, limits: Limits, journal: Journal, path: bytes, upto: int | None = None) -> int:
    """Fill a new file at `path` from the lines up to number `upto` (None: from all); the last number."""
    for suffix in SUFFIXES:
        if os.path.exists(path + suffix):
            os.unlink(path + suffix)
    fresh = Catalogue(path, building=True)
    try:
        last = replay(places, limits, journal, fresh, 0, upto)
        fresh.finish()
    finally:
        fresh.close()
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    return last


def set_aside(places: Places, now: float) -> None:
    directory = b"aside-%012d" % int(now)
    os.makedirs(places.directory + b"/" + directory, 0o700, exist_ok=True)
    for suffix in SUFFIXES:
        places.move_away(NAME + suffix, directory + b"/" + NAME + suffix)
    asides = sorted(n for n in os.listdir(places.directory) if n.startswith(b"aside-"))
    for old in asides[:-ASIDES]:
        shutil.rmtree(places.directory + b"/" + old, ignore_errors=True)


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


def repair(places: Places, catalogue: Catalogue, journal: Journal, rescue: float | None) -> None:
    """A version without content says so, content without a version goes, tmp/ is emptied.

    :param rescue: the catalogue was filled from a journal that may lack lines: content
        without a version is put on record as found at this time (epoch seconds).
    """
    for entry in os.listdir(places.tmp):
        places.unlink(b"tmp/" + os.fsencode(entry))
    sql = "SELECT digest, size FROM versions WHERE kept AND kind = 'file'"
    known = dict(catalogue.writer.execute(sql).fetchall())
    there: set[bytes] = set()
    found: list[Row] = []
    for name, digest in places.contents():
        st = places.stat(name)
        if digest is not None and digest in known and st is not None and st.st_size == known[digest]:
            there.add(digest)
        elif rescue is None or st is None or digest in known or places.digest(name)[0] != digest:
            places.remove(name)
        elif digest is not None and digest not in there:
            there.add(digest)
            journal.number += 1
            found.append(_found(journal.number, digest, st, rescue))
    missing = [digest for digest in known if digest not in there]
    if missing:
        log.warning("%d kept contents are missing from the store of versions", len(missing))
    with catalogue.transaction():
        for digest in missing:
            sql = "UPDATE versions SET kept = 0, reason = ? WHERE digest IS ? AND kind = 'file' AND kept"
            catalogue.writer.execute(sql, (LOST, digest))
        for row in found:
            catalogue.put(row)


def _found(id_: int, digest: bytes, st: os.stat_result, now: float) -> Row:
    path = b"recovered/" + digest.hex()[:16].encode()
    row = blank(Facts(path, 0, None, None, "", now, "recovered"))
    row.update(id=id_, digest=digest, size=st.st_size, kept=1, mode=0o600, mtime_ns=st.st_mtime_ns)
    row.update(uid=st.st_uid, gid=st.st_gid)
    return row
