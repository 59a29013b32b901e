"""The questions of `asks`, asked and waited for."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from fsguard.api import asks
from fsguard.api.asks import Ask
from fsguard.api.command import Report
from fsguard.api.task import Call, Named
from fsguard.api.values import Check, Completed, GuardWarning, Lease, TaskInfo, Version
from fsguard.cli import kept, putback, where
from fsguard.control.client import Client
from fsguard.control.registry import Mount
from fsguard.errors import DaemonError

__all__ = ["StrPath", "ToolCall", "Worker", "Workspace", "connect", "inside", "put_back"]

Answer = TypeVar("Answer")
StrPath = str | os.PathLike[str]
_ENDS_WITHIN = 5.0


def connect(path: StrPath = ".", *, timeout: float = 30.0) -> Workspace:
    """The guarded workspace that `path` is in: its mountpoint, the workspace, or anything inside either.

    `timeout`: seconds that the daemon may be silent during a question.
    NotMountedError: there is none.
    """
    return Workspace(where.locate(os.fspath(path)), timeout)


class Workspace:
    """A guarded workspace. Its methods may be called from several threads.

    Paths may be absolute; relative ones are meant from the workspace's top,
    wherever the caller stands. Every method raises FsguardError or one of its
    kinds: DaemonError when the daemon does not answer, RefusedError when the caller
    may not ask that, UsageError for what makes no sense.
    """

    def __init__(self, mount: Mount, timeout: float = 30.0) -> None:
        self._mount = mount
        self._timeout = timeout
        self._client = Client(mount, timeout)
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection; the next question makes another one."""
        with self._lock:
            self._client.close()

    @property
    def mountpoint(self) -> Path:
        """Where the agents work."""
        return Path(self._mount.mountpoint)

    def task(
        self, id: str, *, parent: str | None = None, name: str | None = None, intent: str | None = None
    ) -> Worker:
        """A task to work as. `name` is its role and `intent` what it is about: siblings are told both.

        Nothing is asked of the daemon yet.
        """
        return Worker(self, id, parent, name, intent)

    def tasks(self) -> list[TaskInfo]:
        return self.ask(asks.tasks())

    def status(self) -> dict[str, Any]:
        """What `fsguard status --json` prints."""
        return self.ask(asks.status())

    def warnings(
        self, task: str | None = None, *, everything: bool = False, acknowledge: bool = False
    ) -> list[GuardWarning]:
        """What has not been delivered yet (or `everything` on record), oldest first.

        `acknowledge` marks it as delivered.
        """
        return self.ask(asks.warnings(task, everything, acknowledge))

    def follow(
        self, task: str | None = None, *, acknowledge: bool = False
    ) -> Generator[GuardWarning, None, None]:
        """Those that wait, then each as it is raised, for ever. On a connection of its own."""
        ask = asks.follow(task, acknowledge)
        with Client(self._mount, self._timeout) as client:
            told: set[int] = set()
            for item in client.stream(ask.method, **ask.params):
                if (warning := ask.read(item)).id not in told:  # again after a restart
                    told.add(warning.id)
                    yield warning

    def who(self, path: StrPath) -> dict[str, Any]:
        """What `fsguard who --json` prints: the writers and readers of a file, and who has it open."""
        return self.ask(asks.who(self.inside(path)))

    def versions(self, path: StrPath, *, limit: int = 100) -> list[Version]:
        """The kept versions of a file, newest first."""
        return self.ask(asks.versions(self.inside(path), limit))

    def content(self, path: StrPath, version: int) -> bytes:
        """The bytes of a kept version. FsguardError: it was not kept."""
        with Client(self._mount, self._timeout) as client:
            found = client.call("versions.find", path=self.inside(path), version=version)
            return kept.content(client, found)

    def restore(self, path: StrPath, version: int) -> bool:
        """Put a kept version back in its place, as a write of this process's; what is there now is kept.

        False when it was there already. BusyError: the guard refused it.
        """
        with Client(self._mount, self._timeout) as client:
            return put_back(client, self._mount, self.inside(path), version)

    def leases(self) -> list[Lease]:
        return self.ask(asks.leases())

    def inside(self, path: StrPath) -> str:
        """`path` as the daemon knows it. UsageError when it lies outside."""
        return inside(self._mount, path)

    def ask(self, ask: Ask[Answer]) -> Answer:
        with self._lock:
            return ask.read(self._client.call(ask.method, **ask.params))

    def _acquire(self, ask: Ask[Lease | None]) -> Lease:
        with Client(self._mount, self._timeout) as client:
            for event in client.stream(ask.method, **ask.params):
                if (lease := ask.read(event)) is not None:
                    return lease
        raise DaemonError("the daemon ended the wait for a lease without an answer")


