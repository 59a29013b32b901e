"""A cgroup of its own for every run, below the caller's, so that the caller's limits hold.

What a process starts stays in its cgroup through setsid, double fork and the
death of its parents; that is what makes attribution hold. The unified tree is
preferred (alone or beside v1 controllers, where it carries no limits), else v1's
name=systemd, which carries none either. Where neither can be written, a run has
no cgroup and is attributed by descent and environment.

The parsing is pure: text in, directories out.
"""

from __future__ import annotations

import os

from fsguard.control import mountinfo

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fsguard.control.mountinfo import MountEntry

__all__ = ["candidates", "join", "make", "remove"]


def candidates(own: str, mounts: list[MountEntry]) -> list[str]:
    """The directories of the caller's own cgroups, best first.

    `own` is the text of /proc/self/cgroup. A hierarchy that is not mounted here,
    or only in a part that does not hold the caller, is left out.
    """
    unified, named = None, None
    for line in own.split("\n"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and controllers == "":
            unified = path
        elif controllers == "name=systemd":
            named = path
    found = [
        _directory(unified, [m for m in mounts if m.fstype == "cgroup2"]),
        _directory(
            named, [m for m in mounts if m.fstype == "cgroup" and "name=systemd" in m.options.split(",")]
        ),
    ]
    return [directory for directory in found if directory is not None]


def make(token: str) -> str | None:
    """Make ``fsguard-TOKEN`` below the caller's own cgroup; None where that can't be."""
    try:
        with open("/proc/self/cgroup", "rb") as file:
            own = os.fsdecode(file.read())
    except OSError:
        return None
    for parent in candidates(own, mountinfo.read()):
        directory = f"{parent}/fsguard-{token}"
        try:
            os.mkdir(directory)
        except OSError:
            continue  # read-only, not delegated to us, or no more descendants allowed
        if os.access(f"{directory}/cgroup.procs", os.W_OK):
            return directory
        remove(directory)
    return None


def join(directory: str, pid: int) -> bool:
    """Move a process (with all its threads) there; False where the kernel refuses.

    The unified tree refuses below a threaded cgroup, and without write access to
    the common ancestor's cgroup.procs.
    """
    try:
        with open(f"{directory}/cgroup.procs", "wb", buffering=0) as file:
            file.write(b"%d" % pid)
    except OSError:
        return False
    return True


def remove(directory: str) -> None:
    """Remove it if nothing lives there; processes that live on keep it."""
    try:
        os.rmdir(directory)
    except OSError:
        pass


def _directory(path: str | None, mounts: list[MountEntry]) -> str | None:
    if path is None or "/../" in f"{path}/":
        return None  # outside of our cgroup namespace
    for mount in mounts:
        if mountinfo.inside(path, mount.root):
            below = path[len(mount.root) :] if mount.root != "/" else path
            return (mount.path + "/" + below.strip("/")).rstrip("/")
    return None
