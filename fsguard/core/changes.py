"""A write session: what one actor does to a file, from its first change to its end."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fsguard.core.model import Actor, Kept, PathState, Warning
from fsguard.core.reverts import Undo

__all__ = ["Change"]


@dataclass(slots=True, eq=False)
class Change:
    """One write session: an open file that is written, or a single change.

    `bases` holds, per path, what was there before the session's first change, `blind` the
    paths that were given a file which the task had not seen.
    """

    actor: Actor
    raised: list[tuple[Warning, bytes]] = field(default_factory=list)
    bases: dict[PathState, tuple[Undo, bytes | None]] = field(default_factory=dict)
    kept: dict[PathState, Kept] = field(default_factory=dict)
    first: dict[PathState, int] = field(default_factory=dict)
    last: dict[PathState, int] = field(default_factory=dict)
    blind: set[PathState] = field(default_factory=set)

    def joined(self, actor: Actor) -> Change:
        """The same session, gone on with by another process of the task: `sh -c 'cat > f'`."""
        return replace(self, actor=actor)
