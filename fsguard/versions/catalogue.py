"""The catalogue of kept versions: SQLite, one writer, one reader.

Everything in it is durable: the writer (the store's background thread) puts a
row in only after its content has reached the disk, and commits with a sync of
its own (``synchronous=FULL``). Queries go through a second connection, which in
WAL mode neither waits for the writer nor makes it wait; they may be called from
any thread and take milliseconds at 100,000 versions (every one has its index).

A query that meets damage raises `DamagedError`; the background thread then sets
the file aside and fills a new one from the journal.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from .content import created
from .model import DamagedError, Version
from .rows import COLUMNS, Row, text, to_sql, to_version

__all__ = ["Catalogue"]

FORMAT = 1
_ALL = ", ".join(COLUMNS)
_MARKS = ", ".join("?" * len(COLUMNS))
_SCHEMA = """
CREATE TABLE IF NOT EXISTS versions (
  id INTEGER PRIMARY KEY, path BLOB NOT NULL, version INTEGER NOT NULL, task, sibling, command,
  time REAL NOT NULL, cause, size INTEGER NOT NULL, kept INTEGER NOT NULL, reason, digest BLOB, kind,
  mode INTEGER, uid INTEGER, gid INTEGER, mtime_ns INTEGER, xattrs TEXT, target BLOB,
  conflict INTEGER NOT NULL, resolved INTEGER NOT NULL, base_version INTEGER, warning INTEGER);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value INTEGER) WITHOUT ROWID;
