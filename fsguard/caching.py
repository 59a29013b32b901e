"""For how long the kernel may believe what it knows of the backing directory, and why. Pure.

What it believes costs nothing and may be out of date: when somebody changes the
backing directory past the mount. Where that is heard of (`lane/watch.c`) it is
taken back at once, so it may be believed for long. In place, nobody gets past the
mount but by a way that he has to know; beside a separate mountpoint the backing
directory lies open, and nothing is believed unless the user vouches for it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from errno import EMFILE, ENOSPC, EREMOTE

__all__ = ["LONG", "SHORT", "Caching", "why_not"]

LONG = 3600.0
SHORT = 1.0


@dataclass(frozen=True, slots=True)
class Caching:
    """Seconds: `plain` where nothing is heard of changes from behind, `watched` where it is."""

    asked: str
    in_place: bool
    plain: float
    watched: float

    @classmethod
    def choose(cls, asked: str, in_place: bool, lane: bool) -> Caching:
        """Only the lane marks every directory before the kernel is told of it."""
        if asked == "trust":
            return cls(asked, in_place, LONG, LONG)
        if asked == "short":
            return cls(asked, in_place, SHORT, SHORT)
        if not in_place:
            return cls(asked, in_place, 0.0, 0.0)
        return cls(asked, in_place, SHORT, LONG if lane else SHORT)

    def report(self, heard: Mapping[str, int], unwatched: str | None) -> dict[str, object]:
        """For status. `heard`: the lane's counters; `unwatched`: why nothing is heard of, None: it is."""
        listening = unwatched is None
        if self.asked != "auto":
            reason = "asked for"
        elif not self.in_place:
            reason = "beside a separate mountpoint the directory is open to all (--cache trust: is not)"
        elif unwatched is not None:
            reason = f"changes behind the mount are not heard of: {unwatched}"
        elif heard.get("refused"):
            why = why_not(heard.get("error", 0))
            reason = f"changes behind the mount are heard of, but in {heard['refused']} directories: {why}"
        else:
            reason = "changes behind the mount are heard of at once"
            if self.watched <= SHORT:
                reason += "; the lane (--io lane) keeps it for long"
        return {
            "mode": self.asked,
            "seconds": self.watched if listening else self.plain,
            "reason": reason,
            "heard": dict(heard),
        }


def why_not(error: int) -> str:
    """Why something cannot be watched, from the errno of fanotify."""
    if error == EREMOTE:
        return "other machines or programs may change this filesystem unseen"
    if error in (ENOSPC, EMFILE):
        return "the kernel's limits are reached (sysctl fs.fanotify.max_user_marks, max_user_groups)"
    return f"fanotify says: {os.strerror(error)}"
