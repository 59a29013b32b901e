"""What is to become of bytes that somebody is about to destroy: digested, put by, or let go."""

from __future__ import annotations

from dataclasses import dataclass

from fsguard.core import wording
from fsguard.core.changes import Change
from fsguard.core.ledger import Ledger
from fsguard.core.model import Act, Actor, Kept, Kind, PathState, Warning
from fsguard.core.policy import Patterns
from fsguard.core.reverts import Undo, victims_of_deletion
from fsguard.core.tasks import Tasks

__all__ = ["Custody", "Keeping"]

MAX_KEPT = 16


@dataclass(frozen=True, slots=True)
class Keeping:
    """What belongs to bytes that are put by: their number, whose they are, what the task had seen."""

    number: int
    sibling: str | None
    base: Kept | None


class Custody:
    """The part of the guard that says what is worth keeping."""

    ledger: Ledger
    tasks: Tasks
    ignored: Patterns

    def wants_content(self, actor: Actor, path: bytes, act: Act) -> bool:
        """Should the present content be digested before `actor` does `act`?

        Only where somebody else may miss it, now or later: a task that is alone
        deletes its own work and appends to it without being read over the shoulder.
        """
        if self.ignored(path):
            return False
        state = self.ledger.find(path)
        last = state.writers[-1] if state is not None and state.writers else None
        own = last is not None and last.task is not None and last.task is actor.task
        if act is Act.MOVE_AWAY and state is not None and state.writers and state.writers[0].made:
            # Not of a temporary file that takes its place.
            return any(w.task is not actor.task for w in state.writers)
        alone = len(self.tasks) <= (1 if actor.task is not None else 0)
        return len(self.tasks) > 0 and not (own and alone and act in (Act.DELETE, Act.APPEND))

    def wants_kept(self, actor: Actor, path: bytes) -> bool:
        """Should the bytes that `actor` is about to destroy be put by?

        Lazily: what somebody else wrote, or nobody on record, and what somebody
        else has seen as it is now. A task's own work over its own costs nothing.
        """
        if self.ignored(path) or not len(self.tasks):
            return False
        state = self.ledger.find(path)
        if state is None:
            return True
        if state.self_locking or state.absent:
            return False
        last = state.writers[-1] if state.writers else None
        if last is None or last.task is None or last.task is not actor.task:
            return True
        return any(
            look.version >= state.version and not look.blind
            for task, look in state.looks.items()
            if task is not actor.task
        )

    def keeping(self, actor: Actor, path: bytes) -> Keeping:
        """What is to be noted of bytes that are about to be put by."""
        state = self.ledger.at(path)
        self.ledger.version += 1
        base = self.base_of(actor, path)
        theirs = victims_of_deletion(state, actor) or state.writers[-1:]
        return Keeping(self.ledger.version, theirs[0].author if theirs else None, base)

    def base_of(self, actor: Actor, path: bytes) -> Kept | None:
        """The kept bytes of what `actor` works from, where there are any."""
        state = self.ledger.at(path)
        seen = self._seen(state, actor)
        return next((k for v, k in reversed(state.kept) if v == seen and k.reason is None), None)

    def has_kept(self, path: bytes, kept: Kept) -> None:
        """The present bytes of `path` have been put by."""
        state = self.ledger.at(path)
        state.kept.append((state.version, kept))
        del state.kept[:-MAX_KEPT]

    def kept_already(self, path: bytes) -> Kept | None:
        """The kept bytes of the present version, if they were put by before."""
        state = self.ledger.find(path)
        if state is None or not state.version or not state.kept or state.kept[-1][0] != state.version:
            return None
        kept = state.kept[-1][1]
        return kept if kept.reason is None else None

    @staticmethod
    def _seen(state: PathState, actor: Actor) -> int:
        """The version that `actor` works from: what its process read, else what its task saw."""
        own = actor.process.looks.get(state)
        if own is not None and own[0] < state.version:
            return own[0]
        look = state.looks.get(actor.task) if actor.task is not None else None
        return look.version if look is not None else 0

    def put_by(self, change: Change, path: bytes, kept: Kept) -> Warning | None:
        """The bytes are kept (or not, and why): the warning says how to bring them back."""
        state = self.ledger.at(path)
        change.kept[state] = kept
        if not state.kept or state.kept[-1] != (state.version, kept):
            self.has_kept(path, kept)
        warning = next((w for w, p in reversed(change.raised) if p == path), None)
        if warning is not None and warning.kind is not Kind.STALE_VIEW and not warning.tail:
            warning.tail = wording.remedy(path, kept)
        return warning

    def based(self, change: Change, path: bytes) -> bool:
        """True when it is known what `path` held before this session's first change."""
        state = self.ledger.find(path)
        return state is not None and state in change.bases

    def base(self, change: Change, path: bytes, digest: bytes | None) -> None:
        """`digest` is what `path` holds before the first change of this session."""
        state = self.ledger.at(path)
        if state in change.bases:
            return
        change.bases[state] = (Undo.of(state, change.actor.task), digest)
        if digest is not None:
            self.ledger.remember_content(state, digest)
