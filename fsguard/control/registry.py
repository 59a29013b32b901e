"""Where live mounts are noted, and how any path finds its mount.

One small JSON file per mount, in a directory that only its owner can write (see
`places`). Root's directory is readable by everybody: the mount that `sudo
fsguard mount` made is found by the user who typed it. Root also finds the
users' mounts.

An entry is believed when its file lies in a directory of the uid that it
names, and its socket beside it; root believes another user's only when the
kernel shows that mount of that user. It is alive when its process is (pid and
start time), or, where the pid is of another pid namespace, when its socket
answers.

Standard library only, and no module that costs a command its start.
"""

from __future__ import annotations

import json
import os

from fsguard.control import mountinfo
from fsguard.control.address import answers
from fsguard.control.places import ROOT_DIR, names, owner_of, places, runtime_dir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Mount",
    "entries",
    "find",
    "live",
    "matching",
    "register",
    "remove",
    "runtime_dir",
    "slot",
    "start_time",
]


class Mount:
    """A mount on record.

    `mountpoint` and `workspace` are absolute real paths (equal: in place).
    `pid` and `started` (clock ticks after boot) name the daemon's process, `uid`
    is the daemon's, `owners` are the other uids it serves besides root.
    """

    __slots__ = ("mountpoint", "owners", "pid", "socket", "started", "uid", "workspace")

    def __init__(
        self,
        mountpoint: str,
        workspace: str,
        socket: str,
        pid: int,
        uid: int,
        started: int,
        owners: Sequence[int] = (),
    ) -> None:
        self.mountpoint = mountpoint
        self.workspace = workspace
        self.socket = socket
        self.pid = pid
        self.uid = uid
        self.started = started
        self.owners = tuple(owners)

    def as_dict(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in sorted(self.__slots__)}

    def usable(self) -> bool:
        """May this process use it: are we root, its daemon's user, or one it serves?"""
        uid = os.geteuid()
        return uid in (0, self.uid) or uid in self.owners

    def alive(self) -> bool:
        return start_time(self.pid) == self.started or answers(self.socket)

    def relative(self, path: str) -> str | None:
        """`path` (absolute and real) relative to the workspace; "" is the workspace
        itself, None is outside. A path below the mountpoint and one below the
        backing directory mean the same file."""
        for top in (self.mountpoint, self.workspace):
            if mountinfo.inside(path, top):
                return path[len(top) :].lstrip("/")
        return None


def register(file: str, mount: Mount) -> None:
    """Note a mount in `file` (see `slot`), replacing what stood there, atomically.

    In root's directory the note is readable by all, so that a user finds the
    mount that was made by sudo; it holds nothing secret.
    """
    mode = 0o644 if os.path.dirname(file) == ROOT_DIR else 0o600
    draft = f"{file}.{os.getpid()}"
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as out:
        json.dump(mount.as_dict(), out)
        os.fchmod(out.fileno(), mode)
    os.replace(draft, file)


def remove(file: str) -> None:
    """Forget a mount; gone already is as good."""
    try:
        os.unlink(file)
    except FileNotFoundError:
        pass


def slot(mountpoint: str) -> tuple[str, str]:
    """(registry file, socket path) for a mount to be made at `mountpoint`.

    The directory is made if needed. MissingError or RefusedError as `runtime_dir`.
    """
    import hashlib

    name = hashlib.sha256(os.fsencode(mountpoint)).hexdigest()[:16]
    directory = runtime_dir()
    return f"{directory}/{name}.json", f"{directory}/{name}.sock"


def entries() -> list[tuple[str, Mount]]:
    """(file, mount) of every believable note, alive or dead."""
    uid = os.geteuid()
    found = []
    for directory in places():
        owner = owner_of(directory)
        if owner is None or (uid != 0 and owner not in (0, uid)):
            continue
        for file in _notes(directory):
            mount = _load(file)
            if mount is None or mount.uid != owner or os.path.dirname(mount.socket) != directory:
                continue
            if owner in (0, uid) or _shown(mount):
                found.append((file, mount))
    return found


def live() -> list[Mount]:
    """Every live mount that this process may use. Notes of ours that speak of a dead
    daemon and of no mount any more are thrown away."""
    alive = []
    standing: set[str] | None = None
    for file, mount in entries():
        if not mount.usable():
            continue
        if mount.alive():
            alive.append(mount)
            continue
        if standing is None:
            standing = {entry.path for entry in mountinfo.read() if entry.fstype == mountinfo.FSTYPE}
        if mount.mountpoint not in standing and mount.uid == os.geteuid():
            # As long as the dead mount stands, `unmount` needs the note to find it.
            _discard(file, mount.socket)
    return alive


def find(path: str) -> Mount | None:
    """The live mount that `path` belongs to, or None.

    `path` may be a mountpoint, a workspace or anything inside either, however
    spelled (relative, by symlinks); of nested ones the innermost counts. A mount
    that serves other users only is found when there is none of ours: the
    daemon's refusal says more than "not mounted".
    """
    mounts = [mount for _, mount in entries()]
    for group in ([m for m in mounts if m.usable()], [m for m in mounts if not m.usable()]):
        for mount in matching(path, group):
            if mount.alive():
                return mount
    return None


def matching(path: str, mounts: Sequence[Mount]) -> list[Mount]:
    """The mounts that `path` belongs to, innermost first."""
    plain = os.path.abspath(path)
    if any(plain in (mount.mountpoint, mount.workspace) for mount in mounts):
        real = plain  # as it stands; a hanging mount is not asked about itself
    else:
        real = os.path.realpath(plain)
    depth = {}
    for number, mount in enumerate(mounts):
        tops = [top for top in (mount.mountpoint, mount.workspace) if mountinfo.inside(real, top)]
        if tops:
            depth[number] = max(map(len, tops))
    return [mounts[number] for number in sorted(depth, key=lambda n: -depth[n])]


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks after boot; None when it is gone (a
    zombie is) or not visible. With the pid it names a process for good."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


def _shown(mount: Mount) -> bool:
    """Does the kernel show this mount, and as one of that user?"""
    top = mountinfo.top_at(mount.mountpoint, mountinfo.read())
    return top is not None and f"user_id={mount.uid}" in top.options.split(",")


def _notes(directory: str) -> list[str]:
    return [f"{directory}/{name}" for name in names(directory) if name.endswith(".json")]


def _load(file: str) -> Mount | None:
    try:
        with open(file, "rb") as source:
            data = json.loads(source.read(1 << 16))
        mount = Mount(**{name: data[name] for name in Mount.__slots__ if name in data})
        texts = (mount.mountpoint, mount.workspace, mount.socket)
        numbers = (mount.pid, mount.uid, mount.started, *mount.owners)
    except (OSError, ValueError, TypeError, RecursionError):  # TypeError: a key is missing, or no object
        return None
    sound = all(isinstance(text, str) for text in texts) and all(type(number) is int for number in numbers)
    return mount if sound else None


def _discard(*files: str) -> None:
    for file in files:
        try:
            os.unlink(file)
        except OSError:
            pass
