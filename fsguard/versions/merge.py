"""Three-way merge, by git's own: `git merge-file`."""

from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import dataclass

from fsguard.errors import DaemonError, MissingError, UsageError

__all__ = ["Merge", "merge"]

SECONDS = 10.0
SNIFF = 8000  # where git looks for a zero byte to call a file binary


@dataclass(frozen=True, slots=True)
class Merge:
    """The merged content; `conflicts` is the number of places with markers."""

    content: bytes
    clean: bool
    conflicts: int


def merge(
    base: bytes, ours: bytes, theirs: bytes, labels: tuple[str, str, str], mode: str | None = None
) -> Merge:
    """Merge `ours` and `theirs`, which both came from `base`; blocks for up to `SECONDS`.

    :param labels: what the conflict markers call ours, base and theirs.
    :param mode: None leaves conflict markers; "ours", "theirs", "union" choose.
    :raises MissingError: git is not installed.
    :raises UsageError: one of them is no text.
    """
    if any(b"\0" in data[:SNIFF] for data in (base, ours, theirs)):
        raise UsageError("a binary file cannot be merged", "Choose a side: --ours or --theirs.")
    with tempfile.TemporaryDirectory(prefix="fsguard-merge-") as directory:
        names = []
        for name, data in (("ours", ours), ("base", base), ("theirs", theirs)):
            path = os.path.join(directory, name)
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as f:
                f.write(data)
            names.append(path)
        command = ["git", "merge-file", "-p", "-q"]
        for label in labels:
            command += ["-L", label.replace("\n", " ")]
        if mode is not None:
            command.append(f"--{mode}")
        try:
            done = subprocess.run(
                [*command, *names],
                cwd=directory,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=SECONDS,
                check=False,
            )
        except FileNotFoundError:
            raise MissingError("git is not installed, and merging takes it", "apt-get install git") from None
        except subprocess.TimeoutExpired:
            raise DaemonError(f"git merge-file did not end within {SECONDS:g} s") from None
    # The exit code is the number of conflicts, at most 127; 255 is an error.
    if done.returncode < 0 or done.returncode > 127:
        words = done.stderr.decode("utf-8", "replace").strip()[-300:]
        raise DaemonError(f"git merge-file failed: {words}")
    return Merge(done.stdout, done.returncode == 0, done.returncode)
