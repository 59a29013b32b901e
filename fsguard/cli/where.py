"""From what a user typed to a mount, and to a path inside it."""

from __future__ import annotations

import os

from fsguard.control import registry
from fsguard.errors import FsguardError, NotMountedError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fsguard.control.registry import Mount

__all__ = ["here", "locate", "locate_for", "named", "relative"]


def here() -> str:
    """The directory we run in, or / when it is gone."""
    try:
        return os.getcwd()
    except OSError:
        return "/"


def named(given: str | None, other: str | None) -> str | None:
    """The one workspace that was named, as an argument or as a flag; UsageError: two."""
    if given and other and given != other:
        raise UsageError(f"two workspaces are named: {given} and {other}")
    return given or other


def locate(given: str | None, other: str | None = None) -> Mount:
    """The mount that `given` (or `other`, or the directory we run in) belongs to.

    NotMountedError says what stands there instead.
    """
    path = named(given, other) or here()
    mount = registry.find(path)
    if mount is None:
        raise _not_mounted(path)
    return mount


def locate_for(given: str | None, path: str, *, whole: bool = False) -> tuple[Mount, str]:
    """(mount, `path` relative to its workspace) for a command about one file.

    Without a workspace given, the mount of the directory we run in counts, and
    if the path is not in it, the mount of the path. With `whole`, the workspace
    itself will do as a path: "".
    """
    if given is None:
        mount = registry.find(here())
        if mount is None or _inside(mount, path) is None:
            mount = registry.find(_resolved(path)) or mount
        if mount is None:
            raise _not_mounted(path)
    else:
        mount = locate(given)
    if whole and _inside(mount, path) == "":
        return mount, ""
    return mount, relative(mount, path)


def relative(mount: Mount, path: str) -> str:
    """`path` as the daemon knows it. UsageError when it lies outside, or is the
    workspace itself.

    Symlinked directories on the way are followed, a symlink at the end is not: it
    is a file of its own.
    """
    inside = _inside(mount, path)
    if inside is None:
        raise UsageError(f"{path} is not in the workspace {mount.workspace}")
    if not inside:
        raise UsageError(f"{path} is the workspace itself; name a file in it")
    return inside


def _inside(mount: Mount, path: str) -> str | None:
    return mount.relative(_resolved(path))


def _resolved(path: str) -> str:
    if not path:
        raise UsageError("an empty path")
    full = os.path.join(here(), path)
    parent, name = os.path.split(full.rstrip("/") or "/")
    if name in ("", ".", ".."):
        return os.path.realpath(full)
    return os.path.join(os.path.realpath(parent), name)


def _not_mounted(path: str) -> FsguardError:
    from fsguard.control import mountinfo

    plain = os.path.abspath(path)
    for entry in mountinfo.read():
        if entry.fstype == mountinfo.FSTYPE and mountinfo.inside(plain, entry.path):
            return NotMountedError(
                f"the mount at {entry.path} has no living daemon that we know of",
                f"`fsguard unmount {entry.path}`, then mount it again",
            )
    others = [mount.mountpoint for mount in registry.live()]
    hint = "mount it: `fsguard mount WORKSPACE`"
    if others:
        more = "" if len(others) <= 3 else f" and {len(others) - 3} more"
        hint += f"; mounted now: {', '.join(others[:3])}{more} (--workspace W names one)"
    return NotMountedError(f"{plain} is not in a guarded workspace", hint)
