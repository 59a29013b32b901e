"""The complete passthrough filesystem: all request handlers in one class."""

from __future__ import annotations

from .directories import DirectoryHandlers
from .extras import ExtraHandlers
from .filesystem import Settings
from .names import NameHandlers

__all__ = ["Operations", "Settings"]


class Operations(NameHandlers, DirectoryHandlers, ExtraHandlers):
    """Hand it to `Connection.run`. See `Filesystem` for the constructor."""
