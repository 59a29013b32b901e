"""The records of one mount: from its living daemon, or as it left them when it ended."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from fsguard.cli import site, terminal, where
from fsguard.control import registry
from fsguard.control.client import Client
from fsguard.errors import DaemonError, FsguardError, NotMountedError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["RECORDS_FILE", "Records", "load", "moment"]

RECORDS_FILE = "records.jsonl"
"""In the state directory; `fsguard.service.account` writes it at the end of a mount."""


@dataclass(slots=True)
class Records:
    """All of it as the daemon says it (JSON), oldest first.

    `live`: the mount goes on. `complete`: the last piece was read too.
    A warning has, besides its own fields, "resolved" (what it destroyed was
    brought back or merged) and "kept", the rows of what it destroyed.
    """

    live: bool
    mount: dict[str, Any] = field(default_factory=dict)
    tasks: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[dict[str, Any]] = field(default_factory=list)
    conflicts: list[dict[str, Any]] = field(default_factory=list)
    log: list[dict[str, Any]] = field(default_factory=list)
    complete: bool = False

    def add(self, piece: Any) -> None:
        """One piece; what is of no known kind comes from a newer daemon and is passed over."""
        if not isinstance(piece, dict):
            return
        for name, value in piece.items():
            if name == "mount" and isinstance(value, dict):
                self.mount = value
            elif name in ("tasks", "warnings", "conflicts", "log") and isinstance(value, list):
                getattr(self, name).extend(value)
            elif name == "end":
                self.complete = True

    def since(self, then: float) -> None:
        """Leave out what was over before `then` (seconds since the epoch)."""
        self.warnings = [w for w in self.warnings if moment(w["time"]) >= then]
        self.conflicts = [c for c in self.conflicts if moment(c["time"]) >= then]
        self.log = [e for e in self.log if moment(e["time"]) >= then]
        began = self.mount.get("began")
        if began is None or moment(began) < then:
            self.mount["began"] = datetime.fromtimestamp(then).astimezone().isoformat(timespec="microseconds")

    def join(self) -> Records:
        """Tell each warning what is kept of what it destroyed."""
        rows: dict[int, list[dict[str, Any]]] = {}
        for row in self.conflicts:
            if row.get("warning") is not None:
                rows.setdefault(row["warning"], []).append(row)
        for warning in self.warnings:
            found = rows.get(warning["id"]) or self._destroyed(warning)
            warning["kept"] = found
            warning["resolved"] = bool(found) and all(row["resolved"] for row in found)
        return self

    def _destroyed(self, warning: dict[str, Any]) -> list[dict[str, Any]]:
        """A row names one warning, but there may be several victims: it is theirs, too."""
        if warning["kind"] != "reverted":
            return []
        for row in reversed(self.conflicts):
            mine = row["path"] in warning["paths"] and row["task"] == warning["sibling"]
            if mine and moment(row["time"]) <= moment(warning["time"]):
                return [row]
        return []


def load(place: str | None, state_dir: str | None) -> Records:
    """The records of the mount that `place` (default: where we stand) belongs to.

    Is it not mounted (any more): what its last mount left behind.
    NotMountedError: there is neither. `state_dir`: as it was given to `mount`.
    """
    mount = registry.find(place or where.here())
    if mount is not None:
        records, said = Records(live=True), time.monotonic() + 2
        with Client(mount) as client:
            for piece in client.stream("records"):
                records.add(piece)
                if time.monotonic() > said and sys.stderr.isatty():
                    said = time.monotonic() + 2
                    terminal.note(f"{len(records.log):,} lines of the log so far")
        if not records.complete:
            raise DaemonError("the daemon broke off in the middle of its records", "try again")
        return records.join()
    return _left(place, state_dir)


def _left(place: str | None, state_dir: str | None) -> Records:
    start = os.path.realpath(place or where.here())
    records = Records(live=False)
    for top in _upwards(start):
        file = os.path.join(site.choose(top, None, state_dir).state_dir, RECORDS_FILE)
        try:
            with open(file, encoding="ascii") as source:
                for line in source:
                    records.add(json.loads(line))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError, RecursionError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not what a daemon wrote"
            raise FsguardError(f"the records in {terminal.shown(file)} cannot be read: {reason}") from None
        if not records.mount or not records.complete:
            raise FsguardError(f"the records in {terminal.shown(file)} are not whole")
        return records.join()
    raise NotMountedError(
        f"{start} is not guarded, and no earlier mount left records of it",
        "mount it: `fsguard mount WORKSPACE`. After an unmount name the workspace itself, as the user who\n"
        "mounted it, and --state-dir DIR if that was named; a daemon that was killed leaves no records",
    )


def _upwards(path: str) -> Iterable[str]:
    while True:
        yield path
        if path == "/":
            return
        path = os.path.dirname(path)


def moment(text: str) -> float:
    """Seconds since the epoch of a time of the daemon's."""
    return datetime.fromisoformat(text).timestamp()
