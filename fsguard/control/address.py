"""Addressing Unix sockets, whatever the length of their path. Standard library only.

The C module under `socket` is used directly: the Python module around it costs
as much as everything else that `fsguard check` needs to start.
"""

from __future__ import annotations

import _socket
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["SocketAddress", "answers"]

_SUN_PATH = 107  # bytes in sockaddr_un before its ending zero


class SocketAddress:
    """Context manager: the address to bind or connect to for a socket file.

    A path that sockaddr_un can't hold is reached through a descriptor of its
    directory, /proc/self/fd/N/NAME.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1

    def __enter__(self) -> bytes:
        raw = os.fsencode(self._path)
        if len(raw) <= _SUN_PATH:
            return raw
        directory, name = os.path.split(raw)
        self._fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return b"/proc/self/fd/%d/%s" % (self._fd, name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd >= 0:
            os.close(self._fd)


def answers(path: str) -> bool:
    """Does somebody listen at this socket? Never waits. A full queue counts as yes,
    and so does a socket we may not connect to."""
    probe = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        probe.setblocking(False)
        with SocketAddress(path) as address:
            probe.connect(address)
    except (BlockingIOError, PermissionError):
        return True
    except OSError:
        return False
    finally:
        probe.close()
    return True
