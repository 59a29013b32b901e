"""The words behind `mount -t fsguard … -o`, as mount(8) and fstab(5) give them. Pure.

A later option counts more than an earlier one. What mount(8), fstab and systemd
keep for themselves is passed over; what nobody knows is refused with the
nearest name, since a typo must not switch a guard off in silence.
"""

from __future__ import annotations

import re

from fsguard import mountflags
from fsguard.errors import UsageError

__all__ = ["Options", "duration", "parse", "split"]

POLICIES = ("warn", "block", "off")
MAX_WAIT = 600.0

IO_MODES = ("auto", "lane", "daemon")
CACHE_MODES = ("auto", "short", "trust")
_VALUES = ("policy", "wait", "config", "state_dir", "operator", "io", "cache")
_OWN = (*_VALUES, "allow_other", "noallow_other", "remount")
# fstab(5), mount(8): how and when it is mounted, by whom it may be, and what only libmount looks at.
_THEIRS = frozenset(
    ["auto", "noauto", "nofail", "user", "nouser", "users", "owner", "noowner", "group", "nogroup"]
) | {"_netdev", "noquota", "quota", "usrquota", "grpquota", "silent", "loud", "mand", "nomand"}
_THEIRS_WITH_VALUE = ("user", "comment", "uhelper", "helper", "fsname", "subtype")
# What the kernel shows of a mount of ours: mount(8) hands it back at a remount.
_KERNEL = ("user_id", "group_id", "default_permissions", "rootmode", "max_read", "blksize")
_UNITS = {"": 1.0, "s": 1.0, "sec": 1.0, "ms": 0.001, "m": 60.0, "min": 60.0}


class Options:
    """What was asked for; None: not said. `unknown` are passed over with `sloppy`."""

    def __init__(self) -> None:
        self.policy: str | None = None
        self.wait: float | None = None
        self.config: str | None = None
        self.state_dir: str | None = None
        self.io: str | None = None
        self.cache: str | None = None
        self.operators: list[str] = []
        self.allow_other: bool | None = None
        self.remount = False
        self.flags: tuple[str, ...] = ()
        self.unknown: list[str] = []


def parse(text: str, *, sloppy: bool = False) -> Options:
    """Options from one `-o` argument (or several, joined by commas).

    UsageError names the option and what it may be.
    """
    found = Options()
    flags = []
    words = split(text)
    found.remount = "remount" in words
    for word in words:
        name, mark, value = word.partition("=")
        if word in mountflags.SET or word in mountflags.OPPOSITES:
            flags.append(word)
        elif name in _OWN:
            _own(found, name, value if mark else None)
        elif _not_ours(word, name) or (found.remount and name in _KERNEL):
            continue
        elif sloppy:
            found.unknown.append(word)
        else:
            raise UsageError(f"unknown mount option: {word}", _near(name))
    found.flags = mountflags.effective(flags)
    return found


def _not_ours(word: str, name: str) -> bool:
    return word in _THEIRS or (name != word and name in _THEIRS_WITH_VALUE) or name.lower().startswith("x-")


def split(text: str) -> list[str]:
    """At commas, but not inside double quotes and not after a backslash; quotes and backslashes go."""
    words, word, quoted, escaped = [], "", False, False
    for character in text:
        if escaped:
            word, escaped = word + character, False
        elif character == "\\":
            escaped = True
        elif character == '"':
            quoted = not quoted
        elif character == "," and not quoted:
            words.append(word)
            word = ""
        else:
            word += character
    if quoted:
        raise UsageError(f"a quote without its end in the mount options: {text}")
    words.append(word + ("\\" if escaped else ""))
    return [word for word in words if word]


def duration(text: str) -> float:
    """Seconds of `10`, `10s`, `500ms`, `2min`; UsageError for anything else and beyond ten minutes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text, re.ASCII)
    if found is None or found[2] not in _UNITS:
        raise UsageError(f"not a time: {text}", "seconds, or a number with ms, s or min: wait=10s")
    seconds = float(found[1]) * _UNITS[found[2]]
    if seconds > MAX_WAIT:
        raise UsageError(f"{text} is too long", f"at most {MAX_WAIT / 60:g} minutes")
    return seconds


def _own(found: Options, name: str, value: str | None) -> None:
    if name in ("remount", "allow_other", "noallow_other"):
        if value is not None:
            raise UsageError(f"the mount option {name} takes no value")
        if name != "remount":
            found.allow_other = name == "allow_other"
        return
    if not value:
        raise UsageError(f"the mount option {name} needs a value", f"{name}={_EXAMPLES[name]}")
    if name == "policy":
        if value not in POLICIES:
            raise UsageError(f"a policy is one of {', '.join(POLICIES)}, not {value}", "policy=block")
        found.policy = value
    elif name == "wait":
        found.wait = duration(value)
    elif name == "operator":
        found.operators.append(value)
    elif name == "io":
        if value not in IO_MODES:
            raise UsageError(f"io is one of {', '.join(IO_MODES)}, not {value}", "io=auto")
        found.io = value
    elif name == "cache":
        if value not in CACHE_MODES:
            raise UsageError(f"cache is one of {', '.join(CACHE_MODES)}, not {value}", "cache=auto")
        found.cache = value
    elif name == "config":
        found.config = _absolute(name, value)
    else:
        found.state_dir = _absolute(name, value)


_EXAMPLES = {
    "policy": "block",
    "wait": "10s",
    "config": "/etc/fsguard/ws.toml",
    "state_dir": "/var/lib/fsguard/ws",
    "operator": "runner",
    "io": "daemon",
    "cache": "trust",
}


def _absolute(name: str, value: str) -> str:
    if not value.startswith("/"):
        raise UsageError(f"{name}={value} is no absolute path", "fstab lines are read from anywhere")
    return value


def _near(name: str) -> str:
    import difflib

    known = [*_OWN, *mountflags.SET, *mountflags.OPPOSITES, *_THEIRS]
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean {near[0]}?" if near else "`mount.fsguard --help` lists the options"
