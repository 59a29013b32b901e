"""Kept versions: listing them, reading them, merging, and what an undo would bring back."""

from __future__ import annotations

import base64
import time
from typing import Any

import trio

from fsguard.attribution.resolver import Resolver
from fsguard.below import PathSource, read_below
from fsguard.control import params as p
from fsguard.control.server import Peer
from fsguard.core.model import Kept
from fsguard.core.wording import rfc3339
from fsguard.dispatch import Dispatch
from fsguard.errors import RefusedError, UsageError
from fsguard.keeping import StoreKeeper
from fsguard.service.base import Part, noted, path_of, show
from fsguard.versions import Facts, Store, Version
from fsguard.versions.merge import Merge, merge

__all__ = ["Versions"]

CHUNK = 512 * 1024
MERGE_BYTES = 64 * 1024 * 1024
MODES = ("ours", "theirs", "union")


class Versions(Part):
    """:param root: descriptor of the backing directory."""

    def __init__(self, dispatch: Dispatch, resolver: Resolver, keeper: StoreKeeper | None, root: int) -> None:
        super().__init__(dispatch, resolver)
        self._keeper = keeper
        self._root = root
        self._began = time.time()
        self.put_by = self._put_by  # see `taping.note`

    def secret(self, path: bytes) -> bool:
        """Whether its bytes are shown to nobody who does not ask for them."""
        return self._keeper is not None and self._keeper.secrets(path)

    async def store_or_none(self) -> Store | None:
        return await self._store() if self._keeper is not None else None

    async def _store(self) -> Store:
        """The store, with all that was kept so far visible."""
        if self._keeper is None:
            why = "It was mounted with FSGUARD_DISABLE=1, or with keep.enabled = false."
            raise UsageError("nothing is kept in this mount", why)
        store = self._keeper.store
        await trio.to_thread.run_sync(store.flush)
        return store

    def row(self, v: Version) -> dict[str, Any]:
        # Warnings are numbered anew with each mount; the store outlives it.
        ours = v.warning is not None and v.time >= self._began
        warning = self._guard.outbox.find(v.warning) if ours and v.warning is not None else None
        return {
            "id": v.id,
            "path": show(v.path),
            "version": v.version,
            "task": v.task,
            "sibling": v.sibling,
            "command": v.command,
            "time": rfc3339(v.time),
            "cause": v.cause,
            "size": v.size,
            "kept": v.kept,
            "reason": v.reason,
            "kind": v.kind,
            "mode": v.mode,
            "uid": v.uid,
            "gid": v.gid,
            "mtime_ns": v.mtime_ns,
            "xattrs": {show(k): base64.b64encode(x).decode("ascii") for k, x in v.xattrs.items()},
            "target": show(v.target) if v.target is not None else None,
            "conflict": v.conflict,
            "resolved": v.resolved,
            "base_version": v.base_version,
            "warning": v.warning if ours else None,
            "message": warning.message if warning is not None and not warning.withdrawn else None,
        }

    async def listing(self, peer: Peer, params: dict[str, Any]) -> list[dict[str, Any]]:
        """What is kept of `path`, newest first, at most `limit`."""
        path = path_of(p.text(params, "path"))
        store = await self._store()
        found = store.catalogue.versions(path, p.number(params, "limit", 100, low=1, high=100_000))
        return [self.row(v) for v in found]

    async def find(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        """The row of `path` at `version`."""
        path = path_of(p.text(params, "path"))
        number = p.number(params, "version")
        store = await self._store()
        found = store.catalogue.find(path, number)
        if found is None:
            there = ", ".join(str(v.version) for v in store.catalogue.versions(path, 10))
            hint = f"Kept of it: {there}." if there else "Nothing of it was kept."
            raise UsageError(f"there is no version {number} of {show(path)}", hint)
        return self.row(found)

    async def read(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        """A piece of the bytes of row `id`, from `offset`, in base64."""
        number, offset = p.number(params, "id"), p.number(params, "offset", 0)
        store = await self._store()
        version = self._get(store, number)
        data = await trio.to_thread.run_sync(store.read, number, offset, CHUNK)
        return {
            "data": base64.b64encode(data).decode("ascii"),
            "size": version.size,
            "eof": offset + len(data) >= version.size or not data,
        }

    @staticmethod
    def _get(store: Store, number: int) -> Version:
        version = store.catalogue.get(number)
        if version is None:
            raise UsageError(f"there is no kept version with id {number}")
        return version

    async def keep_now(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any] | None:
        """Put the present bytes of a path by, whoever wrote them; null when nothing is there."""
        path = path_of(p.text(params, "path"))
        await self._store()
        try:
            number = self._keep_now(peer.pid, path)
        except FileNotFoundError:
            return None
        return self.row(self._get(await self._store(), number))

    @noted
    def _keep_now(self, pid: int, path: bytes) -> int:
        caller = self._who(pid)
        keeping, task = self._guard.keeping(caller, path), caller.task
        whose = task.id if task is not None else None
        number, digest, reason = self.put_by(
            path, keeping.number, whose, keeping.sibling, caller.command.text, self.now()
        )
        self._guard.has_kept(path, Kept(number, keeping.number, digest, reason))
        return number

    def _put_by(
        self, path: bytes, number: int, task: str | None, sibling: str | None, command: str, now: float
    ) -> tuple[int, bytes | None, str | None]:
        """(id, digest, why nothing was kept)."""
        assert self._keeper is not None
        with PathSource(self._root, path) as source:
            facts = Facts(
                path=path,
                version=number,
                task=task,
                sibling=sibling,
                command=command,
                time=now,
                cause="restore",
            )
            kept = self._keeper.store.keep(source, facts, may_link=False)
        return kept.id, kept.digest, None if kept.kept else kept.reason

    async def conflicts(self, peer: Peer, params: dict[str, Any]) -> list[dict[str, Any]]:
        """Work that was destroyed unseen: of `task` only, the resolved too with `all`, at most `limit`."""
        self.settle()
        store = await self._store()
        found = store.catalogue.conflicts(
            p.optional_text(params, "task"),
            p.flag(params, "all"),
            p.number(params, "limit", 1000, low=1, high=100_000),
        )
        return [self.row(v) for v in found]

    async def resolved(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        """The conflicts of the rows `ids` are over."""
        ids = params.get("ids")
        if not isinstance(ids, list) or not all(type(i) is int for i in ids):
            raise UsageError("`ids` must be a list of numbers")
        store = await self._store()
        own = self._caller(peer).task
        for number in ids:
            version = self._get(store, number)
            theirs = [self._guard.tasks.find(x) for x in (version.task, version.sibling) if x]
            if own is not None and not any(t is not None and t.below(own) for t in theirs):
                raise RefusedError(f"this conflict is not one of task {own.id!r}'s")
        store.set_resolved(ids)
        await self._store()
        return {"resolved": ids}

    async def merge(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        """What the task had read, what the sibling wrote (kept), and the file as it is now."""
        mode = p.optional_text(params, "mode")
        if mode is not None and mode not in MODES:
            raise UsageError(f"`mode` is one of {', '.join(MODES)}, not {mode!r}")
        store = await self._store()
        version = self._get(store, p.number(params, "id"))
        base = None
        if version.base_version is not None:
            base = store.catalogue.find(version.path, version.base_version)
        if base is not None and not base.kept:
            base = None

        def work() -> Merge:
            ours = read_below(self._root, version.path, MERGE_BYTES)
            if ours is None:
                raise UsageError(
                    f"{show(version.path)} is not there any more", "`fsguard restore` brings it back."
                )
            before = store.read(base.id) if base is not None else b""
            labels = (f"ours ({version.task})", "what was read", f"theirs ({version.sibling})")
            return merge(before, ours, store.read(version.id), labels, mode)

        result = await trio.to_thread.run_sync(work)
        return {
            "clean": result.clean,
            "conflicts": result.conflicts,
            "data": base64.b64encode(result.content).decode("ascii"),
            "base": base is not None,
            "path": show(version.path),
        }

    async def undo_plan(self, peer: Peer, params: dict[str, Any]) -> list[dict[str, Any]]:
        """Per path the oldest content that the task destroyed since then, unless it is settled."""
        task = p.text(params, "task")
        since = params.get("since") or 0.0
        if not isinstance(since, int | float):
            raise UsageError("`since` must be a time in seconds")
        first: dict[bytes, Version] = {}
        after = 0
        store = await self._store()
        while page := store.catalogue.destroyed_by(task, float(since), after=after):
            for v in page:
                # What a restore put by is what it replaced, not what it destroyed.
                if not v.resolved and v.cause != "restore":
                    first.setdefault(v.path, v)
            after = page[-1].id
        plan = []
        for path, v in first.items():
            state = self._guard.ledger.find(path)
            last = state.writers[-1] if state is not None and state.writers else None
            other = None
            if last is not None and last.author != task and last.time > v.time:
                other = last.author or f"{last.process.name} (pid {last.process.pid})"
            present = read_below(self._root, path, 1) is not None
            plan.append({**self.row(v), "changed_since_by": other, "present": present})
        return plan

    async def diffable(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        """Does `path` look like a secret?"""
        path = path_of(p.text(params, "path"))
        return {"secret": self.secret(path)}
