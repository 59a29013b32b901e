"""Puts bytes by in the version store, on behalf of dispatch."""

from __future__ import annotations

import os
from typing import Protocol

from fsguard.core.guard import Keeping
from fsguard.core.model import Actor, Kept, Warning
from fsguard.errors import FsguardError
from fsguard.observer import FileView
from fsguard.versions import Facts, Store
from fsguard.versions.diff import short_diff
from fsguard.versions.secrets import Secrets

__all__ = ["Readable", "StoreKeeper"]

DIFF_BYTES = 1024 * 1024


class Readable(Protocol):
    """What a diff needs of a file."""

    def is_regular(self) -> bool: ...

    def size(self) -> int: ...

    def open(self) -> int: ...


class StoreKeeper:
    """Implements `fsguard.dispatch.Keeper` on a `Store`.

    :param secrets: which files are never shown in a diff.
    """

    def __init__(self, store: Store, secrets: Secrets) -> None:
        self.store = store
        self.secrets = secrets

    def keep(
        self,
        file: FileView,
        path: bytes,
        actor: Actor,
        cause: str,
        keeping: Keeping,
        warning: Warning | None,
        now: float,
    ) -> Kept:
        facts = Facts(
            path=path,
            version=keeping.number,
            task=actor.task.id if actor.task is not None else None,
            sibling=keeping.sibling,
            command=actor.command.text,
            time=now,
            cause=cause,
            conflict=warning is not None,
            base_version=keeping.base.number if keeping.base is not None else None,
            warning=warning.id if warning is not None else None,
        )
        # The inode itself can be kept when the step takes its only name away.
        may_link = cause in ("replace", "delete") and not file.has_writers()
        kept = self.store.keep(file, facts, may_link=may_link)
        return Kept(kept.id, keeping.number, kept.digest, None if kept.kept else kept.reason or "unknown")

    def told(self, kept: Kept, warning: Warning) -> None:
        self.store.set_conflict(kept.id)
        self.store.set_warning(kept.id, warning.id)

    def needless(self, kept: Kept) -> None:
        self.store.set_conflict(kept.id, False)

    def diff(self, path: bytes, base: Kept | None, file: Readable) -> str:
        """What was read against what is there now, as the end of a warning; "": nothing to show."""
        if base is None or base.reason is not None or self.secrets(path) or not file.is_regular():
            return ""
        if file.size() > DIFF_BYTES:
            return ""
        try:
            old = self.store.read(base.id, 0, DIFF_BYTES + 1)
            fd = file.open()
            try:
                new = os.pread(fd, DIFF_BYTES + 1, 0)
            finally:
                os.close(fd)
        except (FsguardError, OSError):
            return ""
        if len(old) > DIFF_BYTES:
            return ""
        text = short_diff(old, new, "what you read", "what is there now")
        return "\n" + text if text else ""
