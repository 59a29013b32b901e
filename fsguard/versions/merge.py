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
MODES = ("ours", "theirs", "union")


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

    The result does not depend on anybody's git configuration.

    :param labels: what the conflict markers call ours, base and theirs.
    :param mode: None leaves conflict markers; "ours", "theirs", "union" choose.
    :raises MissingError: git is not installed.
    :raises UsageError: one of them is no text, or there is no such mode.
    :raises DaemonError: git failed, or took too long.
    """
    if mode is not None and mode not in MODES:
        raise UsageError(f"there is no way {mode!r} to merge", f"There are: {', '.join(MODES)}.")
    if any(b"\0" in data[:SNIFF] for data in (base, ours, theirs)):
        raise UsageError("a binary file cannot be merged", "Choose a side: --ours or --theirs.")
    with tempfile.TemporaryDirectory(prefix="fsguard-merge-") as directory:
        names = []
        for name, data in (("ours", ours), ("base", base), ("theirs", theirs)):
            path = os.path.join(directory, name)
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as f:
                f.write(data)
            names.append(path)
        command = ["git", "merge-file", "-p", "-q"]
        for label in labels:
            command += ["-L", _label(label)]
        if mode is not None:
            command.append(f"--{mode}")
        done = _run([*command, "--", *names], directory)
    # The exit code is the number of conflicts, at most 127; 255 is an error.
    if done.returncode < 0 or done.returncode > 127:
        words = done.stderr.decode("utf-8", "replace").strip()[-300:]
        raise DaemonError(f"git merge-file failed: {words}")
    return Merge(done.stdout, done.returncode == 0, done.returncode)


def _label(text: str) -> str:
    """One line for a conflict marker: the text may be anybody's."""
    return "".join(ch if ch.isprintable() else "?" for ch in text)[:200]


def _run(command: list[str], directory: str) -> subprocess.CompletedProcess[bytes]:
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "LC_ALL": "C",
        "HOME": directory,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": os.path.dirname(directory),
    }
    try:
        return subprocess.run(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    except (FileNotFoundError, PermissionError):
        raise MissingError("git is not installed, and merging takes it", "apt-get install git") from None
    except subprocess.TimeoutExpired:
        raise DaemonError(f"git merge-file did not end within {SECONDS:g} s") from None
