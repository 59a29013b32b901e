"""`reverted`: telling a task that its work was undone by a sibling.

Judged when the sibling's write session ends: the content is what it was before
the victim wrote, or the file is gone. A deletion waits a moment for a new file
of that name, because `git checkout -- f` is an unlink and a create.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from fsguard.core.ledger import GONE
from fsguard.core.model import Act, Actor, Command, Kept, PathState, Warning, Write
from fsguard.core.rules import Finding

__all__ = ["Deletion", "Undo", "victims_of_content", "victims_of_deletion"]

WAIT_PROCESS = 1.0
WAIT_RUN = 3.0


@dataclass(slots=True)
class Undo:
    """How to take back a change that turned out to be none."""

    version: int
    absent: bool
    writers: list[Write]
    contents: list[tuple[int, bytes]]

    @classmethod
    def of(cls, state: PathState) -> Undo:
        return cls(state.version, state.absent, [replace(w) for w in state.writers], list(state.contents))

    def apply(self, state: PathState, author: Actor) -> bool:
        """Forget what `author` did to `state` since; False if somebody else wrote too."""
        later = [w for w in state.writers if w.version > self.version]
        if any(w.process is not author.process and w.task is not author.task for w in later):
            return False
        state.writers = self.writers
        state.version, state.absent = self.version, self.absent
        return True


@dataclass(slots=True)
class Deletion:
    """A path has just been deleted; what to do about it is not yet clear."""

    actor: Actor
    time: float
    write: Write
    version: int
    victims: list[Write]
    undo: Undo
    digest: bytes | None
    seen: int = 0
    raised: list[tuple[Warning, bytes]] = field(default_factory=list)
    kept: Kept | None = None
    view: Finding | None = None

    def ripe(self, now: float, gone: Callable[[Actor], bool], ended: Command | None) -> bool:
        command = self.actor.command
        if command is ended or command.ended is not None:
            return True
        if command.key.startswith("p"):
            return now - self.time > WAIT_PROCESS or gone(self.actor)
        return now - self.time > WAIT_RUN


def victims_of_deletion(state: PathState, actor: Actor) -> list[Write]:
    """Whose work is in the present content of `state`, but `actor`'s own; before the deletion."""
    return _authors(state.writers, actor)


def victims_of_content(before: Undo, actor: Actor, first: int, digest: bytes) -> list[Write]:
    """Whose work is undone when `actor` (from version `first` on) left content `digest`.

    `before` is what was on record when `actor` began.
    """
    writers = before.writers
    if writers and writers[-1].act in GONE:
        return _undeleted(before, actor, first, digest)
    for version, known in reversed(before.contents):
        if version >= first or known != digest:
            continue
        between = [w for w in writers if version < w.version and w.first < first]
        return _authors(between, actor)
    return []


def _undeleted(before: Undo, actor: Actor, first: int, digest: bytes) -> list[Write]:
    """Whose deletion is undone; not of a file that the deleter itself had made (a temporary, a lock)."""
    last = before.writers[-1]
    if last.task is None or (actor.task is not None and last.author == actor.task.id):
        return []
    if not any(known == digest and version < min(first, last.version) for version, known in before.contents):
        return []
    own = False
    for w in reversed(before.writers):
        if w.author != last.author:
            break
        own = w.made
    return [] if own else [last]


def _authors(writes: list[Write], actor: Actor) -> list[Write]:
    """The latest write of each other task of which something is left in the content.

    Whoever made the content anew kept what it had seen (`sed -i`, a formatter,
    an agent that edits what it has read) and lost what it had not.
    """
    found: dict[str, Write] = {}
    kept: int | None = None
    for w in reversed(writes):
        if w.buried or (kept is not None and w.first > kept):
            continue
        if w.brought is actor.command:
            continue  # the name is one that this command made up
        emptied = w.act is Act.TRUNCATE and w is not writes[-1]
        if not emptied and w.task is not None and (actor.task is None or w.author != actor.task.id):
            found.setdefault(w.task.id, w)
        if w.whole:
            seen = 0 if w.act is Act.TRUNCATE else w.seen
            kept = seen if kept is None else min(kept, seen)
    return list(found.values())
