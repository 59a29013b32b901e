"""One program of the daemon takes the place of another, in the same process: nobody's call fails.

The old program stops taking requests (they wait in the kernel), finishes what it has begun,
writes down what it knows and executes the new one, which keeps its process id, its mount
namespace and its descriptors: the FUSE connection, the files behind open handles, the marks
for changes from behind, the control socket. Opens that were waiting for a turn are handled
once more, with the time that they have waited already.

Before anything is given up, the new program is started on trial, and says whether it
understands what the old one writes (`FORMAT`, `lane/state.c`).
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, NoReturn

from fsguard import flat
from fsguard.errors import DaemonError, UsageError
from fsguard.fuse.nodes import Node

__all__ = [
    "FORMAT",
    "KEPT",
    "UNDER_WAY",
    "Estate",
    "Order",
    "execute",
    "gather",
    "on_trial",
    "restore",
    "same_program",
    "take",
    "try_out",
]

FORMAT = 2
"""Moves when a program can't go on with what the one before it has written."""

_STATE = "FSGUARD_STATE_FD"
_TRIAL = "FSGUARD_RESTART_TRIAL"
_TRIAL_SECONDS = 60.0

KEPT: Mapping[str, tuple[str, ...]] = {
    "daemon": ("started", "asked_to_end"),
    "outbox": ("total", "raised", "withdrawn", "_ids", "_all", "_open", "_rebuild"),
    "ledger": ("version", "_paths", "_names", "_readers", "_process_looks", "_glances"),
    "tasks": ("_tasks", "_forgotten"),
    "history": ("_entries",),
    "policies": ("default", "paths", "tasks"),
    "guard": ("deletions",),
    "shield": ("faults",),
    "dispatch": ("open_files", "_writable"),
    "orphans": ("_files",),
    "outsiders": ("overflows",),
    "waiting": ("seconds", "waits", "waited", "_again", "_writable"),  # which is dispatch's, too
    "turns": ("lapse", "_turns", "_of_handle", "_entered"),
    "leases": ("held", "_ids"),
    "resolver": ("_threads", "_known", "_processes", "runs", "_pids", "means", "_nobody"),
    "announced": ("_calls",),
    "runs": ("_numbers", "_began"),
    "account": ("_began",),
    "versions": ("_began",),
    "operations": ("counts",),
    "handles": ("files", "_next"),
    "recorder": ("numbers", "sessions", "actors", "cast"),
    "lane": ("_last", "_actors", "_numbers", "_groups", "_last_group"),
}
"""What of which part goes to the next program; the rest of each is made anew, or has only wires in it."""

UNDER_WAY: Mapping[str, tuple[str, ...]] = {
    "recorder": ("record",),
    "outsiders": ("_last",),
    "waits": ("_by_request", "_signalled"),
    "behind": ("_lines",),
    "waiting": ("_waits", "resumed"),
    "turns": ("_queues",),
    "leases": ("_queue",),
    "lease_requests": ("_numbers", "_askers"),
}
"""What goes into a checkpoint besides: a program that is restarted handles opens that wait anew instead."""


class Estate(NamedTuple):
    """All that one program leaves to the next."""

    format: int
    version: str
    spec: dict[str, Any]
    restarts: int
    takeovers: int
    worker: int  # who did the work; another process than the one that goes on if there was a keeper
    settings: bytes  # config.Settings, by `flat`: fields come and go
    notifier: tuple[str | None, float | None]
    connection: Any  # fuse.connection.Past
    listener: int
    lane: bytes
    objects: bytes
    handles: list[tuple[int, int, int, int, bool]]  # number, node, descriptor, flags, readable
    requests: list[bytes]  # of opens that wait
    waiting: dict[int, float]  # since when (monotonic seconds), by number


# ---- what is known ----------------------------------------------------------------------


def gather(parts: Mapping[str, object], under_way: bool = False) -> bytes:
    """What `KEPT` names, of the daemon's parts. Nothing may be under way but opens that wait, which
    are there with all that concerns them if so asked (`UNDER_WAY`)."""
    names = {id(part): name for name, part in parts.items()}

    def name_of(obj: object) -> object:
        if isinstance(obj, Node):
            return ("node", obj.id)
        return names.get(id(obj))

    state: dict[str, dict[str, object]] = {}
    for kept in (KEPT, UNDER_WAY) if under_way else (KEPT,):
        for name, attributes in kept.items():
            if name in parts:
                values = {attribute: getattr(parts[name], attribute) for attribute in attributes}
                state.setdefault(name, {}).update(values)
    return flat.dump(state, name_of)


