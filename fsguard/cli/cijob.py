"""What is known of a CI job between its `begin` and its `end`, and what the CI systems say about it."""

from __future__ import annotations

import json
import os

from fsguard.control import mountinfo, places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = ["Job", "ancestors", "current", "load", "name", "workspace"]

# GitHub Actions (and Forgejo, Gitea), GitLab CI, Jenkins.
_WORKSPACES = ("GITHUB_WORKSPACE", "CI_PROJECT_DIR", "WORKSPACE")
_NAMES = (
    ("GITHUB_JOB", "GITHUB_RUN_ID", "GITHUB_RUN_ATTEMPT"),
    ("CI_JOB_NAME", "CI_JOB_ID"),
    ("BUILD_TAG",),
)


class Job:
    """`mounted`: by this job, which will unmount it. Not `guarded`: nothing could be mounted."""

    def __init__(
        self, workspace: str, name: str, *, mounted: bool = False, guarded: bool = True, began: str = ""
    ) -> None:
        self.workspace = workspace
        self.name = name
        self.mounted = mounted
        self.guarded = guarded
        self.began = began or _now()

    def task(self, step: str) -> str:
        """The task ID of a step: other jobs in the same mount have steps of the same names."""
        return step if self.mounted or not self.guarded else f"{self.name}/{step}"[:200]

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("workspace", "name", "mounted", "guarded", "began")}

    def save(self) -> None:
        file = _file(self.workspace)
        draft = f"{file}.{os.getpid()}"
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as out:
            json.dump(self.as_dict(), out)
        os.replace(draft, file)

    def forget(self) -> None:
        try:
            os.unlink(_file(self.workspace))
        except FileNotFoundError:
            pass


def load(workspace: str) -> Job | None:
    """The job that began in exactly this directory and has not ended."""
    return _read(_file(workspace))


def current(given: str | None) -> Job | None:
    """The job of a directory, or of the one we stand in; of nested ones the innermost."""
    directory = places.runtime_dir()
    here = _real(given or ".")
    jobs = [_read(f"{directory}/{entry}") for entry in places.names(directory) if entry.endswith(".job")]
    around = [job for job in jobs if job is not None and mountinfo.inside(here, job.workspace)]
    if not around and given is None:
        said = _real(workspace(os.environ))
        around = [job for job in jobs if job is not None and job.workspace == said]
    return max(around, key=lambda job: len(job.workspace), default=None)


def workspace(environ: Mapping[str, str]) -> str:
    """Where the CI system says that the job's files are; else where we stand."""
    return next((environ[key] for key in _WORKSPACES if environ.get(key)), ".")


def name(environ: Mapping[str, str]) -> str:
    """The job as the CI system calls it, unique among its runs."""
    for keys in _NAMES:
        if environ.get(keys[0]):
            words = "-".join(environ[key] for key in keys if environ.get(key))
            return "".join(c if c.isprintable() else "_" for c in words)[:150]
    return "job"


def ancestors() -> set[int]:
    """This process and those above it, as far as they can be seen."""
    found, pid = set(), os.getpid()
    while pid > 0 and pid not in found:
        found.add(pid)
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return found


def _real(path: str) -> str:
    """The real path; "/" where we stand in a mount whose daemon is gone."""
    try:
        return os.path.realpath(path)
    except OSError:
        return "/"


def _file(workspace: str) -> str:
    import hashlib

    digest = hashlib.sha256(os.fsencode(workspace)).hexdigest()[:16]
    return f"{places.runtime_dir()}/{digest}.job"


def _read(file: str) -> Job | None:
    try:
        with open(file, "rb") as source:
            data = json.loads(source.read(1 << 16))
        job = Job(
            data["workspace"],
            data["name"],
            mounted=data["mounted"],
            guarded=data["guarded"],
            began=data["began"],
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    sound = all(isinstance(text, str) for text in (job.workspace, job.name, job.began))
    return job if sound and type(job.mounted) is type(job.guarded) is bool else None


def _now() -> str:
    from datetime import datetime

    return datetime.now().astimezone().isoformat(timespec="microseconds")
