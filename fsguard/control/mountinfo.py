"""What the kernel says is mounted: /proc/self/mountinfo, parsed.

Standard library only, and nothing here touches a mount: a dead or a hanging
one can be listed like any other.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["FSTYPE", "MountEntry", "elsewhere", "inside", "parse", "read", "top_at", "under"]

FSTYPE = "fuse.fsguard"
"""The type under which the daemon mounts."""

_OCTAL = frozenset("01234567")


class MountEntry:
    """One line of mountinfo; `root` is the part of the filesystem that is shown."""

    __slots__ = ("device", "fstype", "id", "options", "path", "root", "source")

    def __init__(
        self, id: int, device: str, root: str, path: str, fstype: str, source: str, options: str
    ) -> None:
        self.id = id
        self.device = device  # "major:minor", what stat says as st_dev
        self.root = root
        self.path = path
        self.fstype = fstype
        self.source = source
        self.options = options  # of the superblock


def parse(text: str) -> list[MountEntry]:
    """Entries in the kernel's order: a later one at the same path covers the earlier.

    Lines that are not understood are left out.
    """
    entries = []
    for line in text.split("\n"):  # a name may hold any other control character
        fields = line.split(" ")
        try:
            rest = fields[fields.index("-", 6) + 1 :]  # optional fields end with "-"
            options = rest[2] if len(rest) > 2 else ""
            root, path, source = _plain(fields[3]), _plain(fields[4]), _plain(rest[1])
            entries.append(MountEntry(int(fields[0]), fields[2], root, path, rest[0], source, options))
        except (ValueError, IndexError):
            continue
    return entries


def read() -> list[MountEntry]:
    """The mounts that this process sees; none when /proc is not there."""
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            return parse(os.fsdecode(file.read()))
    except OSError:
        return []


def elsewhere(device: str) -> list[int]:
    """One process of each other mount namespace that shows the filesystem `device`, as far as we may look."""
    found: dict[str, int] = {}
    own = _namespace("self")
    for pid in filter(str.isdigit, os.listdir("/proc")):
        namespace = _namespace(pid)
        if namespace is None or namespace == own or namespace in found:
            continue
        try:
            with open(f"/proc/{pid}/mountinfo", "rb") as file:
                if any(entry.device == device for entry in parse(os.fsdecode(file.read()))):
                    found[namespace] = int(pid)
        except OSError:
            continue  # gone, or not ours to see
    return sorted(found.values())


def _namespace(pid: str) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return None


def top_at(path: str, entries: Iterable[MountEntry]) -> MountEntry | None:
    """The mount that is seen at exactly `path`, if one stands there."""
    found = None
    for entry in entries:
        if entry.path == path:
            found = entry
    return found


def under(path: str, entries: Iterable[MountEntry]) -> list[MountEntry]:
    """The mounts strictly inside `path`."""
    return [entry for entry in entries if entry.path != path and inside(entry.path, path)]


def inside(path: str, directory: str) -> bool:
    """Is `path` the directory or below it? Both absolute and normal; no file is asked."""
    return path == directory or path.startswith(directory if directory == "/" else directory + "/")


def _plain(text: str) -> str:
    """Undo the kernel's octal escapes (space, tab, newline, backslash, #)."""
    if "\\" not in text:
        return text
    out, at = bytearray(), 0
    raw = os.fsencode(text)
    while at < len(raw):
        digits = raw[at + 1 : at + 4].decode("latin-1")
        if raw[at] == 0x5C and len(digits) == 3 and _OCTAL.issuperset(digits):
            out.append(int(digits, 8) & 0xFF)
            at += 4
        else:
            out.append(raw[at])
            at += 1
    return os.fsdecode(bytes(out))
