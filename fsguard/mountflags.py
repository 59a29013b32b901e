"""The mount options that the kernel itself carries out, by their names in mount(8). Pure."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["OPPOSITES", "SET", "bits", "effective"]

SET = {
    "ro": 1,
    "nosuid": 2,
    "nodev": 4,
    "noexec": 8,
    "sync": 16,
    "dirsync": 128,
    "nosymfollow": 256,
    "noatime": 1 << 10,
    "nodiratime": 1 << 11,
    "relatime": 1 << 21,
    "strictatime": 1 << 24,
    "lazytime": 1 << 25,
}
"""Names that set a flag of mount(2) (include/uapi/linux/mount.h)."""

OPPOSITES = {
    "rw": ("ro",),
    "suid": ("nosuid",),
    "dev": ("nodev",),
    "exec": ("noexec",),
    "async": ("sync",),
    "symfollow": ("nosymfollow",),
    "atime": ("noatime",),
    "diratime": ("nodiratime",),
    "norelatime": ("relatime",),
    "nostrictatime": ("strictatime",),
    "nolazytime": ("lazytime",),
    "defaults": ("ro", "nosuid", "nodev", "noexec", "sync"),
}
"""Names that take flags back."""


def effective(options: Iterable[str]) -> tuple[str, ...]:
    """The flags that are left of a list of options, in which a later one counts more."""
    chosen: dict[str, None] = {}
    for option in options:
        if option in SET:
            chosen[option] = None
        for name in OPPOSITES.get(option, ()):
            chosen.pop(name, None)
    return tuple(chosen)


def bits(names: Iterable[str]) -> int:
    """The flags of mount(2). KeyError for a name that is none."""
    value = 0
    for name in names:
        value |= SET[name]
    return value
