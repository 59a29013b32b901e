"""One table, two places: what a plain directory does, the mount has to do.

A row is a function of a fresh, empty directory. It is carried out in a process
of its own, once on a plain directory and once on the mount, and gives an
outcome: a value, or the errno it ended with. Both outcomes must be equal, and
so must the trees that the row left (seen through the mount, seen behind it, and
on the plain directory).
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import pickle
import select
import signal
import stat
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kit.abilities import need_root

__all__ = [
    "AT_FDCWD",
    "EXCHANGE",
    "NOREPLACE",
    "OLD",
    "WHITEOUT",
    "Difference",
    "Outcome",
    "Places",
    "Row",
    "Table",
    "as_user",
    "attempt",
    "carry_out",
    "check",
    "elsewhere",
    "get",
    "kind_of",
    "libc",
    "opened",
    "put",
    "rename",
    "snapshot",
]

AT_FDCWD = -100
NOREPLACE, EXCHANGE, WHITEOUT = 1, 2, 4
OLD = 946_684_800  # 2000-01-01: "long ago", for rows about times

libc = ctypes.CDLL(None, use_errno=True)


# ---- what rows are made of ----------------------------------------------------


@dataclass(frozen=True)
class Row:
    name: str
    function: Callable[[str], object]
    root: bool = False  # needs root on the plain directory already
    limit: float = 20.0  # seconds


@dataclass(frozen=True)
class Difference:
    """An accepted difference: the outcome on the mount, and why."""

    seen: object
    why: str


@dataclass
class Table:
    """Rows by name; `differences` lists, by row name, what is accepted."""

    rows: list[Row] = field(default_factory=list, repr=False)
    differences: dict[str, Difference] = field(default_factory=dict, repr=False)

    def row(self, function: Callable[[str], object]) -> Callable[[str], object]:
        self.add(function.__name__, function)
        return function

    def root_row(self, function: Callable[[str], object]) -> Callable[[str], object]:
        self.add(function.__name__, function, root=True)
        return function

    def slow_row(self, function: Callable[[str], object]) -> Callable[[str], object]:
        self.add(function.__name__, function, limit=60.0)
        return function

    def add(
        self, name: str, function: Callable[[str], object], *, root: bool = False, limit: float = 20.0
    ) -> None:
        assert all(row.name != name for row in self.rows), f"two rows are called {name}"
        self.rows.append(Row(name, function, root, limit))

    def accept(self, name: str, seen: object, why: str) -> None:
        self.differences[name] = Difference(seen, why)


@dataclass(frozen=True)
class Outcome:
    ended: str  # "value", "errno", "raised" or "hung"
    value: object

    def __str__(self) -> str:
        return f"{self.ended}: {self.value}"


# ---- helpers for rows -----------------------------------------------------------


def attempt(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result, or the name of the errno."""
    try:
        return function(*args, **kwargs)
    except OSError as error:
        return errno_name(error)


def errno_name(error: OSError) -> str:
    if error.errno == errno.EOPNOTSUPP:
        return "EOPNOTSUPP"  # Linux has one number for two names
    return errno.errorcode.get(error.errno or 0, f"errno {error.errno}")


