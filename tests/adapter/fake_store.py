"""Kept versions in memory, answering as the daemon does, for tests of the commands about them."""

from __future__ import annotations

import base64
import os
import stat
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

from fsguard.errors import UsageError
from tests.adapter.fake_daemon import FakeDaemon

__all__ = ["FakeStore"]

PIECE = 1000
"""Bytes of one `versions.read`: so small that small files need several."""


class FakeStore:
    """Rows and their bytes. `refusing` is the reason why nothing is kept any more."""

    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace
        self.rows: list[dict[str, Any]] = []
        self.bytes: dict[int, bytes] = {}
        self.bases: dict[int, bytes] = {}
        self.plan: list[dict[str, Any]] = []
        self.refusing: str | None = None
        self.secrets = (".env",)
        self.counter = 100

    def add(self, path: str, data: bytes = b"", **more: Any) -> dict[str, Any]:
        """Keep `data` of `path`, as bob's command destroyed what alice had written."""
        number = len(self.rows) + 1
        self.counter += 1
        row = {
            "id": number,
            "path": path,
            "version": self.counter,
            "task": "bob",
            "sibling": "alice",
            "command": "sed -i s/a/b/ f",
            "time": datetime.now().astimezone().isoformat(timespec="microseconds"),
            "cause": "replace",
            "size": len(data),
            "kept": True,
            "reason": None,
            "kind": "file",
            "mode": 0o640,
            "uid": os.geteuid(),
            "gid": os.getegid(),
            "mtime_ns": 1_600_000_000_123_456_789,
            "xattrs": {},
            "target": None,
            "conflict": True,
            "resolved": False,
            "base_version": None,
            "warning": 1,
            "message": "Alice changed it. You did not look.",
        } | more
        self.rows.append(row)
        self.bytes[number] = data
        return row

    def answers(self) -> dict[str, Any]:
        names = (
            "list",
            "find",
            "read",
            "keep_now",
            "conflicts",
            "resolved",
            "merge",
            "undo_plan",
            "diffable",
        )
        return {f"versions.{name}": getattr(self, name) for name in names}

    def of(self, path: str) -> list[dict[str, Any]]:
        return [row for row in reversed(self.rows) if row["path"] == path]

    # ---- the answers -------------------------------------------------------------------------

    def list(self, params: dict[str, Any]) -> Any:
        return self.of(params["path"])[: params["limit"]]

    def find(self, params: dict[str, Any]) -> Any:
        for row in self.of(params["path"]):
            if row["version"] == params["version"]:
                return row
        there = ", ".join(str(row["version"]) for row in self.of(params["path"])) or "none"
        raise UsageError(f"no version {params['version']} of {params['path']}", f"there are: {there}")

    def read(self, params: dict[str, Any]) -> Any:
        data, offset = self.bytes[params["id"]], params["offset"]
        part = data[offset : offset + PIECE]
        end = offset + len(part) >= len(data)
        return {"data": base64.b64encode(part).decode(), "size": len(data), "eof": end}

    def keep_now(self, params: dict[str, Any]) -> Any:
        place = self.workspace / params["path"]
        try:
            found = place.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        more: dict[str, Any] = {"mode": stat.S_IMODE(found.st_mode), "mtime_ns": found.st_mtime_ns}
        more |= {"conflict": False, "cause": "restore", "task": None, "message": None}
        if self.refusing:
            more |= {"kept": False, "reason": self.refusing}
        if place.is_symlink():
            return self.add(params["path"], b"", kind="symlink", target=os.readlink(place), **more)
        return self.add(params["path"], place.read_bytes(), **more)

    def conflicts(self, params: dict[str, Any]) -> Any:
        return [
            row
            for row in reversed(self.rows)
            if row["conflict"]
            and (params["all"] or not row["resolved"])
            and params["task"] in (None, row["task"])
        ][: params["limit"]]

    def resolved(self, params: dict[str, Any]) -> Any:
        for row in self.rows:
            if row["id"] in params["ids"]:
                row["resolved"] = True
        return {"resolved": params["ids"]}

    def merge(self, params: dict[str, Any]) -> Any:
        row = self.rows[params["id"] - 1]
        ours, theirs, base = (self.workspace / row["path"]).read_bytes(), self.bytes[row["id"]], None
        base = self.bases.get(row["id"])
        answer = {"path": row["path"], "base": base is not None}
        if base is None and params["mode"] in ("ours", "theirs"):
            data = ours if params["mode"] == "ours" else theirs
            return answer | {"clean": True, "conflicts": 0, "data": base64.b64encode(data).decode()}
        files = []
        for name, data in (("ours", ours), ("base", base or b""), ("theirs", theirs)):
            file = self.workspace.parent / f"merge-{name}"
            file.write_bytes(data)
            files.append(str(file))
        flags = [f"--{params['mode']}"] if params["mode"] else []
        done = subprocess.run(["git", "merge-file", "-p", *flags, *files], capture_output=True, check=False)
        data = base64.b64encode(done.stdout).decode()
        return answer | {"clean": done.returncode == 0, "conflicts": done.returncode, "data": data}

    def undo_plan(self, params: dict[str, Any]) -> Any:
        return self.plan

    def diffable(self, params: dict[str, Any]) -> Any:
        return {"secret": params["path"].rpartition("/")[2] in self.secrets}


def daemon_with(top: Path) -> tuple[FakeDaemon, FakeStore]:
    store = FakeStore(top / "ws")
    return FakeDaemon(top, store.answers()), store
