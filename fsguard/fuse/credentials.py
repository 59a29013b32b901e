"""New files belong to the caller, not to the daemon.

A root daemon creates with the caller's filesystem ids, so that the backing
filesystem applies ownership, setgid directories, quotas and default ACLs by
itself. Whether the caller may create there at all has been checked by the
kernel (``default_permissions``), with supplementary groups that the daemon
does not have; so CAP_DAC_OVERRIDE is raised again after setfsuid(2) dropped it.
"""

from __future__ import annotations

import os
from types import TracebackType

from . import syscalls

__all__ = ["Creator", "Identity"]

# setfsuid(2) from 0 to another id clears these in the effective set, and back
# to 0 raises the permitted ones again: CAP_FS_SET in include/linux/capability.h.
_CHOWN, _DAC_OVERRIDE, _DAC_READ_SEARCH, _FOWNER, _FSETID = 0, 1, 2, 3, 4
_LINUX_IMMUTABLE, _MKNOD, _MAC_OVERRIDE = 9, 27, 32
_FS_SET = sum(
    1 << c
    for c in (
        _CHOWN,
        _DAC_OVERRIDE,
        _DAC_READ_SEARCH,
        _FOWNER,
        _FSETID,
        _LINUX_IMMUTABLE,
        _MKNOD,
        _MAC_OVERRIDE,
    )
)
# Needed for what the kernel has already allowed: reaching the directory, and
# device nodes (vfs_mknod asked the caller for CAP_MKNOD).
_KEPT = 1 << _DAC_OVERRIDE | 1 << _DAC_READ_SEARCH | 1 << _MKNOD


class Identity:
    """Who the daemon is, and how it acts as somebody else."""

    def __init__(self) -> None:
        self.uid = os.geteuid()
        self.gid = os.getegid()
        self.is_root = self.uid == 0
        effective, permitted, inheritable = syscalls.capget()
        self._caps = (effective & ~_FS_SET | permitted & _KEPT, permitted, inheritable)

    def creating(self, uid: int, gid: int, umask: int) -> Creator:
        """A context in which new files get this owner, group and umask."""
        return Creator(self, uid, gid, umask)

    def assume(self, uid: int, gid: int) -> None:
        if gid != self.gid:
            syscalls.setfsgid(gid)
        if uid != self.uid:
            syscalls.setfsuid(uid)
            syscalls.capset(*self._caps)

    def resume(self, uid: int, gid: int) -> None:
        if uid != self.uid:
            syscalls.setfsuid(self.uid)
        if gid != self.gid:
            syscalls.setfsgid(self.gid)


class Creator:
    """Context manager; never awaited inside, so the process-wide umask is safe among tasks."""

    __slots__ = ("_gid", "_identity", "_old_umask", "_uid", "_umask")

    def __init__(self, identity: Identity, uid: int, gid: int, umask: int) -> None:
        self._identity, self._uid, self._gid, self._umask = identity, uid, gid, umask
        self._old_umask = 0

    def __enter__(self) -> None:
        self._old_umask = os.umask(self._umask)
        if self._identity.is_root:
            try:
                self._identity.assume(self._uid, self._gid)
            except BaseException:
                self.__exit__(None, None, None)
                raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._identity.is_root:
            self._identity.resume(self._uid, self._gid)
        os.umask(self._old_umask)
