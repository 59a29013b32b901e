"""Between the filesystem and the guard: resolves who, asks the guard, carries out what it says.

The imperative shell around the pure core. It knows the clock and the errno of
a refusal; it knows neither FUSE nor /proc (see `Processes`).
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from fsguard.core.guard import Change as Edit
from fsguard.core.guard import Guard
from fsguard.core.model import Act, Actor
from fsguard.observer import (
    Caller,
    Change,
    Exchange,
    FileView,
    Linked,
    Made,
    Removed,
    Renamed,
    Session,
    Truncated,
)

__all__ = ["DIGEST_LIMIT", "Dispatch", "OpenFile", "Processes"]

DIGEST_LIMIT = 16 * 1024 * 1024
WRITER_SECONDS = 0.5


class Processes(Protocol):
    """Who is behind a thread id; implemented by `fsguard.attribution`."""

    def actor(self, tid: int) -> Actor: ...

    def opens_for_reading(self, tid: int) -> bool: ...

    def gone(self, actor: Actor) -> bool: ...


class Dispatch:
    """The observer that judges.

    :param digest_limit: files larger than this many bytes are never compared.
    """

    def __init__(
        self,
        guard: Guard,
        processes: Processes,
        *,
        clock: Callable[[], float] = time.time,
        digest_limit: int = DIGEST_LIMIT,
    ) -> None:
        self.guard = guard
        self.processes = processes
        self.clock = clock
        self.digest_limit = digest_limit
        self.open_files: dict[OpenFile, None] = {}
        self._writable: dict[FileView, list[OpenFile]] = {}

    # -- looks ----------------------------------------------------------------

    def missed(self, caller: Caller, path: bytes) -> None:
        state = self.guard.ledger.find(path)
        if state is None or not state.absent or not state.looks:
            return
        if self.processes.opens_for_reading(caller.tid):
            self.guard.looked_absent(self.processes.actor(caller.tid), path, self.clock())

    def readlink(self, caller: Caller, file: FileView) -> None:
        """Following a link is not looking at it; nothing to record."""

    # -- open files -----------------------------------------------------------

    async def open(self, caller: Caller, file: FileView, flags: int) -> Session:
        actor = self.processes.actor(caller.tid)
        session = OpenFile(self, actor, caller.tid, flags)
        if flags & os.O_TRUNC:
            session.intend_truncate(file)
        return session

    async def create(self, caller: Caller, path: bytes, flags: int) -> Session:
        actor = self.processes.actor(caller.tid)
        session = OpenFile(self, actor, caller.tid, flags)
        self.judge(session.edit, path, Act.CREATE)
        session.creating = path
        return session

    def track(self, session: OpenFile, file: FileView) -> None:
        self.open_files[session] = None
        if session.writable:
            self._writable.setdefault(file, []).append(session)

    def untrack(self, session: OpenFile, file: FileView) -> None:
        self.open_files.pop(session, None)
        if session.writable:
            sessions = self._writable.get(file, [])
            if session in sessions:
                sessions.remove(session)
            if not sessions:
                self._writable.pop(file, None)

    def mapping_owner(self, session: OpenFile, file: FileView) -> Actor:
        """Whose mapping the kernel is flushing: only an O_RDWR handle can be mapped for it."""
        if session.flags & os.O_ACCMODE == os.O_RDWR:
            return session.actor
        for other in self._writable.get(file, ()):
            if other.flags & os.O_ACCMODE == os.O_RDWR:
                return other.actor
        return session.actor

    # -- judging --------------------------------------------------------------

    def judge(self, edit: Edit, path: bytes, act: Act, file: FileView | None = None) -> None:
        """Put what is to be said on record; raises OSError(EBUSY) when it is refused."""
        warning = self.guard.intend(edit, path, act, self.clock(), file)
        if warning is not None and warning.refused:
            raise OSError(errno.EBUSY, warning.message)

    def base(self, edit: Edit, path: bytes, file: FileView | None) -> None:
        """Digest what is about to be destroyed, if anybody may need to know."""
        if self.guard.wants_content(edit.actor, path):
            self.guard.base(edit, path, file.digest(self.digest_limit) if file is not None else None)

    # -- single changes -------------------------------------------------------

    def changing(self, caller: Caller, change: Change) -> AbstractContextManager[object]:
        actor = self.processes.actor(caller.tid)
        match change:
            case Truncated():
                return self._truncate(actor, change)
            case Removed():
                return self._remove(actor, change)
            case Renamed():
                return self._rename(actor, change)
            case Exchange():
                return self._exchange(actor, change)
            case Linked():
                return self._link(actor, change)
            case Made():
                return self._make(actor, change)

    @contextmanager
    def _truncate(self, actor: Actor, change: Truncated) -> Iterator[None]:
        file = change.file
        session = change.session if isinstance(change.session, OpenFile) else None
        edit = session.edit_of(actor) if session is not None else Edit(actor)
        before = file.size()
        if before == change.size:
            yield
            return
        act = Act.TRUNCATE if change.size == 0 else Act.WRITE
        paths = file.paths()
        for path in paths:
            self.judge(edit, path, act, file)
        for path in paths:
            self.base(edit, path, file)
        yield
        now = self.clock()
        for path in paths:
            self.guard.done(edit, path, act, now)
        if session is None:
            self.close(edit, file)

    @contextmanager
    def _remove(self, actor: Actor, change: Removed) -> Iterator[None]:
        edit = Edit(actor)
        self.judge(edit, change.path, Act.DELETE, change.file)
        self.base(edit, change.path, change.file)
        yield
        self.guard.done(edit, change.path, Act.DELETE, self.clock())

    @contextmanager
    def _rename(self, actor: Actor, change: Renamed) -> Iterator[None]:
        edit = Edit(actor)
        source, target = change.source, change.target
        if change.directory:
            for state in self.guard.ledger.below(source):
                if not state.absent:
                    self.judge(edit, state.path, Act.MOVE_AWAY)
            yield
            self.guard.renamed(edit, source, target, self.clock(), directory=True)
            return
        same = change.replaced is not None and self._same(change.file, change.replaced)
        if change.replaced is None:
            self.judge(edit, target, Act.CREATE)
        elif not same:
            self.judge(edit, target, Act.REPLACE, change.replaced)
        self.judge(edit, source, Act.MOVE_AWAY, change.file)
        if change.replaced is not None and not same:
            self.base(edit, target, change.replaced)
        yield
        self.guard.renamed(edit, source, target, self.clock(), directory=False, same=same)
        if change.file is not None:
            self.close(edit, change.file)

    def _same(self, one: FileView | None, other: FileView) -> bool:
        """Equal content, as far as it may be compared."""
        if one is None or one.is_regular() != other.is_regular() or one.size() != other.size():
            return False
        digest = one.digest(self.digest_limit)
        return digest is not None and digest == other.digest(self.digest_limit)

    @contextmanager
    def _exchange(self, actor: Actor, change: Exchange) -> Iterator[None]:
        edit = Edit(actor)
        pairs: list[tuple[bytes, FileView | None, bool]] = [
            (change.first, change.first_file, change.first_is_dir),
            (change.second, change.second_file, change.second_is_dir),
        ]
        touched: list[bytes] = []
        for path, file, directory in pairs:
            if directory:
                touched += [s.path for s in self.guard.ledger.below(path) if not s.absent]
            else:
                touched.append(path)
            for p in touched:
                self.judge(edit, p, Act.REPLACE, file)
            if not directory:
                self.base(edit, path, file)
        yield
        now = self.clock()
        for path in touched:
            self.guard.done(edit, path, Act.REPLACE, now)

    @contextmanager
    def _link(self, actor: Actor, change: Linked) -> Iterator[None]:
        edit = Edit(actor)
        self.judge(edit, change.target, Act.CREATE)
        known = [p for p in change.file.paths() if p != change.target]
        yield
        self.guard.linked(edit, known, change.target, self.clock())
        self.close(edit, change.file)

    @contextmanager
    def _make(self, actor: Actor, change: Made) -> Iterator[None]:
        edit = Edit(actor)
        self.judge(edit, change.path, Act.CREATE)
        yield
        self.guard.done(edit, change.path, Act.CREATE, self.clock())

    def close(self, edit: Edit, file: FileView) -> None:
        self.guard.closed(edit, lambda: file.digest(self.digest_limit), self.clock())


class OpenFile:
    """One open file description, as the guard sees it.

    Several processes may write through it (inherited descriptors): there is
    one write session for each.
    """

    def __init__(self, dispatch: Dispatch, actor: Actor, tid: int, flags: int) -> None:
        self._dispatch = dispatch
        self.actor = actor
        self.tid = tid
        self.flags = flags
        self.writable = flags & os.O_ACCMODE != os.O_RDONLY
        self.edit = Edit(actor)
        self.creating: bytes | None = None
        self.file: FileView | None = None
        self._edits: dict[Actor, Edit] = {actor: self.edit}
        self._tids: dict[int, tuple[Edit, float]] = {}
        self._had_bytes = False
        self._read = False
        self._size = 0
        self._pending: tuple[Edit, Act, Sequence[bytes]] | None = None

    def edit_of(self, actor: Actor) -> Edit:
        edit = self._edits.get(actor)
        if edit is None:
            edit = self._edits[actor] = Edit(actor)
        return edit

    # -- opening --------------------------------------------------------------

    def intend_truncate(self, file: FileView) -> None:
        self._had_bytes = file.size() > 0
        paths = file.paths()
        for path in paths:
            self._dispatch.judge(self.edit, path, Act.TRUNCATE, file)
        for path in paths:
            self._dispatch.base(self.edit, path, file)

    def opened(self, file: FileView) -> None:
        dispatch, now = self._dispatch, self._dispatch.clock()
        self.file = file
        dispatch.track(self, file)
        if self.creating is not None:
            dispatch.guard.done(self.edit, self.creating, Act.CREATE, now)
        elif self.flags & os.O_TRUNC:
            if self._had_bytes:
                for path in file.paths():
                    dispatch.guard.done(self.edit, path, Act.TRUNCATE, now)
        elif self.writable:
            self._size = file.size()
        if not self.writable:
            dispatch.guard.looked(self.actor, file.paths(), now)

    def aborted(self) -> None:
        """Nothing happened. What was said stays said: the attempt was stale all the same."""

    # -- reading and writing --------------------------------------------------

    def reading(self, tid: int) -> None:
        if self._read or self.file is None:
            return
        self._read = True
        guard = self._dispatch.guard
        paths = self.file.paths()
        if self.writable or any(
            (s := guard.ledger.find(p)) is not None and s.version > self._looked_at(s) for p in paths
        ):
            # An O_RDWR open becomes a look with its first READ; a look at the
            # open is made anew when the file changed before the first byte was taken.
            actor = self.actor if tid in (0, self.tid) else self._dispatch.processes.actor(tid)
            guard.looked(actor, paths, self._dispatch.clock())

    def _looked_at(self, state: object) -> int:
        own = self.actor.process.looks.get(state)  # type: ignore[call-overload]
        return int(own[0]) if own is not None else 0

    def writing(self, tid: int, offset: int, data: bytes) -> None:
        self._pending = None
        file = self.file
        if file is None:
            return
        edit = self._writer(tid, file)
        append = bool(self.flags & os.O_APPEND) and tid != 0
        if not append and offset + len(data) <= self._size and file.pread(len(data), offset) == data:
            return  # the same bytes again are no change
        paths = file.paths()
        act = Act.APPEND if append else Act.WRITE
        dispatch = self._dispatch
        for path in paths:
            if dispatch.guard.current(edit, path) or dispatch.guard.ignored(path):
                continue
            dispatch.judge(edit, path, act, file)
            if not append:
                dispatch.base(edit, path, file)
        self._pending = (edit, act, paths)

    def _writer(self, tid: int, file: FileView) -> Edit:
        """The session of whoever writes: not always who opened (inherited descriptors, exec)."""
        now = self._dispatch.clock()
        cached = self._tids.get(tid)
        if cached is not None and now < cached[1]:
            return cached[0]
        if tid == 0:
            return self.edit_of(self._dispatch.mapping_owner(self, file))
        actor = self._dispatch.processes.actor(tid)
        if actor.process.pid == 0:
            actor = self.actor  # cannot be resolved: counts as the opener
        edit = self.edit_of(actor)
        if edit is not self.edit and actor.task is not None and self.actor.task is None:
            for path in file.paths():
                self._dispatch.guard.adopt(self.edit, edit, path)
        self._tids[tid] = (edit, now + WRITER_SECONDS)
        return edit

    def wrote(self, offset: int, size: int) -> None:
        self._size = max(self._size, offset + size)
        if self._pending is None or size <= 0:
            return
        edit, act, paths = self._pending
        self._pending = None
        now = self._dispatch.clock()
        for path in paths:
            self._dispatch.guard.done(edit, path, act, now)

    # -- closing --------------------------------------------------------------

    def released(self) -> None:
        file = self.file
        if file is None:
            return
        self._dispatch.untrack(self, file)
        if not any(e.first for e in self._edits.values()):
            return
        here = set(file.paths())
        for edit in self._edits.values():
            for state in [s for s in edit.first if s.path not in here]:
                del edit.first[state]  # renamed or unlinked meanwhile: another file's business
            if edit.first:
                self._dispatch.close(edit, file)