def check(result: int, what: object = None) -> int:
    """A ctypes call's result; -1 raises the errno."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


def put(path: str, data: bytes = b"content\n", mode: int | None = None) -> str:
    with open(path, "wb") as file:
        file.write(data)
    if mode is not None:
        os.chmod(path, mode)
    return path


def get(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


@contextmanager
def opened(path: str, flags: int = os.O_RDONLY, mode: int = 0o644) -> Iterator[int]:
    fd = os.open(path, flags, mode)
    try:
        yield fd
    finally:
        os.close(fd)


def rename(source: str, target: str, flags: int = 0) -> None:
    call = libc.renameat2
    check(call(AT_FDCWD, os.fsencode(source), AT_FDCWD, os.fsencode(target), ctypes.c_uint(flags)), source)


def kind_of(mode: int) -> str:
    return {
        stat.S_IFREG: "file",
        stat.S_IFDIR: "directory",
        stat.S_IFLNK: "symlink",
        stat.S_IFIFO: "fifo",
        stat.S_IFSOCK: "socket",
        stat.S_IFCHR: "character device",
        stat.S_IFBLK: "block device",
    }[stat.S_IFMT(mode)]


def elsewhere(function: Callable[[], object], *, become: Callable[[], None] | None = None) -> Any:
    """The outcome of `function` in a child process (value, or errno's name)."""
    outcome = carry_out(lambda _: function(), "", 15.0, become=become)
    if outcome.ended == "raised":
        raise RuntimeError(outcome.value)
    return outcome.value


def as_user(
    uid: int, function: Callable[[], object], *, gid: int | None = None, groups: Sequence[int] = ()
) -> Any:
    """`function` as another user (root only), without capabilities."""

    def become() -> None:
        os.setgroups(list(groups))
        group = uid if gid is None else gid
        os.setresgid(group, group, group)
        os.setresuid(uid, uid, uid)

    return elsewhere(function, become=become)


# ---- carrying a row out ----------------------------------------------------------


def carry_out(
    function: Callable[[str], object], directory: str, limit: float, become: Callable[[], None] | None = None
) -> Outcome:
    """Run `function(directory)` in a fresh process; killed after `limit` seconds."""
    receive, send = os.pipe()
    sys.stdout.flush()
    with warnings.catch_warnings():
        # Other tests may have left idle threads; the child takes no lock of theirs.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _child(function, directory, send, become)
    os.close(send)
    try:
        return _collect(receive, pid, limit)
    finally:
        os.close(receive)


def _child(
    function: Callable[[str], object], directory: str, send: int, become: Callable[[], None] | None
) -> None:
    try:
        os.umask(0o022)
        signal.alarm(0)
        if become is not None:
            become()
        outcome = Outcome("value", function(directory))
    except OSError as error:
        if error.errno is None:
            outcome = Outcome("raised", traceback.format_exc())
        else:
            outcome = Outcome("errno", errno_name(error))
    except BaseException:
        outcome = Outcome("raised", traceback.format_exc())
    try:
        data = pickle.dumps(outcome)
    except Exception:
        data = pickle.dumps(Outcome("raised", traceback.format_exc()))
    try:
        while data:
            data = data[os.write(send, data) :]
    finally:
        os._exit(0)


def _collect(receive: int, pid: int, limit: float) -> Outcome:
    data = b""
    poll = select.poll()
    poll.register(receive, select.POLLIN | select.POLLHUP)
    ended = None
    while True:
        if not poll.poll(limit * 1000):
            ended = Outcome("hung", f"no outcome within {limit} s")
            break
        part = os.read(receive, 1 << 16)
        if not part:
            break
        data += part
    if ended is not None:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if ended is not None:
        return ended
    if not data:
        return Outcome("raised", f"the row's process ended with status {status}")
    outcome: Outcome = pickle.loads(data)
    return outcome


# ---- comparing -------------------------------------------------------------------


def snapshot(directory: Path) -> dict[bytes, object]:
    """What stands below a directory, as far as it must be equal everywhere."""
    found: dict[bytes, object] = {}
    top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _snapshot(top, b"", found)
    finally:
        os.close(top)
    return found


def _snapshot(fd: int, prefix: bytes, found: dict[bytes, object]) -> None:
    for name in sorted(os.fsencode(entry) for entry in os.listdir(fd)):
        st = os.stat(name, dir_fd=fd, follow_symlinks=False)
        facts: dict[str, object] = {
            "mode": f"{kind_of(st.st_mode)} {stat.S_IMODE(st.st_mode):04o}",
            "owner": (st.st_uid, st.st_gid),
            "links": st.st_nlink,
        }
        if stat.S_ISLNK(st.st_mode):
            facts["target"] = os.readlink(name, dir_fd=fd)
        elif stat.S_ISREG(st.st_mode):
            facts["size"] = st.st_size
            facts |= attempt_facts(name, fd)
        elif stat.S_ISDIR(st.st_mode):
            sub = attempt(os.open, name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
            if isinstance(sub, int):
                try:
                    facts["xattrs"] = _xattrs(sub)
                    _snapshot(sub, prefix + name + b"/", found)
                finally:
                    os.close(sub)
            else:
                facts["unreadable"] = sub
        elif stat.S_ISCHR(st.st_mode) or stat.S_ISBLK(st.st_mode):
            facts["device"] = (os.major(st.st_rdev), os.minor(st.st_rdev))
        found[prefix + name] = facts


def attempt_facts(name: bytes, directory: int) -> dict[str, object]:
    fd = attempt(os.open, name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=directory)
    if not isinstance(fd, int):
        return {"unreadable": fd}
    try:
        size = os.fstat(fd).st_size
        digest = hashlib.sha1(os.pread(fd, 1 << 20, 0), usedforsecurity=False)
        if size > 1 << 20:
            digest.update(os.pread(fd, 1 << 16, size - (1 << 16)))
        return {"content": digest.hexdigest(), "xattrs": _xattrs(fd)}
    finally:
        os.close(fd)


def _xattrs(fd: int) -> object:
    names = attempt(os.listxattr, fd)
    if not isinstance(names, list):
        return names
    return {name: attempt(os.getxattr, fd, name) for name in sorted(names) if name != "security.selinux"}


def _outcome(row: Row, directory: Path) -> Outcome:
    outcome = carry_out(row.function, str(directory), row.limit)
    if outcome.ended in ("value", "errno"):
        return Outcome(outcome.ended, _neutral(outcome.value, str(directory)))
    return outcome


def _neutral(value: object, directory: str) -> object:
    """The value without the name of the place."""
    match value:
        case str():
            return value.replace(directory, "PLACE")
        case list() | tuple():
            return [_neutral(item, directory) for item in value]
        case dict():
            return {key: _neutral(item, directory) for key, item in value.items()}
    return value


@dataclass
class Places:
    """A plain directory, the mount, and (when known) what is behind the mount."""

    plain: Path
    mount: Path
    backing: Path | None = None
    used: int = 0

    def compare(self, table: Table, row: Row) -> None:
        """Carry a row out in both places; AssertionError says how they differ."""
        if row.root:
            need_root()
        self.used += 1
        name = f"r{self.used}"
        for place in (self.plain, self.mount):
            os.mkdir(place / name)
        expected = _outcome(row, self.plain / name)
        assert expected.ended in ("value", "errno"), f"the row is wrong: on a plain directory,\n{expected}"
        seen = _outcome(row, self.mount / name)
        assert seen.ended in ("value", "errno"), f"on the mount, the row\n{seen}"
        accepted = table.differences.get(row.name)
        if accepted is not None:
            assert seen.value == _neutral(accepted.seen, "\0"), "another difference than the accepted one"
            assert seen != expected, "no difference any more: take it off the list"
            return
        assert seen == expected, f"mount: {seen.value!r}\nplain directory: {expected.value!r}"
        tree = snapshot(self.plain / name)
        assert snapshot(self.mount / name) == tree, "the row left another tree, seen through the mount"
        if self.backing is not None:
            assert snapshot(self.backing / name) == tree, "the row left another tree behind the mount"
