"""The observer that judges: every announcement of the filesystem ends here."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from stat import S_ISLNK
from typing import NamedTuple

from fsguard.core.guard import Change as Edit
from fsguard.core.guard import Guard
from fsguard.core.model import CONFLICT, Act, Actor
from fsguard.core.turns import Turns
from fsguard.dispatch import attributes
from fsguard.dispatch.afterwards import Afterwards
from fsguard.dispatch.openfile import OpenFile
from fsguard.dispatch.orphans import Orphans
from fsguard.dispatch.outside import Outsiders
from fsguard.dispatch.ports import Keeper, Processes
from fsguard.dispatch.waiting import Waiting
from fsguard.dispatch.waits import Wait
from fsguard.observer import (
    Caller,
    Change,
    Exchange,
    FileView,
    Linked,
    Made,
    Outside,
    Removed,
    Renamed,
    Session,
    Truncated,
)

__all__ = ["DIGEST_LIMIT", "Dispatch"]

DIGEST_LIMIT = 16 * 1024 * 1024
DESTROYS = frozenset({Act.WRITE, Act.TRUNCATE, Act.REPLACE, Act.DELETE})
APPEND_LIMIT = 1024 * 1024  # a log is not read anew for every line


class Opened(NamedTuple):
    """One open file, for whoever asks: who opened it, open(2)'s flags, its names now."""

    actor: Actor
    flags: int
    paths: Sequence[bytes]


