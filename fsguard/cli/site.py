"""The place of a mount: what it covers, where its state lies, and what stands against it."""

from __future__ import annotations

import errno
import hashlib
import os

from fsguard.cli import terminal
from fsguard.control import mountinfo, registry
from fsguard.control.mountinfo import inside
from fsguard.errors import BusyError, MissingError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fsguard.cli.mount import Wish

__all__ = ["Place", "check", "choose", "clear_dead", "is_dead", "spec"]


class Place:
    """Real, absolute paths of a mount to be made."""

    def __init__(self, workspace: str, mountpoint: str, state_dir: str) -> None:
        self.workspace = workspace
        self.mountpoint = mountpoint
        self.state_dir = state_dir
        self.registry_file, self.socket = registry.slot(mountpoint)

    @property
    def in_place(self) -> bool:
        return self.workspace == self.mountpoint

    @property
    def log(self) -> str:
        return f"{self.state_dir}/daemon.log"


def choose(workspace: str, mountpoint: str | None, state_dir: str | None) -> Place:
    """From what the user typed, without a look at what stands there yet."""
    if not workspace or mountpoint == "":
        raise UsageError("an empty path")
    top = os.path.realpath(workspace)
    at = top if mountpoint is None else os.path.realpath(mountpoint)
    if state_dir is None:
        home = os.environ.get("XDG_STATE_HOME", "")
        if not os.path.isabs(home):  # so the XDG specification wants it
            home = os.path.expanduser("~/.local/state")
        state_dir = f"{home}/fsguard/{hashlib.sha256(os.fsencode(top)).hexdigest()[:16]}"
    return Place(top, at, os.path.realpath(state_dir))


def clear_dead(place: Place) -> bool:
    """Take away a mount whose daemon is dead; True if there was one, which is said.

    BusyError: processes still hold it.
    """
    found = False
    for path in dict.fromkeys((place.mountpoint, place.workspace)):
        while is_dead(path):
            from fsguard.cli.unmount import strictly

            strictly(path)
            found = True
            terminal.note(f"took away a dead mount at {terminal.shown(path)}")
    return found


def check(place: Place, *, make: bool = True) -> None:
    """Everything that stands against this mount, each with its own sentence.

    The state directory is made, unless told not to.
    """
    _no_automount(place)
    _directory(place.workspace, "create it first")
    if not place.in_place:
        _directory(place.mountpoint, f"mkdir {place.mountpoint}")
        if inside(place.mountpoint, place.workspace) or inside(place.workspace, place.mountpoint):
            raise UsageError(
                f"the mountpoint {place.mountpoint} and the workspace {place.workspace} lie in one another",
                "leave MOUNTPOINT out to mount over the workspace itself",
            )
    if place.workspace == "/":
        raise UsageError("/ cannot be guarded: the daemon itself lives there")
    _against_others(place)
    for path, flag in ((place.state_dir, "--state-dir DIR"), (place.socket, "FSGUARD_RUNTIME_DIR=DIR")):
        if any(inside(path, top) for top in (place.workspace, place.mountpoint)):
            raise UsageError(
                f"{path}, for the daemon's own files, is inside the workspace: it would wait for itself",
                f"choose another place with {flag}",
            )
    if not make:
        return
    try:
        os.makedirs(place.state_dir, mode=0o700, exist_ok=True)
    except OSError as error:
        hint = "choose another place with --state-dir DIR"
        raise MissingError(f"cannot make {place.state_dir}: {error.strerror}", hint) from None
    if not os.access(place.state_dir, os.W_OK | os.X_OK):
        raise MissingError(f"cannot write to {place.state_dir}", "choose another place with --state-dir DIR")


