"""What all tools' events come down to: who does what to which paths, before or after.

Plain classes: dataclasses would cost a third of a hook's time.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

__all__ = ["AFTER", "BEFORE", "ENDED", "STARTED", "Call", "Event", "Outcome", "Touch", "Who", "first_line"]

BEFORE, AFTER, STARTED, ENDED = "before", "after", "started", "ended"
"""The moments: around a tool call, and around a task."""


class Event:
    """JSON from outside. A value is of the type that was asked for, or it is missing."""

    __slots__ = ("data",)

    def __init__(self, data: Any) -> None:
        self.data: dict[str, Any] = data if isinstance(data, dict) else {}

    def text(self, *names: str) -> str:
        """The first of these fields that is a text and not empty; else ""."""
        for name in names:
            value = self.data.get(name)
            if isinstance(value, str) and value:
                return value
        return ""

    def texts(self, *names: str) -> list[str]:
        """The first of these fields that is a list: the texts in it."""
        for name in names:
            value = self.data.get(name)
            if isinstance(value, list):
                return [item for item in value if isinstance(item, str) and item]
        return []

    def part(self, *names: str) -> Event:
        """The first of these fields that is an object, or the text of one; else an empty one."""
        for name in names:
            value = self.data.get(name)
            if isinstance(value, str) and value.startswith("{"):
                try:
                    value = json.loads(value)
                except (ValueError, RecursionError):
                    continue
            if isinstance(value, dict):
                return Event(value)
        return Event(None)

    def has(self, *names: str) -> bool:
        """Is one of these fields there, with a value that says something?"""
        return any(self.data.get(name) not in (None, "", False) for name in names)


class Who:
    """A task, as the hook names it: `name` is its role, `intent` what it is about.

    `doing` is what the call at hand is for, in the agent's own words.
    """

    __slots__ = ("doing", "intent", "name", "parent", "task")

    def __init__(self, task: str, parent: str | None = None, name: str = "", intent: str = "") -> None:
        self.task = task
        self.parent = parent
        self.name = name
        self.intent = intent
        self.doing = ""


class Touch:
    """One path that a file tool reads or writes.

    `id` names the tool call; where one call touches several paths, each has its
    own. With `follow`, a link at the end of the path means what it points at.
    """

    __slots__ = ("follow", "id", "partial", "path", "what")

    def __init__(self, id: str, what: str, path: str, *, partial: bool = False, follow: bool = True) -> None:
        self.id = id
        self.what = what
        self.path = path
        self.partial = partial
        self.follow = follow


class Call:
    """An event, understood.

    `command` is the shell command of a shell tool. `env_file` is a file that the
    tool's shells read before each command.
    """

    __slots__ = ("command", "cwd", "env_file", "moment", "ok", "touches", "who")

    def __init__(
        self,
        moment: str,
        who: Who,
        cwd: str,
        touches: Sequence[Touch] = (),
        command: str | None = None,
        *,
        ok: bool = True,
        env_file: str = "",
    ) -> None:
        self.moment = moment
        self.who = who
        self.cwd = cwd
        self.touches = touches
        self.command = command
        self.ok = ok
        self.env_file = env_file


class Outcome:
    """What there is to say.

    `context` is for the agent to read ("": nothing), `refusal` is why the call
    must not run, `variables` are to be in the environment of a shell command.
    """

    __slots__ = ("context", "refusal", "variables")

    def __init__(self) -> None:
        self.context = ""
        self.refusal = ""
        self.variables: dict[str, str] = {}


def first_line(text: str, limit: int = 200) -> str:
    """The first line of a prompt that says something, as one printable line, cut."""
    for line in text[:4000].splitlines():
        words = " ".join("".join(c if c.isprintable() else " " for c in line).split())
        if words:
            return words if len(words) <= limit else words[: limit - 1] + "…"
    return ""