class Dispatch(Afterwards):
    """The observer that judges.

    :param keeper: puts bytes by before they are destroyed; None: nothing is kept.
    :param wait_seconds: how long an open waits for its turn at most.
    :param digest_limit: files larger than this many bytes are never compared.
    """

    def __init__(
        self,
        guard: Guard,
        processes: Processes,
        *,
        turns: Turns[FileView] | None = None,
        keeper: Keeper | None = None,
        wait_seconds: float = 5.0,
        clock: Callable[[], float] = time.time,
        digest_limit: int = DIGEST_LIMIT,
    ) -> None:
        self.guard = guard
        self.processes = processes
        self.clock = clock
        self.keeper = keeper
        if keeper is not None:
            guard.on_told = keeper.told
        self.digest_limit = digest_limit
        self.take_records: Callable[[], object] = lambda: None  # see Afterwards; before anything is judged
        # Who reads through handles of the filesystem's own (see Observer.looked), by the same names.
        self.reading: Callable[[], Sequence[tuple[Hashable, Sequence[bytes]]]] = tuple
        self.same_bytes: Callable[[FileView, int, bytes], bool] = _same_bytes
        self.open_files: dict[OpenFile, None] = {}
        self._writable: dict[FileView, list[OpenFile]] = {}
        self.orphans = Orphans(guard, keeper)
        self.outsiders = Outsiders(guard, processes, self.misses)
        self.waiting = Waiting(
            guard, turns if turns is not None else Turns(), processes, wait_seconds, self._now, self._writable
        )

    def _now(self) -> float:
        return self.clock()  # it may be set to another one

    # -- looks ----------------------------------------------------------------

    def missed(self, caller: Caller, path: bytes) -> None:
        if self.misses(path) and self.processes.opens_for_reading(caller.tid):
            self.guard.looked_absent(self.processes.actor(caller.tid, (path,)), path, self.clock())

    def readlink(self, caller: Caller, file: FileView) -> None:
        """Reading a link is a look at it, following it is none."""
        paths = file.paths()
        if all(map(self.guard.ignored, paths)) or not self.processes.reads_link(caller.tid):
            return
        self.guard.looked(self.processes.actor(caller.tid, paths), paths, self.clock())

    def attribute(self, caller: Caller, file: FileView, name: str) -> bytes | None:
        return attributes.value(self.guard, self.processes.actor(caller.tid).task, file, name)

    def looked(self, caller: Caller, file: FileView) -> Actor | None:
        paths = file.paths()
        actor = self.processes.actor(caller.tid, paths)
        self.guard.looked(actor, paths, self.clock())
        return actor if self.processes.steady() else None

    def outside(self, change: Outside) -> Iterable[bytes]:
        return self.outsiders.happened(change)

    def misses(self, path: bytes) -> bool:
        state = self.guard.ledger.find(path)
        return state is not None and state.absent and bool(state.looks)

    # -- open files -----------------------------------------------------------

    async def open(self, caller: Caller, file: FileView, flags: int) -> Session:
        actor = self.processes.actor(caller.tid, file.paths())
        session = OpenFile(self, actor, caller.tid, flags)
        truncates = bool(flags & os.O_TRUNC)
        if not (session.writable or truncates):
            return session
        waiting = self.waiting
        if file in self._writable or waiting.leases.held or waiting.turns.busy(file):
            act = Act.TRUNCATE if truncates else Act.APPEND if flags & os.O_APPEND else Act.WRITE
            session.collided = await waiting.enter(session, caller, act, file)
        return self._may_open(session, file)

    async def go_on(self, wait: Wait) -> Session:
        """`open`, from where it had come to when a checkpoint was made."""
        session = wait.session
        session.collided = await self.waiting.go_on(wait)
        return self._may_open(session, wait.file)

    def _may_open(self, session: OpenFile, file: FileView) -> Session:
        if session.flags & os.O_TRUNC:
            try:
                session.intend_truncate(file)
                self.waiting.begin(session, file.paths(), file)
            except BaseException:
                session.aborted()
                raise
        return session

    async def create(self, caller: Caller, path: bytes, flags: int) -> Session:
        actor = self.processes.actor(caller.tid, (path,))
        session = OpenFile(self, actor, caller.tid, flags)
        session.creating = path
        session.collided = self.judge_change(session.edit, path, Act.CREATE)
        self.waiting.begin(session, (path,), None)
        return session

    def found(self, tid: int, file: FileView, flags: int) -> Session:
        session = OpenFile(self, self.processes.actor(tid, file.paths()), tid, flags & ~os.O_TRUNC)
        session.opened(file)
        return session

    def interrupted(self, unique: int) -> None:
        self.waiting.interrupted(unique)

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
                self.orphans.settle(file, session.part.writer.task, self.clock())

    def opened(self) -> Iterator[Opened]:
        """Every open file: those of the filesystem's own last."""
        for f in self.open_files:
            yield Opened(f.actor, f.flags, f.file.paths() if f.file is not None else ())
        for actor, paths in self.reading():
            if isinstance(actor, Actor):
                yield Opened(actor, os.O_RDONLY, paths)

    def forget_doubtful(self, least: int = 0) -> None:
        """What is on record may be old: see `Guard.forget_doubtful`."""
        self.guard.forget_doubtful(least)
        waiting = [wait.session for wait in self.waiting.pending.all().values()]
        for session in (*self.open_files, *waiting):
            for edit in session.edits():
                self.guard.nothing_begun(edit)
        self.orphans.clear()
        self.waiting.forget_waits()

    def open_total(self) -> int:
        return len(self.open_files) + len(self.reading())

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
        self.take_records()
        link = file is not None and not file.is_regular()
        if link and file is not None and not S_ISLNK(_mode(file)):
            return  # a FIFO or socket has no content that could be lost
        warning = self.guard.intend(edit, path, act, self.clock(), file, link)
        if warning is not None and warning.refused:
            if self.keeper is not None and file is not None and not warning.tail:
                base = self.guard.keeping(edit.actor, path).base
                warning.tail = self.keeper.diff(path, base, file)
            raise OSError(errno.EBUSY, warning.message)

    def judge_change(self, edit: Edit, path: bytes, act: Act, file: FileView | None = None) -> bool:
        """`judge` for what never waits: a change under another task's running turn is a collision.

        Returns whether it was one.
        """
        self.waiting.behind.check(path, edit.actor)
        turn = self.waiting.foreign(file, path, edit.actor) if file is not None else None
        if turn is None or file is None:
            self.judge(edit, path, act, file)
            return False
        self.waiting.collide(edit, path, act, turn)
        self.orphans.expect(file, path, act, edit)
        return True

    def base(self, edit: Edit, path: bytes, file: FileView | None, act: Act) -> None:
        """Put by, or at least digest, what is about to be destroyed, if anybody may miss it."""
        guard = self.guard
        if file is None or guard.based(edit, path):
            return
        wanted = guard.wants_content(edit.actor, path, act)
        digest: bytes | None = None
        if self.keeper is not None and act in DESTROYS and guard.wants_kept(edit.actor, path):
            digest = self._keep(self.keeper, edit, path, file, act.value)
            wanted = True
        if wanted:
            limit = min(self.digest_limit, APPEND_LIMIT) if act is Act.APPEND else self.digest_limit
            guard.base(edit, path, digest if digest is not None else file.digest(limit))

    def _keep(self, keeper: Keeper, edit: Edit, path: bytes, file: FileView, cause: str) -> bytes | None:
        keeping = self.guard.keeping(edit.actor, path)
        warning = next((w for w, p in reversed(edit.raised) if p == path), None)
        conflict = warning if warning is not None and warning.severity == CONFLICT else None
        kept = self.guard.kept_already(path)
        if kept is None:
            kept = keeper.keep(file, path, edit.actor, cause, keeping, conflict, self.clock())
        elif conflict is not None:
            keeper.told(kept, conflict)
        told = self.guard.put_by(edit, path, kept)
        if conflict is not None and told is conflict and "\n" not in conflict.tail:
            conflict.tail += keeper.diff(path, keeping.base, file)
        return kept.digest

    # -- single changes -------------------------------------------------------

    def changing(self, caller: Caller, change: Change) -> AbstractContextManager[object]:
        actor = self.processes.actor(caller.tid, _paths(change))
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
            self.waiting.behind.check(path, actor)
        if session is None or not paths or not session.turn_of(edit, paths, act, file):
            for path in paths:
                self.judge_change(edit, path, act, file)
        for path in paths:
            self.base(edit, path, file, act)
        yield
        now = self.clock()
        for path in paths:
            self.guard.done(edit, path, act, now)
        if session is None:
            self.close(edit, file)

    @contextmanager
    def _remove(self, actor: Actor, change: Removed) -> Iterator[None]:
        edit = Edit(actor)
        self.judge_change(edit, change.path, Act.DELETE, change.file)
        self.base(edit, change.path, change.file, Act.DELETE)
        yield
        self.guard.done(edit, change.path, Act.DELETE, self.clock())
        self.waiting.moved(change.file)

    @contextmanager
    def _rename(self, actor: Actor, change: Renamed) -> Iterator[None]:
        edit = Edit(actor)
        source, target = change.source, change.target
        if change.directory:
            below = self._judge_below(edit, source, Act.MOVE_AWAY)
            self.waiting.behind.check_below(target, actor)
            yield
            self.guard.renamed(edit, source, target, self.clock(), directory=True)
            for file in below:
                self.waiting.moved(file)
            return
        same = change.replaced is not None and self._same(change.file, change.replaced)
        self.waiting.behind.check(target, actor)
        if change.replaced is None:
            self.judge_change(edit, target, Act.CREATE)
        elif not same or self.waiting.foreign(change.replaced, target, actor) is not None:
            self.judge_change(edit, target, Act.REPLACE, change.replaced)
        self.judge_change(edit, source, Act.MOVE_AWAY, change.file)
        if change.replaced is not None and not same:
            self.base(edit, target, change.replaced, Act.REPLACE)
        self.base(edit, source, change.file, Act.MOVE_AWAY)
        yield
        free = change.replaced is None
        self.guard.renamed(edit, source, target, self.clock(), directory=False, same=same, free=free)
        if change.replaced is not None:
            self.waiting.moved(change.replaced)
        if change.file is not None:
            self.waiting.moved(change.file)
            self.close(edit, change.file)

    def _judge_below(self, edit: Edit, directory: bytes, act: Act) -> list[FileView]:
        """A directory moves, with everything in it; returns those files that are being written."""
        self.waiting.behind.check_below(directory, edit.actor)
        if self.guard.ignored(directory + b"/x"):
            return []  # node_modules: installers rename there thousands of times
        writable = {path: file for file in self.waiting.written() for path in file.paths()}
        inside = [path for path in writable if path.startswith(directory + b"/")]
        known = [s.path for s in self.guard.ledger.below(directory) if not s.absent]
        for path in dict.fromkeys(known + inside):
            self.judge_change(edit, path, act, writable.get(path))
        return [writable[path] for path in inside]

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
        below: list[FileView] = []
        for path, file, directory in pairs:
            if directory:
                below += self._judge_below(edit, path, Act.REPLACE)
                touched += [s.path for s in self.guard.ledger.below(path) if not s.absent]
            else:
                self.judge_change(edit, path, Act.REPLACE, file)
                touched.append(path)
                below += [file] if file is not None else []
        for path, file, directory in pairs:
            if not directory:
                self.base(edit, path, file, Act.REPLACE)
        yield
        now = self.clock()
        for path in touched:
            self.guard.done(edit, path, Act.REPLACE, now)
        for file in below:
            self.waiting.moved(file)

    @contextmanager
    def _link(self, actor: Actor, change: Linked) -> Iterator[None]:
        edit = Edit(actor)
        self.judge_change(edit, change.target, Act.CREATE)
        known = [p for p in change.file.paths() if p != change.target]
        yield
        self.guard.linked(edit, known, change.target, self.clock())
        self.close(edit, change.file)

    @contextmanager
    def _make(self, actor: Actor, change: Made) -> Iterator[None]:
        edit = Edit(actor)
        self.judge_change(edit, change.path, Act.CREATE)
        yield
        self.guard.done(edit, change.path, Act.CREATE, self.clock())

    def close(self, edit: Edit, file: FileView) -> None:
        needless = self.guard.closed(edit, lambda: file.digest(self.digest_limit), self.clock())
        if self.keeper is not None:
            for kept in needless:
                self.keeper.needless(kept)


def _same_bytes(file: FileView, offset: int, data: bytes) -> bool:
    """Whether `data` is what `file` holds at `offset`."""
    return file.pread(len(data), offset) == data


def _mode(file: FileView) -> int:
    try:
        return file.stat().st_mode
    except OSError:
        return 0


def _paths(change: Change) -> Sequence[bytes]:
    match change:
        case Truncated():
            return change.file.paths()
        case Removed() | Made():
            return (change.path,)
        case Renamed():
            return (change.target, change.source)
        case Exchange():
            return (change.first, change.second)
        case Linked():
            return (change.target,)
