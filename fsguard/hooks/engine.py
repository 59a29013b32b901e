"""Between a call and its outcome: find the workspace, announce, ask what there is to tell.

The daemon may be missing, slow, old or of another mind. Whatever it refuses is
passed over: a hook has no errors of its own to tell an agent.
"""

from __future__ import annotations

import os

from fsguard.control import registry
from fsguard.control.client import Client
from fsguard.errors import FsguardError
from fsguard.hooks import shell
from fsguard.hooks.call import AFTER, BEFORE, ENDED, STARTED, Call, Outcome, Touch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fsguard.control.registry import Mount

__all__ = ["CAP", "MORE", "REFUSED", "perform", "said"]

CAP = 10_000
"""Characters (UTF-16 units, as the tools count) that an agent is told at once."""

MORE = "fsguard: {count} more: `fsguard warnings --all --task {task}`"
REFUSED = (
    "fsguard refused this call before it changed anything, by the policy `block`. {reason}"
    " After that the same call goes through."
)

_SILENCE = 1.0
"""Seconds of silence after which a daemon is not asked further."""


def perform(call: Call, pid: int, soon: Callable[[Outcome], None] = lambda outcome: None) -> Outcome:
    """Do what the event asks for. `pid` is the agent's process.

    `soon` is told what is sure already, before the daemon is asked.
    """
    daemons = _Daemons()
    try:
        return _MOMENTS[call.moment](call, pid, daemons, soon)
    finally:
        daemons.close()


def _before(call: Call, pid: int, daemons: _Daemons, soon: Callable[[Outcome], None]) -> Outcome:
    outcome = Outcome()
    if call.command is not None:
        mounts = daemons.concerned(call)
        if mounts:
            outcome.variables = _variables(call)
            soon(outcome)
        for mount in mounts:
            daemons.ask(mount, "task.start", **_who(call))
    told: list[str] = []
    refused = False
    begun: list[tuple[Mount, str]] = []
    for touch in call.touches:
        place = daemons.place(call.cwd, touch)
        if place is None:
            continue
        mount, path = place
        answer = daemons.ask(
            mount,
            "tool.begin",
            **_who(call),
            tool_use_id=_number(call, touch),
            what=touch.what,
            path=path,
            pid=pid,
            partial=touch.partial,
        )
        if isinstance(answer, dict):
            begun.append((mount, _number(call, touch)))
            refused = refused or answer.get("refused") is True
            message = answer.get("message")
            if isinstance(message, str) and message and message not in told:
                told.append(message)
    if not refused:
        outcome.context = said(told, call.who.task)
        return outcome
    outcome.refusal = REFUSED.format(reason="\n\n".join(told))[:CAP]
    pending: list[Any] = []
    for mount, number in begun:  # it will not run: nothing of it is in progress
        pending += _warnings_in(daemons.ask(mount, "tool.end", tool_use_id=number, ok=False))
    outcome.context = said([text for text in _messages(pending) if text not in told], call.who.task)
    return outcome


def _after(call: Call, pid: int, daemons: _Daemons, soon: Callable[[Outcome], None]) -> Outcome:
    outcome = Outcome()
    mounts = daemons.concerned(call)
    warnings: list[Any] = []
    for touch in call.touches:
        place = daemons.place(call.cwd, touch)
        if place is not None:
            answer = daemons.ask(place[0], "tool.end", tool_use_id=_number(call, touch), ok=call.ok)
            warnings += _warnings_in(answer)
            if place[0] not in mounts:
                mounts.append(place[0])
    for mount in mounts:
        warnings += _warnings_in(daemons.ask(mount, "warnings", task=call.who.task, ack=True))
    outcome.context = said(_messages(warnings), call.who.task)
    return outcome


def _started(call: Call, pid: int, daemons: _Daemons, soon: Callable[[Outcome], None]) -> Outcome:
    mounts = daemons.concerned(call)
    if mounts and call.env_file:
        _note_for_shells(call)
    for mount in mounts:
        # A new prompt, or a new session: what was under way is over, also what the user denied.
        daemons.ask(mount, "task.start", **_who(call), idle=True)
    return Outcome()


def _ended(call: Call, pid: int, daemons: _Daemons, soon: Callable[[Outcome], None]) -> Outcome:
    for mount in daemons.all():  # wherever it worked; where it did not, it is not known
        daemons.ask(mount, "task.end", task=call.who.task)
    return Outcome()


_MOMENTS = {BEFORE: _before, AFTER: _after, STARTED: _started, ENDED: _ended}


