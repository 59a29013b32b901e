"""Taking a mount away, strictly: never lazily, never by force, unless asked to.

Root calls umount2(2) itself, a user goes through fusermount3 (setuid root). The
path is not resolved through the mount, so a dead one can be taken away too.
"""

from __future__ import annotations

import errno
import os

from fsguard import mountflags
from fsguard.errors import BusyError, FsguardError, MissingError, NotMountedError, RefusedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["find_program", "remount", "unmount"]

_MNT_DETACH, _UMOUNT_NOFOLLOW, _MS_REMOUNT = 2, 8, 32


def unmount(path: str, *, lazy: bool = False) -> None:
    """Unmount what stands on top at `path`.

    With `lazy` it disappears from the tree at once and ends when its last user
    does. BusyError: still in use. NotMountedError, RefusedError, MissingError.
    """
    if os.geteuid() == 0:
        number = _umount2(path, _UMOUNT_NOFOLLOW | (_MNT_DETACH if lazy else 0))
        if number != errno.EPERM:  # root without CAP_SYS_ADMIN is a user like any other
            _check(number, path)
            return
    _fusermount(path, lazy)


def remount(path: str, flags: Iterable[str]) -> None:
    """Give the mount at `path` these flags (names of `mountflags.SET`) and no others."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    number = ctypes.c_ulong(_MS_REMOUNT | mountflags.bits(flags))
    if libc.mount(None, os.fsencode(path), None, number, None) != 0:
        code = ctypes.get_errno()
        if code == errno.EPERM:
            raise RefusedError("only root may remount")
        if code == errno.EINVAL:
            raise NotMountedError(f"nothing is mounted at {path}")
        raise FsguardError(f"cannot remount {path}: {os.strerror(code)}")


def find_program(name: str) -> str | None:
    """The path of an executable, in PATH or where administrators' programs are."""
    path = os.environ.get("PATH", os.defpath)
    for directory in [*path.split(":"), "/usr/bin", "/bin", "/usr/sbin", "/sbin"]:
        program = os.path.join(directory, name)
        if os.path.isabs(program) and os.path.isfile(program) and os.access(program, os.X_OK):
            return program
    return None


def _umount2(path: str, flags: int) -> int:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(path), flags) == 0:
        return 0
    return ctypes.get_errno()


def _check(number: int, path: str) -> None:
    if number == errno.EBUSY:
        raise BusyError(f"{path} is still in use")
    if number in (errno.EINVAL, errno.ENOENT):
        raise NotMountedError(f"nothing is mounted at {path}")
    if number:
        raise FsguardError(f"cannot unmount {path}: {os.strerror(number)}")


def _fusermount(path: str, lazy: bool) -> None:
    import subprocess

    program = find_program("fusermount3") or find_program("fusermount")
    if program is None:
        raise MissingError("fusermount3 is not installed", "see `fsguard doctor`")
    done = subprocess.run(
        [program, "-u", *(["-z"] if lazy else []), "--", path],
        env={**os.environ, "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        errors="surrogateescape",
        check=False,
    )
    if done.returncode == 0:
        return
    said = done.stderr.strip()
    if "busy" in said:
        raise BusyError(f"{path} is still in use")
    if "not found" in said or "not mounted" in said or "Invalid argument" in said:
        # It looks for mounts of the caller only.
        hint = f"who mounted it may unmount it, and root: `sudo fsguard unmount {path}`"
        raise RefusedError(f"{path} is no mount of yours", hint)
    raise FsguardError(f"cannot unmount {path}: {said or f'{program} failed'}")
