"""How the parts of a mount outlive their process: noted, written down, and taken up by the next one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import trio

from fsguard import restart, taping
from fsguard.dispatch.recorder import Recorder
from fsguard.dispatch.replay import Replay
from fsguard.fuse._library import request
from fsguard.fuse.handles import Handle
from fsguard.fuse.shared import LaneTable
from fsguard.fuse.tracebacks import describe
from fsguard.observer import Session
from fsguard.takeover import Checkpoints, Life
from fsguard.tape import Tape

if TYPE_CHECKING:
    from fsguard.composition import Daemon

__all__ = ["checkpoints", "forget_requests", "record", "take_over"]

_log = logging.getLogger("fsguard.daemon")

AGAIN_SECONDS = 0.5


def record(daemon: Daemon, tape: Tape) -> Recorder:
    """Note all that comes to the guard from now on: everything else is wired."""
    operations = daemon.operations
    assert operations.lane is not None and isinstance(operations.nodes, LaneTable)
    recorder = taping.record(tape, daemon.dispatch, daemon.resolver, request.unique)
    daemon.shield.ask(recorder)
    operations.nodes.seen_as(tape.view)
    operations.lane.numbered = recorder.numbered

    def telling(number: int) -> None:
        recorder.record = number

    def given(handle: Handle) -> int:
        session = getattr(handle.session, "inner", handle.session)
        return recorder.has_handle(session, handle.fh, handle.node, handle.flags, handle.readable)

    operations.telling, operations.handles.given = telling, given
    operations.is_noted = lambda: recorder.written
    tape.failed = lambda error: _log.error("what happens can't be noted: %s", describe(error))
    return recorder


def take_over(daemon: Daemon, life: Life) -> None:
    """Go on where the worker before has died."""
    operations = daemon.operations
    lane = operations.lane
    assert lane is not None and lane.left is not None
    checkpoint, least = life.memory.checkpoint(), daemon.guard.ledger.version
    try:
        if checkpoint is None:
            raise LookupError("nothing was written down yet")
        restart.restore(checkpoint.data, daemon.parts(), operations.node_or_gone)
    except Exception as error:
        daemon.takeover_trouble = f"what was on record is lost: {describe(error)}"
        checkpoint = None
    if checkpoint is not None and daemon.recorder is not None:
        doubt = _play_back(daemon, daemon.recorder, checkpoint.mark, least)
        if doubt is not None:
            daemon.takeover_trouble = f"what happened before counts as seen: {doubt}"
    elif daemon.tape is not None:
        daemon.tape.lose()
    if daemon.takeover_trouble is not None:
        _log.error("%s", daemon.takeover_trouble)
    lane.skip_numbers()
    operations.take_over_handles(lane.left.handles)
    daemon.service.taken_over()
    lane.only_misses([state.path for state in daemon.guard.ledger if daemon.dispatch.misses(state.path)])


def _play_back(daemon: Daemon, recorder: Recorder, mark: int, least: int) -> str | None:
    """What has happened since the checkpoint; why that can't be said, if so."""
    operations = daemon.operations
    assert operations.lane is not None
    files = operations.handles.files

    def has_handle(session: Session, fh: int, node: Any, flags: int, readable: bool) -> None:
        files[fh] = Handle(fh, node, -1, flags, daemon.shield.session(session), readable)

    def fault() -> None:
        daemon.shield.faults += 1

    replay = Replay(
        recorder,
        operations.node_or_gone,
        has_handle,
        lambda fh: files.pop(fh, None),
        operations.lane.is_called,
        fault,
    )
    doubt = taping.play_back(recorder, replay, mark, least)
    operations.told_before = recorder.record
    return doubt


def checkpoints(daemon: Daemon, life: Life) -> Checkpoints:
    operations, parts = daemon.operations, daemon.parts()
    assert operations.lane is not None

    def gather() -> bytes:
        operations.leave_the_lane_alone()
        return restart.gather(parts, under_way=True)

    def changed() -> object:
        return daemon.guard.ledger.version, operations.told, tuple(operations.counts.values()), daemon.asked

    recorder = daemon.recorder
    made = Checkpoints(
        life.memory,
        gather,
        changed,
        operations.lane.starting_a_child,
        daemon.tape,
        lambda: not daemon.succession.handing_on and (recorder is None or recorder.settled),
    )
    if daemon.tape is not None:
        daemon.tape.full = made.soon
    return made


async def forget_requests(daemon: Daemon) -> None:
    """Those that the worker before had begun have come again by now, or their askers are gone."""
    lane, recorder = daemon.operations.lane, daemon.recorder
    if not daemon.goes_on or recorder is None or lane is None:
        return
    await trio.sleep(AGAIN_SECONDS)
    while lane.queued():
        await trio.sleep(AGAIN_SECONDS)
    try:
        recorder.forget_requests()
    except Exception as error:  # somebody works there
        _log.error("forgetting requests failed: %s", describe(error))
