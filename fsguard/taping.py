"""Puts a tape between the guard and everything that it asks: see `tape` and `dispatch.recorder`.

    proc = taping.proc(tape)                       # for Resolver(proc=…)
    probe = taping.probe(tape, Facts(…))           # for Guard
    keeper = taping.keeper(tape, StoreKeeper(…))   # for Dispatch
    …
    recorder = taping.record(tape, dispatch, resolver, request)   # in place of dispatch, for Shield
    handlers = taping.note(recorder, service.groups(), service.handlers())
    settle = recorder.act("settle", settle)                       # whatever else changes the records

The first three give what they were given where there is no tape. In the process that goes on, all this is
done again, then the checkpoint is restored, and `play_back` does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fsguard.attribution.procfs import Proc, Stat
from fsguard.attribution.resolver import Resolver
from fsguard.control.server import Handler, Peer
from fsguard.core.guard import Probe
from fsguard.core.model import Kept
from fsguard.dispatch import Dispatch
from fsguard.dispatch.ports import Keeper
from fsguard.dispatch.recorder import Recorder
from fsguard.dispatch.replay import Replay
from fsguard.errors import FsguardError
from fsguard.tape import DoubtError, Tape

__all__ = ["keeper", "note", "play_back", "probe", "proc", "record"]

AT_ONCE = (
    "run.begin",
    "warnings",
    "note",
    "tool.begin",
    "tool.end",
    "task.start",
    "task.end",
    "policy.set",
    "turns.set",
    "lease.release",
    "lease.request",
)
"""Questions that change the records and never wait: each is one call on the tape. Of the others those
parts are that `service.base.noted` marks."""


class _Noted:
    """What is asked, by name."""

    def __init__(self, **asked: Callable[..., Any]) -> None:
        self.__dict__.update(asked)


def proc(tape: Tape | None, asked: Proc | None = None) -> Any:
    """/proc, as the resolver asks it."""
    asked = asked or Proc()
    if tape is None:
        return asked

    def stat_of(values: Any) -> Stat | None:
        return Stat(*values) if values is not None else None

    plain = ("inode", "tgid", "groups", "variables", "cmdline", "syscall", "pending")
    return _Noted(
        stat=tape.port(asked.stat, lambda stat: tuple(stat) if stat is not None else None, stat_of),
        **{name: tape.port(getattr(asked, name)) for name in plain},
    )


def probe(tape: Tape | None, asked: Probe) -> Any:
    """Facts that are looked up when a warning is due."""
    if tape is None:
        return asked
    return _Noted(
        self_locking=tape.port(asked.self_locking, asks=True),
        git_ignored=tape.port(asked.git_ignored, asks=True),
    )


def keeper(tape: Tape | None, asked: Keeper | None) -> Any:
    """Who puts bytes by. What is there by now is not put by again."""
    if tape is None or asked is None:
        return asked

    def values(kept: Kept) -> tuple[Any, ...]:
        return (kept.id, kept.number, kept.digest, kept.reason)

    return _Noted(
        keep=tape.port(asked.keep, values, lambda value: Kept(*value), asks=True),
        told=tape.port(asked.told),
        needless=tape.port(asked.needless),
        diff=tape.port(asked.diff, asks=True),
    )


def record(tape: Tape, dispatch: Dispatch, resolver: Resolver, request: Callable[[], int]) -> Recorder:
    """Note what comes to `dispatch` from now on; call it when all else is wired (`take_records`, `recall`,
    `learn`, `changed`, `before_granting`).

    `request`: the number of the request that is handled (`fuse._request.unique`; 0: none).
    """
    recorder = Recorder(dispatch, tape, request)
    waiting = dispatch.waiting
    dispatch.clock = tape.port(dispatch.clock)
    dispatch.same_bytes = tape.port(dispatch.same_bytes, asks=True)
    dispatch.take_records = recorder.takes(dispatch.take_records)
    waiting.now = tape.port(waiting.now)
    waiting.pending.rest = recorder.rest
    waiting.leases.before_granting = recorder.takes(waiting.leases.before_granting)
    resolver.clock = tape.port(resolver.clock)
    resolver.recall = recorder.recalls(resolver.recall)
    resolver.learn = recorder.learns(resolver.learn)
    resolver.changed = recorder.live(resolver.changed)
    return recorder


def note(
    recorder: Recorder, groups: Mapping[str, object], handlers: Mapping[str, Handler]
) -> dict[str, Handler]:
    """What the control socket changes is noted from now on.

    `groups`: who answers, by names that stay (`Service.groups`). Returns the handlers to be served.
    """
    for name, group in groups.items():
        for method in dir(type(group)):
            if getattr(getattr(type(group), method), "noted", False):
                setattr(group, method, recorder.act(f"{name}.{method}", getattr(group, method)))
        for port in ("removed", "put_by", "diff"):
            if hasattr(group, port):
                setattr(group, port, recorder.tape.port(getattr(group, port), asks=True))
    return {
        name: _at_once(recorder, name, handler) if name in AT_ONCE else handler
        for name, handler in handlers.items()
    }


def _at_once(recorder: Recorder, name: str, handler: Any) -> Handler:
    def answer(peer: tuple[int, int, int], params: dict[str, Any]) -> tuple[Any, FsguardError | None]:
        stretches = handler(Peer(*peer), params)
        try:
            stretches.send(None)
        except StopIteration as done:
            return done.value, None
        except FsguardError as error:
            return None, error
        stretches.close()
        raise RuntimeError(f"{name} waits")

    noted = recorder.act(f"asked {name}", answer)

    async def asked(peer: Peer, params: dict[str, Any]) -> Any:
        value, error = noted(tuple(peer), params)
        if error is not None:
            raise error
        return value

    return asked


def play_back(recorder: Recorder, replay: Replay, mark: int, least: int = 0) -> str | None:
    """After `restart.restore`: what has happened since the checkpoint that was cut at `mark`.

    None: all of it is on record. Else why not: nothing is said then of what was on record before, and the
    tape is of no use until the next cut. `least`: see `Guard.forget_doubtful`.
    """
    try:
        replay.run(recorder.tape.entries(mark))
    except DoubtError as error:
        recorder.inner.forget_doubtful(least)
        recorder.tape.lose()
        return str(error)
    return None
