"""Making a store whole at start, whatever the last end was like."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import tempfile

from .catalogue import Catalogue
from .content import Places, digest_of
from .journal import Journal
from .model import Facts, Limits
from .replay import LOST, replay
from .rows import Row, blank

__all__ = ["fill_anew", "open_catalogue", "repair"]

log = logging.getLogger("fsguard.versions")

NAME = b"catalogue.sqlite3"
NEW = b"catalogue-new.sqlite3"
SUFFIXES = (b"", b"-wal", b"-shm", b"-journal")
ASIDES = 3  # damaged catalogues that are left for whoever wants to look at them


def open_catalogue(places: Places, limits: Limits, journal: Journal, now: float) -> Catalogue:
    """The catalogue, whole and up to date with the journal, after a repair if the last end was not clean.

    A damaged one is set aside and filled anew. `now` is in seconds since the epoch.
    """
    _clear_lodgings(places)
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


def _lodgings() -> tuple[bytes, ...]:
    return b"/dev/shm", os.fsencode(tempfile.gettempdir())


def _lodging_name(places: Places) -> bytes:
    return b"fsguard-versions-%s-" % digest_of(places.directory).hex()[:16].encode()


def _clear_lodgings(places: Places) -> None:
    """Remove what a killed daemon left elsewhere: the store is locked, so nobody uses it."""
    for parent in _lodgings():
        try:
            names = [n for n in os.listdir(parent) if n.startswith(_lodging_name(places))]
        except OSError:
            continue
        for name in names:
            path = parent + b"/" + name
            if os.lstat(path).st_uid == os.geteuid():
                shutil.rmtree(path, ignore_errors=True)


def _lodge(places: Places, limits: Limits, journal: Journal, error: Exception) -> Catalogue:
    """A catalogue elsewhere, filled from the journal, until there is room for one in the store."""
    log.error("the catalogue of versions cannot be opened (%s): one in memory takes its place", error)
    for parent in _lodgings():
        try:
            lodging = tempfile.mkdtemp(prefix=_lodging_name(places), dir=parent)
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
