"""Control groups: which one a process is in, in all three layouts (v1, v2, hybrid)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["CgroupPattern", "Membership", "match", "parse_cgroup", "token_of"]

RUN_PREFIX = "fsguard-"


class Membership(NamedTuple):
    """One line of /proc/PID/cgroup; `controllers` is empty for the v2 tree."""

    hierarchy: int
    controllers: str
    path: str


@dataclass(frozen=True, slots=True)
class CgroupPattern:
    """Maps a control group to a task; ``{1}``, ``{name}`` in `task` are groups of `pattern`."""

    pattern: re.Pattern[str]
    task: str


def parse_cgroup(raw: bytes) -> list[Membership]:
    """The memberships, the v2 tree first; lines that are none are passed over."""
    found = []
    for line in raw.decode("utf-8", "surrogateescape").split("\n"):
        number, sep, rest = line.partition(":")
        controllers, sep2, path = rest.partition(":")
        number_is_one = number.isascii() and number.isdigit() and len(number) < 20
        if not sep or not sep2 or not number_is_one or not path.startswith("/"):
            continue
        found.append(Membership(int(number), controllers, path))
    found.sort(key=lambda m: (m.hierarchy != 0, m.controllers != "name=systemd", m.hierarchy))
    return found


def token_of(memberships: Iterable[Membership]) -> list[str]:
    """Tokens of the runs whose groups a process is in, the innermost first."""
    tokens: list[str] = []
    for m in memberships:
        for part in reversed(m.path.split("/")):
            if part.startswith(RUN_PREFIX):
                token = part[len(RUN_PREFIX) :]
                if token not in tokens:
                    tokens.append(token)
    return tokens


def match(memberships: Iterable[Membership], patterns: Iterable[CgroupPattern]) -> str | None:
    """The task of the first pattern that is found in one of the paths."""
    members = list(memberships)
    for p in patterns:
        for m in members:
            hit = p.pattern.search(m.path)
            if hit is not None:
                return p.task.format(hit.group(0), *hit.groups(default=""), **hit.groupdict(default=""))
    return None
