"""The directories in which mounts are noted and their sockets lie.

/run/fsguard for root, else $XDG_RUNTIME_DIR/fsguard, /run/user/UID/fsguard or
/tmp/fsguard-UID; FSGUARD_RUNTIME_DIR overrides. A process may have been started
without the variables that its mount had (cron, sudo, ssh), so looking up reads
all of those places, not only the one that would be written.
"""

from __future__ import annotations

import os

from fsguard.errors import MissingError, RefusedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ROOT_DIR", "names", "owner_of", "places", "runtime_dir"]

ROOT_DIR = "/run/fsguard"
"""Root's; others may read it."""


def runtime_dir() -> str:
    """The directory for a new mount's files, made if needed, owned by us, private.

    RefusedError: somebody else's directory is in the way. MissingError: it can't
    be made.
    """
    uid = os.geteuid()
    given = os.environ.get("FSGUARD_RUNTIME_DIR")
    if given:
        return _private(os.path.abspath(given), 0o700)
    if uid == 0:
        try:
            return _private(ROOT_DIR, 0o755)
        except MissingError:
            return _private("/tmp/fsguard-0", 0o700)  # a container with a read-only /run
    for parent in (os.environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{uid}"):
        if os.path.isabs(parent) and owner_of(parent) == uid:
            return _private(f"{parent}/fsguard", 0o700)
    return _private(f"/tmp/fsguard-{uid}", 0o700)


def places() -> Iterator[str]:
    """Every directory to look in, nearest first; for root the users' ones too."""
    given = os.environ.get("FSGUARD_RUNTIME_DIR")
    if given:
        yield os.path.abspath(given)
        return
    uid = os.geteuid()
    seen = set()
    xdg = os.environ.get("XDG_RUNTIME_DIR", "")
    every = [f"{xdg}/fsguard"] if os.path.isabs(xdg) else []
    every += [f"/run/user/{uid}/fsguard", f"/tmp/fsguard-{uid}", ROOT_DIR]
    if uid == 0:
        every += [f"/run/user/{name}/fsguard" for name in names("/run/user")]
        every += [f"/tmp/{name}" for name in names("/tmp") if name.startswith("fsguard-")]
    for place in every:
        if place not in seen:
            seen.add(place)
            yield place


def names(directory: str) -> list[str]:
    """What is in a directory, sorted; nothing when it can't be read."""
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def owner_of(directory: str) -> int | None:
    """Who owns a directory that nobody else can write to; None if it is not such."""
    try:
        found = os.lstat(directory)
    except OSError:
        return None
    private = found.st_mode & 0o170022 == 0o040000
    return found.st_uid if private else None


def _private(directory: str, mode: int) -> str:
    try:
        os.mkdir(directory, 0o700)
        os.chmod(directory, mode)  # whatever the umask
    except FileExistsError:
        pass
    except OSError as error:
        hint = "set FSGUARD_RUNTIME_DIR to a directory of yours"
        raise MissingError(f"cannot make {directory}: {error.strerror}", hint) from None
    if owner_of(directory) != os.geteuid():
        raise RefusedError(
            f"{directory} is not a private directory of ours",
            "remove it, or set FSGUARD_RUNTIME_DIR to a directory of yours",
        )
    if mode == 0o700:
        os.chmod(directory, mode)
    return directory