class Worker(Named):
    """A task of a workspace; made by `Workspace.task`."""

    def __init__(
        self, workspace: Workspace, id: str, parent: str | None, name: str | None, intent: str | None
    ) -> None:
        super().__init__(id, parent, name, intent)
        self._workspace = workspace

    def run(
        self,
        command: Sequence[str],
        *,
        cwd: StrPath | None = None,
        env: Mapping[str, str] | None = None,
        input: bytes | None = None,
        capture_output: bool = False,
        timeout: float | None = None,
    ) -> Completed:
        """Run a command as the task, in the mountpoint unless `cwd` says otherwise, and wait for its end.

        The warnings in the answer count as delivered. Without `input` it reads
        nothing. subprocess.TimeoutExpired: after `timeout` seconds it was ended.
        FsguardError: it was not started. What the command did wrong is its return
        code, as in `subprocess.run`.
        """
        with Report() as report:
            args = self._words(os.fspath(self._workspace.mountpoint), command, report)
            pipe = subprocess.PIPE if capture_output else None
            with subprocess.Popen(
                args,
                cwd=cwd or self._workspace.mountpoint,
                env=env,
                stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
                stdout=pipe,
                stderr=pipe,
            ) as process:
                try:
                    out, err = process.communicate(input, timeout)
                except BaseException:
                    _end(process)
                    raise
            return report.completed(command, process.returncode, out, err)

    def check(self, *paths: StrPath) -> list[Check]:
        """Would a write to these paths now overwrite something that the task has not seen?"""
        return self._workspace.ask(asks.check(self.id, [self._workspace.inside(path) for path in paths]))

    def warnings(self, *, everything: bool = False, acknowledge: bool = False) -> list[GuardWarning]:
        return self._workspace.warnings(self.id, everything=everything, acknowledge=acknowledge)

    @contextmanager
    def lease(self, *patterns: str, ttl: float = 600, wait: float = 600, reason: str = "") -> Iterator[Lease]:
        """Keep others off what matches (as in .gitignore) while the body runs.

        BusyError: not granted within `wait` seconds; it says who holds it.
        """
        lease = self._workspace._acquire(asks.acquire(self.id, patterns, ttl, wait, reason))
        try:
            yield lease
        finally:
            self._workspace.ask(asks.release(lease))

    def reading(self, path: StrPath, *, partial: bool = False) -> ToolCall:
        """Announces that this very process reads a file for the task: `with task.reading(p): …`."""
        return self._call("read", path, partial)

    def writing(self, path: StrPath) -> ToolCall:
        """Announces that this very process writes a file for the task; see `ToolCall`."""
        return self._call("write", path, False)

    def start(self) -> None:
        """Make the task known, with its parent, role and intent, before it does anything."""
        self._workspace.ask(self._start())

    def end(self) -> list[GuardWarning]:
        """The task has ended: what its parent is told of what it changed."""
        return self._workspace.ask(asks.end(self.id))

    def _call(self, what: str, path: StrPath, partial: bool) -> ToolCall:
        return ToolCall(self._workspace, *self._begin(what, self._workspace.inside(path), partial))


class ToolCall(Call):
    __doc__ = Call.__doc__

    def __init__(self, workspace: Workspace, call: str, begin: Ask[asks.Begun]) -> None:
        super().__init__()
        self._workspace = workspace
        self._name = call
        self._begin = begin

    def __enter__(self) -> Self:
        self._begun(self._workspace.ask(self._begin))
        return self

    def __exit__(self, *_: object) -> None:
        self.warnings = self._workspace.ask(asks.finish(self._name))


def inside(mount: Mount, path: StrPath) -> str:
    return where.relative(mount, os.path.join(mount.mountpoint, os.fspath(path)))


def put_back(client: Client, mount: Mount, path: str, version: int) -> bool:
    row = client.call("versions.find", path=path, version=version)
    return not putback.bring_back(client, mount.mountpoint, row, path)["same"]


def _end(process: subprocess.Popen[bytes]) -> None:
    """TERM reaches the command through `fsguard run`; KILL would end only the latter."""
    process.terminate()
    try:
        process.wait(_ENDS_WITHIN)
    except subprocess.TimeoutExpired:
        process.kill()
