"""Putting a content in a file's place: whole or not at all, and nothing present is lost.

The order matters. First the present file is looked at (a normal, attributed
read), then the daemon keeps it, then the new content is written beside it,
synced and renamed over it. What a sibling writes after our look is a version
that we have not seen: the rename is then judged, and those bytes kept, as for
anybody.

Directories are entered one by one and no symlink is followed, so that a name
below the workspace cannot lead out of it, whoever made it.
"""

from __future__ import annotations

import errno
import os
import stat

from fsguard.cli import kept, terminal
from fsguard.errors import BusyError, FsguardError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Self

    from fsguard.control.client import Client

__all__ = ["Attributes", "Present", "bring_back", "keep", "put", "trouble"]

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ACL = "system.posix_acl_access"


class Attributes:
    """What a file has besides its content. `mtime_ns` None: the time of writing."""

    def __init__(self, mode: int, uid: int, gid: int, mtime_ns: int | None, xattrs: dict[str, bytes]) -> None:
        self.mode = stat.S_IMODE(mode)
        self.uid = uid
        self.gid = gid
        self.mtime_ns = mtime_ns
        self.xattrs = xattrs

    @classmethod
    def of_row(cls, row: Any) -> Attributes:
        import binascii

        xattrs = {name: binascii.a2b_base64(value) for name, value in (row["xattrs"] or {}).items()}
        return cls(row["mode"], row["uid"], row["gid"], row["mtime_ns"], xattrs)


class Present:
    """What stands at `path` below `top` now: a look at it, by opening it for reading.

    `kind` is "absent", "file", "symlink", "directory" or "other". A file that
    may not be read is a file without `fd`.
    """

    def __init__(self, top: str, path: str) -> None:
        self.top = top
        self.path = path
        self.kind = "absent"
        self.fd: int | None = None
        self.stat: os.stat_result | None = None
        self.target: str | None = None
        try:
            directory, name = _parent(top, path, make=False)
            try:
                self._look(directory, name)
            finally:
                os.close(directory)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise trouble(error, path) from None

    def _look(self, directory: int, name: str) -> None:
        try:
            self.fd = os.open(name, _LOOK, dir_fd=directory)
            self.stat = os.fstat(self.fd)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EACCES, errno.ENXIO, errno.EPERM):
                raise
            self.stat = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if stat.S_ISLNK(self.stat.st_mode):
                self.target = os.readlink(name, dir_fd=directory)
        kinds = {stat.S_IFREG: "file", stat.S_IFLNK: "symlink", stat.S_IFDIR: "directory"}
        self.kind = kinds.get(stat.S_IFMT(self.stat.st_mode), "other")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def read(self, limit: int | None = None) -> bytes:
        """The content; of a symlink, its target. At most `limit` bytes."""
        if self.target is not None:
            return os.fsencode(self.target)
        if self.fd is None:
            if self.kind == "absent":
                return b""
            raise FsguardError(f"{terminal.shown(self.path)}: permission denied")
        parts, offset = [], 0
        while limit is None or offset < limit:
            want = 1 << 20 if limit is None else min(1 << 20, limit - offset)
            part = os.pread(self.fd, want, offset)
            if not part:
                break
            parts.append(part)
            offset += len(part)
        return b"".join(parts)

    def attributes(self) -> Attributes:
        """Those of the file, but for its time: what is written in its place is new."""
        assert self.stat is not None
        xattrs = {} if self.fd is None else _xattrs(self.fd)
        return Attributes(self.stat.st_mode, self.stat.st_uid, self.stat.st_gid, None, xattrs)

    def same(self, client: Client, row: Any) -> bool:
        """Has it the bytes (or the target) of this version?"""
        if self.kind != row["kind"]:
            return False
        if self.kind == "symlink":
            return bool(self.target == row["target"])
        if self.fd is None or self.stat is None or self.stat.st_size != row["size"]:
            return False
        offset = 0
        for data in kept.chunks(client, row):
            if os.pread(self.fd, len(data), offset) != data:
                return False
            offset += len(data)
        return True

    def replaceable(self) -> None:
        """FsguardError when nothing can be renamed over it."""
        if self.kind in ("directory", "other"):
            what = "a directory" if self.kind == "directory" else "no plain file"
            raise FsguardError(
                f"{terminal.shown(self.path)} is {what} now",
                "restore it elsewhere: `fsguard restore … --to FILE`",
            )


