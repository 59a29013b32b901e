"""`reverted`: telling a task that its work was undone by a sibling.

Judged when the sibling's write session ends: the content is what it was before
the victim wrote, or the file is gone. A deletion waits a moment for a new file
of that name, because `git checkout -- f` is an unlink and a create.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fsguard.core.authors import GONE, authors
from fsguard.core.model import Act, Actor, Command, Content, Kept, PathState, Task, Warning, Write
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
    contents: list[Content]
    noted: int

    @classmethod
    def of(cls, state: PathState, task: Task | None) -> Undo:
        """`task` is about to change `state`."""
        look = state.looks.get(task) if task is not None else None
        noted = look.noted if look is not None else 0
        writers = [w.copy() for w in state.writers]
        return cls(state.version, state.absent, writers, list(state.contents), noted)

    def holding(self, digest: bytes, first: int) -> Content | None:
        """The latest content before version `first` that was the same as `digest`."""
        return next((c for c in reversed(self.contents) if c.version < first and c.digest == digest), None)

    def apply(self, state: PathState, author: Actor) -> bool:
        """Forget what `author` did to `state` since; False if somebody else wrote too."""
        later = [w for w in state.writers if w.version > self.version and w.brought is not author.command]
        if any(w.process is not author.process and w.task is not author.task for w in later):
            return False
        state.writers = self.writers
        state.version, state.absent = self.version, self.absent
        look = state.looks.get(author.task) if author.task is not None else None
        if look is not None:
            look.noted = self.noted  # a note that is taken back may be due again
        return True

    def replaced(self, state: PathState, seen: int) -> None:
        """It was deleted since, by a command that makes it anew from what it knew at version `seen`."""
        before = {w.first: w for w in self.writers}
        for write in state.writers:
            if write.version > self.version and write.act in GONE:
                write.act = Act.REPLACE
            was = before.get(write.first)
            write.left = write.left or (was is not None and was.left and was.since <= seen)
            write.given_up = was is not None and was.given_up  # a replacement gives up nothing
            write.past = was is not None and was.past


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
    return authors(state.writers, actor)


def victims_of_content(before: Undo, actor: Actor, first: int, earlier: Content) -> list[Write]:
    """Whose work is undone when `actor` (from version `first` on) put back the content `earlier`.

    `before` is what was on record when `actor` began.
    """
    writers = before.writers
    if writers and writers[-1].act in GONE:
        return _undeleted(before, actor)

    left = {first for first, _ in earlier.left}

    def later(w: Write) -> bool:
        return w.reach > earlier.version or (w.came > earlier.version and w.first not in left)

    return authors([w for w in writers if later(w) and w.first < first], actor)


def _undeleted(before: Undo, actor: Actor) -> list[Write]:
    """Whose deletion is undone; not of a file that the deleter itself had made (a temporary, a lock)."""
    last = before.writers[-1]
    if last.task is None or (actor.task is not None and last.author == actor.task.id):
        return []
    own = False
    for w in reversed(before.writers):
        if w.author != last.author:
            break
        own = w.made
    return [] if own else [last]
