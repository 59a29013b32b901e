"""What the answers are made of. Times are aware datetimes, paths are relative to the workspace.

A path that is not UTF-8 has surrogate escapes in it, as everywhere in Python
(`os.fsencode` gives the exact name). Fields that a newer daemon adds are ignored.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, TypeVar

from fsguard.errors import DaemonError

__all__ = ["Check", "Completed", "Footprint", "GuardWarning", "Lease", "TaskInfo", "Version", "read"]

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class GuardWarning:
    """One warning; the fields are those of README's "A warning as JSON"."""

    id: int
    time: datetime
    kind: str
    severity: str
    task: str
    path: str
    pid: int
    command: str
    sibling: str | None
    sibling_command: str
    sibling_time: datetime | None
    read_time: datetime | None
    count: int
    paths: tuple[str, ...]
    message: str

    @property
    def conflict(self) -> bool:
        """True when work is or was about to be lost; else it is a note."""
        return self.severity == "conflict"


@dataclass(frozen=True, slots=True)
class Check:
    """Would a write to `path` now be stale? If so: how, since when, and the sentence."""

    path: str
    stale: bool
    kind: str | None
    message: str | None
    sibling: str | None
    sibling_command: str | None
    sibling_time: datetime | None
    read_time: datetime | None


@dataclass(frozen=True, slots=True)
class Version:
    """Bytes that were put by when `task` destroyed, with `command`, what `sibling` had written.

    `version` is the number that `restore` takes. `kept` is False when there is
    nothing to bring back, for `reason`.
    """

    id: int
    path: str
    version: int
    task: str | None
    sibling: str | None
    command: str
    time: datetime
    cause: str
    size: int | None
    kept: bool
    reason: str | None
    kind: str
    conflict: bool
    resolved: bool


@dataclass(frozen=True, slots=True)
class Lease:
    """Others keep off `patterns` until then, or until it is released."""

    id: int
    task: str
    patterns: tuple[str, ...]
    since: datetime
    until: datetime
    ttl: float
    reason: str
    requests: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """A task on record; `state` is "running", "idle" or "ended"."""

    task: str
    name: str | None
    intent: str | None
    parent: str | None
    children: tuple[str, ...]
    state: str
    started: datetime
    ended: datetime | None
    reads: int
    writes: int
    pending: int


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a command did to the tree, exactly."""

    read: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    created: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Completed:
    """How a command of a task ended.

    `returncode` is as in `subprocess`: negative for a signal. `stdout` and
    `stderr` are None unless they were captured.
    """

    args: tuple[str, ...]
    returncode: int
    stdout: bytes | None
    stderr: bytes | None
    warnings: tuple[GuardWarning, ...] = ()
    footprint: Footprint = field(default_factory=Footprint)

    @property
    def conflicts(self) -> tuple[GuardWarning, ...]:
        """The warnings that are no mere notes."""
        return tuple(warning for warning in self.warnings if warning.conflict)

    def check_returncode(self) -> None:
        """subprocess.CalledProcessError unless the command ended with 0."""
        if self.returncode:
            raise subprocess.CalledProcessError(self.returncode, self.args, self.stdout, self.stderr)


def read(kind: type[Value], data: Any) -> Value:
    """One of the classes above from its JSON. DaemonError when it is not that."""
    known = {}
    try:
        for part in fields(kind):  # type: ignore[arg-type]
            if part.name in data:
                known[part.name] = _converted(str(part.type), data[part.name])
        return kind(**known)
    except (TypeError, ValueError) as error:
        raise DaemonError(
            f"the daemon answered with something else than a {kind.__name__}: {error}"
        ) from None


def _converted(annotation: str, value: Any) -> Any:
    if annotation.startswith("datetime"):
        return datetime.fromisoformat(value) if value is not None else None
    if annotation.startswith("tuple[tuple"):
        return tuple(tuple(item) for item in value)
    return tuple(value) if annotation.startswith("tuple") else value