def restore(data: bytes, parts: Mapping[str, object], node: Callable[[int], object]) -> None:
    """Put it into parts that have just been made; whatever is wrong is raised before any is touched."""

    def called(name: Any) -> object:
        return node(name[1]) if isinstance(name, tuple) else parts[name]

    state = flat.load(data, called)
    for name, values in state.items():
        for attribute, value in values.items():
            if name in parts and hasattr(parts[name], attribute):
                setattr(parts[name], attribute, value)


# ---- from program to program ------------------------------------------------------------


def try_out(
    program: Sequence[str],
    environ: Mapping[str, str],
    starting: Callable[[], AbstractContextManager[Callable[[int], object]]],
    ours: str | None = None,
) -> str:
    """Start the next program on trial. Returns its version; DaemonError: it can't take over. Blocks.

    `starting`: around the start of a child, whose pid is given to what it yields. `ours`: the mountpoint,
    if this process sees the mount there: then nothing that it starts from may lie in it.
    """
    _not_inside(ours, program[:1])
    try:
        with starting() as started:
            child = subprocess.Popen(
                program,
                env={**environ, _TRIAL: "1"},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            started(child.pid)
    except (OSError, ValueError) as error:
        reason = f"the program to go on with does not start: {error}"
        raise DaemonError(reason, "nothing was changed") from None
    with child:
        try:
            out, err = child.communicate(timeout=_TRIAL_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            raise DaemonError(
                f"the program to go on with said nothing for {_TRIAL_SECONDS:g} s", "nothing was changed"
            ) from None
    said = _answer(out) if child.returncode == 0 else None
    if not isinstance(said, dict):
        last = err.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise DaemonError(
            f"the program to go on with does not start: {''.join(last)[:300] or f'exit {child.returncode}'}",
            "nothing was changed",
        )
    if said.get("format") != FORMAT or said.get("io") != "lane":
        raise DaemonError(
            f"fsguard {said.get('version')} cannot go on with what this version has on record",
            "nothing was changed; unmount and mount when nobody works there",
        )
    _not_inside(ours, said.get("places") or ())
    return str(said.get("version"))


def _not_inside(ours: str | None, paths: Iterable[str]) -> None:
    """Who executes what only it can serve waits for itself, for ever."""
    for path in paths if ours is not None else ():
        for place in (os.path.abspath(path), os.path.realpath(path)):
            if f"{place}/".startswith(f"{ours}/"):
                raise DaemonError(
                    f"the program to go on with lies in the workspace itself ({place})",
                    "nothing was changed; install fsguard elsewhere, or unmount and mount",
                )


def _answer(out: bytes) -> object:
    try:
        return json.loads(out.splitlines()[-1])
    except (ValueError, IndexError):
        return None


def on_trial(version: str, io: str) -> bool:
    """In the next program: answer, if that was all that is wanted."""
    if os.environ.pop(_TRIAL, None) is None:
        return False
    places = [sys.executable, sys.prefix, sys.base_prefix, *filter(None, sys.path)]
    print(json.dumps({"format": FORMAT, "version": version, "io": io, "places": places}))
    return True


def same_program() -> list[str]:
    """What this process was started with; the files may be another version's by now."""
    return [sys.executable, *sys.orig_argv[1:]]


class Order(NamedTuple):
    """What to execute: the estate, the program, its environment, descriptors that it goes on with."""

    estate: tuple[Any, ...]
    program: list[str]
    environ: dict[str, str]
    keep: list[int]


def execute(order: Order) -> NoReturn:
    """Become the next program. Whatever is raised: it can't be executed, and nothing has changed."""
    state = os.memfd_create("fsguard", os.MFD_CLOEXEC)
    fds = [state, *order.keep]
    program, environ = order.program, order.environ
    try:
        with open(state, "wb", closefd=False) as file:
            pickle.dump(order.estate, file, protocol=5)
        os.lseek(state, 0, os.SEEK_SET)
        for fd in fds:
            os.set_inheritable(fd, True)
        os.execve(program[0], program, {**environ, _STATE: str(state)})
    except BaseException:
        for fd in fds:
            os.set_inheritable(fd, False)
        os.close(state)
        raise


def take() -> Estate | None:
    """What the program before has left; None: there was none. Raises UsageError: it can't be read."""
    number = os.environ.pop(_STATE, "")
    if not number.isdigit():
        return None
    try:
        with open(int(number), "rb") as file:
            return Estate(*pickle.load(file))
    except Exception as error:  # whatever a pickle may raise
        raise UsageError(f"nothing is left by another daemon: {error}") from None
