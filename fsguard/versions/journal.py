"""The journal: what was kept, in the order in which it was, as lines of text.

`Store.keep` appends its line with one write(2) before anything is destroyed, so
that a killed daemon has forgotten nothing; the background thread makes it durable
and carries it over to the catalogue. At start, lines that the catalogue has not
seen are carried over; should the catalogue be damaged, all of it is filled anew
from here.

    journal/0000000000000001.log     lines from sequence number 1 on (hexadecimal)
    journal/snapshot                 everything up to the number in its first line

A line is a checksum and a JSON list: [number, what, …]. The numbers grow by one
with each line, and the number of a "put" is the version's id. What a torn or
unreadable line held is lost; the lines around it are not.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from .content import Places
from .model import Version
from .rows import from_line, from_values, to_line, to_values

__all__ = ["DROP", "PUT", "SET", "SYNCED", "Journal", "put_line", "version_of"]

#: What a line says: a version was kept [number, PUT, values, name in tmp/ or None];
#: columns change [number, SET, ids, {column: value}]; versions are gone
#: [number, DROP, ids]; all up to a number is durable [number, SYNCED, number].
PUT, SET, DROP, SYNCED = "put", "set", "drop", "synced"
SEGMENT_BYTES = 4 << 20
SNAPSHOT = b"journal/snapshot"


def put_line(version: Version, temporary: bytes | None) -> bytes:
    return to_line([version.id, PUT, to_values(version), temporary.decode("ascii") if temporary else None])


class Journal:
    """Appends and reads; every method but `append` belongs to the background thread (or the start).

    `number` is that of the last line. `append` and `start` are called under the store's lock, which
    also hands out the numbers: lines are in order.
    """

    def __init__(self, places: Places) -> None:
        self.places = places
        places.made(b"journal")
        self.number = 0
        self._fd = -1
        self._size = 0
        self._name = b""
        self._torn = False

    # ---- writing ----

    def start(self, number: int) -> bytes:
        """Begin a new segment after line `number`; returns the name of the one before ("" for none)."""
        name = b"journal/%016x.log" % (number + 1)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(name, flags, 0o600, dir_fd=self.places.root)
        before, old = self._name, self._fd
        self._fd, self._name, self.number = fd, name, number
        self._size = os.fstat(fd).st_size
        self._torn = self._size > 0
        if old >= 0:
            os.close(old)
        return before

    def append(self, line: bytes) -> None:
        """One line, whole or not at all; OSError when it could not be written."""
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

    @property
    def full(self) -> bool:
        """It is time for a new segment."""
        return self._size >= SEGMENT_BYTES

    @property
    def segment(self) -> bytes:
        return self._name

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    # ---- reading ----

    def segments(self) -> list[tuple[int, bytes]]:
        """(first number, name), oldest first."""
        found = []
        for name in os.listdir(self.places.made(b"journal")):
            stem, dot, kind = name.partition(".")
            if dot and kind == "log" and len(stem) == 16:
                try:
                    found.append((int(stem, 16), b"journal/" + os.fsencode(name)))
                except ValueError:
                    continue
        return sorted(found)

    def read(self, after: int) -> Iterator[list[Any]]:
        """Lines with a number above `after`, oldest first; those of the snapshot only if it is needed."""
        segments = self.segments()
        if not segments or segments[0][0] > after + 1 or after == 0:
            upto = 0
            for position, entry in enumerate(self._lines(SNAPSHOT)):
                if position == 0:
                    upto = int(entry[2])
                yield entry
            after = max(after, upto)
        for position, (_, name) in enumerate(segments, 1):
            if position == len(segments) or segments[position][0] > after + 1:
                for entry in self._lines(name):
                    if entry[0] > after:
                        yield entry

    def _lines(self, name: bytes) -> Iterator[list[Any]]:
        try:
            fd = self.places.open(name)
        except FileNotFoundError:
            return
        with open(fd, "rb") as f:
            for line in f:
                entry = from_line(line.rstrip(b"\n"))
                if entry is not None and isinstance(entry[0], int):
                    yield entry

    # ---- making it shorter ----

    def snapshot(self, versions: Iterable[Version], upto: int) -> None:
        """Replace everything up to line `upto` by the `versions` that are left of it."""
        tmp = b"snapshot"
        self.places.unlink(b"tmp/" + tmp)
        fd = self.places.new(tmp)
        with open(fd, "wb", buffering=1 << 18) as f:
            f.write(to_line([upto, SYNCED, upto]))
            for version in versions:
                f.write(put_line(version, None))
        self.places.sync_file(b"tmp/" + tmp)
        self.places.rename(b"tmp/" + tmp, SNAPSHOT)
        self.places.sync_dir(b"journal")
        segments = self.segments()
        for (_, name), following in pairwise(segments):
            if following[0] <= upto + 1 and name != self._name:
                self.places.unlink(name)

    def size(self) -> tuple[int, int]:
        """Bytes of the closed segments, and of the snapshot."""
        sizes = [st.st_size for _, n in self.segments() if n != self._name and (st := self.places.stat(n))]
        st = self.places.stat(SNAPSHOT)
        return sum(sizes), st.st_size if st else 0


def version_of(entry: list[Any]) -> Version | None:
    """The version of a PUT line; None when the line makes no sense."""
    try:
        return from_values(entry[2])
    except (ValueError, TypeError, AttributeError, KeyError):
        return None
