"""From a handler's result to a FUSE reply: attributes, and errors as errno.

pyfuse3 ends the daemon at any exception that is not a FUSEError, so every
handler goes through `handler`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Coroutine
from errno import EIO
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from ._library import pyfuse3
from .nodes import Node
from .tracebacks import describe

__all__ = ["Attributes", "async_handler", "handler"]

log = logging.getLogger(__name__)

FUSEError = pyfuse3.FUSEError
P = ParamSpec("P")
T = TypeVar("T")


class Counting(Protocol):
    counts: dict[str, int]
    under_way: int


F = TypeVar("F", bound=Counting)


def _answer(name: str, error: Exception) -> Exception:
    if isinstance(error, FUSEError):
        return error
    if isinstance(error, OSError) and error.errno:
        return FUSEError(error.errno)
    # Not log.exception: it would read source lines (see tracebacks).
    log.error("%s failed: %s", name, describe(error))
    return FUSEError(EIO)


def handler(fn: Callable[Concatenate[F, P], T]) -> Callable[Concatenate[F, P], Coroutine[Any, Any, T]]:
    """Make a request handler of a method that never waits.

    Counts the request under the method's name. OSError becomes its errno;
    anything else is logged and becomes EIO.
    """
    name = fn.__name__

    @wraps(fn)
    async def plain(self: F, /, *args: P.args, **kwargs: P.kwargs) -> T:
        self.counts[name] += 1
        try:
            return fn(self, *args, **kwargs)
        except Exception as error:
            raise _answer(name, error) from None

    return plain


def async_handler(
    fn: Callable[Concatenate[F, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[F, P], Coroutine[Any, Any, T]]:
    """The same of an async method, which may wait."""
    name = fn.__name__

    @wraps(fn)
    async def waiting(self: F, /, *args: P.args, **kwargs: P.kwargs) -> T:
        self.counts[name] += 1
        self.under_way += 1
        try:
            return await fn(self, *args, **kwargs)
        except Exception as error:
            raise _answer(name, error) from None
        finally:
            self.under_way -= 1

    return waiting


class Attributes:
    """Fills pyfuse3's reply objects.

    `entry_timeout` and `attr_timeout`: for how many seconds the kernel may
    believe a name and attributes. `separate_ids`: `_request` sends the node id
    out of `generation`; else the node id has to serve as inode number as well.
    """

    def __init__(self, root_dev: int, entry_timeout: float, attr_timeout: float, separate_ids: bool) -> None:
        self._root_dev = root_dev
        self._entry_timeout = entry_timeout
        self._attr_timeout = attr_timeout
        self.separate_ids = separate_ids
        self._devices: dict[int, int] = {root_dev: 0}

    def inode(self, dev: int, ino: int) -> int:
        """st_ino as shown: the backing one, told apart for other filesystems mounted inside."""
        if dev == self._root_dev:
            return ino
        return ino ^ self._devices.setdefault(dev, len(self._devices)) << 48

    def entry(self, node: Node, st: os.stat_result) -> pyfuse3.EntryAttributes:
        e = pyfuse3.EntryAttributes()
        if self.separate_ids:
            e.st_ino = st.st_ino if st.st_dev == self._root_dev else self.inode(st.st_dev, st.st_ino)
            e.generation = node.id
        else:
            e.st_ino = node.id
        e.entry_timeout = self._entry_timeout
        e.attr_timeout = self._attr_timeout
        e.st_mode = st.st_mode
        e.st_nlink = st.st_nlink
        e.st_uid = st.st_uid
        e.st_gid = st.st_gid
        e.st_rdev = st.st_rdev
        e.st_size = st.st_size
        e.st_blksize = st.st_blksize
        e.st_blocks = st.st_blocks
        e.st_atime_ns = st.st_atime_ns
        e.st_mtime_ns = st.st_mtime_ns
        e.st_ctime_ns = st.st_ctime_ns
        return e
