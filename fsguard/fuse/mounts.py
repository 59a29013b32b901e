"""Mounts of ours as the kernel lists them: finding, dead ones, unmounting.

Free of pyfuse3 and trio, so that commands can use it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from dataclasses import dataclass
from errno import EBUSY, EINVAL, ENOTCONN, EPERM

from ..errors import BusyError, DaemonError, MissingError, NotMountedError, RefusedError
from . import syscalls

__all__ = ["FSTYPE", "Mount", "find", "fusermount", "listing", "state", "unmount"]

FSTYPE = "fuse.fsguard"


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of /proc/self/mountinfo. `source` is the workspace, `device` "major:minor"."""

    mountpoint: str
    source: str
    device: str
    options: str


def _unescape(text: str) -> str:
    return os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m[1], 8)]), os.fsencode(text)))


def parse(text: str, kinds: str = FSTYPE) -> list[Mount]:
    """The lines of /proc/self/mountinfo whose filesystem type begins with `kinds`."""
    mounts = []
    for line in text.split("\n"):  # not splitlines: names may hold any character but newline
        fields = line.split(" ")
        try:
            dash = fields.index("-", 6)
            kind, source, options = fields[dash + 1 : dash + 4]
        except ValueError:
            continue
        if kind.startswith(kinds):
            mounts.append(Mount(_unescape(fields[4]), _unescape(source), fields[2], options))
    return mounts


def listing(kinds: str = FSTYPE) -> list[Mount]:
    """All mounts of ours (or of `kinds`) visible in this mount namespace, oldest first."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as f:
        return parse(f.read(), kinds)


def find(mountpoint: str, kinds: str = FSTYPE) -> Mount | None:
    """The mount of ours (or of `kinds`) at this very directory, the topmost if several."""
    # Only the parent is resolved: the mountpoint itself may be dead or hang.
    mountpoint = os.path.abspath(mountpoint)
    above, name = os.path.split(mountpoint)
    wanted = os.path.join(os.path.realpath(above), name)
    return next((m for m in reversed(listing(kinds)) if m.mountpoint in (wanted, mountpoint)), None)


def state(mountpoint: str, patience: float = 2.0) -> str:
    """ "none", "alive", "dead" (its daemon is gone) or "hung" (no answer within `patience` seconds)."""
    if find(mountpoint) is None:
        return "none"
    answer: list[str] = []

    def ask() -> None:
        try:
            os.statvfs(mountpoint)
        except OSError as error:
            answer.append("dead" if error.errno == ENOTCONN else "alive")
        else:
            answer.append("alive")

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(patience)
    return answer[0] if answer else "hung"


def fusermount() -> str:
    """Path of the set-user-ID helper for ordinary users; MissingError if there is none."""
    found = shutil.which("fusermount3") or shutil.which("fusermount3", path="/usr/bin:/bin:/usr/sbin")
    if found is None:
        raise MissingError("fusermount3 is not installed", "install the package fuse3")
    return found


def unmount(mountpoint: str) -> None:
    """Unmount strictly (never lazily: writes would go on unguarded), in this namespace.

    Raises BusyError, NotMountedError, RefusedError. Blocks while the daemon
    writes mapped pages back; the daemon itself has to call it from a thread.
    """
    if os.geteuid() == 0:
        try:
            syscalls.umount(os.fsencode(mountpoint), syscalls.UMOUNT_NOFOLLOW)
        except OSError as error:
            raise explain(error, mountpoint) from error
        return
    done = subprocess.run(
        [fusermount(), "-u", "--", mountpoint], capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        words = done.stderr.strip()
        if "busy" in words.lower():
            raise explain(OSError(EBUSY, words), mountpoint)
        if "not found" in words or "not mounted" in words.lower():
            raise explain(OSError(EINVAL, words), mountpoint)
        raise RefusedError(f"cannot unmount {mountpoint}: {words}")


def explain(error: OSError, mountpoint: str) -> Exception:
    """The user's error for what umount2(2) said."""
    if error.errno == EBUSY:
        return BusyError(
            f"{mountpoint} is in use",
            "close what works in there (its working directory counts) and try again",
        )
    if error.errno == EINVAL:
        return NotMountedError(f"{mountpoint} is not a mountpoint")
    if error.errno == EPERM:
        return RefusedError(f"only who mounted {mountpoint}, or root, may unmount it")
    return DaemonError(f"cannot unmount {mountpoint}: {error.strerror}")