def bring_back(client: Client, top: str, row: Any, path: str, *, keeps: bool = True) -> dict[str, Any]:
    """A kept version, with all its attributes, in place of `path` below `top`.

    `keeps`: `path` is of the workspace, whose daemon keeps what stands there.
    The answer: `same` (it was so already), `before` (the row of what was there, or
    None), `unrestored` (attributes that could not be had), `names` (how many names
    the replaced file had).
    """
    kept.need_kept(row)
    attributes = Attributes.of_row(row)
    with Present(top, path) as present:
        present.replaceable()
        names = present.stat.st_nlink if present.stat is not None else 0
        outcome: dict[str, Any] = {"same": False, "before": None, "unrestored": [], "names": names}
        try:
            if present.same(client, row):
                return outcome | {"same": True, "unrestored": _settle(present, attributes)}
            if keeps:
                outcome["before"] = keep(client, path)
            source = row["target"] if row["kind"] == "symlink" else kept.chunks(client, row)
            outcome["unrestored"] = put(top, path, source, attributes)
        except OSError as error:
            raise trouble(error, path) from None
    return outcome


def keep(client: Client, path: str) -> Any:
    """The row under which what is at `path` now is kept; None when nothing is there.

    FsguardError: it cannot be kept, so that it must not be replaced either.
    """
    row = client.call("versions.keep_now", path=path)
    if row is not None and not row["kept"]:
        raise FsguardError(
            f"what is in {terminal.shown(path)} now would be lost: it cannot be kept ({row['reason']})",
            "move it away first, or leave it there and take the other beside it:"
            " `fsguard restore PATH@VERSION --to FILE`",
        )
    return row


