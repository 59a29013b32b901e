"""A version as a row: what the catalogue stores, and what a line of the journal says.

Inside the store a version is a plain dict with the columns below, in their order,
because it is made while a process waits for its system call; `Version` is what
queries hand out.

Words come from processes, so they may hold anything: a text that is no UTF-8
(surrogates from a command line) becomes a BLOB in SQLite, and comes back as it
was. Numbers that SQLite can't hold are cut to what it can.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from .model import Facts, Version

__all__ = ["COLUMNS", "Row", "blank", "from_line", "from_values", "number", "text"]
__all__ += ["to_line", "to_sql", "to_values", "to_version", "xattrs_text"]

Row = dict[str, Any]

COLUMNS = tuple(f.name for f in fields(Version))
_BYTES = ("path", "digest", "target")
_TEXTS = ("task", "sibling", "command", "cause", "reason", "kind")
_FLAGS = ("kept", "conflict", "resolved")
_BYTES_AT = tuple(COLUMNS.index(name) for name in _BYTES)
_TEXTS_AT = tuple(COLUMNS.index(name) for name in _TEXTS)
_MOST = (1 << 63) - 1
_encode = json.JSONEncoder(separators=(",", ":")).encode


def number(value: int) -> int:
    return value if -_MOST <= value <= _MOST else _MOST if value > 0 else -_MOST


def _optional(value: int | None) -> int | None:
    return None if value is None else number(value)


def xattrs_text(value: dict[bytes, bytes]) -> str | None:
    if not value:
        return None
    return json.dumps({k.decode("latin-1"): v.decode("latin-1") for k, v in value.items()})


def _xattrs(value: str | None) -> dict[bytes, bytes]:
    if not value:
        return {}
    return {k.encode("latin-1"): v.encode("latin-1") for k, v in json.loads(value).items()}


def blank(facts: Facts, reason: str | None = None) -> Row:
    """The row of a version of which nothing but `facts` is known, and which was not kept."""
    return {
        "id": 0,
        "path": facts.path,
        "version": number(facts.version),
        "task": facts.task,
        "sibling": facts.sibling,
        "command": facts.command,
        "time": facts.time if math.isfinite(facts.time) else 0.0,
        "cause": facts.cause,
        "size": 0,
        "kept": 0,
        "reason": reason,
        "digest": None,
        "kind": "file",
        "mode": 0,
        "uid": 0,
        "gid": 0,
        "mtime_ns": 0,
        "xattrs": None,
        "target": None,
        "conflict": int(facts.conflict),
        "resolved": 0,
        "base_version": _optional(facts.base_version),
        "warning": _optional(facts.warning),
    }


def text(value: str | None) -> str | bytes | None:
    """As SQLite takes it."""
    if value is None or value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogatepass")
    return value


def to_sql(row: Row) -> list[Any]:
    """In the order of COLUMNS."""
    values = list(row.values())
    for position, value in enumerate(values):
        if value.__class__ is str and not value.isascii():
            values[position] = text(value)
    return values


def to_version(values: Sequence[Any]) -> Version:
    """From a row of the catalogue."""
    found = dict(zip(COLUMNS, values, strict=True))
    for name in _TEXTS:
        found[name] = _untext(found[name])
    for name in _FLAGS:
        found[name] = bool(found[name])
    found["xattrs"] = _xattrs(found["xattrs"])
    return Version(**found)


def to_values(row: Mapping[str, Any]) -> list[Any]:
    """What JSON can say, in the order of COLUMNS (also from SQLite, where a text may be a BLOB)."""
    values = list(row.values())
    for position in _BYTES_AT:
        value = values[position]
        if value is not None:
            values[position] = value.decode("latin-1")
    for position in _TEXTS_AT:
        if values[position].__class__ is bytes:
            values[position] = _untext(values[position])
    return values


def _untext(value: Any) -> Any:
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else value


def from_values(values: Sequence[Any]) -> Row:
    """:raises ValueError: (or TypeError, AttributeError) it is not what `to_values` made."""
    row = dict(zip(COLUMNS, values, strict=True))
    for name in _BYTES:
        if row[name] is not None:
            row[name] = row[name].encode("latin-1")
    if not isinstance(row["id"], int) or not isinstance(row["path"], bytes):
        raise ValueError("no version")
    _xattrs(row["xattrs"])
    return row


def to_line(entry: Sequence[Any]) -> bytes:
    """One line of the journal: a checksum, then JSON."""
    body = _encode(entry).encode("ascii")
    return b"%08x %s\n" % (zlib.crc32(body), body)


def from_line(line: bytes, after: int = -1) -> list[Any] | None:
    """None when the line is torn, is not a line at all, or has no number above `after`."""
    if len(line) < 10 or line[8:10] != b" [":
        return None
    body = line[9:]
    try:
        if int(body[1 : body.index(b",")]) <= after or int(line[:8], 16) != zlib.crc32(body):
            return None
        entry = json.loads(body.decode("ascii"))
    except ValueError:
        return None
    return entry if isinstance(entry, list) and len(entry) >= 3 else None
