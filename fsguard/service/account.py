"""Everything on record, in pieces: what `fsguard report` is made of.

While the mount lives the pieces go over the control socket; when it ends they
are written to a file beside the daemon's log, one JSON object a line, so that
a job can report after it has unmounted. Both have the same form:

    {"mount": {…}}, {"tasks": […]}, {"warnings": […]}, {"conflicts": […]}, {"log": […]}, …, {"end": true}

A page holds at most `PAGE` items, and the loop goes on with other work after
each: fifty thousand lines of the log take half a second.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import trio

from fsguard.attribution.resolver import Resolver
from fsguard.below import read_below
from fsguard.control.server import Peer
from fsguard.core.model import Warning
from fsguard.core.wording import rfc3339
from fsguard.dispatch import Dispatch
from fsguard.errors import FsguardError
from fsguard.service.base import Part, entry_json, warning_json
from fsguard.service.tasks import Tasks
from fsguard.service.versions import Versions
from fsguard.versions import Store, Version
from fsguard.versions.diff import short_diff

__all__ = ["RECORDS_FILE", "Account"]

RECORDS_FILE = "records.jsonl"
PAGE = 200
MOST_CONFLICTS = 10_000
MOST_DIFFS = 300
DIFF_BYTES = 256 * 1024
DIFF_LINES = 120
DIFF_SECONDS = 3.0

_log = logging.getLogger("fsguard.daemon")


class Account(Part):
    """:param status: facts that only the daemon knows.
    :param root: descriptor of the backing directory.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        resolver: Resolver,
        status: Callable[[], Mapping[str, Any]],
        tasks: Tasks,
        versions: Versions,
        root: int,
    ) -> None:
        super().__init__(dispatch, resolver)
        self._status = status
        self._tasks = tasks
        self._versions = versions
        self._root = root
        self._began = time.time()

    async def records(self, peer: Peer, params: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """All that is on record, in pieces, the log oldest first. Takes nothing."""
        async for piece in self.pieces():
            yield piece

    async def pieces(self) -> AsyncIterator[dict[str, Any]]:
        now = time.time()
        self.settle()
        status = self._status()
        # Taken at one moment; what is raised while the pages are sent belongs to the next report.
        warnings, entries = list(self._guard.outbox), self._guard.history.all()
        facts = {name: status.get(name) for name in ("version", "workspace", "mountpoint", "disabled")}
        yield {"mount": {**facts, "began": rfc3339(self._began), "now": rfc3339(now)}}
        for some in _pages(self._tasks.all()):
            yield {"tasks": some}
        for found in _pages(warnings):
            yield {"warnings": [warning_json(w) for w in found]}
            await trio.sleep(0)
        for rows in _pages(await self._conflicts(warnings)):
            yield {"conflicts": rows}
        for page in _pages(entries):
            yield {"log": [entry_json(e) for e in page]}
            await trio.sleep(0)
        yield {"end": True}

    @staticmethod
    def forget(directory: str) -> None:
        """What an earlier mount left there; if this one is killed, nobody shall take that for its own."""
        try:
            os.unlink(os.path.join(directory, RECORDS_FILE))
        except OSError:
            pass  # none, as a rule

    async def save(self, directory: str) -> None:
        """Write all of it to `directory`, whole or not at all.

        It is done at the end of a mount, which must not fail for it: what is wrong
        is logged.
        """
        name = os.path.join(directory, RECORDS_FILE)
        draft = f"{name}.{os.getpid()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with open(os.open(draft, flags, 0o600), "w", encoding="ascii") as file:
                async for piece in self.pieces():
                    file.write(json.dumps(piece, separators=(",", ":")) + "\n")
            os.replace(draft, name)
        except (OSError, FsguardError) as e:
            _log.warning("the records of this mount could not be saved: %s", e)
            try:
                os.unlink(draft)
            except OSError:
                pass

    async def _conflicts(self, warnings: Sequence[Warning]) -> list[dict[str, Any]]:
        """Kept versions that were destroyed unseen since the mount began, oldest first, with diffs."""
        store = await self._versions.store_or_none()
        if store is None:
            return []
        found = [v for v in store.catalogue.conflicts(None, True, MOST_CONFLICTS) if v.time >= self._began]
        found.reverse()
        diffs = await trio.to_thread.run_sync(self._diffs, store, found[-MOST_DIFFS:])
        return [{**self._versions.row(v), **diffs.get(v.id, {"secret": None, "diff": None})} for v in found]

    def _diffs(self, store: Store, rows: Sequence[Version]) -> dict[int, dict[str, Any]]:
        """By id: what was destroyed against what is there now; the newest first, while the time lasts."""
        until = time.monotonic() + DIFF_SECONDS
        result: dict[int, dict[str, Any]] = {}
        for version in reversed(rows):
            if time.monotonic() > until:
                break
            if self._versions.secret(version.path):
                result[version.id] = {"secret": True, "diff": None}
            elif version.kept and version.kind == "file" and version.size <= DIFF_BYTES:
                result[version.id] = {"secret": False, "diff": self._diff(store, version)}
        return result

    def _diff(self, store: Store, version: Version) -> str | None:
        try:
            old = store.read(version.id, 0, DIFF_BYTES)
        except FsguardError:
            return None
        new = read_below(self._root, version.path, DIFF_BYTES + 1)
        if new is not None and len(new) > DIFF_BYTES:
            return None
        there = "now: not there" if new is None else "now"
        whose = version.sibling or "no task"
        return short_diff(old, new or b"", f"@{version.version} by {whose}", there, DIFF_LINES)


def _pages(items: Sequence[Any]) -> list[Sequence[Any]]:
    return [items[i : i + PAGE] for i in range(0, len(items), PAGE)]
