"""The commands' end of the control socket. Standard library only, no event loop.

One connection carries one call after the other. An answer that is an error is
raised as the class of `fsguard.errors` that its code names.
"""

from __future__ import annotations

import _socket
import os
import struct
import time

from fsguard import errors
from fsguard.control import protocol
from fsguard.control.address import SocketAddress
from fsguard.errors import DaemonError, FsguardError, RefusedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Self

    from fsguard.control.registry import Mount

__all__ = ["Client"]


_AT_ONCE = 0.3
"""Seconds: who is sent away so soon without a word is not wanted."""


class _EndedError(DaemonError):
    """Its end of the connection is closed, and a question has no answer."""


class Client:
    """A connection to the daemon of `mount`, made at the first call.

    `timeout` is how long, in seconds, the daemon may be silent during a call.
    DaemonError: it does not answer, or answers nonsense. RefusedError: it is not
    ours to talk to.
    """

    def __init__(self, mount: Mount, timeout: float = 30.0) -> None:
        self._mount = mount
        self._timeout = timeout
        self._socket: _socket.socket | None = None
        self._lines = protocol.LineBuffer(protocol.MAX_ANSWER)
        self._ready: list[bytes] = []
        self._last_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def call(self, method: str, /, **params: Any) -> Any:
        """Ask, and return the result. FsguardError: the daemon's refusal."""
        try:
            return self._call(method, params)
        except _EndedError as ended:
            self._again(ended)
            return self._call(method, params)

    def _again(self, ended: DaemonError) -> None:
        """Restarted in place? Before that it answers whatever it has begun, so nothing is done twice.

        :raises DaemonError: nobody is there.
        """
        try:
            self._connected()
        except OSError:
            self.close()
            raise DaemonError(ended.message, ended.hint) from None

    def _call(self, method: str, params: dict[str, Any]) -> Any:
        number = self._ask(method, params)
        while True:
            answer = self._answer(number)
            if isinstance(answer, protocol.Result):
                return answer.value

    def stream(self, method: str, /, **params: Any) -> Iterator[Any]:
        """Ask, and yield events until the daemon ends the stream.

        Between events there is no time limit: a quiet workspace is no fault. When the daemon is
        restarted in place it is asked once more, so what has no answer yet is told again.
        """
        while True:
            heard, asked = False, time.monotonic()
            number = self._ask(method, params)
            self._set_timeout(0)
            try:
                while isinstance(answer := self._answer(number), protocol.Event):
                    heard = True
                    yield answer.value
            except _EndedError as ended:
                if not heard and time.monotonic() - asked < _AT_ONCE:
                    raise
                self._again(ended)
                continue
            self._set_timeout(self._timeout)
            return

    def _ask(self, method: str, params: dict[str, Any]) -> int:
        self._last_id += 1
        line = protocol.encode_request(protocol.Request(self._last_id, method, params))
        try:
            self._connected().sendall(line)
        except BrokenPipeError:
            pass  # it closed without hearing us out: its reason is there to be read
        except OSError as error:
            self.close()
            raise self._silent(error) from None
        return self._last_id

    def _answer(self, number: int) -> protocol.Result | protocol.Event:
        answer = protocol.decode_answer(self._line())
        if isinstance(answer, protocol.Failure):
            # id 0: it could not even read the request, or does not serve us.
            raise errors.BY_CODE.get(answer.code, FsguardError)(answer.message, answer.hint)
        if answer.id != number:
            raise protocol.ProtocolError("the daemon answered a question that was not asked")
        return answer

    def _line(self) -> bytes:
        while not self._ready:
            try:
                data = self._connected().recv(1 << 18)
            except ConnectionResetError:
                data = b""
            except OSError as error:
                self.close()
                raise self._silent(error) from None
            if not data:
                self.close()
                raise _EndedError(f"the daemon of {self._mount.workspace} ended the connection", self._hint())
            self._ready = list(self._lines.feed(data))[::-1]
        return self._ready.pop()

    def _connected(self) -> _socket.socket:
        if self._socket is None:
            self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
            self._set_timeout(self._timeout)
            with SocketAddress(self._mount.socket) as address:
                self._socket.connect(address)
            self._lines, self._ready = protocol.LineBuffer(protocol.MAX_ANSWER), []
        return self._socket

    def _set_timeout(self, seconds: float) -> None:
        """0 is for ever. By the kernel's own timeouts: a non-blocking connect, which
        settimeout() would mean, fails at once while the daemon's queue is full."""
        if self._socket is not None:
            whole = int(seconds)
            value = struct.pack("@ll", whole, int((seconds - whole) * 1e6))
            self._socket.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVTIMEO, value)
            self._socket.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDTIMEO, value)

    def _silent(self, error: OSError) -> FsguardError:
        workspace = self._mount.workspace
        if isinstance(error, PermissionError):
            owner = f"user {self._mount.uid}" if self._mount.uid else "root"
            return RefusedError(
                f"the mount of {workspace} belongs to {owner}",
                "only who mounted it, and root, may use it",
            )
        if isinstance(error, BlockingIOError):
            reason = f"said nothing for {self._timeout:g} s"
        else:
            reason = f"does not answer ({os.strerror(error.errno)})" if error.errno else "does not answer"
        return DaemonError(f"the daemon of {workspace} {reason}", self._hint())

    def _hint(self) -> str:
        place = self._mount.mountpoint
        return f"see `fsguard status {place}`; if it is dead: `fsguard unmount {place}`"
