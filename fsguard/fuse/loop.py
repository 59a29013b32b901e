"""The trio that pyfuse3 sees: requests one after the other without a detour through the scheduler.

pyfuse3 takes trio from its module attribute (its asyncio mode replaces it, too),
so this object can stand in. It changes two things:

* Before a reader parks in trio it asks the descriptor, and if nothing else is
  to be done it blocks there for up to a millisecond: parking, epoll and task
  switch cost more than most requests. Other tasks get their turn after at most
  `TURN` seconds.
* The read lock is handed on only when its last holder really yields. Else every
  request would wake the next reader for nothing, as the same task comes back for
  the next request before the scheduler runs.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from types import coroutine
from typing import Any

import trio

__all__ = ["Loop"]

TURN = 0.002
# How long the thread may block for the next request, in milliseconds (poll(2) has no finer unit).
_LINGER_MS = 1


class _ReadLock:
    """`trio.Lock` as far as pyfuse3 uses it: an asynchronous context manager."""

    def __init__(self) -> None:
        self.held = False
        self._waiting: deque[trio.lowlevel.Task] = deque()
        self._woken = 0

    async def __aenter__(self) -> None:
        while self.held:
            task = trio.lowlevel.current_task()
            self._waiting.append(task)

            def abort(_: object, task: trio.lowlevel.Task = task) -> trio.lowlevel.Abort:
                self._waiting.remove(task)
                return trio.lowlevel.Abort.SUCCEEDED

            await trio.lowlevel.wait_task_rescheduled(abort)
            self._woken -= 1
        self.held = True

    async def __aexit__(self, *_: object) -> None:
        self.held = False

    def hand_on(self) -> None:
        """Somebody must read: wake a waiting reader unless one is on its way."""
        if not self.held and self._waiting and not self._woken:
            self._woken += 1
            trio.lowlevel.reschedule(self._waiting.popleft())


class _Nursery:
    """A nursery whose tasks hand the read lock on whenever they yield."""

    def __init__(self, nursery: trio.Nursery, lock: _ReadLock, is_over: Callable[[], bool]) -> None:
        self._nursery = nursery
        self._lock = lock
        self._is_over = is_over

    def start_soon(self, fn: Callable[..., Coroutine[Any, Any, None]], *args: object, name: object) -> None:
        self._nursery.start_soon(self._run, fn, args, name=name)

    async def _run(self, fn: Callable[..., Coroutine[Any, Any, None]], args: tuple[object, ...]) -> None:
        try:
            await _watched(fn(*args), self._lock)
        finally:
            self._lock.hand_on()
        if self._is_over():
            # The mount is gone, and with it everybody who waits for a reply.
            self._nursery.cancel_scope.cancel()


@coroutine
def _watched(inner: Coroutine[Any, Any, None], lock: _ReadLock) -> Generator[Any, Any, None]:
    """Drive `inner` for trio; each value it yields means that the scheduler takes over."""
    send, throw = inner.send, inner.throw
    try:
        asked = send(None)
        while True:
            lock.hand_on()
            try:
                answer = yield asked
            except BaseException as error:
                asked = throw(error)
            else:
                asked = send(answer)
    except StopIteration:
        return


class Loop:
    """Stands in for the module `trio` inside pyfuse3.

    `first_waits` are awaited, in order, by the first calls of wait_readable
    instead of waiting: the connection is negotiated there (see `handshake`).
    `between` is called before each request is waited for.
    `served` counts requests read.
    """

    ClosedResourceError = trio.ClosedResourceError

    def __init__(
        self,
        first_waits: list[Callable[[], Awaitable[None]]],
        between: Callable[[], None] = lambda: None,
    ) -> None:
        self._between = between
        self._first_waits = deque(first_waits)
        self._lock = _ReadLock()
        self._poll: select.poll | None = None
        self._turn_ends = 0.0
        self.linger: Callable[[], bool] | None = None  # waits microseconds for one, cheaper than a sleep
        self.source: int | None = (
            None  # what is readable when there are requests, if not pyfuse3's descriptor
        )
        self.over = False
        self.served = 0
        self.parked = 0
        self.lowlevel = self

    # ---- what pyfuse3 calls ----

    def Lock(self) -> _ReadLock:
        return self._lock

    @asynccontextmanager
    async def open_nursery(self) -> AsyncIterator[_Nursery]:
        async with trio.open_nursery() as nursery:
            yield _Nursery(nursery, self._lock, lambda: self.over)

    current_trio_token = staticmethod(trio.lowlevel.current_trio_token)
    current_task = staticmethod(trio.lowlevel.current_task)
    notify_closing = staticmethod(trio.lowlevel.notify_closing)

    async def wait_readable(self, fd: int) -> None:
        poll = self._poll
        if poll is None:
            if self._first_waits:
                await self._first_waits.popleft()()
                if self._first_waits:
                    return
            poll = self._poll = select.poll()
            poll.register(fd if self.source is None else self.source, select.POLLIN)
        self.served += 1
        self._between()
        now = time.monotonic()
        if now >= self._turn_ends:
            # Others first: whatever is runnable, due or readable.
            await trio.lowlevel.checkpoint()
            self._turn_ends = time.monotonic() + TURN
        if self._ready(poll.poll(0)) or (self.linger is not None and self.linger()):
            return
        # Nothing there. Stay if nobody else has anything to do, else let them.
        stats = trio.lowlevel.current_statistics()
        if (
            stats.tasks_runnable == 0
            and stats.seconds_to_next_deadline > TURN
            and self._ready(poll.poll(_LINGER_MS))
        ):
            return
        self.parked += 1
        await trio.lowlevel.wait_readable(fd if self.source is None else self.source)
        self._ready(poll.poll(0))
        self._turn_ends = time.monotonic() + TURN

    def _ready(self, events: list[tuple[int, int]]) -> bool:
        if events and events[0][1] & (select.POLLERR | select.POLLHUP | select.POLLNVAL):
            self.over = True  # fuse_dev_poll(): EPOLLERR once the connection is gone
        return bool(events)
