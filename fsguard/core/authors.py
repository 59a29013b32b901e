"""Of whom something is left in a content: `Write.left`, kept up with every change.

The bytes are not compared. Whoever made a content anew is taken to have kept
what it had seen (`sed -i`, a formatter, an agent that edits what it has read)
and to have lost what it had not. A write in place or an append loses nothing.
"""

from __future__ import annotations

from fsguard.core.model import Act, Actor, Command, Content, PathState, Task, Write

__all__ = ["GONE", "authors", "bring", "changing", "lost", "revive"]

GONE = frozenset({Act.DELETE, Act.MOVE_AWAY})


def authors(writes: list[Write], actor: Actor) -> list[Write]:
    """The latest write of each other task of which something is left."""
    found: dict[str, Write] = {}
    if writes and writes[-1].act is Act.TRUNCATE:
        writes = writes[-1:]  # it is empty
    for w in reversed(writes):
        if not w.left or w.task is None or w.brought is actor.command:
            continue  # `brought`: the name is one that this command made up
        if actor.task is None or w.author != actor.task.id:
            found.setdefault(w.task.id, w)
    return list(found.values())


def changing(state: PathState, act: Act, known: int, same: bool, author: str | None) -> None:
    """`act` is about to be done by `author`, who knows the path up to version `known`.

    `same`: it is the author of the latest write who goes on.
    """
    last = state.writers[-1] if state.writers else None
    if act in GONE and author is not None:
        for w in state.writers:
            w.given_up = w.given_up or w.author == author
    if act in GONE or (last is not None and last.act is Act.TRUNCATE and not same):
        lost(state, 0)  # gone, or it was empty
        for w in state.writers:
            w.past = w.past or act in GONE
    elif act in (Act.TRUNCATE, Act.REPLACE):
        lost(state, known)


def lost(state: PathState, known: int) -> list[Write]:
    """What was written after version `known` is in the content no more; returns what still is."""
    still = []
    for w in state.writers:
        w.left = w.left and w.since <= known
        if w.left:
            still.append(w)
    return still


def revive(state: PathState, content: Content, act: Write) -> None:
    """`act` has put back an earlier content: whose work was in that is back with it.

    But for those who had deleted it themselves: two tasks that make and remove the
    same lock file, or build output, lose nothing to one another.
    """
    for w in state.writers:
        if w is not act:
            w.left = w.first in content.left and not w.given_up
            w.past = w.past and not w.left


def bring(
    source: PathState, target: PathState, version: int, known: int, mover: Task | None, by: Command | None
) -> list[Write]:
    """The writers of `target` when `mover` gives that name to the file called `source`.

    `version`: that of `target` then; `known`: up to there the new content may be made from what stood at
    `target`; `by`: the command, when nothing stood there.
    """
    author = mover.id if mover is not None else None
    for w in target.writers:
        if w.since > known and author not in w.buried:
            w.buried = (*w.buried, author)
    if not target.absent:
        lost(target, known)
    moved = [w.copy() for w in source.writers if not w.past]
    had = {w.first: w.since for w in target.writers}
    for write in moved:
        write.brought = by
        write.came = had.get(write.first, version)  # or moved away and back
    again = {w.first for w in moved}
    stayed = [w for w in target.writers if w.first not in again]
    return sorted([*stayed, *moved], key=lambda w: w.version)
