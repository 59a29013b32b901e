"""Of whom something is left in a content: `Write.left`, kept up with every change.

The bytes are not compared. Whoever made a content anew is taken to have kept
what it had seen (`sed -i`, a formatter, an agent that edits what it has read)
and to have lost what it had not. A write in place or an append loses nothing.
"""

from __future__ import annotations

from fsguard.core.model import Act, Actor, Content, PathState, Write

__all__ = ["GONE", "authors", "bring", "changing", "lost", "revive", "trim"]

GONE = frozenset({Act.DELETE, Act.MOVE_AWAY})


def authors(writes: list[Write], actor: Actor) -> list[Write]:
    """The latest write of each other task of which something is left."""
    found: dict[str, Write] = {}
    for w in reversed(writes):
        if not w.left or w.task is None or w.brought is actor.command:
            continue  # `brought`: the name is one that this command made up
        if actor.task is None or w.author != actor.task.id:
            found.setdefault(w.task.id, w)
    return list(found.values())


def changing(state: PathState, act: Act, known: int, same: bool, author: str | None) -> tuple[int, ...]:
    """`act` is about to be done by `author`, who knows the path up to version `known`.

    `same`: it is the program of the latest write that goes on. Returns whose work it
    has emptied the file of, and may fill in again.
    """
    last = state.writers[-1] if state.writers else None
    if last is not None and last.act is Act.TRUNCATE:  # it is empty
        kept, last.kept = last.kept, ()
        if not same:
            lost(state, 0)
        for w in state.writers:
            w.left = w.left or (same and w.first in kept)
    if act in GONE:
        for w in state.writers:
            w.past, w.given_up = True, w.given_up or (author is not None and w.author == author)
        lost(state, 0)
    elif act in (Act.TRUNCATE, Act.REPLACE):
        still = tuple(w.first for w in lost(state, known))
        if act is Act.TRUNCATE:
            lost(state, 0)
            return still
    return ()


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
    left = dict(content.left)
    for w in state.writers:
        if w is not act:
            came = w.left and w.came == act.version  # with the file that has just been moved here
            if not came:
                w.left = w.first in left and not w.given_up
                w.back = left.get(w.first, 0)
            w.past = w.past and not w.left


def bring(
    source: PathState, target: PathState, version: int, known: int, actor: Actor, free: bool
) -> list[Write]:
    """The writers of `target` when `actor` gives that name to the file called `source`.

    `version`: that of `target` then; `known`: up to there the new content may be
    made from what stood at `target`; `free`: nothing did.
    """
    author = actor.task.id if actor.task is not None else None
    for w in target.writers:
        if w.since > known and author not in w.buried:
            w.buried = (*w.buried, author)
    if not target.absent:
        lost(target, known)
    moved = [w.copy() for w in source.writers if not w.past]
    had = {(w.first, w.version): w.since for w in target.writers} if target.absent else {}
    for write in moved:
        write.brought, write.made = actor.command, write.made and free
        write.came = had.get((write.first, write.version), version)  # or moved away and back
    again = {w.first for w in moved}
    stayed = [w for w in target.writers if w.first not in again]
    return sorted([*stayed, *moved], key=lambda w: w.version)


def trim(writers: list[Write], limit: int) -> None:
    """Forget what is too much: what a later write of the same author says as well, else the oldest.

    Whoever has not seen the oldest has not seen the next one either, unless that is hidden from it.
    """
    while len(writers) > limit:
        del writers[_spare(writers, limit)]


def _spare(writers: list[Write], limit: int) -> int:
    for same in (_same_run, _same_task):
        for i, w in enumerate(writers[: limit // 3]):
            if any(same(w, later) and _says_as_much(w, later) for later in writers[i + 1 :]):
                return i
    return 0


def _same_run(one: Write, other: Write) -> bool:
    return one.process is other.process and one.command is other.command


def _same_task(one: Write, other: Write) -> bool:
    return one.task is other.task


def _says_as_much(one: Write, later: Write) -> bool:
    return (
        (later.left or not one.left)
        and (one.appended or not later.appended)
        and (later.made or not one.made)
        and set(later.buried) <= set(one.buried)
    )