def put(top: str, path: str, source: str | Iterable[bytes], attributes: Attributes) -> list[str]:
    """Write `source` (a symlink's target, or a file's bytes) in place of `path`, atomically.

    Missing directories are made. The answer names the attributes that could not be
    had. OSError, FsguardError: nothing was changed.
    """
    directory, name = _parent(top, path, make=True)
    draft = f".fsguard-{os.urandom(6).hex()}"
    try:
        try:
            if isinstance(source, str):
                lost = _new_symlink(directory, draft, source, attributes)
            else:
                lost = _new_file(directory, draft, source, attributes)
            os.rename(draft, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            try:
                os.unlink(draft, dir_fd=directory)
            except OSError:
                pass
            raise
        _sync(directory)
    finally:
        os.close(directory)
    return lost


def trouble(error: OSError, path: str) -> FsguardError:
    """An error of the system's as a sentence about `path`."""
    name = terminal.shown(path)
    if error.errno in (errno.EBUSY, errno.EAGAIN):
        return BusyError(
            f"{name}: the guard refused it (a lease, or the policy `block`)", "see `fsguard warnings --all`"
        )
    return FsguardError(f"{name}: {os.strerror(error.errno) if error.errno else error}")


# ---- directories -------------------------------------------------------------------------------


def _parent(top: str, path: str, *, make: bool) -> tuple[int, str]:
    """(descriptor of the directory that `path` is in, its last name)."""
    *above, name = filter(None, path.split("/"))
    fd = os.open(top, _DIRECTORY)
    try:
        for depth, component in enumerate(above):
            below = _enter(fd, component, "/".join(above[: depth + 1]), make)
            os.close(fd)
            fd = below
    except BaseException:
        os.close(fd)
        raise
    return fd, name


def _enter(fd: int, component: str, so_far: str, make: bool) -> int:
    try:
        return os.open(component, _DIRECTORY, dir_fd=fd)
    except FileNotFoundError:
        if not make:
            raise
        try:
            os.mkdir(component, dir_fd=fd)
        except FileExistsError:
            pass  # somebody else made it just now
        return os.open(component, _DIRECTORY, dir_fd=fd)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise FsguardError(
                f"{terminal.shown(so_far)} is no directory any more",
                "move it away, or restore elsewhere: `fsguard restore … --to FILE`",
            ) from None
        raise


def _sync(directory: int) -> None:
    """The new name on disk too, where the filesystem can do that."""
    try:
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return
    try:
        os.fsync(fd)
    except OSError:
        pass
    finally:
        os.close(fd)


# ---- new files -----------------------------------------------------------------------------------


def _new_file(directory: int, name: str, source: Iterable[bytes], attributes: Attributes) -> list[str]:
    fd = os.open(name, _NEW, 0o600, dir_fd=directory)
    try:
        for data in source:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        os.fsync(fd)  # before the attributes: a write moves the time and clears setuid
        lost = _dress(fd, attributes)
        os.fsync(fd)
    finally:
        os.close(fd)
    return lost


def _new_symlink(directory: int, name: str, target: str, attributes: Attributes) -> list[str]:
    os.symlink(target, name, dir_fd=directory)
    return _dress_symlink(directory, name, attributes)


def _settle(present: Present, attributes: Attributes) -> list[str]:
    """The attributes alone, the content being as it should be."""
    if present.fd is not None:
        return _dress(present.fd, attributes)
    directory, name = _parent(present.top, present.path, make=False)
    try:
        return _dress_symlink(directory, name, attributes)
    finally:
        os.close(directory)


def _dress(fd: int, wanted: Attributes) -> list[str]:
    """Owner, mode, extended attributes and time; what could not be had, in words."""
    lost = []
    mode = wanted.mode
    owner = os.fstat(fd)
    if owner.st_gid != wanted.gid and not _may(os.fchown, fd, -1, wanted.gid):
        lost.append(f"group {wanted.gid}")
        mode &= ~stat.S_ISGID  # not for another group
    if owner.st_uid != wanted.uid and not _may(os.fchown, fd, wanted.uid, -1):
        lost.append(f"owner {wanted.uid}")
        mode &= ~stat.S_ISUID  # not for another user
    present = _xattrs(fd)
    for name in present.keys() - wanted.xattrs.keys():
        if name == _ACL or name.startswith("user."):
            _may(os.removexattr, fd, name)  # an ACL that the directory hands down, for one
    if stat.S_IMODE(os.fstat(fd).st_mode) != mode and not _may(os.fchmod, fd, mode):
        lost.append(f"mode {wanted.mode:04o}")
    for name, value in wanted.xattrs.items():
        if present.get(name) != value and not _may(os.setxattr, fd, name, value):
            lost.append(name)
    found = os.fstat(fd)
    if wanted.mtime_ns not in (None, found.st_mtime_ns):
        done = _may(os.utime, fd, ns=(found.st_atime_ns, wanted.mtime_ns))
        lost += [] if done else ["time"]
    return lost


def _dress_symlink(directory: int, name: str, wanted: Attributes) -> list[str]:
    lost = []
    found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    here: dict[str, Any] = {"dir_fd": directory, "follow_symlinks": False}
    if (found.st_uid, found.st_gid) != (wanted.uid, wanted.gid):
        done = _may(os.chown, name, wanted.uid, wanted.gid, **here)
        lost += [] if done else [f"owner {wanted.uid}:{wanted.gid}"]
    if wanted.mtime_ns not in (None, found.st_mtime_ns):
        done = _may(os.utime, name, ns=(found.st_atime_ns, wanted.mtime_ns), **here)
        lost += [] if done else ["time"]
    for attribute, value in wanted.xattrs.items():
        path = f"/proc/self/fd/{directory}/{name}"
        if not _may(os.setxattr, path, attribute, value, follow_symlinks=False):
            lost.append(attribute)
    return lost


def _may(call: Any, *arguments: Any, **options: Any) -> bool:
    """Did the system let us?"""
    try:
        call(*arguments, **options)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTSUP):
            return False
        raise
    return True


def _xattrs(fd: int) -> dict[str, bytes]:
    found = {}
    try:
        for name in os.listxattr(fd):
            try:
                found[name] = os.getxattr(fd, name)
            except OSError:
                pass  # gone meanwhile, or not ours to read
    except OSError:
        pass  # a filesystem without
    return found
