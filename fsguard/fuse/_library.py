"""Loads pyfuse3 behind the request peek; everybody here imports it from this module.

The order matters: the dynamic linker binds pyfuse3's calls into libfuse to the
first definition in the global scope, so `_request` has to be there, with
RTLD_GLOBAL, before pyfuse3 is loaded (afterwards it has no effect).
"""

from __future__ import annotations

import os
import sys

from ..errors import MissingError

__all__ = ["interposed", "pyfuse3", "request"]

_early = "pyfuse3" in sys.modules

_flags = sys.getdlopenflags()
sys.setdlopenflags(_flags | os.RTLD_GLOBAL | os.RTLD_NOW)
try:
    from . import _request as request
finally:
    sys.setdlopenflags(_flags)

try:
    import pyfuse3
except ImportError as error:
    raise MissingError(
        f"pyfuse3 cannot be loaded: {error}", "install libfuse3 (package fuse3 and libfuse3) and pyfuse3"
    ) from error


def interposed() -> bool:
    """Whether requests and replies pass through `_request`.

    Certain only after the first request (FUSE_INIT) has been handled; before
    it the order of loading is all that is known.
    """
    return request.seen() > 0 or (not _early and request.ready())
