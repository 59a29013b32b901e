"""Content becomes durable.

First write-back is begun for all files, then each is synced, then the directories
with their names. Many files are synced by one syncfs(2): each fsync(2) waits for
a flush of the disk's own cache, about a millisecond.

On ext4 (data=ordered) the sync of a copy writes its data and then commits the
running transaction, which usually is the very one that the destructive step of
the user belongs to: the loss of the old content reaches the disk no sooner than
the copy does. A hard link is in that transaction itself, so nothing can come
between. A copy is lost by a power cut if somebody else had the transaction
committed (a timer does every 5 s) in the few milliseconds before the sync: the
blocks of a new file are chosen late, and a transaction does not wait for those
that are not chosen yet. To close that gap `Store.keep` would have to sync before
every destructive step, while a process waits.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from .content import Places, TooLargeError, copy
from .model import Limits
from .take import Pending

__all__ = ["Settler"]

MANY = 64


class Settler:
    """Makes what lies in `places` last; used by one thread."""

    def __init__(self, places: Places, limits: Limits) -> None:
        self.places = places
        self.limits = limits

    def sync(self, digests: Iterable[bytes]) -> dict[bytes, OSError]:
        """Make the contents called `digests` durable; returns those that could not be, and why."""
        failed: dict[bytes, OSError] = {}
        names: dict[bytes, bytes] = {}
        for digest in digests:
            try:
                names[digest] = name = self.own(digest)
                self.places.begin_writeback(name)
            except OSError as e:
                failed[digest] = e
        if len(names) >= MANY:
            try:
                self.places.sync_all()
                return failed
            except OSError:
                pass  # one by one, then: it tells whose failure it was
        directories: dict[bytes, list[bytes]] = {}
        for digest, name in names.items():
            try:
                self.places.sync_file(name)
            except OSError as e:
                failed[digest] = e
                continue
            short = name.rpartition(b"/")[0]
            for directory in (short, short.partition(b"/")[0]):
                directories.setdefault(directory, []).append(digest)
        for directory, those in directories.items():
            try:
                self.places.sync_dir(directory)
            except OSError as e:
                failed.update(dict.fromkeys(those, e))
        return failed

    def own(self, digest: bytes) -> bytes:
        """The name of the content. A linked inode that has another name is copied first.

        That is so when the destructive step failed, or did not come before the
        daemon was killed: the file lives on and will be written to.

        :raises OSError: there is no such content, or it can't be copied.
        """
        blob, linked = self.places.name(b"blobs", digest), self.places.name(b"linked", digest)
        if self.places.stat(blob) is not None:
            return blob
        st = self.places.stat(linked)
        if st is None or st.st_nlink == 1:
            return linked
        name = b"own-" + digest.hex().encode()
        self.places.unlink(b"tmp/" + name)
        target = self.places.new(name)
        try:
            source = self.places.open(linked)
            try:
                copy(source, target, self.limits.file_bytes)
            finally:
                os.close(source)
            if self.places.digest(b"tmp/" + name)[0] != digest:
                raise OSError("it changed while it was being kept")
            self.places.rename(b"tmp/" + name, blob)
        except TooLargeError:
            raise OSError("it grew while it was being kept") from None
        finally:
            os.close(target)
            self.places.unlink(b"tmp/" + name)
        self.places.unlink(linked)
        return blob

    def remove(self, digest: bytes, pending: Pending) -> int:
        """Remove the content, unless it is pending; returns the bytes that this freed."""
        gone, freed = b"tmp/gone-" + digest.hex().encode(), 0
        for tree in (b"blobs", b"linked"):
            with pending.lock:
                if digest in pending.counts:
                    break
                if not self.places.move_away(self.places.name(tree, digest), gone):
                    continue
            st = self.places.stat(gone)
            freed += st.st_size if st is not None else 0
            self.places.unlink(gone)  # takes its time for a large file
        return freed
