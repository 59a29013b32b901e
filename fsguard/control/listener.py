"""The socket file of the daemon: private, and never in the way of the next one.

Apart from the server because it is plain system calls, done once and at once.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress

from fsguard.control.address import SocketAddress, answers
from fsguard.errors import BusyError, RefusedError

__all__ = ["listening"]


@contextmanager
def listening(path: str, allowed_uids: Collection[int], held: int = -1) -> Iterator[socket.socket]:
    """`held`: the socket listens there already, opened by the program before this one."""
    if held < 0:
        directory = os.stat(os.path.dirname(path))
        if directory.st_uid not in (0, os.geteuid()) or directory.st_mode & 0o022:
            raise RefusedError(
                f"{os.path.dirname(path)} can be written by others: no place for a control socket"
            )
    with _socket(held) as sock:
        if held < 0:
            _bind(sock, path, allowed_uids)
        ours = None
        with suppress(OSError):  # somebody has tidied up: whoever serves a mount goes on all the same
            ours = os.stat(path)
        try:
            yield sock
        finally:
            with suppress(OSError):
                if ours is not None and os.path.samestat(ours, os.stat(path)):
                    os.unlink(path)


def _socket(held: int) -> socket.socket:
    if held < 0:
        return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    os.set_inheritable(held, False)
    return socket.socket(fileno=held)


def _bind(sock: socket.socket, path: str, allowed_uids: Collection[int]) -> None:
    with SocketAddress(path) as address:
        _remove_stale(path)
        sock.bind(address)
    os.chmod(path, 0o600)  # nobody can have connected: nobody listens yet
    users = sorted(uid for uid in allowed_uids if uid != 0)
    if os.geteuid() == 0 and users:
        os.chown(path, users[0], -1)
    sock.listen(1024)


def _remove_stale(path: str) -> None:
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise BusyError(f"{path} is in the way and is no socket")
    except FileNotFoundError:
        return
    if answers(path):
        raise BusyError(f"a daemon already listens at {path}")
    os.unlink(path)
