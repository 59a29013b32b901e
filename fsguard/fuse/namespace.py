"""A mount namespace of the daemon's own, in which its mount does not exist.

Only root can have it. In there every path leads to the backing directory, so
nothing the daemon does by path (state, sockets, modules loaded late) can run
into its own mount and wait for itself.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from errno import EINVAL

from ..errors import DaemonError
from . import mounts, syscalls

__all__ = ["PrivateNamespace"]


class PrivateNamespace:
    """Entering moves the calling process (it must have one thread) for good.

    The new namespace is a slave of the old one: mounts and unmounts made
    outside are followed, so that no filesystem stays busy because of us, and
    nothing of ours gets out.
    """

    def __init__(self, workspace: str, held: tuple[int, int] | None = None) -> None:
        """`held`: the process is in there already, with these descriptors."""
        if held is not None:
            self._outside, self._root = held
            return
        self._outside = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        self._root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        syscalls.unshare(syscalls.CLONE_NEWNS)
        self._follow_outside()
        self._drop_other_mounts(workspace)

    @staticmethod
    def _follow_outside() -> None:
        try:
            syscalls.mount(None, b"/", None, syscalls.MS_REC | syscalls.MS_SLAVE, None)
        except OSError as error:
            if error.errno != EINVAL:
                raise
            # A plain chroot: its / is no mount. What can be seen from here is all that matters.
            for entry in mounts.listing(""):
                with suppress(OSError):
                    syscalls.mount(None, os.fsencode(entry.mountpoint), None, syscalls.MS_SLAVE, None)

    def _drop_other_mounts(self, workspace: str) -> None:
        """Let go of other FUSE mounts, other guards' among them.

        A FUSE filesystem ends with its last mount, in whatever namespace: where
        mounts are not shared, a copy in here would outlive their unmounting and
        keep their daemons waiting. (What the workspace lies on, or what is
        mounted inside it, belongs to the tree that is served.)
        """
        for other in reversed(mounts.listing("fuse")):
            above = os.path.commonpath([other.mountpoint, workspace])
            if above not in (other.mountpoint, workspace):
                self.forget_mount(other.mountpoint)

    def outside(self, action: Callable[[], None]) -> None:
        """Do a few system calls in the old namespace; raises their OSError.

        In a child: setns(2) into a mount namespace is for processes with one
        thread. The child calls nothing else, so other threads' locks do no harm.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads, Python ≥ 3.12
            pid = os.fork()
        if pid == 0:
            code = 255
            try:
                syscalls.setns(self._outside, syscalls.CLONE_NEWNS)
                # setns went to the namespace's root; ours may have been another (chroot).
                os.fchdir(self._root)
                os.chroot(".")
                action()
                code = 0
            except OSError as error:
                code = error.errno or 255
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code == 255 or code < 0:
            raise DaemonError(f"a child of the daemon ended with {code}")
        if code:
            raise OSError(code, os.strerror(code))

    def forget_mount(self, mountpoint: str) -> None:
        """Drop the copy of a mount in here, as ours comes in where mounts are shared (systemd)."""
        try:
            syscalls.umount(os.fsencode(mountpoint), syscalls.MNT_DETACH | syscalls.UMOUNT_NOFOLLOW)
        except OSError:
            pass  # EINVAL: nothing there, mounts are not shared

    def descriptors(self) -> tuple[int, int]:
        """For the program that comes after this one in the same process."""
        return self._outside, self._root

    def close(self) -> None:
        os.close(self._outside)
        os.close(self._root)
