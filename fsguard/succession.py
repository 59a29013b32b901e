"""`fsguard restart`, in the daemon: end what is under way, and let the next program go on.

What has to be true before `restart.gather` may be called, in this order: no new request
on the control socket and none unanswered; no thread of the lane, and all that it did told;
no request in Python but opens that wait for a turn.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import trio

from fsguard import __version__, restart
from fsguard.control import params as p
from fsguard.control.server import Door, Peer
from fsguard.dispatch import Dispatch
from fsguard.errors import BusyError, DaemonError, UsageError
from fsguard.fuse.connection import Connection
from fsguard.fuse.files import interrupt_request
from fsguard.fuse.operations import Operations
from fsguard.versions import Store

__all__ = ["Succession"]

_log = logging.getLogger("fsguard.restart")

CLIENTS_SECONDS = 3.0
REQUESTS_SECONDS = 10.0


class Succession:
    """:param parts: of the daemon, by the names of `restart.KEPT`.
    :param leave: makes what else the next program is told: (spec, settings, notifier).
    """

    def __init__(
        self,
        parts: Mapping[str, object],
        connection: Connection,
        operations: Operations,
        dispatch: Dispatch,
        store: Store | None,
        door: Door,
        leave: Callable[[], tuple[Any, Any, tuple[str | None, float | None]]],
    ) -> None:
        self._parts = parts
        self._connection = connection
        self._operations = operations
        self._dispatch = dispatch
        self._store = store
        self._door = door
        self._leave = leave
        self._asked: tuple[list[str], dict[str, str]] | None = None
        self._wanted = trio.Event()
        self.trouble: str | None = None
        """Why the last restart did not come about."""

    async def restart(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        """Go on as the program that is installed now, or as `program` with PYTHONPATH `path`. No call fails.

        Answers with the next program's version when it was tried out; then it happens."""
        lane = self._operations.lane
        if lane is None:
            raise UsageError(
                "a mount without the lane (--io daemon) cannot be restarted in place",
                "unmount and mount when nobody works there",
            )
        if self._asked is not None:
            raise BusyError("it is being restarted already")
        program, environ = restart.same_program(), dict(os.environ)
        if "program" in params:
            if peer.uid != os.geteuid():
                raise UsageError("only who runs the daemon may say which program goes on")
            program = p.texts(params, "program")
            environ["PYTHONPATH"] = p.optional_text(params, "path") or ""
        version = await trio.to_thread.run_sync(restart.try_out, program, environ, lane.starting_a_child)
        self._asked, self.trouble = (program, environ), None
        self._wanted.set()
        return {"version": version, "from": __version__}

    async def wait(self) -> None:
        """For requests to restart, until one comes about."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            assert self._asked is not None
            program, environ = self._asked
            try:
                await self._hand_on(program, environ)
            except Exception as error:
                message = (
                    error.message if isinstance(error, DaemonError) else f"{type(error).__name__}: {error}"
                )
                _log.error("not restarted: %s", message)
                self.trouble = message
            self._connection.go_on(self._operations)
            self._door.open()
            self._asked = None

    async def _hand_on(self, program: Sequence[str], environ: Mapping[str, str]) -> None:
        operations, lane, waiting = self._operations, self._operations.lane, self._dispatch.waiting
        assert lane is not None
        await self._door.shut(CLIENTS_SECONDS)
        if self._store is not None:
            await trio.to_thread.run_sync(self._store.flush)
        operations.let_nobody_make()
        if not await trio.to_thread.run_sync(lane.pause, REQUESTS_SECONDS):
            raise DaemonError("requests have not ended in time")
        with trio.move_on_after(REQUESTS_SECONDS):
            while lane.queued() or operations.under_way > len(waiting.pending) or waiting.pending.stirring():
                await trio.sleep(0.0005)
        if lane.queued() or operations.under_way > len(waiting.pending) or waiting.pending.stirring():
            raise DaemonError("requests have not ended in time")
        # From here on nothing else runs.
        operations.settle_down()
        if self._store is not None:
            self._store.flush()
        self._parts["daemon"].restarts += 1  # type: ignore[attr-defined]
        try:
            self._go(program, environ)
        finally:
            self._parts["daemon"].restarts -= 1  # type: ignore[attr-defined]

    def _go(self, program: Sequence[str], environ: Mapping[str, str]) -> None:
        operations, pending = self._operations, self._dispatch.waiting.pending
        lane = operations.lane
        assert lane is not None
        known, fds = lane.dump()
        past = self._connection.handed_on()
        spec, settings, notifier = self._leave()
        handles = [(h.fh, h.node.id, h.fd, h.flags, h.readable) for h in operations.handles]
        waits = pending.all()
        requests = [operations.waiting[unique] for unique in waits]
        requests += [interrupt_request(unique) for unique, wait in waits.items() if wait.signalled]
        estate = restart.Estate(
            restart.FORMAT,
            __version__,
            dataclasses.asdict(spec),
            settings,
            notifier,
            past,
            self._door.fileno(),
            known,
            restart.gather(self._parts),
            handles,
            requests,
            {unique: wait.since for unique, wait in waits.items()},
        )
        keep = {*fds, *past.descriptors(), self._door.fileno(), *(fd for _, _, fd, _, _ in handles)}
        _log.info("restarting: %d open files, %d waiting", len(handles), len(waits))
        restart.execute(estate, program, environ, sorted(keep))
