"""Files of the workspace by path, below the descriptor of the backing directory.

For questions that come with a path and not with a node (the control socket,
ignore files). Components are opened one at a time with O_NOFOLLOW: no symlink
is followed, and none of it goes through the mount.
"""

from __future__ import annotations

import os
import stat

__all__ = ["PathSource", "open_below", "read_below"]

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a fifo of that name must not hang us.
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def open_below(root: int, path: bytes, flags: int) -> int:
    """A descriptor of `path`, relative to directory `root`. OSError as open(2)."""
    *above, name = path.split(b"/")
    here = root
    try:
        for part in above:
            below = os.open(part, _DIRECTORY, dir_fd=here)
            if here != root:
                os.close(here)
            here = below
        return os.open(name, flags | _FILE, dir_fd=here)
    finally:
        if here != root:
            os.close(here)


def read_below(root: int, path: bytes, limit: int) -> bytes | None:
    """The first `limit` bytes of a regular file, None when it can't be read."""
    try:
        fd = open_below(root, path, os.O_RDONLY)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        return os.read(fd, limit)
    except OSError:
        return None
    finally:
        os.close(fd)


class PathSource:
    """What stands at a path now, held by a descriptor; implements `versions.Source`.

    :raises OSError: nothing is there.
    """

    def __init__(self, root: int, path: bytes) -> None:
        self._fd = open_below(root, path, os.O_PATH)

    def __enter__(self) -> PathSource:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    @property
    def _path(self) -> bytes:
        return b"/proc/self/fd/%d" % self._fd

    def stat(self) -> os.stat_result:
        return os.fstat(self._fd)

    def is_regular(self) -> bool:
        return stat.S_ISREG(self.stat().st_mode)

    def size(self) -> int:
        return self.stat().st_size

    def open(self) -> int:
        return os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def readlink(self) -> bytes:
        return os.readlink(b"", dir_fd=self._fd)

    def link(self, dir_fd: int, name: bytes) -> None:
        os.link(self._path, name, dst_dir_fd=dir_fd, follow_symlinks=True)

    def xattrs(self) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        for name in os.listxattr(self._path):
            try:
                found[os.fsencode(name)] = os.getxattr(self._path, name)
            except OSError:
                continue
        return found
