"""Puts a tape between the guard and everything that it asks: see `tape` and `dispatch.recorder`.

    proc = taping.proc(tape)                       # for Resolver(proc=…)
    probe = taping.probe(tape, Facts(…))           # for Guard
    keeper = taping.keeper(tape, StoreKeeper(…))   # for Dispatch
    …
    recorder = taping.record(tape, dispatch, resolver, request)   # in place of dispatch, for Shield

Each gives what it was given where there is no tape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fsguard.attribution.procfs import Proc, Stat
from fsguard.attribution.resolver import Resolver
from fsguard.core.guard import Probe
from fsguard.core.model import Kept
from fsguard.dispatch import Dispatch
from fsguard.dispatch.ports import Keeper
from fsguard.dispatch.recorder import Recorder
from fsguard.tape import Tape

__all__ = ["keeper", "probe", "proc", "record"]


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
    return _Noted(self_locking=tape.port(asked.self_locking), git_ignored=tape.port(asked.git_ignored))


def keeper(tape: Tape | None, asked: Keeper | None) -> Any:
    """Who puts bytes by. What is there by now is not put by again."""
    if tape is None or asked is None:
        return asked

    def values(kept: Kept) -> tuple[Any, ...]:
        return (kept.id, kept.number, kept.digest, kept.reason)

    return _Noted(
        keep=tape.port(asked.keep, values, lambda value: Kept(*value)),
        told=tape.port(asked.told),
        needless=tape.port(asked.needless),
        diff=tape.port(asked.diff),
    )


def record(tape: Tape, dispatch: Dispatch, resolver: Resolver, request: Callable[[], int]) -> Recorder:
    """Note what comes to `dispatch` from now on; call it when all else is wired (`take_records`, `recall`,
    `learn`, `changed`, `before_granting`).

    `request`: the number of the request that is handled (`fuse._request.unique`; 0: none).
    """
    recorder = Recorder(dispatch, tape, request)
    waiting = dispatch.waiting
    dispatch.clock = tape.port(dispatch.clock)
    dispatch.same_bytes = tape.port(dispatch.same_bytes)
    dispatch.take_records = recorder.takes(dispatch.take_records)
    waiting.now = tape.port(waiting.now)
    waiting.pending.rest = recorder.rest
    waiting.leases.before_granting = recorder.takes(waiting.leases.before_granting)
    resolver.clock = tape.port(resolver.clock)
    resolver.recall = recorder.recalls(resolver.recall)
    resolver.learn = recorder.learns(resolver.learn)
    resolver.changed = recorder.live(resolver.changed)
    return recorder
