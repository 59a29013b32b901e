"""Kept versions: the content that was there before somebody destroyed it."""

from .catalogue import Catalogue
from .model import DamagedError, Facts, Kept, Limits, NotKeptError, Source, Version
from .store import Store

__all__ = [
    "Catalogue",
    "DamagedError",
    "Facts",
    "Kept",
    "Limits",
    "NotKeptError",
    "Source",
    "Store",
    "Version",
]
