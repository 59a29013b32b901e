"""One open file description, from OPEN to RELEASE, as the guard sees it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fsguard.core.guard import Change as Edit
from fsguard.core.model import Act, Actor, PathState, Task
from fsguard.dispatch.parts import Part
from fsguard.observer import FileView

if TYPE_CHECKING:
    from fsguard.dispatch.observer import Dispatch

__all__ = ["OpenFile"]

WRITER_SECONDS = 0.5
MAX_WRITERS = 256  # processes that write through one open file: a log of a build has very many


class OpenFile:
    """One open file description, as the guard sees it.

    Several processes may write through it (inherited descriptors): there is
    one write session for each task.
    """

    def __init__(self, dispatch: Dispatch, actor: Actor, tid: int, flags: int) -> None:
        self._dispatch = dispatch
        self.actor = actor
        self.tid = tid
        self.flags = flags
        self.writable = flags & os.O_ACCMODE != os.O_RDONLY
        self.edit = Edit(actor)
        self.creating: bytes | None = None
        self.collided = False  # a collision was said at the open; no more about the same
        self.part = Part(actor, flags)
        self.file: FileView | None = None
        # One session of each task; the processes that wrote last are remembered besides.
        self._sessions: dict[Task | None, Edit] = {actor.task: self.edit}
        self._edits: dict[Actor, Edit] = {actor: self.edit}
        self._tids: dict[int, tuple[Edit, float]] = {}
        self._had_bytes = False
        self._read = False
        self._size = 0
        self._pending: tuple[Edit, Act, Sequence[bytes]] | None = None

    def edit_of(self, actor: Actor) -> Edit:
        edit = self._edits.get(actor)
        if edit is None:
            ours = self._sessions.get(actor.task)
            if ours is None:
                edit = self._sessions[actor.task] = Edit(actor)
            else:
                edit = ours.joined(actor)
            if len(self._edits) >= MAX_WRITERS:
                self._edits.clear()
            self._edits[actor] = edit
        return edit

    def edits(self) -> list[Edit]:
        """All write sessions."""
        return list({id(edit): edit for edit in (*self._sessions.values(), *self._edits.values())}.values())

    # -- opening --------------------------------------------------------------

    def intend_truncate(self, file: FileView) -> None:
        self._had_bytes = file.size() > 0
        paths = file.paths()
        if not self.collided:
            for path in paths:
                self._dispatch.judge(self.edit, path, Act.TRUNCATE, file)
        for path in paths:
            self._dispatch.base(self.edit, path, file, Act.TRUNCATE)

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
        self._dispatch.waiting.leave(self)

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
            actor = self.actor if tid in (0, self.tid) else self._dispatch.processes.actor(tid, paths)
            guard.looked(actor, paths, self._dispatch.clock())

    def _looked_at(self, state: PathState) -> int:
        own = self.actor.process.looks.get(state)
        return own[0] if own is not None else 0

    def writing(self, tid: int, offset: int, data: bytes) -> None:
        self._pending = None
        file = self.file
        if file is None:
            return
        edit = self._writer(tid, file)
        append = bool(self.flags & os.O_APPEND) and tid != 0
        if not append and offset + len(data) <= self._size and self._dispatch.same_bytes(file, offset, data):
            return  # the same bytes again are no change
        paths = file.paths()
        act = Act.APPEND if append else Act.WRITE
        dispatch = self._dispatch
        collided = bool(paths) and self.turn_of(edit, paths, act, file)
        for path in paths:
            if dispatch.guard.current(edit, path) or dispatch.guard.ignored(path):
                continue
            if not collided:
                dispatch.judge(edit, path, act, file)
            dispatch.base(edit, path, file, act)
        self._pending = (edit, act, paths)

    def turn_of(self, edit: Edit, paths: Sequence[bytes], act: Act, file: FileView) -> bool:
        """Begin or go on with the turn; True when that is a collision, which has been said."""
        waiting, part = self._dispatch.waiting, self.part
        append, now = act is Act.APPEND, waiting.now()
        if waiting.leases.held:
            waiting.leases.wrote(paths, edit.actor.task, now)
        if part.goes_on(edit.actor, append, now, waiting.turns.lapse):
            return False
        return waiting.write(self, edit, paths, act, file)

    def _writer(self, tid: int, file: FileView) -> Edit:
        """The session of whoever writes: not always who opened (inherited descriptors, exec)."""
        now = self._dispatch.clock()
        cached = self._tids.get(tid)
        if cached is not None and now < cached[1]:
            return cached[0]
        if tid == 0:
            return self.edit_of(self._dispatch.mapping_owner(self, file))
        actor = self._dispatch.processes.actor(tid, file.paths())
        if actor.process.pid == 0:
            actor = self.actor  # cannot be resolved: counts as the opener
        edit = self.edit_of(actor)
        if edit is not self.edit and actor.task is not None and self.actor.task is None:
            for path in file.paths():
                self._dispatch.guard.adopt(self.edit, edit, path)
        if len(self._tids) >= MAX_WRITERS:
            self._tids.clear()
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
        if not paths and self.file is not None:
            self._dispatch.orphans.written(self.file)

    def goes_on(self, tid: int) -> bool:
        file, part, dispatch = self.file, self.part, self._dispatch
        if file is None or self.collided or part.turn is not None or dispatch.waiting.leases.held:
            return False
        edit, paths = self._writer(tid, file), file.paths()
        append = bool(self.flags & os.O_APPEND)
        turns = dispatch.waiting
        if edit.actor.task is not None and not (
            part.out or part.goes_on(edit.actor, append, turns.now(), turns.turns.lapse)
        ):
            return False
        guard = dispatch.guard
        return all(guard.current(edit, path) or guard.ignored(path) for path in paths)

    def went_on(self, last: float) -> None:
        if last > 0 and self.file is not None:
            self.part.wrote = max(self.part.wrote, last)
            self._size = max(self._size, self.file.size())

    # -- closing --------------------------------------------------------------

    def released(self) -> None:
        file = self.file
        if file is None:
            return
        self._dispatch.untrack(self, file)
        self._dispatch.waiting.leave(self)
        if not any(e.first or e.raised for e in self._sessions.values()):
            return
        here = set(file.paths())
        for edit in self._sessions.values():
            self._dispatch.guard.spared(edit)
            for state in [s for s in edit.first if s.path not in here]:
                del edit.first[state]  # renamed or unlinked meanwhile: another file's business
            if edit.first:
                self._dispatch.close(edit, file)
