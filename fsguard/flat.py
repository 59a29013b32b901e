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
import io
import pickle
from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import Any

__all__ = ["dump", "load"]

_OURS = "fsguard."


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
        self.waiting: deque[object] = deque()
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
    bodies = io.BytesIO()
    slots: dict[type, tuple[str, ...]] = {}
    writer.dump(root)
    while writer.waiting:
        obj = writer.waiting.popleft()
        kind = type(obj)
        if kind not in slots:
            slots[kind] = _fields(kind)
        values = dict(getattr(obj, "__dict__", ()))
        for name in slots[kind]:
            if hasattr(obj, name):
                values[name] = getattr(obj, name)
        writer.dump(values)
    kinds: dict[type, int] = {}
    numbers = [kinds.setdefault(type(obj), len(kinds)) for obj in writer.objects]
    pickle.dump((list(kinds), numbers), bodies, protocol=5)
    return bodies.getvalue() + out.getvalue()


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
    objects = [object.__new__(kinds[number]) for number in numbers]
    reader = _Reader(stream, objects, called)
    root = reader.load()
    for obj in objects:
        _fill(obj, reader.load())
    return root


def _fill(obj: object, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        try:
            object.__setattr__(obj, name, value)
        except AttributeError:
            pass  # this version has it no more
    if not dataclasses.is_dataclass(obj):
        return
    for field in dataclasses.fields(obj):
        if field.name in values:
            continue
        if field.default is not dataclasses.MISSING:
            object.__setattr__(obj, field.name, field.default)
        elif field.default_factory is not dataclasses.MISSING:
            object.__setattr__(obj, field.name, field.default_factory())