def spec(place: Place, wish: Wish) -> dict[str, Any]:
    """What the daemon is told."""
    uid = os.geteuid()
    owners = [uid, *map(_uid_of, wish.operators)]
    if uid == 0 and os.environ.get("SUDO_UID", "").isdigit():
        owners.append(int(os.environ["SUDO_UID"]))
    owners = list(dict.fromkeys(owners))
    allow_other = uid == 0 if wish.allow_other is None else wish.allow_other
    if len(owners) > 1 and not allow_other and wish.operators:
        raise UsageError(
            f"{wish.operators[0]} could not enter a mount of {_name_of(uid)} alone",
            "let other users in, too: --allow-other (allow_other as a mount option)",
        )
    if allow_other and uid != 0 and not user_allow_other():
        raise MissingError(
            "users may not use --allow-other on this machine",
            "root can allow it: a line `user_allow_other` in /etc/fuse.conf",
        )
    config = None
    if wish.config is not None:
        config = os.path.realpath(wish.config)
        if not os.path.isfile(config):
            raise UsageError(f"no such configuration file: {wish.config}")
    return {
        "workspace": place.workspace,
        "mountpoint": place.mountpoint,
        "config": config,
        "state_dir": place.state_dir,
        "socket": place.socket,
        "registry_file": place.registry_file,
        "allow_other": allow_other,
        "io": wish.io,
        "cache": wish.cache,
        "policy": wish.policy,
        "disabled": os.environ.get("FSGUARD_DISABLE") == "1",
        "owner_uids": owners,
        "foreground": wish.foreground,
        "wait": wish.wait,
        "flags": list(wish.flags),
    }


def user_allow_other(conf: str = "/etc/fuse.conf") -> bool:
    """Does fuse.conf let users pass allow_other?"""
    try:
        with open(conf, encoding="utf-8", errors="replace") as file:
            return any(line.split("#")[0].strip() == "user_allow_other" for line in file)
    except OSError:
        return False


def _no_automount(place: Place) -> None:
    """In place the daemon would look below its own automount point, and wait for itself.
    Nothing is asked of that path before this is known."""
    top = mountinfo.top_at(place.workspace, mountinfo.read())
    if top is not None and top.fstype == "autofs":
        raise UsageError(
            f"{place.workspace} is an automount point",
            "leave out x-systemd.automount, or mount the workspace elsewhere",
        )


def _uid_of(user: str) -> int:
    """UsageError: nobody of that name or number is known here."""
    import pwd

    try:
        return (pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)).pw_uid
    except (KeyError, OverflowError):
        raise UsageError(f"no such user: {user}") from None


def _name_of(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _directory(path: str, hint: str) -> None:
    try:
        kind = os.stat(path).st_mode
    except FileNotFoundError:
        raise UsageError(f"no such directory: {path}", hint) from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    if kind & 0o170000 != 0o040000:
        raise UsageError(f"{path} is not a directory")


def is_dead(path: str) -> bool:
    """Is a guarded mount there whose daemon is gone? The kernel then says ENOTCONN."""
    top = mountinfo.top_at(path, mountinfo.read())
    if top is None or top.fstype != mountinfo.FSTYPE:
        return False
    try:
        os.statvfs(path)  # always asked; what stat says may be remembered from when it lived
    except OSError as error:
        return error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    return False


def _against_others(place: Place) -> None:
    """A second mount of the same, or one inside another: both would see each other's
    requests as changes of their own."""
    theirs = [(mount.workspace, mount.mountpoint) for mount in registry.live()]
    theirs += [(entry.path, entry.path) for entry in mountinfo.read() if entry.fstype == mountinfo.FSTYPE]
    for workspace, mountpoint in theirs:
        for path in (place.workspace, place.mountpoint):
            if path in (workspace, mountpoint):
                at = f" at {mountpoint}" if mountpoint != path else ""
                raise BusyError(f"{path} is already mounted{at}", f"`fsguard unmount {mountpoint}` ends that")
            for top in (workspace, mountpoint):
                if inside(path, top):
                    raise UsageError(f"{path} is inside the guarded workspace {top}", "it is guarded too")
                if inside(top, path):
                    raise UsageError(
                        f"{top}, inside {path}, is guarded already", f"`fsguard unmount {mountpoint}` first"
                    )
