"""The values that the guard works with.

Words follow the field: a *task* is an agent's ID, a *command* the unit whose
reads count as one look (a run, an announced tool call, else a process), a
*version* a number that moves with each change of content. Version numbers come
from one counter for the whole workspace, so they can be compared across paths
and carried along a rename.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from typing import Final, NamedTuple

__all__ = [
    "CONFLICT",
    "NOTE",
    "Act",
    "Actor",
    "Command",
    "Content",
    "Footprint",
    "Kept",
    "Kind",
    "Look",
    "PathState",
    "Process",
    "Task",
    "Warning",
    "Write",
]

CONFLICT: Final = "conflict"
NOTE: Final = "note"


class Kind(StrEnum):
    """What can be said; the table of rules is in `fsguard.core.rules`."""

    STALE_WRITE = "stale_write"
    LOST_UPDATE = "lost_update"
    CONCURRENT_WRITE = "concurrent_write"
    RESURRECTED = "resurrected"
    REVERTED = "reverted"
    EXTERNAL_WRITE = "external_write"
    STALE_VIEW = "stale_view"
    STALE_READ = "stale_read"
    PARTIAL_VIEW = "partial_view"
    WAITED = "waited"

    @property
    def severity(self) -> str:
        return NOTE if self in _NOTES else CONFLICT


_NOTES = frozenset({Kind.STALE_VIEW, Kind.STALE_READ, Kind.PARTIAL_VIEW, Kind.WAITED})


class Act(Enum):
    """How a process changes the content of a path."""

    WRITE = "write"  # in place, at an offset
    APPEND = "append"  # O_APPEND, at the end
    TRUNCATE = "truncate"  # O_TRUNC or truncate(2)
    REPLACE = "replace"  # another file takes the name: rename over, link over, exchange
    DELETE = "delete"
    MOVE_AWAY = "move away"  # rename of the source: a deletion of that path
    CREATE = "create"  # something new where nothing was


@dataclass(slots=True, eq=False)
class Task:
    """An agent's task ID and its place in the tree of tasks.

    `name` is its role, `intent` what it is about, `doing` what its latest call is
    for, all in its own words.
    `floor`: versions up to here are never held against the task as "never
    read" (it was known before, and forgotten).
    """

    id: str
    name: str | None = None
    intent: str | None = None
    doing: str | None = None
    parent: Task | None = None
    children: dict[str, Task] = field(default_factory=dict)
    started: float = 0.0
    ended: float | None = None
    last_seen: float = 0.0
    floor: int = 0
    runs: int = 0
    reads: int = 0
    writes: int = 0

    def related(self, other: Task | None) -> bool:
        """True for itself, its ancestors and its descendants."""
        return other is not None and (self.below(other) or other.below(self))

    def below(self, other: Task) -> bool:
        node: Task | None = self
        while node is not None:
            if node is other:
                return True
            node = node.parent
        return False


@dataclass(slots=True)
class Footprint:
    """What one command did to the tree, exactly; kept only when asked for."""

    read: dict[bytes, None] = field(default_factory=dict)
    written: dict[bytes, None] = field(default_factory=dict)
    created: dict[bytes, None] = field(default_factory=dict)
    deleted: dict[bytes, None] = field(default_factory=dict)
    renamed: list[tuple[bytes, bytes]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Command:
    """One `fsguard run`, one announced tool call, else one process.

    A command that opens very many files for reading (`grep -r`) is *bulk*: its
    reads say nothing about what the agent has looked at. `renewed` remembers
    the looks it replaced so far, to take them back when it turns out bulk.
    `partial`: a tool call that said it reads only a range.
    """

    key: str
    text: str
    task: Task | None = None
    started: float = 0.0
    ended: float | None = None
    bulk: bool = False
    partial: bool = False
    opened: int = 0
    last_opened: float = 0.0
    renewed: dict[PathState, tuple[Look | None, Look]] = field(default_factory=dict)
    footprint: Footprint | None = None


@dataclass(slots=True, eq=False)
class Process:
    """A process (thread group), across exec; `looks` is what it read itself."""

    pid: int
    start: int = 0
    name: str = ""
    parent: Process | None = None
    looks: OrderedDict[PathState, tuple[int, float]] = field(default_factory=OrderedDict)

    def below(self, other: Process) -> bool:
        node: Process | None = self
        for _ in range(256):
            if node is None:
                return False
            if node is other:
                return True
            node = node.parent
        return False

    def kin(self, other: Process) -> bool:
        """True when one of the two started the other, however indirectly."""
        return self.below(other) or other.below(self)


@dataclass(slots=True, eq=False)
class Actor:
    """Who does it: a process, on behalf of a task (None: external)."""

    task: Task | None
    process: Process
    command: Command
    disabled: bool = False


@dataclass(slots=True)
class Look:
    """What a task has seen of a path: a read stamp.

    `version` is the newest version it knows, `existed` whether that was a file
    or its absence. `before` is (version, time) of the look that the same task
    had before `command` began, None if it had none. `blind`: the task appended
    without ever reading, it knows that the path exists and no more. `noted`:
    versions up to here were already told as a note. `process` is who read. `came`:
    a rename brought it here with that version, along with the writes up to there.
    """

    version: int
    time: float
    existed: bool = True
    partial: bool = False
    command: Command | None = None
    before: tuple[int, float] | None = None
    blind: bool = False
    noted: int = 0
    process: Process | None = None
    came: int = 0

    def carried(self, current: int, version: int) -> Look:
        """The same look under another name, where what was version `current` is called `version`."""
        numbers = [version if n >= current else n for n in (self.version, self.noted)]
        before = self.before
        if before is not None and before[0] >= current:
            before = (version, before[1])
        return replace(self, version=numbers[0], noted=numbers[1], before=before, came=version)


@dataclass(slots=True, eq=False)
class Write:
    """One author's latest run of changes to a path (consecutive ones merge).

    `left`: something of it is in the content (see `fsguard.core.authors`).
    `buried`: tasks that put another file in its place since; they have been told
    of it then, it is no news to them.
    `made`: it began with nothing there. `brought`: it was written under another
    name, and this command gave the file this one. `given_up`: its own
    author has deleted it. `past`: the file that it was in has gone since, by whomever.
    `came`: the version at which a rename brought it to this path (0: it was written here).
    `seen`: somebody else has looked since; what its author writes now is another run.
    `kept`: whose work, by its `first`, is back when the program that has emptied the
    file fills it again.
    `back`: of this run only what was written up to there is in the content, since
    somebody put an earlier one back (0: all of it).
    """

    task: Task | None
    process: Process
    command: Command
    act: Act
    time: float
    version: int
    first: int
    appended: bool = False
    left: bool = True
    buried: tuple[str | None, ...] = ()
    made: bool = False
    brought: Command | None = None
    given_up: bool = False
    past: bool = False
    came: int = 0
    seen: bool = False
    kept: tuple[int, ...] = ()
    back: int = 0

    def copy(self) -> Write:
        """One that can change by itself; a tenth of what `dataclasses.replace` costs."""
        return Write(
            self.task,
            self.process,
            self.command,
            self.act,
            self.time,
            self.version,
            self.first,
            self.appended,
            self.left,
            self.buried,
            self.made,
            self.brought,
            self.given_up,
            self.past,
            self.came,
            self.seen,
            self.kept,
            self.back,
        )

    @property
    def author(self) -> str | None:
        return self.task.id if self.task is not None else None

    @property
    def since(self) -> int:
        """The version of the path from which on it has been part of it."""
        return self.came or self.first

    @property
    def reach(self) -> int:
        """The version up to which it is in the content, if anything of it is."""
        return self.back or self.version

    def after(self, version: int, came: int = 0) -> bool:
        """True when it is news to who knows the path up to `version`, and what had come with `came`."""
        return self.version > version or self.came > max(version, came)


@dataclass(frozen=True, slots=True)
class Kept:
    """Bytes that were put by before they were destroyed.

    `number` is what `fsguard restore PATH@NUMBER` takes; `reason` says why
    there is nothing to bring back (None: there is).
    """

    id: int
    number: int
    digest: bytes | None
    reason: str | None = None


class Content(NamedTuple):
    """What a path held at `version`, and of which writes something was left in it: (`first`, `reach`)."""

    version: int
    digest: bytes
    left: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, state: PathState, digest: bytes) -> Content:
        return cls(state.version, digest, tuple((w.first, w.reach) for w in state.writers if w.left))


@dataclass(slots=True, eq=False)
class PathState:
    """All that is known about one path of the workspace."""

    path: bytes
    version: int = 0
    absent: bool = False
    floor: int = 0
    writers: list[Write] = field(default_factory=list)
    looks: dict[Task, Look] = field(default_factory=dict)
    contents: list[Content] = field(default_factory=list)
    kept: list[tuple[int, Kept]] = field(default_factory=list)
    self_locking: bool = False


@dataclass(slots=True, eq=False)
class Warning:
    """Something to tell a task. `paths` holds every path of a grouped warning."""

    id: int
    time: float
    kind: Kind
    severity: str
    task: str
    pid: int
    command: str
    sibling: str | None
    sibling_command: str
    sibling_time: float | None
    read_time: float | None
    paths: dict[bytes, None]
    count: int
    body: str
    tail: str = ""
    refused: bool = False
    delivered: bool = False
    withdrawn: bool = False
    run: str | None = None
    touched: float = 0.0

    @property
    def message(self) -> str:
        """The sentence, and what can be done about it."""
        rest = " `fsguard conflicts` lists the rest." if self.tail and self.count > 1 else ""
        head, line, diff = self.tail.partition("\n")
        return self.body + head + rest + line + diff

    @property
    def path(self) -> bytes:
        return next(iter(self.paths), b"")
