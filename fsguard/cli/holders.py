"""Which processes stand in a directory, or hold a mount open. Read from /proc.

Only links are read and descriptors looked up by number: nothing here asks the
mounted filesystem, so a hanging or dead mount can be examined too. Processes
of other users stay hidden unless we are root.
"""

from __future__ import annotations

import os

from fsguard.control import mountinfo

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from fsguard.control.mountinfo import MountEntry

__all__ = ["Holder", "command_of", "describe", "holding", "standing"]


_WORDS = {"cwd": "stands in", "root": "has its root in", "exe": "runs", "fd": "has open", "map": "maps"}


class Holder:
    """A process and what it holds: `how` is cwd, root, exe, fd or map; `path` of the
    first such thing, `count` of all."""

    __slots__ = ("command", "count", "how", "path", "pid")

    def __init__(self, pid: int, how: str, path: str, count: int) -> None:
        self.pid = pid
        self.command = command_of(pid)
        self.how = how
        self.path = path
        self.count = count

    def as_dict(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in ("pid", "command", "how", "path", "count")}

    def __str__(self) -> str:
        return describe(self.as_dict())


def describe(holder: Mapping[str, Any]) -> str:
    """What `Holder.as_dict` gave, for people."""
    from fsguard.cli.terminal import cut, quoted, shown

    what = _WORDS[holder["how"]]
    more = f" and {holder['count'] - 1} more" if holder["count"] > 1 else ""
    path = cut(shown(holder["path"]), 120)
    return f"{quoted(holder['command'])} (pid {holder['pid']}) {what} {path}{more}"


def standing(directory: str) -> list[Holder]:
    """Processes with a cwd, root or descriptor in `directory`, before it is covered.

    Those go around a mount over it until they enter it by path again. A process in
    another mount namespace may show the same path and mean another directory:
    it counts only if it is on the same filesystem.
    """
    device = os.stat(directory).st_dev
    ours = _link("/proc/self/ns/mnt")

    def really(pid: int, link: str) -> bool:
        if link.endswith("/exe"):
            return False  # a running program goes nowhere by itself
        if _link(f"/proc/{pid}/ns/mnt") == ours:
            return True
        try:
            return os.stat(link).st_dev == device
        except OSError:
            return False

    return _search(directory, really, maps=None)


def holding(mount: MountEntry) -> list[Holder]:
    """Processes that keep `mount` busy. Processes below an in-place mount that are on
    the covered directory have the same paths and are not among them."""

    def really(pid: int, link: str) -> bool:
        return _mount_id(pid, link) == mount.id

    return _search(mount.path, really, maps=mount.device)


def command_of(pid: int) -> str:
    """The command line of a process, or its bare name, or "?" when it is gone."""
    for name, separator in (("cmdline", b"\0"), ("comm", b"\n")):
        try:
            with open(f"/proc/{pid}/{name}", "rb") as file:
                words = file.read(4096).rstrip(separator)
        except OSError:
            continue
        if words:
            return os.fsdecode(words.replace(b"\0", b" "))
    return "?"


def _search(directory: str, really: Callable[[int, str], bool], maps: str | None) -> list[Holder]:
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        held = [
            (how, path)
            for how, link in _links(name)
            if mountinfo.inside(path := _link(link), directory) and really(int(name), link)
        ]
        if maps is not None and not held:
            held = [("map", path) for path in _mapped(name, directory, maps)]
        if held:
            found.append(Holder(int(name), *held[0], len(held)))
    return found


def _links(pid: str) -> Iterator[tuple[str, str]]:
    for how in ("cwd", "root", "exe"):
        yield how, f"/proc/{pid}/{how}"
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for number in numbers:
        yield "fd", f"/proc/{pid}/fd/{number}"


def _link(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


def _mount_id(pid: int, link: str) -> int:
    """The mount that a link in /proc leads to; -1 when it can't be told.

    O_PATH opens without asking the filesystem.
    """
    kind, _, number = link.rpartition("/")
    if kind.endswith("/fd"):
        return _mount_id_in(f"/proc/{pid}/fdinfo/{number}")
    try:
        fd = os.open(link, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        return _mount_id_in(f"/proc/self/fdinfo/{fd}")
    finally:
        os.close(fd)


def _mount_id_in(fdinfo: str) -> int:
    try:
        with open(fdinfo, "rb") as file:
            for line in file:
                if line.startswith(b"mnt_id:"):
                    return int(line[7:])
    except (OSError, ValueError):
        pass
    return -1


def _mapped(pid: str, directory: str, device: str) -> list[str]:
    major, _, minor = device.partition(":")
    mark = f"{int(major):02x}:{int(minor):02x}"
    paths = set()
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            for line in file:
                fields = os.fsdecode(line).rstrip("\n").split(maxsplit=5)
                if len(fields) == 6 and fields[3] == mark and mountinfo.inside(fields[5], directory):
                    paths.add(fields[5])
    except OSError:
        pass
    return sorted(paths)
