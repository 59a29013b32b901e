"""fsguard for programs on trio: `async with fsguard.trio.connect(path) as tree:`.

The same as `fsguard.connect`, with `await`. Cancelling a question drops the connection
(the next one makes another), cancelling `run` ends the command, and cancelling the
wait for a lease leaves its queue.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import trio

from fsguard import errors
from fsguard.api import asks
from fsguard.api.asks import Ask
from fsguard.api.command import Report
from fsguard.api.task import Call, Named
from fsguard.api.values import Check, Completed, GuardWarning, Lease, TaskInfo, Version
from fsguard.api.workspace import StrPath, inside
from fsguard.api.workspace import Workspace as _Blocking
from fsguard.cli import where
from fsguard.control import protocol
from fsguard.control.address import SocketAddress
from fsguard.control.registry import Mount
from fsguard.errors import DaemonError, FsguardError

__all__ = ["ToolCall", "Worker", "Workspace", "connect"]

Answer = TypeVar("Answer")


@asynccontextmanager
async def connect(path: StrPath = ".", *, timeout: float = 30.0) -> AsyncIterator[Workspace]:
    """The guarded workspace that `path` is in. NotMountedError: there is none.

    `timeout`: seconds that the daemon may be silent during a question.
    """
    workspace = Workspace(where.locate(os.fspath(path)), timeout)
    try:
        yield workspace
    finally:
        workspace.close()


_AT_ONCE = 0.3  # as in control.client


class _EndedError(DaemonError):
    """Its end of the connection is closed, and a question has no answer."""


class _Connection:
    """One socket; one question after the other."""

    def __init__(self, mount: Mount, timeout: float) -> None:
        self._mount = mount
        self._timeout = timeout
        self._lock = trio.Lock()
        self._socket: trio.socket.SocketType | None = None
        self._lines = protocol.LineBuffer(protocol.MAX_ANSWER)
        self._ready: list[bytes] = []
        self._last_id = 0

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def call(self, ask: Ask[Answer]) -> Answer:
        async with self._lock:
            try:
                with trio.fail_after(self._timeout):
                    try:
                        return await self._call(ask)
                    except _EndedError:  # perhaps restarted in place: then it has begun nothing
                        return await self._call(ask)
            except trio.TooSlowError:
                self.close()
                raise DaemonError(
                    f"the daemon of {self._mount.workspace} said nothing for {self._timeout:g} s",
                    f"see `fsguard status {self._mount.mountpoint}`",
                ) from None
            except FsguardError:
                raise
            except BaseException:  # cancelled: what comes now would answer the next question
                self.close()
                raise

    async def _call(self, ask: Ask[Answer]) -> Answer:
        number = await self._send(ask)
        while isinstance(answer := await self._answer(number), protocol.Event):
            pass
        return ask.read(answer.value)

    async def stream(self, ask: Ask[Answer]) -> AsyncIterator[Answer]:
        """When the daemon is restarted in place it is asked once more: some may be told again."""
        while True:
            heard, asked = False, trio.current_time()
            number = await self._send(ask)
            try:
                while isinstance(answer := await self._answer(number), protocol.Event):
                    heard = True
                    yield ask.read(answer.value)
                return
            except _EndedError:
                if not heard and trio.current_time() - asked < _AT_ONCE:
                    raise

    async def _send(self, ask: Ask[Any]) -> int:
        self._last_id += 1
        line = protocol.encode_request(protocol.Request(self._last_id, ask.method, dict(ask.params)))
        try:
            if self._socket is None:
                self._lines, self._ready = protocol.LineBuffer(protocol.MAX_ANSWER), []
                self._socket = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
                with SocketAddress(self._mount.socket) as address:
                    await self._socket.connect(address)
            rest = memoryview(line)
            while rest:
                rest = rest[await self._socket.send(rest) :]
        except BrokenPipeError:
            pass  # it closed without hearing us out: its reason is there to be read
        except OSError as error:
            self.close()
            raise self._silent(error) from None
        return self._last_id

    async def _answer(self, number: int) -> protocol.Result | protocol.Event:
        answer = protocol.decode_answer(await self._line())
        if isinstance(answer, protocol.Failure):
            raise errors.BY_CODE.get(answer.code, FsguardError)(answer.message, answer.hint)
        if answer.id != number:
            raise protocol.ProtocolError("the daemon answered a question that was not asked")
        return answer

    async def _line(self) -> bytes:
        while not self._ready:
            assert self._socket is not None
            try:
                data = await self._socket.recv(1 << 18)
            except OSError as error:
                self.close()
                raise self._silent(error) from None
            if not data:
                self.close()
                raise _EndedError(f"the daemon of {self._mount.workspace} ended the connection")
            self._ready = list(self._lines.feed(data))[::-1]
        return self._ready.pop()

    def _silent(self, error: OSError) -> FsguardError:
        workspace = self._mount.workspace
        if isinstance(error, PermissionError):
            return errors.RefusedError(f"the mount of {workspace} is not yours to use")
        return DaemonError(f"the daemon of {workspace} does not answer ({os.strerror(error.errno or 0)})")


class Workspace:
    """As `fsguard.Workspace`. Its methods may be called from several tasks of trio at once."""

    def __init__(self, mount: Mount, timeout: float = 30.0) -> None:
        self._mount = mount
        self._timeout = timeout
        self._connection = _Connection(mount, timeout)

    def close(self) -> None:
        self._connection.close()

    @property
    def mountpoint(self) -> Path:
        """Where the agents work."""
        return Path(self._mount.mountpoint)

    def task(
        self, id: str, *, parent: str | None = None, name: str | None = None, intent: str | None = None
    ) -> Worker:
        """A task to work as. `name` is its role and `intent` what it is about: siblings are told both."""
        return Worker(self, id, parent, name, intent)

    async def tasks(self) -> list[TaskInfo]:
        return await self.ask(asks.tasks())

    async def status(self) -> dict[str, Any]:
        return await self.ask(asks.status())

    async def warnings(
        self, task: str | None = None, *, everything: bool = False, acknowledge: bool = False
    ) -> list[GuardWarning]:
        """What has not been delivered yet (or `everything` on record), oldest first."""
        return await self.ask(asks.warnings(task, everything, acknowledge))

    async def follow(
        self, task: str | None = None, *, acknowledge: bool = False
    ) -> AsyncGenerator[GuardWarning, None]:
        """Those that wait, then each as it is raised, for ever. On a connection of its own."""
        told: set[int] = set()
        async for warning in self._stream(asks.follow(task, acknowledge)):
            if warning.id not in told:  # again after a restart
                told.add(warning.id)
                yield warning

    async def who(self, path: StrPath) -> dict[str, Any]:
        return await self.ask(asks.who(self.inside(path)))

    async def versions(self, path: StrPath, *, limit: int = 100) -> list[Version]:
        """The kept versions of a file, newest first."""
        return await self.ask(asks.versions(self.inside(path), limit))

    async def content(self, path: StrPath, version: int) -> bytes:
        """The bytes of a kept version. FsguardError: it was not kept."""
        return await trio.to_thread.run_sync(_Blocking(self._mount, self._timeout).content, path, version)

    async def restore(self, path: StrPath, version: int) -> bool:
        """Put a kept version back, as a write of this process's; False when it was there already."""
        return await trio.to_thread.run_sync(_Blocking(self._mount, self._timeout).restore, path, version)

    async def leases(self) -> list[Lease]:
        return await self.ask(asks.leases())

    def inside(self, path: StrPath) -> str:
        """`path` as the daemon knows it. UsageError when it lies outside."""
        return inside(self._mount, path)

    async def ask(self, ask: Ask[Answer]) -> Answer:
        return await self._connection.call(ask)

    async def _stream(self, ask: Ask[Answer]) -> AsyncGenerator[Answer, None]:
        connection = _Connection(self._mount, self._timeout)
        try:
            async for item in connection.stream(ask):
                yield item
        finally:
            connection.close()


