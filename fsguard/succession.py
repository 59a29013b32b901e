"""`fsguard restart`, in the daemon: end what is under way, and let the next program go on.

What has to be true before `restart.gather` may be called, in this order: no new request
on the control socket and none unanswered; no thread of the lane, and all that it did told;
no request in Python but opens that wait for a turn.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import trio

from fsguard import __version__, flat, restart
from fsguard.control import params as p
from fsguard.control.server import Door, Peer
from fsguard.dispatch import Dispatch
from fsguard.errors import BusyError, DaemonError, FsguardError, RefusedError, UsageError
from fsguard.fuse.connection import Connection
from fsguard.fuse.files import interrupt_request, open_request
from fsguard.fuse.operations import Operations
from fsguard.keeper import Board
from fsguard.versions import Store

__all__ = ["Succession"]

_log = logging.getLogger("fsguard.restart")

CLIENTS_SECONDS = 10.0
REQUESTS_SECONDS = 10.0


class Succession:
    """:param parts: of the daemon, by the names of `restart.KEPT`.
    :param leave: makes what else the next program is told: (spec, restarts, takeovers, settings, notifier).
    :param signals: that end the daemon; the next program hears of those that come meanwhile.
    :param board: of the keeper, which then is what executes the next program.
    """

    def __init__(
        self,
        parts: Mapping[str, object],
        connection: Connection,
        operations: Operations,
        dispatch: Dispatch,
        store: Store | None,
        door: Door,
        leave: Callable[[], tuple[Any, int, int, Any, tuple[str | None, float | None]]],
        signals: Collection[signal.Signals],
        board: Board | None = None,
    ) -> None:
        self._parts = parts
        self._connection = connection
        self._operations = operations
        self._dispatch = dispatch
        self._store = store
        self._door = door
        self._leave = leave
        self._signals = signals
        self._board = board
        self._under_way = False
        self._wanted, self._want = trio.open_memory_channel[tuple[list[str], dict[str, str]]](1)[::-1]
        self.handing_on = False
        """Nothing else is to be begun: the next program goes on from here."""
        self.ending = False
        """It is being unmounted."""
        self.trouble: str | None = None
        """Why the last restart did not come about."""

    async def restart(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        """Go on as the program that is installed now, or as `program` with PYTHONPATH `path`. No call fails.

        Answers with the next program's version when it was tried out; then it happens."""
        program, environ = restart.same_program(), dict(os.environ)
        if "program" in params:
            if peer.uid != os.geteuid():
                raise RefusedError("only who runs the daemon may say which program goes on")
            program = p.texts(params, "program")
            if not program:
                raise UsageError("`program` must name what goes on")
            environ["PYTHONPATH"] = p.optional_text(params, "path") or ""
        version = await self._begin(program, environ)
        return {"version": version, "from": __version__}

    async def renew(self) -> None:
        """Go on as what is installed now, in this process: there is no keeper any more. FsguardError."""
        self._board = None
        await self._begin(restart.same_program(), dict(os.environ))

    async def _begin(self, program: list[str], environ: dict[str, str]) -> str:
        """Try it out, and let `wait` do it; the next program's version."""
        lane = self._operations.lane
        if lane is None:
            raise UsageError(
                "a mount without the lane (--io daemon) cannot be restarted in place",
                "unmount and mount when nobody works there",
            )
        if self._under_way:
            raise BusyError("it is being restarted already")
        if self.ending:
            raise BusyError("it is being unmounted")
        self._under_way = True
        try:
            ours = None if self._connection.private else self._connection.mountpoint
            version = await trio.to_thread.run_sync(
                restart.try_out, program, environ, lane.starting_a_child, ours
            )
            self.trouble = None
            self._want.send_nowait((program, environ))
        except BaseException:
            self._under_way = False
            raise
        return version

    async def wait(self) -> None:
        """For requests to restart, until one comes about."""
        async for program, environ in self._wanted:
            try:
                self.handing_on = True
                with _kept_for_the_next(self._signals):
                    await self._hand_on(program, environ)
            except Exception as error:
                message = (
                    error.message if isinstance(error, FsguardError) else f"{type(error).__name__}: {error}"
                )
                _log.error("not restarted: %s", message)
                self.trouble = message
            self.handing_on = False
            self._connection.go_on(self._operations)
            self._door.open()
            self._under_way = False

    async def _hand_on(self, program: Sequence[str], environ: Mapping[str, str]) -> None:
        operations, lane = self._operations, self._operations.lane
        assert lane is not None
        if not await self._door.shut(CLIENTS_SECONDS):
            raise DaemonError("what was asked at the control socket takes too long")
        if self._store is not None:
            await trio.to_thread.run_sync(self._store.flush)
        operations.let_nobody_make()
        if not await trio.to_thread.run_sync(lane.pause, REQUESTS_SECONDS):
            raise DaemonError("requests have not ended in time")
        with trio.move_on_after(REQUESTS_SECONDS):
            while not self._at_rest():
                await trio.sleep(0.0005)
        if not self._at_rest():
            raise DaemonError("requests have not ended in time")
        # From here on nothing else runs.
        if self.ending:
            raise DaemonError("it is being unmounted")
        if self._store is not None:
            self._store.flush()
        self._go(program, environ)

    def _at_rest(self) -> bool:
        """All that has happened is told, and nobody is about to do anything. Telling may wake somebody."""
        operations, pending = self._operations, self._dispatch.waiting.pending
        operations.settle_down()
        assert operations.lane is not None
        return not (
            operations.lane.queued()
            or operations.lane.untold()
            or operations.under_way > len(pending)
            or pending.stirring()
        )

    def _go(self, program: Sequence[str], environ: Mapping[str, str]) -> None:
        operations, pending = self._operations, self._dispatch.waiting.pending
        lane = operations.lane
        assert lane is not None
        known, fds = lane.dump()
        past = self._connection.handed_on()
        spec, restarts, takeovers, settings, notifier = self._leave()
        handles = [(h.fh, h.node.id, h.fd, h.flags, h.readable) for h in operations.handles]
        waits = pending.all()
        requests = [open_request(*operations.waiting[unique]) for unique in waits]
        requests += [interrupt_request(unique) for unique, wait in waits.items() if wait.signalled]
        estate = restart.Estate(
            restart.FORMAT,
            __version__,
            dataclasses.asdict(spec),
            restarts + 1,
            takeovers,
            os.getpid(),
            flat.dump(settings, lambda _: None),
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
        order = restart.Order(tuple(estate), list(program), dict(environ), sorted(keep))
        if self._board is None:
            restart.execute(order)
        raise DaemonError(f"the next program can't be executed: {self._board.execute(order)}")


@contextmanager
def _kept_for_the_next(numbers: Collection[signal.Signals]) -> Iterator[None]:
    """A signal would be lost that this program has taken, or end the next one before it hears signals.

    They become pending, which execve(2) leaves alone: blocked in this thread, and sent to it by whichever
    thread the kernel has chosen. What was taken before is acted on as ever. When the body
    fails all is as it was.
    """
    here = threading.get_ident()
    before = {number: signal.getsignal(number) for number in numbers}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    for number in numbers:
        signal.signal(number, lambda number, _frame: signal.pthread_kill(here, number))
    try:
        yield
    except Exception:
        for number, action in before.items():
            signal.signal(number, action)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        raise
