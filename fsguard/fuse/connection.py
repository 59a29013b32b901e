"""The FUSE connection: mounting, serving, unmounting. One per process (pyfuse3 has globals)."""

from __future__ import annotations

import logging
import os
import resource
import socket
import subprocess
from collections.abc import Sequence
from errno import EACCES, EBUSY, EINVAL, ENODEV, ENOENT, ENXIO, EPERM
from typing import NamedTuple

import trio

from .. import mountflags
from ..errors import BusyError, FsguardError, MissingError, RefusedError, UsageError
from . import mounts, syscalls, tracebacks
from ._library import interposed, pyfuse3, request
from .filesystem import Filesystem
from .handshake import Agreement, Handshake
from .loop import Loop
from .namespace import PrivateNamespace

__all__ = ["Connection", "Past", "mount", "resume"]

# Waiting opens each take a task. pyfuse3's default of 99 would let them block the mount; a process
# table has no room for this many callers.
_MAX_TASKS = 100_000


class Connection:
    """A mount that waits to be served.

    `workspace_fd` is an O_PATH descriptor of the backing directory, taken
    before the mount: whatever is resolved below it never meets the mount.
    """

    def __init__(
        self,
        workspace: str,
        mountpoint: str,
        workspace_fd: int,
        fuse_fd: int,
        namespace: PrivateNamespace | None,
        device: str | None,
        past: Agreement | None = None,
    ) -> None:
        self.workspace = workspace
        self._device = device
        self.mountpoint = mountpoint
        self.workspace_fd = workspace_fd
        self._namespace = namespace
        self._handshake = Handshake(fuse_fd, past)
        self.resumed: Sequence[bytes] = ()  # requests that waited when the program before ended
        self._loop: Loop | None = None
        self._serving = trio.CancelScope()
        self.over = trio.Event()  # set when `run` has ended

    @property
    def device(self) -> int:
        """The FUSE descriptor, once `run` has started."""
        return self._handshake.libfuse_fd

    @property
    def private(self) -> bool:
        """Whether this process does not see the mount."""
        return self._namespace is not None

    @property
    def in_place(self) -> bool:
        return self.workspace == self.mountpoint

    async def run(
        self,
        operations: Filesystem,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Answer requests until the filesystem is unmounted (or the task cancelled).

        Started (`Nursery.start`) means that the kernel has agreed and callers
        are being served.
        """
        tracebacks.install()
        logging.getLogger("pyfuse3").addFilter(_nobody_waited)

        async def finish() -> None:
            await self._handshake.finish()
            lane = operations.lane
            if lane is not None:
                hand = self._handshake
                lane.serve(
                    hand.libfuse_fd,
                    hand.max_write,
                    operations.take_records,
                    hand.offers("no_opendir"),
                    self.resumed,
                )
                loop.source, loop.linger = lane.eventfd, lane.wait
            task_status.started()

        def pass_interrupts() -> None:
            # libfuse handles FUSE_INTERRUPT by itself and pyfuse3 never hears of it.
            for unique in request.take_interrupts():
                operations.observer.interrupted(unique)
            operations.between_requests()

        loop = self._loop = Loop([self._handshake.start, finish], pass_interrupts)
        # pyfuse3 looks `trio` up as its module attribute each time; its own asyncio mode relies on it.
        pyfuse3.trio = loop  # type: ignore[attr-defined]
        pyfuse3.init(operations, f"/dev/fd/{self._handshake.libfuse_fd}", set())
        try:
            with self._serving:
                await pyfuse3.main(min_tasks=1, max_tasks=_MAX_TASKS)
        finally:
            pyfuse3.close(unmount=False)
            self._handshake.close()
            self.over.set()

    def unmount(self) -> None:
        """Unmount strictly where the mount was made; then `run` returns by itself.

        Blocks until mapped pages are written back, which takes `run`: call it
        from a thread. Raises BusyError, NotMountedError, RefusedError.
        """
        if self._namespace is None:
            try:
                self._look()
            except OSError as error:
                raise mounts.explain(error, self.mountpoint) from error
            mounts.unmount(self.mountpoint)
            return
        target = os.fsencode(self.mountpoint)

        def action() -> None:
            self._look()
            syscalls.umount(target, syscalls.UMOUNT_NOFOLLOW)

        try:
            self._namespace.outside(action)
        except OSError as error:
            raise mounts.explain(error, self.mountpoint) from error

    def _look(self) -> None:
        """EINVAL, as umount(2) says it, when ours is gone already: what stands there now is another's."""
        top = mounts.find(self.mountpoint, "")
        if self._device is not None and (top is None or top.device != self._device):
            raise OSError(EINVAL, "not mounted")

    async def shut_down(self, grace: float = 2.0, patience: float = 1.0) -> None:
        """`unmount`, and see that `run` ends. BusyError: in use, `patience` seconds long.

        (Busy for a moment it is also when another namespace is just being made, with
        a copy of every mount, or a process has ended and not yet let go.)
        Copies of the mount in other namespaces (containers) may keep the
        connection alive; after `grace` seconds they get ENOTCONN.
        """
        until = trio.current_time() + patience
        while True:
            try:
                await trio.to_thread.run_sync(self.unmount)
                break
            except BusyError:
                if trio.current_time() >= until:
                    raise
            await trio.sleep(0.05)
        with trio.move_on_after(grace):
            await self.over.wait()
        self._serving.cancel()
        await self.over.wait()

    def abandon(self) -> None:
        """End `run` although the filesystem is still in use somewhere: there everything gets ENOTCONN."""
        self._serving.cancel()

    def close(self) -> None:
        """Give descriptors back. A mount that is still there is dead from now on."""
        self._handshake.close()
        os.close(self.workspace_fd)
        if self._namespace is not None:
            self._namespace.close()

    def features(self) -> dict[str, object]:
        """What kernel, libfuse and we have agreed on, for status; complete once started."""
        h = self._handshake
        return {
            "protocol": f"{h.protocol[0]}.{h.protocol[1]}",
            "max_write": h.max_write,
            "writer_pids": interposed(),
            "backing_inode_numbers": interposed(),
            "private_namespace": self._namespace is not None,
            "kernel": sorted(name for name, on in h.features().items() if on),
        }

    def go_on(self, operations: Filesystem) -> None:
        """The lane was paused, and nobody has taken over."""
        hand = self._handshake
        if operations.lane is not None:
            operations.lane.go_on(hand.libfuse_fd, hand.max_write, hand.offers("no_opendir"))

    def handed_on(self) -> Past:
        """What the next program needs to go on with this connection (`resume`)."""
        return Past(
            self.workspace,
            self.mountpoint,
            self._device,
            self._handshake.libfuse_fd,
            self.workspace_fd,
            self._namespace.descriptors() if self._namespace is not None else None,
            self._handshake.agreement(),
        )

    def held(self, fuse_fd: int, agreement: Agreement) -> Past:
        """The same for another worker: `fuse_fd` is the connection, which is the worker's to close."""
        namespace = self._namespace.descriptors() if self._namespace is not None else None
        return Past(
            self.workspace,
            self.mountpoint,
            self._device,
            fuse_fd,
            self.workspace_fd,
            namespace,
            agreement,
        )

    @property
    def fuse_fd(self) -> int:
        """The FUSE descriptor, before `run`."""
        return self._handshake.fuse_fd

    def load(self) -> dict[str, int]:
        """Requests read, and how often the loop had to wait in trio for one."""
        if self._loop is None:
            return {"served": 0, "parked": 0}
        return {"served": self._loop.served, "parked": self._loop.parked}


class Past(NamedTuple):
    """A connection as one program leaves it to the next, in the same process."""

    workspace: str
    mountpoint: str
    device: str | None
    fuse_fd: int
    workspace_fd: int
    namespace: tuple[int, int] | None
    agreement: Agreement

    def descriptors(self) -> list[int]:
        return [self.fuse_fd, self.workspace_fd, *(self.namespace or ())]


def resume(past: Past) -> Connection:
    """Go on with a connection that another program in this process has served."""
    _raise_descriptor_limit()
    for fd in past.descriptors():
        os.set_inheritable(fd, False)
    namespace = PrivateNamespace(past.workspace, past.namespace) if past.namespace is not None else None
    return Connection(
        past.workspace,
        past.mountpoint,
        past.workspace_fd,
        past.fuse_fd,
        namespace,
        past.device,
        past.agreement,
    )


def mount(
    workspace: str,
    mountpoint: str | None = None,
    *,
    allow_other: bool | None = None,
    flags: Sequence[str] = (),
) -> Connection:
    """Mount `workspace` on `mountpoint` (None: in place) and return the connection, not yet served.

    As root the process moves to a private mount namespace and should have one
    thread; `allow_other` (default: as root) lets other users in. `flags` are names
    of `mountflags.SET`.
    Raises BusyError, MissingError, RefusedError, UsageError.
    """
    workspace = os.path.realpath(workspace)
    mountpoint = workspace if mountpoint is None else os.path.realpath(mountpoint)
    is_root = os.geteuid() == 0
    _check(workspace, mountpoint)
    _raise_descriptor_limit()
    namespace = None
    if is_root:
        try:
            namespace = PrivateNamespace(workspace)
        except OSError as error:
            raise MissingError(
                f"no private mount namespace: {error.strerror}", "the daemon needs CAP_SYS_ADMIN as root"
            ) from error
    # After unshare: so that below it only mounts of our own namespace are met.
    workspace_fd = os.open(workspace, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        others = is_root if allow_other is None else allow_other
        if namespace is not None:
            fuse_fd, device = _mount_as_root(workspace, mountpoint, others, flags, namespace)
        else:
            fuse_fd = _mount_as_user(workspace, mountpoint, others, flags)
            device = _device_at(mountpoint)
    except BaseException:
        os.close(workspace_fd)
        if namespace is not None:
            namespace.close()
        raise
    return Connection(workspace, mountpoint, workspace_fd, fuse_fd, namespace, device)


def _nobody_waited(record: logging.LogRecord) -> bool:
    """pyfuse3 calls it an error when the asker of a request is gone before the reply (ENOENT).

    That is what unmounting does to RELEASE, and a kill to others.
    """
    return not (record.levelno == logging.ERROR and record.args == (os.strerror(ENOENT),))


def _check(workspace: str, mountpoint: str) -> None:
    there = mounts.state(mountpoint)
    if there == "dead":
        raise BusyError(
            f"a dead mount is left at {mountpoint}", f"unmount it first: fsguard unmount {mountpoint}"
        )
    if there != "none":
        raise BusyError(f"{mountpoint} is already mounted")
    for path in (workspace, mountpoint):
        if not os.path.isdir(path):
            raise UsageError(f"{path} is not a directory")
    if mountpoint != workspace and os.path.commonpath([workspace, mountpoint]) == workspace:
        raise UsageError(
            f"mountpoint {mountpoint} lies inside the workspace", "mount in place, or beside the workspace"
        )


def _raise_descriptor_limit() -> None:
    """Each open file behind the mount takes a descriptor here, whoever opens it; so what the shell that
    mounted was allowed is no measure, where the kernel lets us have more."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        with open("/proc/sys/fs/nr_open", encoding="ascii") as file:
            most = int(file.read())
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _mount_as_root(
    workspace: str, mountpoint: str, allow_other: bool, flags: Sequence[str], namespace: PrivateNamespace
) -> tuple[int, str | None]:
    try:
        fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise _no_device(error) from error
    options = f"fd={fd},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},default_permissions"
    if allow_other:
        options += ",allow_other"
    source, target, kind = os.fsencode(workspace), os.fsencode(mountpoint), mounts.FSTYPE.encode()
    # No MS_NOSUID, no MS_NODEV unless asked for: what root mounts shows all that the backing directory has.
    number = mountflags.bits(flags)

    # Which mount it is can only be seen where it is made.
    hear, tell = os.pipe()

    def action() -> None:
        syscalls.mount(source, target, kind, number, options.encode())
        os.write(tell, (_device_at(mountpoint) or "").encode())

    try:
        namespace.outside(action)
        namespace.forget_mount(mountpoint)
    except OSError as error:
        os.close(fd)
        if error.errno == EBUSY:
            raise BusyError(f"{mountpoint} is already mounted") from error
        if error.errno == EPERM:
            raise RefusedError(
                "mount(2) is not permitted", "the daemon needs CAP_SYS_ADMIN as root"
            ) from error
        if error.errno == ENODEV:
            raise MissingError("the kernel has no FUSE", "modprobe fuse") from error
        raise FsguardError(f"cannot mount on {mountpoint}: {error.strerror}") from error
    except BaseException:
        os.close(fd)
        raise
    finally:
        os.close(tell)
        with open(hear, "rb") as said:
            device = said.read().decode() or None
    return fd, device


def _device_at(mountpoint: str) -> str | None:
    try:
        top = mounts.find(mountpoint)
    except OSError:  # no /proc
        return None
    return top.device if top is not None else None


def _no_device(error: OSError) -> FsguardError:
    if error.errno in (ENOENT, ENODEV, ENXIO):
        return MissingError("there is no /dev/fuse", "modprobe fuse; in a container, pass the device in")
    if error.errno in (EACCES, EPERM):
        return MissingError(
            "/dev/fuse may not be opened", "it should have mode 0666 (udev does that); see fsguard doctor"
        )
    return FsguardError(f"cannot open /dev/fuse: {error.strerror}")


def _mount_as_user(workspace: str, mountpoint: str, allow_other: bool, flags: Sequence[str]) -> int:
    """By fusermount3, which hands the descriptor over a socket (as libfuse has it done)."""
    name = workspace.replace("\\", "\\\\").replace(",", "\\,")
    options = f"fsname={name},subtype={mounts.FSTYPE.removeprefix('fuse.')},default_permissions"
    if allow_other:
        options += ",allow_other"
    options = ",".join([options, *flags])
    ours, theirs = socket.socketpair()
    with ours:
        with (
            theirs,
            subprocess.Popen(
                [mounts.fusermount(), "-o", options, "--", mountpoint],
                env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno()), "LC_ALL": "C"},
                pass_fds=[theirs.fileno()],
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            ) as helper,
        ):
            theirs.close()
            _, fds, _, _ = socket.recv_fds(ours, 1, 1)
            words = helper.communicate()[1].strip()
        if fds:
            os.set_inheritable(fds[0], False)
            return fds[0]
    if "allow_other" in words:
        raise RefusedError(words, "add user_allow_other to /etc/fuse.conf")
    if "/dev/fuse" in words or "fuse device" in words:
        raise MissingError(words, "see fsguard doctor")
    raise RefusedError(words or "fusermount3 failed without a word")
