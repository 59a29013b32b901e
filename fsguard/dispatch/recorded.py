"""What `Recorder` gives for a session and a change: each call of theirs is noted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from fsguard.dispatch.openfile import OpenFile
from fsguard.observer import (
    Caller,
    Change,
    Exchange,
    FileView,
    Linked,
    Made,
    Removed,
    Renamed,
    Truncated,
)

if TYPE_CHECKING:
    from fsguard.dispatch.recorder import Recorder

__all__ = [
    "TRUNCATED",
    "AdoptedChange",
    "Done",
    "RecordedChange",
    "RecordedSession",
    "change_as_values",
    "change_of_values",
]


class Done(NamedTuple):
    """A call of a request that was under way: what it was, and how it ended."""

    kind: str
    key: int  # of the session; 0: of none
    value: Any
    error: OSError | None


class RecordedSession:
    """`inner`, under a number; `unique` is the request that opens it, `fh` the handle's number then."""

    __slots__ = ("_recorder", "fh", "inner", "number", "unique")

    def __init__(self, recorder: Recorder, number: int, inner: OpenFile, unique: int) -> None:
        self._recorder = recorder
        self.number = number
        self.inner = inner
        self.unique = unique
        self.fh = 0

    def opened(self, file: FileView) -> None:
        self._recorder.sessions[self.number] = self
        args = (self.number, self._recorder.node_number(file))
        self._recorder.call("opened", self.unique, args, self.number, self.inner.opened, file)

    def aborted(self) -> None:
        self._recorder.call("aborted", self.unique, (self.number,), self.number, self.inner.aborted)
        self._recorder.sessions.pop(self.number, None)

    def reading(self, tid: int) -> None:
        r = self._recorder
        r.call("reading", r.request(), (self.number, tid), self.number, self.inner.reading, tid)

    def writing(self, tid: int, offset: int, data: bytes) -> None:
        r = self._recorder
        args = (self.number, tid, offset, len(data))
        r.call("writing", r.request(), args, self.number, self.inner.writing, tid, offset, data)

    def wrote(self, offset: int, size: int) -> None:
        r = self._recorder
        r.call("wrote", r.request(), (self.number, offset, size), self.number, self.inner.wrote, offset, size)

    def goes_on(self, tid: int) -> bool:
        r = self._recorder
        return bool(r.call("goes_on", r.request(), (self.number, tid), self.number, self.inner.goes_on, tid))

    def went_on(self, last: float) -> None:
        self._recorder.call("went_on", 0, (self.number, last), self.number, self.inner.went_on, last)

    def released(self) -> None:
        r = self._recorder
        r.call("released", r.request(), (self.number,), self.number, self.inner.released)
        r.sessions.pop(self.number, None)


class RecordedChange:
    """One change, from its announcement to its confirmation; the call is made when it is entered."""

    def __init__(self, recorder: Recorder, number: int, caller: Caller, change: Change, key: int) -> None:
        self.recorder = recorder
        self.number = number
        self.caller = caller
        self.change = change
        self.key = key
        self.manager: Any = None

    def enter(self) -> None:
        change = self.change
        if isinstance(change, Truncated) and isinstance(change.session, RecordedSession):
            change = replace(change, session=change.session.inner)
        self.manager = manager = self.recorder.inner.changing(self.caller, change)
        manager.__enter__()

    def leave(self, failed: bool) -> None:
        if not failed:
            self.manager.__exit__(None, None, None)
            return
        error = OSError()
        self.manager.__exit__(OSError, error, None)

    def __enter__(self) -> None:
        r, change = self.recorder, self.change
        r.changes[self.number] = self
        args = (self.number, tuple(self.caller), change_as_values(change, r.node_number))
        try:
            r.call("changing", r.request(), args, self.key, self.enter)
        except BaseException:
            r.changes.pop(self.number, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        r = self.recorder
        r.changes.pop(self.number, None)
        failed = error is not None
        try:
            r.call("changed", r.request(), (self.number, failed), self.key, self.leave, failed)
        except OSError:
            if not failed:
                raise


class AdoptedChange:
    """A change that was announced by the request when it came first."""

    def __init__(self, change: RecordedChange) -> None:
        self._change = change

    def __enter__(self) -> None:
        self._change.recorder.changes[self._change.number] = self._change

    def __exit__(self, *error: Any) -> None:
        self._change.__exit__(*error)


_FILES = frozenset(["file", "replaced", "first_file", "second_file"])
_CHANGES = (Truncated, Removed, Renamed, Exchange, Linked, Made)
TRUNCATED = _CHANGES.index(Truncated)
_KINDS = {kind: (number, tuple(f.name for f in fields(kind))) for number, kind in enumerate(_CHANGES)}


def change_as_values(change: Change, node_number: Callable[[Any], int]) -> tuple[Any, ...]:
    """Its kind and its fields, of marshal's types."""
    number, names = _KINDS[type(change)]
    values: list[Any] = [number]
    for name in names:
        value = getattr(change, name)
        if name in _FILES:
            value = node_number(value) if value is not None else None
        elif name == "session":
            value = value.number if isinstance(value, RecordedSession) else 0
        values.append(value)
    return tuple(values)


def change_of_values(
    values: Sequence[Any], node: Callable[[int], Any], session: Callable[[int], Any]
) -> Change:
    """What `change_as_values` was given."""
    kind: Any = _CHANGES[values[0]]

    def field(name: str, value: Any) -> Any:
        if name == "session":
            return session(value) if value else None
        return node(value) if name in _FILES and value is not None else value

    return kind(*map(field, _KINDS[kind][1], values[1:]))  # type: ignore[no-any-return]
