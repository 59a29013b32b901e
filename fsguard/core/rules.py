"""The table of rules: an act on a path, against what is on record → what to say.

    stale_write      a version by another task is overwritten or deleted unseen
    lost_update      a process writes from a copy older than somebody's change
    resurrected      a path comes back that a sibling deleted since it was seen
    external_write   as stale_write, the other being no task (an editor, a person)
    stale_view       nothing is lost, but the agent's own picture is old
    partial_view     a whole-file overwrite after a partial read

`judge` looks, it changes nothing. The remaining kinds come from elsewhere:
`reverted` from `fsguard.core.reverts`, `stale_read` when a child ends.
"""

from __future__ import annotations

from dataclasses import dataclass

from fsguard.core.model import Act, Actor, Kind, Look, PathState, Task, Write

__all__ = ["Finding", "judge", "old_picture", "unseen"]

_WHOLE = frozenset({Act.TRUNCATE, Act.REPLACE})
_GONE = frozenset({Act.DELETE, Act.MOVE_AWAY})


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule found: the kind, and the changes that were not seen.

    `writes` are newest first; `read_time` is when the task's picture was last
    true, None if it never had one.
    """

    kind: Kind
    act: Act
    writes: tuple[Write, ...]
    read_time: float | None


def unseen(state: PathState, task: Task) -> list[Write]:
    """Changes by others that `task` has not seen, newest first."""
    look = state.looks.get(task)
    seen, came = (look.version, look.came) if look is not None else (max(state.floor, task.floor), 0)
    return [
        w
        for w in reversed(state.writers)
        if w.after(seen, came) and w.author != task.id and task.id not in w.buried
    ]


def judge(state: PathState, actor: Actor, act: Act) -> Finding | None:
    """What is to be said when `actor` does `act` to the path now; None: nothing."""
    task = actor.task
    if task is None:
        return None
    look = state.looks.get(task)
    others = unseen(state, task)
    if act is Act.CREATE or state.absent:
        return _recreate(state, look, others, act)
    if act is Act.APPEND:
        return _append(state, actor, look)
    own = _lost_update(state, actor, act)
    if own is not None:
        return own
    if others and not _process_knows(state, actor):
        siblings = tuple(w for w in others if w.task is not None)
        looked = look is not None and not look.blind
        read_time = look.time if look is not None and looked else None
        if siblings:
            return Finding(Kind.STALE_WRITE, act, siblings, read_time)
        if looked:
            return Finding(Kind.EXTERNAL_WRITE, act, tuple(others), read_time)
        return None
    if look is None:
        return None
    return _stale_view(state, actor, look, act) or _partial(look, act)


def _recreate(state: PathState, look: Look | None, others: list[Write], act: Act) -> Finding | None:
    if look is None or not look.existed or not others or not state.absent:
        return None
    last = others[0]
    if last.act not in _GONE:
        return None
    kind = Kind.EXTERNAL_WRITE if last.task is None else Kind.RESURRECTED
    return Finding(kind, act, (last,), look.time)


def _append(state: PathState, actor: Actor, look: Look | None) -> Finding | None:
    """Appends commute with appends; over anything else they only age the picture."""
    if look is None:
        return None
    return _stale_view(state, actor, look, Act.APPEND)


def _lost_update(state: PathState, actor: Actor, act: Act) -> Finding | None:
    """Judged by what this very process read, whatever its task has seen since."""
    own = actor.process.looks.get(state)
    if own is None or act in _GONE or actor.task is None:
        return None
    look = state.looks.get(actor.task)
    reader = look.process if look is not None and look.version >= state.version else None
    if reader is not None and reader is not actor.process and reader.below(actor.process):
        return None  # `text=$(cat f)`: what a process's own child reads flows back to it
    version, when = own
    lost = tuple(w for w in reversed(state.writers) if w.after(version) and _rival(w, actor))
    return Finding(Kind.LOST_UPDATE, act, lost, when) if lost else None


def _rival(write: Write, actor: Actor) -> bool:
    """Another task, or a parallel command of the same one; never one's own helper."""
    task = actor.task
    if write.task is None or task is None or task.id in write.buried:
        return False
    if write.author == task.id:
        return write.command is not actor.command and not write.process.kin(actor.process)
    return not task.related(write.task)


def _process_knows(state: PathState, actor: Actor) -> bool:
    """The process itself has read what is there now (its command may be bulk)."""
    own = actor.process.looks.get(state)
    return own is not None and own[0] >= state.version


def old_picture(state: PathState, actor: Actor) -> Finding | None:
    """For a deletion by a command that makes the file anew, as `git stash` does: what of it was old.

    `lost_update` by a process's own copy, else `stale_view`.
    """
    lost = _lost_update(state, actor, Act.REPLACE)
    if lost is not None:
        return lost
    look = state.looks.get(actor.task) if actor.task is not None else None
    return _stale_view(state, actor, look, Act.REPLACE) if look is not None else None


def _stale_view(state: PathState, actor: Actor, look: Look, act: Act) -> Finding | None:
    before = look.before if look.command is actor.command else (look.version, look.time)
    if before is None or look.blind or act in _GONE:
        return None
    seen, when = before
    task = actor.task
    assert task is not None
    news = tuple(
        w
        for w in reversed(state.writers)
        if w.after(max(seen, look.noted), look.came)
        and w.task is not None
        and w.author != task.id
        and task.id not in w.buried
        and not (w.appended and act is Act.APPEND)
    )
    return Finding(Kind.STALE_VIEW, act, news, when) if news else None


def _partial(look: Look, act: Act) -> Finding | None:
    if look.partial and act in _WHOLE:
        return Finding(Kind.PARTIAL_VIEW, act, (), look.time)
    return None
