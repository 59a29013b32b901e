"""Objects that point at each other, as bytes, whatever their depth.

A plain pickle follows one object into the next: a path to its writer, that to its
process, that to all it has read, and so on, thousands deep. Here each object of ours
is written by itself, as a number wherever another one points at it.

What is there on both sides already (the daemon's own parts) is not written: it has a
name. An object is read with the fields that its class has now: what is new gets its
default, what is gone is left out.
"""

from __future__ import annotations

import dataclasses
import gc
import io
import pickle
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Any

__all__ = ["dump", "load"]

_OURS = "fsguard."


class _Unset(Enum):
    """A slot that was never filled."""

    UNSET = 0


_UNSET = _Unset.UNSET


def _fields(kind: type) -> tuple[str, ...]:
    """Every slot of a class and of those above it."""
    found: dict[str, None] = {}
    for above in kind.__mro__:
        slots = above.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__"):
                found[name] = None
    return tuple(found)


def _is_ours(kind: type) -> bool:
    """Whether objects of it are written by themselves; tuples and enumerations are values."""
    return (
        kind.__module__.startswith(_OURS)
        and not issubclass(kind, Enum | tuple | type)
        and kind.__reduce__ is object.__reduce__
    )


class _Writer(pickle.Pickler):
    def __init__(self, out: io.BytesIO, name_of: Callable[[object], Any]) -> None:
        super().__init__(out, protocol=5)
        self._name_of = name_of
        self._ours: dict[type, bool] = {}
        self._numbers: dict[int, int] = {}
        self.objects: list[object] = []  # keeps them, and so their ids, alive
        self.waiting: list[object] = []
        self._makers: dict[type, partial[Any]] = {}

    def reducer_override(self, obj: Any) -> Any:
        """Named tuples go by the names of their fields as well, which are written once for each kind."""
        kind = type(obj)
        if not (isinstance(obj, tuple) and kind.__module__.startswith(_OURS) and hasattr(kind, "_fields")):
            return NotImplemented
        maker = self._makers.get(kind)
        if maker is None:
            maker = self._makers[kind] = partial(_named, kind, kind._fields)
        return maker, tuple(obj)

    def persistent_id(self, obj: Any) -> Any:
        kind = type(obj)
        ours = self._ours.get(kind)
        if ours is None:
            ours = self._ours[kind] = _is_ours(kind)
        if not ours:
            return None
        number = self._numbers.get(id(obj))
        if number is None:
            name = self._name_of(obj)
            if name is not None:
                return name
            number = self._numbers[id(obj)] = len(self.objects)
            self.objects.append(obj)
            self.waiting.append(obj)
        return number


def _named(kind: Any, fields: tuple[str, ...], *values: Any) -> Any:
    if kind._fields == fields:
        return kind._make(values)
    known = dict(zip(fields, values, strict=True))
    return kind(**{name: known[name] for name in kind._fields if name in known})


def dump(root: object, name_of: Callable[[object], Any]) -> bytes:
    """`root` and all that it leads to. `name_of`: what an object of ours is called on the other side
    (a string or a tuple); None: it is written. Raises what pickle raises (no functions, no descriptors)."""
    out = io.BytesIO()
    writer = _Writer(out, name_of)
    slots: dict[type, tuple[str, ...]] = {}
    writer.dump(root)
    while writer.waiting:
        batch, writer.waiting = writer.waiting, []
        bodies = []
        for obj in batch:
            kind = type(obj)
            if kind not in slots:
                slots[kind] = _fields(kind)
            bodies.append(
                (*(getattr(obj, name, _UNSET) for name in slots[kind]), getattr(obj, "__dict__", None))
            )
        writer.dump(bodies)
    kinds: dict[type, int] = {}
    numbers = [kinds.setdefault(type(obj), len(kinds)) for obj in writer.objects]
    head = io.BytesIO()
    pickle.dump(([(kind, slots[kind]) for kind in kinds], numbers), head, protocol=5)
    return head.getvalue() + out.getvalue()


class _Reader(pickle.Unpickler):
    def __init__(self, data: io.BytesIO, objects: list[Any], called: Callable[[Any], object]) -> None:
        super().__init__(data)
        self._objects = objects
        self._called = called

    def persistent_load(self, pid: Any) -> Any:
        return self._objects[pid] if type(pid) is int else self._called(pid)


def load(data: bytes, called: Callable[[Any], object]) -> Any:
    """What `dump` was given; `called` finds what has a name. Raises whatever is wrong with it."""
    stream = io.BytesIO(data)
    kinds, numbers = pickle.load(stream)
    fillers = [_Filler(kind, names) for kind, names in kinds]
    objects = [object.__new__(kinds[number][0]) for number in numbers]
    reader = _Reader(stream, objects, called)
    collecting = gc.isenabled()
    gc.disable()  # nothing is garbage yet, however much there is
    try:
        root = reader.load()
        at = 0
        while at < len(objects):
            for values in reader.load():
                fillers[numbers[at]].fill(objects[at], values)
                at += 1
    finally:
        if collecting:
            gc.enable()
    return root


class _Filler:
    """Gives objects of one class their fields: those that it has here, with what was written by name."""

    def __init__(self, kind: type, names: tuple[str, ...]) -> None:
        here = set(_fields(kind))
        self._setters = [getattr(kind, name).__set__ if name in here else None for name in names]
        known = set(names)
        self._missing: list[tuple[str, dataclasses.Field[Any]]] = []
        if dataclasses.is_dataclass(kind):
            self._missing = [(f.name, f) for f in dataclasses.fields(kind) if f.name not in known]

    def fill(self, obj: object, values: tuple[Any, ...]) -> None:
        for put, value in zip(self._setters, values, strict=False):
            if value is not _UNSET and put is not None:
                put(obj, value)
        more = values[-1]
        if more:
            for name, value in more.items():
                with suppress(AttributeError):  # this version has it no more
                    object.__setattr__(obj, name, value)
        for name, field in self._missing:
            if more and name in more:
                continue
            if field.default is not dataclasses.MISSING:
                object.__setattr__(obj, name, field.default)
            elif field.default_factory is not dataclasses.MISSING:
                object.__setattr__(obj, name, field.default_factory())
