"""`fsguard run` as a child process: its words, and what it reports when it has ended."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from fsguard.api import values
from fsguard.api.values import Completed, Footprint, GuardWarning
from fsguard.errors import DaemonError, FsguardError

__all__ = ["Report", "words"]

_FAILED = 125


class Report:
    """Context manager: a file that `fsguard run` writes its report to."""

    def __enter__(self) -> Report:
        fd, self.path = tempfile.mkstemp(prefix="fsguard-", suffix=".json")
        os.close(fd)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            os.unlink(self.path)
        except OSError:
            pass

    def completed(
        self, args: Sequence[str], returncode: int, stdout: bytes | None, stderr: bytes | None
    ) -> Completed:
        """How the command ended. FsguardError: it was not started; DaemonError: it was, off record."""
        data = self._read()
        if data is None:
            words = (stderr or b"").decode("utf-8", "replace").strip().removeprefix("fsguard: ")
            if returncode == _FAILED:
                raise FsguardError(words or "the command was not started; stderr says why")
            raise DaemonError(f"the command ended ({returncode}), but not on record", words or None)
        return Completed(
            tuple(args),
            returncode,
            stdout,
            stderr,
            tuple(values.read(GuardWarning, item) for item in data["warnings"]),
            values.read(Footprint, data["footprint"] or {}),
        )

    def _read(self) -> Any:
        with open(self.path, "rb") as file:
            raw = file.read()
        return json.loads(raw) if raw else None


def words(
    mountpoint: str,
    command: Sequence[str],
    report: Report,
    task: str,
    parent: str | None,
    name: str | None,
    intent: str | None,
) -> list[str]:
    """The command line that runs `command` as a task."""
    given = {"--parent": parent, "--name": name, "--intent": intent}
    more = [f"{flag}={value}" for flag, value in given.items() if value]
    return [
        *(sys.executable, "-P", "-m", "fsguard.cli", "run"),
        *(f"--task={task}", *more, f"--workspace={mountpoint}", f"--report={report.path}", "--quiet"),
        *("--", *command),
    ]