class Worker(Named):
    """As `fsguard.Worker`; made by `Workspace.task`."""

    def __init__(
        self, workspace: Workspace, id: str, parent: str | None, name: str | None, intent: str | None
    ) -> None:
        super().__init__(id, parent, name, intent)
        self._workspace = workspace

    async def run(
        self,
        command: Sequence[str],
        *,
        cwd: StrPath | None = None,
        env: Mapping[str, str] | None = None,
        input: bytes | None = None,
        capture_output: bool = False,
    ) -> Completed:
        """Run a command as the task, in the mountpoint unless `cwd` says otherwise, and wait for its end.

        The warnings in the answer count as delivered. FsguardError: it was not started.
        """
        with Report() as report:
            args = self._words(os.fspath(self._workspace.mountpoint), command, report)
            done = await trio.run_process(
                args,
                cwd=os.fspath(cwd or self._workspace.mountpoint),
                env=env,
                stdin=input if input is not None else subprocess.DEVNULL,
                capture_stdout=capture_output,
                capture_stderr=capture_output,
                check=False,
            )
            return report.completed(command, done.returncode, done.stdout, done.stderr)

    async def check(self, *paths: StrPath) -> list[Check]:
        """Would a write to these paths now overwrite something that the task has not seen?"""
        return await self._workspace.ask(
            asks.check(self.id, [self._workspace.inside(path) for path in paths])
        )

    async def warnings(self, *, everything: bool = False, acknowledge: bool = False) -> list[GuardWarning]:
        return await self._workspace.warnings(self.id, everything=everything, acknowledge=acknowledge)

    @asynccontextmanager
    async def lease(
        self, *patterns: str, ttl: float = 600, wait: float = 600, reason: str = ""
    ) -> AsyncIterator[Lease]:
        """Keep others off what matches (as in .gitignore) while the body runs. BusyError: not granted."""
        lease = None
        asked = self._workspace._stream(asks.acquire(self.id, patterns, ttl, wait, reason))
        async with aclosing(asked):
            async for event in asked:
                if event is not None:
                    lease = event
                    break
        if lease is None:
            raise DaemonError("the daemon ended the wait for a lease without an answer")
        try:
            yield lease
        finally:
            with trio.CancelScope(shield=True):
                await self._workspace.ask(asks.release(lease))

    def reading(self, path: StrPath, *, partial: bool = False) -> ToolCall:
        """Announces that this very process reads a file for the task: `async with task.reading(p): …`."""
        return self._call("read", path, partial)

    def writing(self, path: StrPath) -> ToolCall:
        """Announces that this very process writes a file for the task."""
        return self._call("write", path, False)

    async def start(self) -> None:
        """Make the task known, with its parent, role and intent, before it does anything."""
        await self._workspace.ask(self._start())

    async def end(self) -> list[GuardWarning]:
        """The task has ended: what its parent is told of what it changed."""
        return await self._workspace.ask(asks.end(self.id))

    def _call(self, what: str, path: StrPath, partial: bool) -> ToolCall:
        return ToolCall(self._workspace, *self._begin(what, self._workspace.inside(path), partial))


class ToolCall(Call):
    """As `fsguard.ToolCall`: an asynchronous context manager."""

    def __init__(self, workspace: Workspace, call: str, begin: Ask[asks.Begun]) -> None:
        super().__init__()
        self._workspace = workspace
        self._name = call
        self._begin = begin

    async def __aenter__(self) -> Self:
        self._begun(await self._workspace.ask(self._begin))
        return self

    async def __aexit__(self, *_: object) -> None:
        with trio.CancelScope(shield=True):
            self.warnings = await self._workspace.ask(asks.finish(self._name))
