"""What `fsguard mcp` offers to a model: plain functions, without the protocol.

Their signatures and docstrings are what the model is shown.
"""

from __future__ import annotations

import os
from typing import Any, Literal

from fsguard.cli import diff as diffs
from fsguard.cli import kept, restore, where
from fsguard.control.client import Client
from fsguard.control.registry import Mount
from fsguard.errors import DaemonError, UsageError

__all__ = ["Tools"]

LONGEST_WAIT = 120
_LARGEST_DIFF = 30_000


class Tools:
    """:param workspace: as `--workspace`; None: the one that the agent stands in, found anew each time.
    :param task: the task that the server runs as.
    """

    def __init__(self, workspace: str | None, task: str | None) -> None:
        self._start = where.here()
        self._workspace = os.path.join(self._start, workspace) if workspace is not None else None
        self._task = task
        # It lives long, and must not be what keeps a workspace from being unmounted.
        os.chdir("/")

    def check(self, paths: list[str], task: str | None = None) -> list[dict[str, Any]]:
        """Would writing these files now overwrite a sibling's work that you have not seen?

        Ask before you overwrite a file that you read a while ago. `stale` true: `message` says whose
        work it is and what to do; reading the file again clears it. `task` defaults to your own.
        """
        asked = self._named(task)
        places = [self._place(path) for path in paths]
        if len({place.mount.socket for place in places}) > 1:
            raise UsageError("these paths are in different workspaces", "ask about each by itself")
        if not places:
            return []
        with Client(places[0].mount) as client:
            answer = client.call("check", task=asked, paths=[place.path for place in places])
        return _objects(answer)

    def who(self, path: str) -> dict[str, Any]:
        """Who wrote this file and with which command, who has seen which version, who has it open now."""
        place = self._place(path)
        with Client(place.mount) as client:
            return _object(client.call("who", path=place.path))

    def warnings(self, task: str | None = None, all: bool = False) -> list[dict[str, Any]]:
        """What you are to be told: whose work was overwritten unseen, by you or at your cost.

        Ask after a shell command or an edit. Your own new warnings are given once; `all` true gives
        every one on record, told or not. `task` defaults to your own.
        """
        asked = self._named(task)
        with Client(self._mount()) as client:
            return _objects(client.call("warnings", task=asked, all=all, ack=not all and asked == self._task))

    def versions(self, path: str, limit: int = 20) -> list[dict[str, Any]]:
        """The kept versions of a file, newest first: contents that somebody destroyed.

        `version` is the number for `diff` and `restore`, `sibling` whose content it was, `task` and
        `command` who destroyed it.
        """
        place = self._place(path)
        with Client(place.mount) as client:
            rows = client.call("versions.list", path=place.path, limit=limit)
        return _objects([{k: v for k, v in row.items() if k not in ("xattrs", "target")} for row in rows])

    def diff(self, path: str, version: int | None = None, against: int | None = None) -> dict[str, Any]:
        """What a kept version of a file had, against another one, or against the file as it is now.

        Without `version`: the newest one that was kept. `diff` is a unified diff, null for binary files.
        """
        place = self._place(path)
        with Client(place.mount) as client:
            row, other, old, new = diffs.compared(client, place, version, against)
        facts = diffs.facts(old, new)
        if facts["diff"] and len(facts["diff"]) > _LARGEST_DIFF:
            facts["diff"] = facts["diff"][:_LARGEST_DIFF] + "\n(the rest is left out)"
        second = other["version"] if other is not None else None
        return _object({"path": place.path, "version": row["version"], "against": second, **facts})

    def restore(self, path: str, version: int, to: str | None = None) -> dict[str, Any]:
        """Bring a kept version of a file back, or put it at `to` instead.

        What is there now is kept before; `undo` is the command that takes it back.
        """
        place = self._place(path)
        target = os.path.join(self._start, to) if to is not None else None
        with Client(place.mount) as client:
            row = kept.find(client, place, version)
            facts, _ = restore.restored(client, place, row, target)
        names = ("path", "version", "restored_to", "changed", "before", "unrestored", "resolved", "undo")
        return _object({name: facts[name] for name in names})

    def lease(
        self,
        action: Literal["acquire", "release", "list", "request"],
        patterns: list[str] | None = None,
        task: str | None = None,
        ttl: int = 600,
        wait: int = 0,
        reason: str = "",
    ) -> dict[str, Any]:
        """Keep other agents off some paths while you change them together.

        `acquire` takes a lease on `patterns` (as in .gitignore) that ends after `ttl` seconds without a
        write of yours; others' writes there are refused meanwhile. `wait` (seconds, at most 120) is how
        long to queue for it. `release` ends all leases of yours, `list` shows all leases, `request` asks
        the holders to let go. `task` defaults to your own.
        """
        if action == "list":
            with Client(self._mount()) as client:
                return _object(client.call("lease.list"))
        asked = self._named(task)
        if action == "release":
            with Client(self._mount()) as client:
                return _object(client.call("lease.release", task=asked))
        if not patterns:
            raise UsageError(f"`{action}` needs `patterns`")
        if action == "request":
            with Client(self._mount()) as client:
                return _object(client.call("lease.request", task=asked, patterns=patterns, reason=reason))
        if not 0 <= wait <= LONGEST_WAIT:
            raise UsageError(f"`wait` is at most {LONGEST_WAIT} s here", "ask again when it has run out")
        with Client(self._mount(), timeout=LONGEST_WAIT + 30) as client:
            given = {"task": asked, "patterns": patterns, "ttl": ttl, "wait": wait, "reason": reason}
            for event in client.stream("lease.acquire", **given):
                if "lease" in event:
                    return _object(event["lease"])
        raise DaemonError("the daemon ended the wait without an answer")

    def _named(self, task: str | None) -> str:
        name = task or self._task
        if name is None:
            raise UsageError(
                "which task? this server runs as none",
                "name it with `task`, or start the server with --task ID or FSGUARD_TASK",
            )
        return name

    def _mount(self) -> Mount:
        return where.locate(self._workspace or self._start)

    def _place(self, path: str) -> kept.Place:
        """A path as the agent means it: from its directory, or else from the workspace's top."""
        mount = self._mount() if self._workspace is not None else None
        start = self._start
        if mount is not None and mount.relative(os.path.realpath(start)) is None:
            start = mount.mountpoint
        return kept.Place(self._workspace, os.path.join(start, path))


def _object(value: Any) -> dict[str, Any]:
    found = _sayable(value)
    assert isinstance(found, dict)
    return found


def _objects(value: Any) -> list[dict[str, Any]]:
    return [_object(item) for item in value]


def _sayable(value: Any) -> Any:
    """JSON that any reader takes: a byte of a name that is not UTF-8 is spelled out."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, list):
        return [_sayable(item) for item in value]
    if isinstance(value, dict):
        return {_sayable(key): _sayable(item) for key, item in value.items()}
    return value
