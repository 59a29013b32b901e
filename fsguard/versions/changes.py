"""What happens to the store, in order: a version is put by, columns change, versions are dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .journal import DROP, SET, put_line
from .rows import Row, to_line

__all__ = ["Batch", "Change", "Drop", "Put", "Set", "Take"]


@dataclass(slots=True)
class Take:
    """What was taken: a version, and where its content lies.

    `temporary`: name in tmp/ of content whose digest is still to be computed; it
    begins with "l" when it is a hard link. `digest`: counted in `Pending`, and to
    be released once the version is in the catalogue.
    """

    row: Row
    temporary: bytes | None = None
    digest: bytes | None = None


@dataclass(slots=True)
class Put:
    take: Take

    def line(self, number: int) -> bytes:
        self.take.row["id"] = number
        return put_line(self.take.row, self.take.temporary)


@dataclass(slots=True)
class Set:
    ids: list[int]
    values: dict[str, Any]

    def line(self, number: int) -> bytes:
        values = {k: v.decode("latin-1") if isinstance(v, bytes) else v for k, v in self.values.items()}
        return to_line([number, SET, self.ids, values])


@dataclass(slots=True)
class Drop:
    """`gentle` leaves what is protected (see `retention.py`) at the moment when it is carried out."""

    ids: list[int]
    gentle: bool = False

    def line(self, number: int) -> bytes:
        return to_line([number, DROP, self.ids, int(self.gentle)])


Change = Put | Set | Drop
Batch = list[tuple[int, Change]]
