"""What an open file has to do with turns, before and after the state machine hears of it."""

from __future__ import annotations

import os

from fsguard.core.model import Actor
from fsguard.core.turns import Turn
from fsguard.observer import FileView

__all__ = ["NEVER", "Part"]

NEVER = float("-inf")


class Part:
    """What one open file has to do with turns.

    `began` and `wrote`: since when it takes part, and its last write (monotonic
    seconds). `writer`: who that was. `append`: it has only appended. `made`: it
    has made or emptied the file. `out`: it takes no turns, the programs that use
    the file lock it for themselves; `sure`: that question is answered. `turn`: it
    is known to the state machine.
    """

    __slots__ = ("append", "began", "made", "out", "sure", "turn", "writer", "writes", "wrote")

    def __init__(self, actor: Actor, flags: int) -> None:
        self.writer = actor
        self.made = bool(flags & os.O_TRUNC)
        self.append = bool(flags & os.O_APPEND) and not self.made
        self.began = self.wrote = NEVER
        self.out = False
        self.sure = self.made
        self.writes = 0
        self.turn: Turn[FileView] | None = None

    def goes_on(self, actor: Actor, append: bool, now: float, lapse: float) -> bool:
        """The quick way: true when a write falls into a turn of its own that nobody contests."""
        if (
            now - self.wrote >= lapse
            or self.turn is not None
            or actor is not self.writer
            or not self.sure
            or (self.append and not append)
        ):
            return False
        self.wrote = now
        return True

    def runs(self, now: float, lapse: float) -> bool:
        """True while it has a share in the turn on its file."""
        return now - self.wrote < lapse and self.writer.task is not None and not self.out

    def wrote_at(self, now: float, actor: Actor, append: bool, lapse: float) -> None:
        fresh = now - self.wrote >= lapse
        if fresh:
            self.began = now
        self.append = append and (fresh or self.append)
        self.wrote, self.writer = now, actor
