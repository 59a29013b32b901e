"""Making a store whole at start, whatever the last end was like."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from dataclasses import replace
from typing import Any

from .catalogue import Catalogue
from .content import Places, digest_of_fd
from .journal import DROP, PUT, SET, SYNCED, Journal, version_of
from .model import Version

__all__ = ["open_catalogue", "rebuild", "repair"]

log = logging.getLogger("fsguard.versions")

NAME = b"catalogue.sqlite3"
LOST = "it was lost when fsguard or the machine stopped"
ASIDE_DAYS = 30
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_catalogue(places: Places, journal: Journal, clock: Any = time.time) -> tuple[Catalogue, bool]:
    """The catalogue, and whether the last end was clean; a damaged one is filled anew."""
    path = places.directory + b"/" + NAME
    try:
        catalogue = Catalogue(path)
        try:
            clean = bool(catalogue.fact("clean"))
            if not clean:
                check = catalogue.writer.execute("PRAGMA quick_check(1)").fetchone()
                if check != ("ok",):
                    raise sqlite3.DatabaseError(str(check[0]))
            if not catalogue.fact("applied") and journal.segments() and not catalogue.fact("filled"):
                raise sqlite3.DatabaseError("it is empty, and the journal is not")
        except BaseException:
            catalogue.close()
            raise
        return catalogue, clean
    except (sqlite3.Error, OSError) as e:
        if isinstance(e, sqlite3.OperationalError) and "locked" in str(e):
            raise
        if places.stat(NAME):
            log.warning("the catalogue of versions is damaged (%s): it is filled anew from the journal", e)
        return rebuild(places, journal, clock), False


def rebuild(places: Places, journal: Journal, clock: Any = time.time) -> Catalogue:
    """Set the catalogue aside and fill a new one from the journal."""
    aside = b"aside-%d" % int(clock())
    for suffix in (b"", b"-wal", b"-shm", b"-journal"):
        try:
            os.rename(NAME + suffix, aside + suffix, src_dir_fd=places.root, dst_dir_fd=places.root)
        except FileNotFoundError:
            pass
    catalogue = Catalogue(places.directory + b"/" + NAME)
    replay(places, journal, catalogue, 0)
    return catalogue


def replay(places: Places, journal: Journal, catalogue: Catalogue, after: int) -> int:
    """Carry lines after number `after` over to the catalogue; returns the number of the last line.

    Content that is known to be durable is checked by its size, the rest byte by byte.
    """
    synced = max((int(e[2]) for e in journal.read(after) if e[1] == SYNCED and len(e) > 2), default=0)
    last = after
    catalogue.begin()
    try:
        for entry in journal.read(after):
            last = max(last, entry[0])
            match entry[1]:
                case x if x == PUT:
                    version = version_of(entry)
                    if version is not None:
                        temporary = entry[3] if len(entry) > 3 else None
                        catalogue.put(_checked(places, version, temporary, version.id <= synced))
                case x if x == SET:
                    values = entry[3]
                    if isinstance(values.get("digest"), str):
                        values["digest"] = values["digest"].encode("latin-1")
                    catalogue.change(entry[2], values)
                case x if x == DROP:
                    catalogue.drop(entry[2])
        catalogue.set_fact("applied", last)
        catalogue.set_fact("filled", 1)
        catalogue.commit()
    except BaseException:
        catalogue.rollback()
        raise
    return last


def _checked(places: Places, version: Version, temporary: str | None, durable: bool) -> Version:
    """`version`, if its content is whole; else a record of its loss."""
    if not version.kept or version.kind != "file":
        return version
    try:
        if version.digest is None:
            if temporary is None:
                return replace(version, kept=False, reason=LOST)
            return _finished(places, version, b"tmp/" + temporary.encode("ascii", "replace"))
        fd = places.open_blob(version.digest)
        try:
            if durable:
                good = os.fstat(fd).st_size == version.size
            else:
                good = digest_of_fd(fd) == (version.digest, version.size)
                os.fsync(fd)
        finally:
            os.close(fd)
        if good:
            return version
    except OSError:
        pass
    return replace(version, kept=False, reason=LOST)


def _finished(places: Places, version: Version, name: bytes) -> Version:
    """Content whose digest was still to be computed."""
    fd = places.open(name)
    try:
        digest, size = digest_of_fd(fd)
        if size != version.size:
            return replace(version, kept=False, reason=LOST)
        os.fsync(fd)
        linked = os.fstat(fd).st_nlink > 1
    finally:
        os.close(fd)
    if linked or places.has_blob(digest) is None:
        places.rename(name, places.name(b"linked", digest))
    return replace(version, digest=digest)


def repair(places: Places, catalogue: Catalogue) -> None:
    """Content without a version goes, a version without content says so, tmp/ is emptied."""
    for entry in os.listdir(places.tmp):
        places.unlink(b"tmp/" + os.fsencode(entry))
    known = {
        row[0]: row[1]
        for row in catalogue.writer.execute(
            "SELECT digest, max(id) FROM versions WHERE kept AND kind = 'file' GROUP BY digest"
        )
    }
    there: set[bytes] = set()
    for tree in (b"blobs", b"linked"):
        for digest, name in blobs(places, tree):
            if digest is not None and digest in known:
                there.add(digest)
            else:
                places.unlink(name)
    missing = [digest for digest in known if digest not in there]
    if missing:
        log.warning("%d kept contents are missing from the store of versions", len(missing))
        catalogue.begin()
        for digest in missing:
            catalogue.writer.execute(
                "UPDATE versions SET kept = 0, reason = ? WHERE digest IS ? AND kind = 'file' AND kept",
                (LOST, digest),
            )
        catalogue.commit()


def blobs(places: Places, tree: bytes) -> list[tuple[bytes | None, bytes]]:
    """(digest, name) of everything in `tree`; no digest: it does not belong there."""
    found: list[tuple[bytes | None, bytes]] = []
    for short in os.listdir(places.made(tree)):
        directory = tree + b"/" + os.fsencode(short)
        try:
            fd = os.open(directory, _DIRECTORY, dir_fd=places.root)
        except NotADirectoryError:
            found.append((None, directory))
            continue
        try:
            rest = os.listdir(fd)
        finally:
            os.close(fd)
        for name in rest:
            try:
                digest: bytes | None = bytes.fromhex(short + name)
            except ValueError:
                digest = None
            found.append((digest, directory + b"/" + os.fsencode(name)))
    return found
