"""`fsguard hook git-pre-commit`, `fsguard check --staged`: would a commit carry or undo others' unseen work?

For the task in FSGUARD_TASK; a commit by no task is nobody's business here. What
`git add` has read, the task has not therefore seen: only reads by other commands
count as looks. In doubt nothing is said, and never is a commit held up by us,
unless the policy is `block`.
"""

from __future__ import annotations

import _thread
import fnmatch
import os
import subprocess
import sys
import time

from fsguard.control import registry
from fsguard.control.client import Client
from fsguard.errors import FsguardError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from fsguard.control.registry import Mount

__all__ = ["Commit", "by_mount", "policy_of", "run", "staged"]

SECONDS = 5.0
_SHOWN = 20
_ASKED = 300
"""Paths that are looked at one by one; of a larger commit only the stale ones are told."""


def run() -> int:
    """Exit code 1 if the policy forbids the commit, else 0."""
    task = os.environ.get("FSGUARD_TASK", "")
    if not task or os.environ.get("FSGUARD_DISABLE", "").strip("0"):
        return 0
    _thread.start_new_thread(_give_up, ())
    blocked = False
    try:
        for mount, paths in by_mount(staged()):
            with Client(mount, 2.0) as client:
                blocked = _tell(Commit(client, task, paths)) or blocked
    except (FsguardError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if os.environ.get("FSGUARD_DEBUG"):
            raise
        if isinstance(error, FsguardError) and error.exit_code != 2:  # 2: a daemon that knows less
            _say(f"the commit was not checked: {error.message}")
    return int(blocked)


def _give_up() -> None:
    time.sleep(SECONDS)
    _say(f"the commit was not checked: no answer within {SECONDS:g} s")
    os._exit(0)


def staged() -> list[str]:
    """Absolute paths of what the commit changes."""
    top = _git("rev-parse", "--show-toplevel").removesuffix(b"\n")
    names = _git("diff", "--cached", "--name-only", "--no-renames", "--no-relative", "--no-ext-diff", "-z")
    return [os.fsdecode(os.path.join(top, name)) for name in names.split(b"\0") if name] if top else []


def _git(*words: str) -> bytes:
    done = subprocess.run(
        ["git", *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False
    )
    return done.stdout if done.returncode == 0 else b""


def by_mount(paths: Sequence[str]) -> list[tuple[Mount, list[str]]]:
    """Each mount concerned, with the paths in it relative to its workspace."""
    mounts = [mount for _, mount in registry.entries() if mount.usable() and mount.alive()]
    found: dict[str, tuple[Mount, list[str]]] = {}
    above: dict[str, str] = {}  # the real path of each directory is looked up once
    for path in paths if mounts else ():
        directory, name = os.path.split(path)
        real = above.setdefault(directory, os.path.realpath(directory))
        inner = registry.matching(real, mounts)
        inside = inner[0].relative(f"{real}/{name}") if inner else None
        if inside:
            found.setdefault(inner[0].mountpoint, (inner[0], []))[1].append(inside)
    return list(found.values())


class Commit:
    """What one commit of `task` changes in one workspace."""

    def __init__(self, client: Client, task: str, paths: list[str]) -> None:
        self.client = client
        self.task = task
        self.paths = paths
        self._kin: set[str] | None = None

    def policies(self) -> dict[str, Any]:
        answer = self.client.call("policy.get")
        return answer if isinstance(answer, dict) else {}

    def findings(self) -> list[tuple[str, str]]:
        """(path, sentence) of what the task has not seen of others' work."""
        found: dict[str, str] = {}
        for start in range(0, len(self.paths), 500):
            for answer in self.client.call("check", task=self.task, paths=self.paths[start : start + 500]):
                if answer["stale"] and answer["message"]:
                    found[answer["path"]] = answer["message"]
        undone = self._undone()
        for path in self.paths[:_ASKED]:
            if path not in found:
                sentence = self._undoes(path, undone) or self._carries(path)
                if sentence:
                    found[path] = sentence
        return list(found.items())

    def _undone(self) -> dict[str, dict[str, Any]]:
        """Others' work that the task destroyed, by path, not settled since."""
        rows = self.client.call("versions.conflicts", task=self.task)
        return {row["path"]: row for row in reversed(rows) if row["task"] == self.task}

    def _undoes(self, path: str, undone: dict[str, dict[str, Any]]) -> str | None:
        row = undone.get(path)
        if row is None or self._looked(path, row["time"]):
            return None
        said = row.get("message") or "work of another task was overwritten unseen"
        return f"{said} This commit makes that final."

    def _carries(self, path: str) -> str | None:
        """A sibling wrote last, and all that has read it since for the task is git."""
        writers = self.client.call("who", path=path)["writers"]
        last = writers[0] if writers else None
        if last is None or last["task"] is None or last["task"] in self._family():
            return None
        if self._looked(path, last["time"]):
            return None
        who, command = _quoted(last["task"]), _quoted(last["command"])
        return (
            f"task {who} changed it last, with {command}, and you have not looked at it since: this commit"
            f" carries that work. `git diff --cached` shows it."
        )

    def _looked(self, path: str, since: str) -> bool:
        """Has the task read or written it since then, other than by git?"""
        for entry in self.client.call("log", path=path, task=self.task, limit=200):
            if entry["time"] <= since:
                return False
            if entry["path"] == path and not _is_git(entry["command"]):
                return True
        return False

    def _family(self) -> set[str]:
        """The task itself, and those above and below it."""
        if self._kin is None:
            parents = {item["task"]: item["parent"] for item in self.client.call("task.list")}
            self._kin = set(_line(self.task, parents))
            self._kin |= {task for task in parents if self.task in _line(task, parents)}
        return self._kin


def _line(task: str, parents: dict[str, str | None]) -> list[str]:
    line = [task]
    while (parent := parents.get(line[-1])) is not None and parent not in line:
        line.append(parent)
    return line


def _tell(commit: Commit) -> bool:
    """Print what was found; True when the policy forbids the commit."""
    found = commit.findings()
    if not found:
        return False
    policies = commit.policies()
    blocked = any(policy_of(policies, path, commit.task) == "block" for path, _ in found)
    _say(
        f"this commit of task {_quoted(commit.task)} carries or undoes what it has not seen of others' work:"
    )
    for path, sentence in found[:_SHOWN]:
        print(f"  {_harmless(path)}: {_harmless(sentence)}", file=sys.stderr)
    if len(found) > _SHOWN:
        print(f"  and {len(found) - _SHOWN} more: `fsguard check --task ID PATH…`", file=sys.stderr)
    if blocked:
        _say("refused by the policy `block`. Read these files, then commit again.")
    return blocked


def policy_of(policies: dict[str, Any], path: str, task: str) -> str:
    """As the guard decides: for the task, else for the path (the pattern set last), else for all."""
    tasks, paths = policies.get("tasks") or {}, policies.get("paths") or []
    if task in tasks:
        return str(tasks[task])
    for item in reversed(paths):
        if _matches(path, item["pattern"]):
            return str(item["policy"])
    return str(policies.get("default"))


def _matches(path: str, pattern: str) -> bool:
    """A line of .gitignore, in the forms that people write."""
    plain = pattern.strip("/")
    parts = path.split("/")
    if pattern.endswith("/"):
        parts = parts[:-1]  # directories only
    if "/" in pattern.rstrip("/"):
        return any(fnmatch.fnmatchcase("/".join(parts[: n + 1]), plain) for n in range(len(parts)))
    return any(fnmatch.fnmatchcase(part, plain) for part in parts)


def _is_git(command: str) -> bool:
    return command.split(" ", 1)[0].rpartition("/")[2] == "git"


def _quoted(text: str) -> str:
    return f'"{_harmless(text)[:80]}"'


def _harmless(text: str) -> str:
    """Others' words: nothing in them moves a cursor or begins a line."""
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


def _say(sentence: str) -> None:
    print(f"fsguard: {sentence}", file=sys.stderr, flush=True)
