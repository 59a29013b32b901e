"""The journal: what was kept, in the order in which it was, as lines of text.

`Store.keep` appends its line with one write(2) before anything is destroyed, so
that a killed daemon has forgotten nothing; the background thread makes it durable
and carries it over to the catalogue. At start, lines that the catalogue has not
seen are carried over; should the catalogue be damaged, all of it is filled anew
from here.

    journal/0000000000000001.log     lines from number 1 on (hexadecimal)
    journal/snapshot                 all that is left of the lines up to the number in its first line

A line is a checksum and a JSON list: [number, what, …]. The numbers grow, and the
number of a "put" is the version's id. What a torn or unreadable line held is
lost; the lines around it are not.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

from .content import Places, created
from .rows import Row, from_line, from_values, to_line, to_values

__all__ = ["DROP", "PUT", "SET", "SYNCED", "Journal", "put_line", "row_of"]

#: What a line says: a version was kept [number, PUT, values, name in tmp/ or None];
#: columns change [number, SET, ids, {column: value}]; versions are gone
#: [number, DROP, ids, 1 to leave what is protected]; all up to a number is durable [number, SYNCED, number].
PUT, SET, DROP, SYNCED = "put", "set", "drop", "synced"
SEGMENT_BYTES = 4 << 20
LONG_BYTES = 16 << 20
SNAPSHOT = b"journal/snapshot"


def put_line(row: Row, temporary: bytes | None) -> bytes:
    return to_line([row["id"], PUT, to_values(row), temporary.decode("ascii") if temporary else None])


def row_of(entry: list[Any]) -> Row | None:
    """The version of a PUT line; None when the line makes no sense."""
    try:
        return from_values(entry[2])
    except (ValueError, TypeError, AttributeError, KeyError):
        return None


class Journal:
    """Appends and reads.

    `number` is that of the last line. `append` and `start` are called under the
    lock of whoever hands out the numbers; the rest belongs to the background
    thread, or to the start.
    """

    def __init__(self, places: Places) -> None:
        self.places = places
        places.made(b"journal")
        self.number = 0
        self._fd = -1
        self._size = 0
        self._torn = False
        self._error = OSError(errno.EBADF, os.strerror(errno.EBADF))
        self._unsynced: set[bytes] = set()
        self._name = b""
        self._snapshot_size = 0
        self._closed_size = 0
        self.damaged = False  # it does not hold all that the catalogue does: a snapshot is due

    # ---- writing ----

    def start(self, number: int, *, resume: bool = False) -> None:
        """Begin a new segment after line `number`; `resume` goes on with the last one if it is short."""
        name = b"journal/%016x.log" % (number + 1)
        if resume:
            segments = self.segments()
            if segments and self._bytes(segments[-1][1]) < SEGMENT_BYTES:
                name = segments.pop()[1]
            self._closed_size = sum(self._bytes(n) for _, n in segments)
            self._snapshot_size = self._bytes(SNAPSHOT)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = created(os.open(name, flags, 0o600, dir_fd=self.places.root))
        if self._fd >= 0:
            os.close(self._fd)
            self._closed_size += self._size
        self._fd, self._name, self.number = fd, name, number
        self._size = os.fstat(fd).st_size
        self._torn = self._size > 0  # perhaps: a line break too many does no harm
        self._unsynced |= {name, b"journal"}

    def restart(self, *, resume: bool = False) -> None:
        """Begin a new segment, if that can be done; else go on as before."""
        try:
            self.start(self.number, resume=resume)
        except OSError as e:
            self._error = e

    @property
    def closed(self) -> bool:
        """There is no segment to append to."""
        return self._fd < 0

    def append(self, line: bytes) -> None:
        """One line, whole or not at all; OSError when it could not be written."""
        if self._fd < 0:
            raise self._error
        if self._torn:
            line = b"\n" + line
        try:
            count = os.write(self._fd, line)
            if count < len(line):
                os.ftruncate(self._fd, self._size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            self._torn = True
            raise
        self._size += count
        self._torn = False
        self._unsynced.add(self._name)

    def sync(self) -> None:
        """Make all lines durable that were appended before the call.

        A segment that can't be synced is given up: its lines are still in the
        catalogue, which is durable by itself, and soon in a snapshot.
        """
        while self._unsynced:
            name = self._unsynced.pop()
            try:
                if name == b"journal":
                    self.places.sync_dir(name)
                else:
                    self.places.sync_file(name)
            except OSError:
                self.damaged = True

    @property
    def full(self) -> bool:
        """It is time for a new segment."""
        return self._size >= SEGMENT_BYTES

    @property
    def long(self) -> bool:
        """It is time for a snapshot."""
        return self.damaged or self._closed_size > max(LONG_BYTES, 2 * self._snapshot_size)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    # ---- reading ----

    def _bytes(self, name: bytes) -> int:
        st = self.places.stat(name)
        return st.st_size if st else 0

    def segments(self) -> list[tuple[int, bytes]]:
        """(first number, name), oldest first."""
        found = []
        for name in os.listdir(self.places.made(b"journal")):
            stem, _, kind = name.partition(".")
            try:
                if kind == "log" and len(stem) == 16:
                    found.append((int(stem, 16), b"journal/" + os.fsencode(name)))
            except ValueError:
                continue
        return sorted(found)

    def read(self, after: int) -> Iterator[list[Any]]:
        """Lines with a number above `after`, oldest first; those of the snapshot only if it is needed."""
        segments = self.segments()
        if after == 0 or not segments or segments[0][0] > after + 1:
            upto = after
            for position, entry in enumerate(self._lines(SNAPSHOT)):
                if position == 0 and entry[1] == SYNCED:
                    upto = max(upto, entry[0])
                if entry[0] > after or entry[1] == PUT:
                    yield entry
            after = upto
        for position, (_, name) in enumerate(segments, 1):
            if position == len(segments) or segments[position][0] > after + 1:
                yield from self._lines(name, after)

    def _lines(self, name: bytes, after: int = -1) -> Iterator[list[Any]]:
        try:
            fd = self.places.open(name)
        except OSError:
            return
        with open(fd, "rb") as f:
            try:
                for line in f:
                    entry = from_line(line.rstrip(b"\n"), after)
                    if entry is not None:
                        yield entry
            except OSError:
                self.damaged = True

    # ---- making it shorter ----

    def snapshot(self, rows: Iterable[Row], upto: int, given_up: Callable[[], bool]) -> None:
        """Replace all lines up to number `upto` by the `rows` that are left of them, unless `given_up`."""
        tmp = b"tmp/snapshot"
        try:
            self._write_snapshot(rows, upto, given_up)
            if given_up():
                return
            self.places.sync_file(tmp)
            self.places.rename(tmp, SNAPSHOT)
        finally:
            self.places.unlink(tmp)
        self.places.sync_dir(b"journal")
        for (_, name), following in pairwise(self.segments()):
            if following[0] <= upto + 1:
                self.places.unlink(name)
        self.damaged = False
        self._snapshot_size = self._bytes(SNAPSHOT)
        self._closed_size = sum(self._bytes(n) for _, n in self.segments() if n != self._name)

    def _write_snapshot(self, rows: Iterable[Row], upto: int, given_up: Callable[[], bool]) -> None:
        self.places.unlink(b"tmp/snapshot")
        fd = self.places.new(b"snapshot")
        with open(fd, "wb", buffering=1 << 18) as f:
            f.write(to_line([upto, SYNCED, upto]))
            for row in rows:
                f.write(put_line(row, None))
                if given_up():
                    return