def said(messages: list[str], task: str) -> str:
    """The sentences for an agent, whole ones only, as many as it takes at once."""
    parts: list[str] = []
    room = CAP - 200  # for the last line
    for message in messages:
        part = f"fsguard: {message}"
        if _units(part) > room:
            break
        parts.append(part)
        room -= _units(part) + 2
    told = len(parts)
    if messages and not parts:
        whole = f"fsguard: {messages[0]}"
        parts.append(whole[: room - 1 - sum(character > "\uffff" for character in whole[:room])] + "…")
        told = 1
    if told < len(messages):
        parts.append(MORE.format(count=len(messages) - told, task=shell.quote(task)))
    return "\n\n".join(parts)


def _units(text: str) -> int:
    return len(text) + sum(character > "\uffff" for character in text)


def _warnings_in(answer: Any) -> list[Any]:
    if isinstance(answer, dict):
        answer = answer.get("warnings")
    return answer if isinstance(answer, list) else []


def _messages(warnings: list[Any]) -> list[str]:
    """The words of some warnings, each once."""
    found: dict[str, None] = {}
    for warning in warnings:
        message = warning.get("message") if isinstance(warning, dict) else None
        if isinstance(message, str) and message:
            found[message] = None
    return list(found)


def _who(call: Call) -> dict[str, Any]:
    who = call.who
    return {
        "task": who.task,
        "parent": who.parent,
        "name": who.name or None,
        "intent": who.intent or None,
        **({"doing": who.doing} if who.doing else {}),
    }


def _number(call: Call, touch: Touch) -> str:
    """The call's id, the task's own: whether ids differ between sessions is the tool's matter."""
    return f"{call.who.task}/{touch.id}"[-200:]


def _variables(call: Call) -> dict[str, str]:
    found = {"FSGUARD_TASK": call.who.task}
    if call.who.parent is not None:
        found["FSGUARD_PARENT"] = call.who.parent
    if call.who.intent:
        found["FSGUARD_INTENT"] = call.who.intent
    return found


def _note_for_shells(call: Call) -> None:
    """Name the session's task in the file that its shells read, for the commands that
    are not rewritten."""
    line = shell.exports(_variables(call)) + "\n"
    try:
        with open(call.env_file, "a+", encoding="utf-8", errors="surrogateescape") as file:
            file.seek(0)
            if line not in file.read(1 << 20):
                file.write(line)
    except OSError:
        pass


class _Daemons:
    """The live mounts, and a connection to each that is asked."""

    def __init__(self) -> None:
        self._mounts: list[Mount] | None = None
        self._clients: dict[str, Client | None] = {}

    def all(self) -> list[Mount]:
        if self._mounts is None:
            self._mounts = [mount for _, mount in registry.entries() if mount.usable() and mount.alive()]
        return self._mounts

    def of(self, path: str) -> Mount | None:
        """The innermost mount that an absolute path belongs to."""
        mounts = self.all()
        try:
            found = registry.matching(path, mounts) if mounts and path else []
        except (OSError, ValueError):  # a zero byte, a lone surrogate
            return None
        return found[0] if found else None

    def concerned(self, call: Call) -> list[Mount]:
        """The mount of the call's directory, and those that its command names."""
        here = self.of(call.cwd) if os.path.isabs(call.cwd) else None
        found = [here] if here is not None else []
        words = call.command or ""
        found += [m for m in self.all() if m is not here and (m.mountpoint in words or m.workspace in words)]
        return found

    def place(self, cwd: str, touch: Touch) -> tuple[Mount, str] | None:
        """(mount, path relative to its workspace); None when it is outside of all."""
        if not self.all():
            return None
        try:
            full = os.path.join(cwd, touch.path)
            if not os.path.isabs(full):
                return None
            if touch.follow:
                full = os.path.realpath(full)
            else:
                above, name = os.path.split(os.path.normpath(full))
                full = os.path.join(os.path.realpath(above), name)
        except (OSError, ValueError):
            return None
        mount = self.of(full)
        inside = mount.relative(full) if mount is not None else None
        return (mount, inside) if mount is not None and inside else None

    def ask(self, mount: Mount, method: str, **params: Any) -> Any:
        """The daemon's answer; None when it has none."""
        client = self._clients.setdefault(mount.socket, Client(mount, _SILENCE))
        if client is None:
            return None
        try:
            return client.call(method, **params)
        except FsguardError as error:
            if error.exit_code == 7:  # no answer now: none to the next question either
                client.close()
                self._clients[mount.socket] = None
        except (OSError, ValueError):
            self._clients[mount.socket] = None
        return None

    def close(self) -> None:
        for client in self._clients.values():
            if client is not None:
                client.close()