"""
_INDEXES = """
CREATE INDEX IF NOT EXISTS by_path ON versions (path, kept, id);
CREATE INDEX IF NOT EXISTS by_version ON versions (path, version, kept, id);
CREATE INDEX IF NOT EXISTS by_task ON versions (task, id, time);
CREATE INDEX IF NOT EXISTS by_time ON versions (time);
CREATE INDEX IF NOT EXISTS by_digest ON versions (digest, id, size) WHERE kept AND kind = 'file';
CREATE INDEX IF NOT EXISTS conflicts ON versions (id) WHERE conflict;
CREATE INDEX IF NOT EXISTS unresolved ON versions (path, sibling, id) WHERE conflict AND NOT resolved;
CREATE INDEX IF NOT EXISTS unresolved_id ON versions (id) WHERE conflict AND NOT resolved;
CREATE INDEX IF NOT EXISTS conflicts_of ON versions (task, id) WHERE conflict;
CREATE INDEX IF NOT EXISTS conflicts_with ON versions (sibling, id) WHERE conflict;
"""
#: Columns that may change after the version was kept.
SETTABLE = ("resolved", "warning", "conflict", "base_version", "sibling", "kept", "reason", "digest")
_MOVED = 8 | 4 << 8  # SQLITE_READONLY_DBMOVED: somebody removed or renamed the file
_TROUBLE = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
)
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class Catalogue:
    """The open catalogue in the file at `path` (made if need be).

    :param building: it is to be filled at once, and then closed by `finish`; until
        then it has no indexes, and is worth nothing after a power cut.
    :raises sqlite3.DatabaseError: the file is damaged, or of a newer format.
    """

    def __init__(self, path: bytes, *, building: bool = False) -> None:
        self.path = path
        self._building = building
        self.damaged = False
        self.lodging: bytes | None = None  # a directory elsewhere that `path` is in for want of room
        self._lock = threading.Lock()
        self._open()

    def _open(self) -> None:
        os.close(created(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)))
        self.writer = self.connect()
        try:
            (found,) = self.writer.execute("PRAGMA user_version").fetchone()
            if found > FORMAT:
                raise sqlite3.DatabaseError(f"its format {found} is newer than {FORMAT}")
            self.writer.execute(f"PRAGMA journal_mode = {'MEMORY' if self._building else 'WAL'}").fetchone()
            self.writer.execute(f"PRAGMA synchronous = {'OFF' if self._building else 'FULL'}")
            self.writer.executescript(_SCHEMA if self._building else _SCHEMA + _INDEXES)
            if found != FORMAT:
                self.writer.execute(f"PRAGMA user_version = {FORMAT}")
            self.reader = self.connect()
            self.reader.execute("PRAGMA query_only = 1")
        except BaseException:
            self.writer.close()
            raise

    def connect(self) -> sqlite3.Connection:
        """One more connection, for any thread; the caller closes it."""
        # "unix-excl": the index of the WAL is in memory that both connections share. By
        # default it is a file mapped into memory, and on a full disk (btrfs, ext4 with
        # small blocks) writing to such a mapping is a SIGBUS, which ends the daemon.
        uri = f"file:{quote(self.path)}?vfs=unix-excl"
        connection = sqlite3.connect(
            uri, uri=True, timeout=5.0, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA trusted_schema = 0")
        connection.execute("PRAGMA temp_store = MEMORY")
        return connection

    def close(self) -> None:
        with self._lock:
            self.reader.close()
            self.writer.close()
            self._leave()

    def _leave(self) -> None:
        if self.lodging is not None:
            shutil.rmtree(self.lodging, ignore_errors=True)
            self.lodging = None

    def finish(self) -> None:
        """The end of building."""
        self.writer.executescript(_INDEXES)
        self.close()

    def renew(self, path: bytes, swap: Callable[[], None]) -> None:
        """Go on with another file at `path`, which `swap` puts there."""
        with self._lock:
            self.reader.close()
            self.writer.close()
            self.damaged = True
            swap()
            self._leave()
            self.path = path
            self._open()
            self.damaged = False

    @staticmethod
    def is_trouble(error: Exception) -> bool:
        """Whether it may pass: no room, no permission, a failing disk, somebody else's lock."""
        if isinstance(error, OSError):
            return error.errno not in (errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.ENOTDIR)
        code = getattr(error, "sqlite_errorcode", None)
        return code is not None and code != _MOVED and code & 0xFF in _TROUBLE

    @staticmethod
    def is_damage(error: sqlite3.Error) -> bool:
        """Whether the file itself is to blame, and not a full disk or a bad value."""
        code = getattr(error, "sqlite_errorcode", None)
        if code is None:
            return type(error) is sqlite3.DatabaseError
        return code & 0xFF in _DAMAGE or code == _MOVED

    # ---- queries ----

    def _select(self, rest: str, *values: Any) -> list[Version]:
        try:
            with self._lock:
                rows = self.reader.execute(f"SELECT {_ALL} FROM versions {rest}", values).fetchall()
            return [to_version(row) for row in rows]
        except (sqlite3.Error, ValueError, TypeError) as e:
            if not isinstance(e, sqlite3.Error) or self.is_damage(e):
                self.damaged = True
            raise DamagedError(
                f"the catalogue of versions cannot be read: {e}", "It repairs itself: try again in a moment."
            ) from e

    def versions(self, path: bytes, limit: int = 100) -> list[Version]:
        """Of `path`, newest first."""
        part = "SELECT * FROM (SELECT id FROM versions WHERE path = ? AND kept = %d ORDER BY id DESC LIMIT ?)"
        return self._select(
            f"WHERE id IN ({part % 1} UNION {part % 0}) ORDER BY id DESC LIMIT ?", *(path, limit) * 2, limit
        )

    def find(self, path: bytes, version: int) -> Version | None:
        """The version of `path` with the ledger's number `version`, rather a kept one, rather a new one."""
        found = self._select(
            "WHERE path = ? AND version = ? ORDER BY kept DESC, id DESC LIMIT 1", path, version
        )
        return found[0] if found else None

    def get(self, id_: int) -> Version | None:
        found = self._select("WHERE id = ?", id_)
        return found[0] if found else None

    def newest_of(self, path: bytes) -> Version | None:
        found = self.versions(path, 1)
        return found[0] if found else None

    def conflicts(
        self, task: str | None = None, include_resolved: bool = False, limit: int = 100
    ) -> list[Version]:
        """Conflicts, newest first; with `task` those in which it destroyed or lost something."""
        which = "conflict" if include_resolved else "conflict AND NOT resolved"
        if task is None:
            return self._select(f"WHERE {which} ORDER BY id DESC LIMIT ?", limit)
        part = f"SELECT * FROM (SELECT id FROM versions WHERE {which} AND %s = ? ORDER BY id DESC LIMIT ?)"
        return self._select(
            f"WHERE id IN ({part % 'task'} UNION {part % 'sibling'}) ORDER BY id DESC LIMIT ?",
            *(text(task), limit) * 2,
            limit,
        )

    def destroyed_by(
        self, task: str, since: float = 0.0, *, after: int = 0, limit: int = 1000
    ) -> list[Version]:
        """What `task` destroyed since then (epoch seconds), oldest first.

        In pages: `after` is the id of the last version of the page before.
        """
        return self._select(
            "WHERE task = ? AND id > ? AND time >= ? ORDER BY id LIMIT ?", text(task), after, since, limit
        )

    def highest_version(self) -> int:
        """The highest version number on record, 0 when there is none: the next mount counts on from it."""
        with self._lock:
            (highest,) = self.reader.execute("SELECT max(version) FROM versions").fetchone()
        return int(highest or 0)

    def count(self) -> int:
        """All versions on record, kept or not."""
        with self._lock:
            (count,) = self.reader.execute("SELECT count(*) FROM versions").fetchone()
        return int(count)

    # ---- changes, by the store's background thread (or at its start) alone ----

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything inside is committed, and durable, or nothing."""
        self.writer.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.writer.execute("COMMIT")
        except BaseException:
            if self.writer.in_transaction:
                self.writer.execute("ROLLBACK")
            raise

    def fact(self, name: str) -> int:
        row = self.writer.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return int(row[0]) if row else 0

    def set_fact(self, name: str, value: int) -> None:
        self.writer.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def put(self, row: Row) -> None:
        self.writer.execute(f"INSERT OR REPLACE INTO versions ({_ALL}) VALUES ({_MARKS})", to_sql(row))

    def change(self, ids: Iterable[int], values: dict[str, Any]) -> None:
        """Change columns among SETTABLE."""
        names = [name for name in values if name in SETTABLE]
        if names:
            what = ", ".join(f"{name} = ?" for name in names)
            given = [text(v) if isinstance(v := values[name], str) else v for name in names]
            self.writer.executemany(
                f"UPDATE versions SET {what} WHERE id = ?", [[*given, id_] for id_ in ids]
            )

    def drop(self, ids: Iterable[int]) -> set[bytes]:
        """Forget versions; returns the content that they had, which others may have too."""
        dropped = set()
        for id_ in ids:
            sql = "SELECT digest, kind FROM versions WHERE id = ?"
            row = self.writer.execute(sql, (id_,)).fetchone()
            if row and row[0] is not None and row[1] == "file":
                dropped.add(row[0])
            self.writer.execute("DELETE FROM versions WHERE id = ?", (id_,))
        return dropped

    def refers(self, digest: bytes) -> bool:
        """Whether any version needs the content `digest`."""
        sql = "SELECT 1 FROM versions WHERE kept AND kind = 'file' AND digest = ? LIMIT 1"
        return self.writer.execute(sql, (digest,)).fetchone() is not None
