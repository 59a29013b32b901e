"""The daemon's end of the control socket (trio).

Who asks is what the kernel says (SO_PEERCRED), never what the request says.
Only the uids named at the start, and root, are served; anybody else gets one
refusal and the door. What a caller may claim about other processes and tasks
is for the handlers to check: they are given the `Peer`.

The daemon serves a filesystem in the same thread, so no client may cost it
more than a bounded time and memory: a line has a limit and a deadline, a send
has a deadline, the number of clients and the sum of half-sent lines have a
bound, and a stream is pulled only as fast as its reader takes it.

An exception in a handler becomes an error answer; its place in the code goes to
the log, the client gets no traceback. The log never quotes source lines: source
files may lie below the daemon's own mount, and reading them would hang it.
"""

from __future__ import annotations

import difflib
import errno
import logging
import os
import socket
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack, aclosing
from typing import Any, NamedTuple

import trio

from fsguard.control.listener import listening
from fsguard.control.protocol import (
    MAX_REQUEST,
    Event,
    Failure,
    LineBuffer,
    ProtocolError,
    Request,
    Result,
    decode_request,
    encode_answer,
)
from fsguard.errors import FsguardError, RefusedError, UsageError

__all__ = ["Door", "Handler", "Limits", "Peer", "serve"]

_log = logging.getLogger("fsguard.control")


class Peer(NamedTuple):
    """The process at the other end, when it connected, as the kernel saw it.

    `pid` is 0 when the process is in a pid namespace invisible from here.
    """

    pid: int
    uid: int
    gid: int


class Limits(NamedTuple):
    """What clients may cost."""

    clients: int = 1024  # connections; beyond it the longest idle one is dropped
    line_seconds: float = 60.0  # from the last answer to the next whole line
    send_seconds: float = 10.0  # for each piece of an answer
    pending_bytes: int = 16 << 20  # half-sent lines of all clients together


Handler = Callable[[Peer, dict[str, Any]], Awaitable[Any] | AsyncIterator[Any]]
"""Takes (peer, params); answers with what JSON can say, or with an async iterator
whose items are sent as events. An async generator function will do as well.
When the reader goes away the iterator is closed. FsguardError is an answer too."""


class Door:
    """Whether clients come in.

    :param listener: descriptor of a socket that listens already, with clients in its queue (-1: none).
    """

    def __init__(self, listener: int = -1) -> None:
        self._listener = listener
        self._opened = trio.Event()
        self._opened.set()
        self._accepting = trio.CancelScope()
        self.unanswered: Callable[[], int] = lambda: 0
        self.end_streams: Callable[[], object] = lambda: None

    def fileno(self) -> int:
        """Of the socket that listens."""
        return self._listener

    async def shut(self, seconds: float) -> bool:
        """Nothing is asked any more; waits `seconds` at most until all have their answers.

        False: somebody still has none. Who listens to a stream, or waits for a lease, is sent away,
        and comes again.
        """
        self._opened = trio.Event()
        self._accepting.cancel()
        self.end_streams()
        with trio.move_on_after(seconds):
            while self.unanswered():
                await trio.sleep(0.002)
        return not self.unanswered()

    def open(self) -> None:
        self._opened.set()

    async def passed(self) -> None:
        """Before anything is done for a client who is in already."""
        while not self._opened.is_set():
            await self._opened.wait()

    async def accept(self, sock: trio.socket.SocketType) -> trio.socket.SocketType:
        while True:
            await self._opened.wait()
            self._listener = sock.fileno()
            with trio.CancelScope() as self._accepting:
                return (await sock.accept())[0]


