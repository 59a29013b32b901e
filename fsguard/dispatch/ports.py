"""What dispatch asks of the outside; implemented by `fsguard.attribution`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from fsguard.core.guard import Keeping
from fsguard.core.model import Actor, Kept, Warning
from fsguard.observer import FileView

__all__ = ["Keeper", "Processes"]


class Keeper(Protocol):
    """Puts bytes by before they are destroyed; implemented on `fsguard.versions`."""

    def keep(
        self,
        file: FileView,
        path: bytes,
        actor: Actor,
        cause: str,
        keeping: Keeping,
        warning: Warning | None,
        now: float,
    ) -> Kept:
        """Never fails: `Kept.reason` says why nothing was kept. `warning`: a conflict is on record."""

    def told(self, kept: Kept, warning: Warning) -> None:
        """A warning about these bytes was put on record after they were kept."""

    def needless(self, kept: Kept) -> None:
        """It was no conflict after all: the content is as it was."""

    def diff(self, path: bytes, base: Kept | None, file: FileView) -> str:
        """A short diff of what the task had read (`base`) against what is still in `file`; may be empty."""


class Processes(Protocol):
    """Who is behind a thread id, and what it is about."""

    def actor(self, tid: int, paths: Sequence[bytes] = ()) -> Actor:
        """The process and its task; never fails (then it is nobody, external).

        `paths`: what it is about to do something to; a tool call that an agent
        has announced for them counts as the task's that announced it.
        """

    def author(self, pid: int, texts: Mapping[str, bytes], paths: Sequence[bytes] = ()) -> Actor:
        """The same for a process that may have ended: `texts` is what /proc/PID said, by file name."""

    def steady(self) -> bool:
        """True when who a thread works for does not hang on what it touches."""

    def opens_for_reading(self, tid: int) -> bool:
        """True when the thread sits in an open(2) that wants to read, not to create."""

    def reads_link(self, tid: int) -> bool:
        """True when the thread sits in a readlink(2): a path that leads through a link is not that."""

    def wants_out(self, tid: int) -> bool:
        """True when the thread is gone, or a signal is pending that should end a wait.

        Fatal ones, INT, TERM, HUP and QUIT; never one that merely has a handler.
        """

    def gone(self, actor: Actor) -> bool:
        """True when the process has ended."""
