"""What the filesystem's lane has done without asking, told in the order in which it happened.

It asks first where anything could be refused or would have to wait (`makes_freely`).
What it makes nobody else has to do with until this is told: the guard judges it
as it would have judged it then.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, cast

from fsguard.core.guard import Change as Edit
from fsguard.core.guard import Guard
from fsguard.core.model import Act, Actor, Command, Process
from fsguard.dispatch.openfile import OpenFile
from fsguard.observer import FileView, Session

if TYPE_CHECKING:
    from fsguard.dispatch.observer import Dispatch
    from fsguard.dispatch.waiting import Waiting

__all__ = ["Afterwards"]

_FORGOTTEN = Actor(None, Process(0, 0, "?"), Command("p0", "a process that is not remembered any more"))


def _actor(who: Hashable | None) -> Actor:
    return who if isinstance(who, Actor) else _FORGOTTEN


class Afterwards:
    """The part of the observer that is told, not asked."""

    guard: Guard
    waiting: Waiting
    clock: Callable[[], float]

    def looks(self, looks: Iterable[tuple[Hashable, Sequence[bytes], float]]) -> None:
        for actor, paths, at in looks:
            if isinstance(actor, Actor):
                self.guard.looked(actor, paths, at)

    def makes_freely(self) -> bool:
        return not self.waiting.leases.held and not self.guard.policies.blocking()

    def made(self, who: Hashable | None, path: bytes, file: FileView | None, at: float, wrote: bool) -> None:
        guard, edit = self.guard, Edit(_actor(who))
        if guard.ledger.find(path) is not None:
            guard.intend(edit, path, Act.CREATE, at, file, late=True)
        guard.done(edit, path, Act.CREATE, at)
        if wrote:
            guard.done(edit, path, Act.WRITE, at)
        if file is not None and file.paths():
            self.close(edit, file)

    def making(
        self,
        who: Hashable | None,
        paths: Sequence[bytes],
        file: FileView,
        flags: int,
        tid: int,
        at: float,
        wrote: bool,
    ) -> Session:
        actor = _actor(who)
        session = OpenFile(cast("Dispatch", self), actor, tid, flags)
        for path in paths[:1]:
            session.creating = path
            self.guard.intend(session.edit, path, Act.CREATE, at, file, late=True)
        self.waiting.begin(session, paths, None)
        session.opened(file)
        if wrote:
            for path in paths[:1]:
                self.guard.done(session.edit, path, Act.WRITE, at)
            session.went_on(self.waiting.now())
        return session

    def removed(self, who: Hashable | None, path: bytes, at: float) -> None:
        edit = Edit(_actor(who))
        self.guard.intend(edit, path, Act.DELETE, at, late=True)
        self.guard.done(edit, path, Act.DELETE, at)

    def linked(self, who: Hashable | None, path: bytes, file: FileView, at: float) -> None:
        edit = Edit(_actor(who))
        self.guard.intend(edit, path, Act.CREATE, at, file, late=True)
        self.guard.linked(edit, [p for p in file.paths() if p != path], path, at)
        self.close(edit, file)

    def close(self, edit: Edit, file: FileView) -> None:
        raise NotImplementedError