async def serve(
    path: str,
    handlers: Mapping[str, Handler],
    allowed_uids: Collection[int],
    *,
    limits: Limits | None = None,
    door: Door | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Listen at `path` until cancelled; then the socket file is removed.

    `path` must be in a directory that only we (or root) can write to. The file
    is 0600; when root serves a user, it belongs to that user. A socket left by
    a dead daemon is replaced. `task_status.started()` comes when connecting is
    possible. BusyError: a living daemon listens there. RefusedError: the
    directory is not private.
    """
    door = door or Door()
    with listening(path, allowed_uids, door.fileno()) as sock:
        server = _Server(handlers, frozenset(allowed_uids) | {0}, limits or Limits(), door)
        door.unanswered, door.end_streams = server.unanswered, server.end_streams
        task_status.started()
        await server.accept(trio.socket.from_stdlib_socket(sock))


class _Client:
    """One connection: whether it has a request in work, and bytes read early."""

    def __init__(self, sock: trio.socket.SocketType, peer: Peer) -> None:
        self.sock = sock
        self.peer = peer
        self.scope = trio.CancelScope()
        self.busy = False
        self.streaming = False
        self.buffer = LineBuffer(MAX_REQUEST)
        self.early = b""  # what came while a stream was running
        self.ended = False  # its end of file came while a stream was running


class _GoneError(Exception):
    """The client closed, or does not take its answers."""


class _Server:
    def __init__(
        self, handlers: Mapping[str, Handler], uids: frozenset[int], limits: Limits, door: Door
    ) -> None:
        self._door = door
        self._handlers = handlers
        self._uids = uids
        self._limits = limits
        self._clients: dict[_Client, None] = {}  # oldest first

    def unanswered(self) -> int:
        """How many have asked something, and have no answer."""
        return sum(client.busy for client in self._clients)

    def end_streams(self) -> None:
        for client in self._clients:
            if client.streaming:
                client.scope.cancel()

    async def accept(self, listener: trio.socket.SocketType) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    sock = await self._door.accept(listener)
                except OSError as error:
                    if error.errno != errno.ECONNABORTED:
                        # No descriptors or no memory: others need time to give some back.
                        _log.warning("control socket: accept: %s", os.strerror(error.errno or 0))
                        await trio.sleep(0.1)
                    continue
                nursery.start_soon(self._attend, sock)

    async def _attend(self, sock: trio.socket.SocketType) -> None:
        with sock:
            raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII"))
            client = _Client(sock, Peer(*struct.unpack("iII", raw)))
            try:
                with client.scope:
                    if client.peer.uid not in self._uids:
                        refusal = f"user {client.peer.uid} may not use this mount's control socket"
                        await self._say(client, Failure(0, RefusedError.exit_code, refusal, _owner_hint()))
                        return
                    self._make_room()
                    self._clients[client] = None
                    await self._converse(client)
            except (_GoneError, OSError):
                pass  # reset, broken pipe, too slow: the client's own affair
            except Exception as error:
                _log.error("control socket: %s", _describe(error))
            finally:
                self._clients.pop(client, None)

    def _make_room(self) -> None:
        """At the limit, drop the client that has been idle without a request longest."""
        if len(self._clients) >= self._limits.clients:
            for client in self._clients:
                if not client.busy:
                    client.scope.cancel()
                    del self._clients[client]
                    return
            raise _GoneError

    async def _converse(self, client: _Client) -> None:
        while True:
            lines: list[bytes] = []
            with trio.move_on_after(self._limits.line_seconds) as deadline:
                while not lines:
                    data = client.early or await client.sock.recv(65536)
                    client.early = b""
                    if not data:
                        return
                    try:
                        lines.extend(client.buffer.feed(data))
                    except ProtocolError as error:
                        await self._say(client, Failure(0, UsageError.exit_code, error.message))
                        return
                    if sum(other.buffer.pending for other in self._clients) > self._limits.pending_bytes:
                        return
            if deadline.cancelled_caught:
                return
            for line in lines:
                await self._door.passed()
                client.busy = True
                if not await self._answer(client, line):
                    return
                client.busy = False
                # To the end of the line: idle time counts from the last answer.
                if client in self._clients:
                    self._clients[client] = self._clients.pop(client)

    async def _answer(self, client: _Client, line: bytes) -> bool:
        """Answer one line; False when the conversation is over."""
        try:
            request = decode_request(line)
        except ProtocolError as error:
            await self._say(client, Failure(0, UsageError.exit_code, error.message))
            return False
        handler = self._handlers.get(request.method)
        if handler is None:
            near = difflib.get_close_matches(request.method, self._handlers, 1)
            hint = f"did you mean {near[0]}?" if near else None
            failure = Failure(request.id, UsageError.exit_code, f"unknown method {request.method}", hint)
            await self._say(client, failure)
            return True
        answer: Result | Failure
        try:
            value = handler(client.peer, request.params)
            if not isinstance(value, AsyncIterator):
                value = await value
            if isinstance(value, AsyncIterator):
                failed = await self._stream(client, request, value)
                answer = failed or Result(request.id, None)
            else:
                answer = Result(request.id, value)
        except _GoneError:
            raise
        except Exception as error:
            answer = self._failure(request, error)
        await self._say(client, answer)
        return True

    async def _stream(self, client: _Client, request: Request, items: AsyncIterator[Any]) -> Failure | None:
        """Send every item; stop when the client closes its end.

        Exceptions are handled inside the nursery, which would wrap them.
        """
        failure: Failure | None = None
        client.streaming = True
        async with AsyncExitStack() as stack:
            if isinstance(items, trio.abc.AsyncResource | AsyncGenerator):
                await stack.enter_async_context(aclosing(items))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch, client, nursery.cancel_scope)
                try:
                    async for item in items:
                        await self._say(client, Event(request.id, item))
                except (_GoneError, OSError):
                    client.ended = True
                except Exception as error:
                    failure = self._failure(request, error)
                nursery.cancel_scope.cancel()
        client.streaming = False
        if client.ended:
            raise _GoneError
        return failure

    async def _watch(self, client: _Client, stream: trio.CancelScope) -> None:
        """Keep what the client sends during a stream; its end of file ends the stream."""
        while len(client.early) < MAX_REQUEST:
            try:
                data = await client.sock.recv(65536)
            except OSError:
                break
            if not data:
                break
            client.early += data
        client.ended = True
        stream.cancel()

    async def _say(self, client: _Client, answer: Result | Event | Failure) -> None:
        try:
            data = memoryview(encode_answer(answer))
        except ProtocolError as error:
            _log.error("control socket: an answer that is not JSON: %s", error.message)
            data = memoryview(encode_answer(Failure(answer.id, 1, "internal error in the daemon")))
        while data:
            with trio.move_on_after(self._limits.send_seconds) as deadline:
                sent = await client.sock.send(data[: 1 << 18])
                data = data[sent:]
            if deadline.cancelled_caught:
                raise _GoneError

    def _failure(self, request: Request, error: Exception) -> Failure:
        if isinstance(error, FsguardError):
            return Failure(request.id, error.exit_code, error.message, error.hint)
        _log.error("%s failed: %s", request.method, _describe(error))
        return Failure(request.id, 1, "internal error in the daemon", "its log says where")


def _owner_hint() -> str:
    return f"only user {os.geteuid()}, who mounted it, and root may" if os.geteuid() else "ask who mounted it"


def _describe(error: BaseException) -> str:
    """An exception with its places in the code, without reading a source file."""
    places = []
    frame = error.__traceback__
    while frame is not None:
        code = frame.tb_frame.f_code
        places.append(f"{code.co_filename}:{frame.tb_lineno} {code.co_name}")
        frame = frame.tb_next
    return f"{type(error).__name__}: {str(error)[:500]!r} at " + " < ".join(reversed(places[-12:]))
