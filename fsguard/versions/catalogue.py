"""The catalogue of kept versions: SQLite, one writer, one reader.

Everything in it is durable: the writer (the store's background thread) puts a
row in only after its content has reached the disk, and commits with a sync of
its own (``synchronous=FULL``). Queries go through a second connection, which in
WAL mode neither waits for the writer nor makes it wait; they may be called from
any thread and take milliseconds at 100,000 versions (every one has its index).

Damage shows as `sqlite3.DatabaseError` in the writer; the store then sets the
file aside and fills a new one from the journal.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from .model import Version
from .rows import COLUMNS, from_row, text, to_row

__all__ = ["Catalogue"]

FORMAT = 1
_ALL = ", ".join(COLUMNS)
_SCHEMA = """
CREATE TABLE IF NOT EXISTS versions (
  id INTEGER PRIMARY KEY, path BLOB NOT NULL, version INTEGER NOT NULL, task, sibling, command,
  time REAL NOT NULL, cause, size INTEGER NOT NULL, kept INTEGER NOT NULL, reason, digest BLOB, kind,
  mode INTEGER, uid INTEGER, gid INTEGER, mtime_ns INTEGER, xattrs TEXT, target BLOB, conflict INTEGER NOT NULL,
  resolved INTEGER NOT NULL, base_version INTEGER, warning INTEGER);
CREATE INDEX IF NOT EXISTS by_path ON versions (path, kept, id);
CREATE INDEX IF NOT EXISTS by_version ON versions (path, version);
CREATE INDEX IF NOT EXISTS by_task ON versions (task, id, time);
CREATE INDEX IF NOT EXISTS by_time ON versions (time);
CREATE INDEX IF NOT EXISTS by_digest ON versions (digest, id, size) WHERE kept AND kind = 'file';
CREATE INDEX IF NOT EXISTS conflicts ON versions (id) WHERE conflict;
CREATE INDEX IF NOT EXISTS unresolved ON versions (id) WHERE conflict AND NOT resolved;
CREATE INDEX IF NOT EXISTS conflicts_of ON versions (task, id) WHERE conflict;
CREATE INDEX IF NOT EXISTS conflicts_with ON versions (sibling, id) WHERE conflict;
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value INTEGER) WITHOUT ROWID;
"""
#: Columns that may change after the version was kept.
SETTABLE = ("resolved", "warning", "conflict", "base_version", "sibling", "kept", "reason", "digest")


class Catalogue:
    """The open catalogue in the file at `path` (made if need be).

    :raises sqlite3.DatabaseError: the file is damaged, or of a newer format.
    """

    def __init__(self, path: bytes) -> None:
        self.path = path
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        self._lock = threading.Lock()
        self.writer = self._connect()
        try:
            (found,) = self.writer.execute("PRAGMA user_version").fetchone()
            if found > FORMAT:
                raise sqlite3.DatabaseError(f"format {found} is newer than {FORMAT}")
            self.writer.execute("PRAGMA journal_mode = WAL").fetchone()
            self.writer.execute("PRAGMA synchronous = FULL")
            self.writer.executescript(_SCHEMA)
            self.writer.execute(f"PRAGMA user_version = {FORMAT}")
            self.reader = self._connect()
            self.reader.execute("PRAGMA query_only = 1")
        except BaseException:
            self.writer.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            os.fsdecode(self.path), timeout=5.0, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA trusted_schema = 0")
        return connection

    def close(self) -> None:
        with self._lock:
            self.reader.close()
            self.writer.close()

    # ---- queries ----

    def _select(self, rest: str, *values: Any) -> list[Version]:
        with self._lock:
            rows = self.reader.execute(f"SELECT {_ALL} FROM versions {rest}", values).fetchall()
        return [from_row(row) for row in rows]

    def versions(self, path: bytes, limit: int = 100) -> list[Version]:
        """Of `path`, newest first."""
        return self._select(
            f"WHERE id IN ({_NEWEST} AND kept = 1 {_LAST} UNION {_NEWEST} AND kept = 0 {_LAST})"
            " ORDER BY id DESC LIMIT ?",
            *(path, limit) * 2,
            limit,
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

    def count(self) -> int:
        with self._lock:
            (count,) = self.reader.execute("SELECT count(*) FROM versions").fetchone()
        return int(count)

    # ---- changes, by the store's background thread alone ----

    def fact(self, name: str) -> int:
        row = self.writer.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return int(row[0]) if row else 0

    def set_fact(self, name: str, value: int) -> None:
        self.writer.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def begin(self) -> None:
        self.writer.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        self.writer.execute("COMMIT")

    def rollback(self) -> None:
        if self.writer.in_transaction:
            self.writer.execute("ROLLBACK")

    def put(self, version: Version) -> None:
        marks = ", ".join("?" * len(COLUMNS))
        self.writer.execute(f"INSERT OR REPLACE INTO versions ({_ALL}) VALUES ({marks})", to_row(version))

    def change(self, ids: Iterable[int], values: dict[str, Any]) -> None:
        """Change columns among SETTABLE."""
        names = [name for name in values if name in SETTABLE]
        if names:
            what = ", ".join(f"{name} = ?" for name in names)
            given = [text(v) if isinstance(v := values[name], str) else v for name in names]
            self.writer.executemany(
                f"UPDATE versions SET {what} WHERE id = ?", [[*given, id_] for id_ in ids]
            )

    def drop(self, ids: Sequence[int]) -> None:
        self.writer.executemany("DELETE FROM versions WHERE id = ?", [(id_,) for id_ in ids])

    def digests(self, ids: Sequence[int]) -> set[bytes]:
        """The content that these versions have, or had."""
        sql = "SELECT digest FROM versions WHERE id = ? AND kind = 'file' AND digest IS NOT NULL"
        found = (self.writer.execute(sql, (id_,)).fetchone() for id_ in ids)
        return {row[0] for row in found if row}

    def refers(self, digest: bytes) -> bool:
        """Whether any version needs the content `digest`."""
        sql = "SELECT 1 FROM versions WHERE kept AND kind = 'file' AND digest = ? LIMIT 1"
        return self.writer.execute(sql, (digest,)).fetchone() is not None


_NEWEST = "SELECT * FROM (SELECT id FROM versions WHERE path = ?"
_LAST = "ORDER BY id DESC LIMIT ?)"
