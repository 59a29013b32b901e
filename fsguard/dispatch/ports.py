"""What dispatch asks of the outside; implemented by `fsguard.attribution`."""

from __future__ import annotations

from typing import Protocol

from fsguard.core.model import Actor

__all__ = ["Processes"]


class Processes(Protocol):
    """Who is behind a thread id, and what it is about."""

    def actor(self, tid: int) -> Actor:
        """The process and its task; never fails (then it is nobody, external)."""

    def opens_for_reading(self, tid: int) -> bool:
        """True when the thread sits in an open(2) that wants to read, not to create."""

    def wants_out(self, tid: int) -> bool:
        """True when the thread is gone, or a signal is pending that should end a wait.

        Fatal ones, INT, TERM, HUP and QUIT; never one that merely has a handler.
        """

    def gone(self, actor: Actor) -> bool:
        """True when the process has ended."""
