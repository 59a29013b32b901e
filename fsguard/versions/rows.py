"""A `Version` as a row of the catalogue and as a line of the journal.

Words come from processes, so they may hold anything: a text that is no UTF-8
(surrogates from the command line) becomes a BLOB in SQLite, and comes back as it
was. Numbers that SQLite can't hold are cut to what it can.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from .model import Version

__all__ = ["COLUMNS", "from_line", "from_row", "from_values", "text", "to_line", "to_row", "to_values"]

COLUMNS = tuple(f.name for f in fields(Version))
_BYTES = {"path", "digest", "target"}
_TEXTS = {"task", "sibling", "command", "cause", "reason", "kind"}
_FLAGS = {"kept", "conflict", "resolved"}
_NUMBERS = set(COLUMNS) - _BYTES - _TEXTS - _FLAGS - {"xattrs", "time"}
_MOST = (1 << 63) - 1


def text(value: str | None) -> str | bytes | None:
    """As SQLite takes it."""
    if value is None or value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogatepass")
    return value


def _untext(value: str | bytes | None) -> str | None:
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else value


def _latin(value: bytes | None) -> str | None:
    return value.decode("latin-1") if value is not None else None


def _unlatin(value: str | None) -> bytes | None:
    return value.encode("latin-1") if value is not None else None


def _xattrs(value: dict[bytes, bytes]) -> str | None:
    if not value:
        return None
    return json.dumps({k.decode("latin-1"): v.decode("latin-1") for k, v in value.items()})


def _unxattrs(value: str | None) -> dict[bytes, bytes]:
    if not value:
        return {}
    return {k.encode("latin-1"): v.encode("latin-1") for k, v in json.loads(value).items()}


def _number(value: int | None) -> int | None:
    return value if value is None else max(-_MOST, min(_MOST, value))


def to_row(version: Version) -> list[Any]:
    """In the order of COLUMNS."""
    row: list[Any] = []
    for name in COLUMNS:
        value = getattr(version, name)
        if name in _TEXTS:
            value = text(value)
        elif name in _FLAGS:
            value = int(value)
        elif name == "xattrs":
            value = _xattrs(value)
        elif name in _NUMBERS:
            value = _number(value)
        row.append(value)
    return row


def from_row(row: Sequence[Any]) -> Version:
    values = dict(zip(COLUMNS, row, strict=True))
    for name in _TEXTS:
        values[name] = _untext(values[name])
    for name in _FLAGS:
        values[name] = bool(values[name])
    values["xattrs"] = _unxattrs(values["xattrs"])
    return Version(**values)


def to_values(version: Version) -> list[Any]:
    """What JSON can say, in the order of COLUMNS."""
    values: list[Any] = []
    for name in COLUMNS:
        value = getattr(version, name)
        if name in _BYTES:
            value = _latin(value)
        elif name == "xattrs":
            value = _xattrs(value)
        elif name in _NUMBERS:
            value = _number(value)
        values.append(value)
    return values


def from_values(values: Sequence[Any]) -> Version:
    """:raises ValueError: (or TypeError) it is not what `to_values` made."""
    found = dict(zip(COLUMNS, values, strict=True))
    for name in _BYTES:
        found[name] = _unlatin(found[name])
    found["xattrs"] = _unxattrs(found["xattrs"])
    return Version(**found)


def to_line(entry: Sequence[Any]) -> bytes:
    """One line of the journal: a checksum, then JSON."""
    body = json.dumps(entry, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def from_line(line: bytes) -> list[Any] | None:
    """None when the line is torn or is not a line at all."""
    if len(line) < 10 or line[8:9] != b" ":
        return None
    body = line[9:]
    try:
        if int(line[:8], 16) != zlib.crc32(body):
            return None
        entry = json.loads(body)
    except ValueError:
        return None
    return entry if isinstance(entry, list) and len(entry) >= 2 else None
