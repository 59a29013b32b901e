"""The loop that stands in for trio inside pyfuse3: nobody starves, somebody always reads.

`session` does what pyfuse3's session loop does: take the read lock, wait for the
descriptor, read, start a further reader if none is left, handle the request.
"""

import os
import select
import socket

import pytest
import trio

from fsguard.fuse import loop as loop_module
from fsguard.fuse.loop import Loop


class Mount:
    """A socket pair for /dev/fuse; `handlers` are called with each request's bytes."""

    def __init__(self, handle, between=lambda: None):
        self.kernel, self.daemon = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.daemon.setblocking(False)
        self.loop = Loop([], between)
        self.handle = handle
        self.readers = self.tasks = self.most = 0
        self.ended = False

    async def session(self, nursery):
        self.tasks += 1
        self.most = max(self.most, self.tasks)
        while not self.ended and self.readers <= 1:
            self.readers += 1
            async with self.loop.Lock():
                if not self.ended:
                    await self.loop.lowlevel.wait_readable(self.daemon.fileno())
            self.readers -= 1
            if self.ended:
                break
            request = self.daemon.recv(100)
            if not self.readers:
                nursery.start_soon(self.session, nursery, name="reader")
            if not request or request == b"end":
                self.ended = True
                break
            await self.handle(request)
        self.tasks -= 1

    async def run(self, task_status=trio.TASK_STATUS_IGNORED):
        async with self.loop.open_nursery() as nursery:
            nursery.start_soon(self.session, nursery, name="reader")
            task_status.started()

    def close(self):
        self.kernel.close()
        self.daemon.close()


def within(seconds, main):
    async def bounded():
        with trio.fail_after(seconds):
            await main()

    trio.run(bounded)


@pytest.fixture
def mount():
    made = []

    def make(handle, **more):
        made.append(Mount(handle, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_requests_in_a_row_are_handled_by_one_task(mount):
    seen = []

    async def handle(request):
        seen.append(request)

    fuse = mount(handle)
    for i in range(100):
        fuse.kernel.send(b"%d" % i)
    fuse.kernel.send(b"end")
    trio.run(fuse.run)
    assert seen == [b"%d" % i for i in range(100)]
    assert fuse.most <= 3
    assert fuse.loop.parked == 0


def test_a_waiting_request_stops_no_other(mount):
    go, seen = trio.Event(), []

    async def handle(request):
        if request == b"wait":
            await go.wait()
        seen.append(request)

    fuse = mount(handle)
    for request in (b"wait", b"a", b"wait", b"b", b"wait", b"c"):
        fuse.kernel.send(request)

    async def main():
        async with trio.open_nursery() as nursery:
            await nursery.start(fuse.run)
            while len(seen) < 3:
                await trio.sleep(0.001)
            assert seen == [b"a", b"b", b"c"]
            go.set()
            while len(seen) < 6:
                await trio.sleep(0.001)
            fuse.kernel.send(b"end")

    within(5, main)


def test_thousands_may_wait_and_the_mount_still_answers(mount):
    go, seen, waiting = trio.Event(), [], []

    async def handle(request):
        if request == b"wait":
            waiting.append(1)
            await go.wait()
        seen.append(request)

    fuse = mount(handle)

    async def main():
        async with trio.open_nursery() as nursery:
            await nursery.start(fuse.run)
            for _ in range(3000):
                await trio.lowlevel.wait_writable(fuse.kernel)
                fuse.kernel.send(b"wait")
            while len(waiting) < 3000:
                await trio.sleep(0.01)
            fuse.kernel.send(b"quick")
            while not seen:
                await trio.sleep(0.001)
            assert seen == [b"quick"]
            go.set()
            while len(seen) < 3001:
                await trio.sleep(0.01)
            fuse.kernel.send(b"end")

    within(20, main)
    assert fuse.tasks <= 2


def test_other_tasks_get_their_turn_under_a_flood(mount):
    """The kernel side always has the next request ready; a timer and a socket must be served."""
    late = []

    async def handle(request):
        fuse.kernel.send(b"more")

    fuse = mount(handle)

    async def main():
        ours, theirs = socket.socketpair()
        async with trio.open_nursery() as nursery:
            await nursery.start(fuse.run)
            fuse.kernel.send(b"first")
            for _ in range(20):
                due = trio.current_time() + 0.002
                await trio.sleep_until(due)
                late.append(trio.current_time() - due)
                theirs.send(b"x")
                began = trio.current_time()
                await trio.lowlevel.wait_readable(ours)
                ours.recv(1)
                late.append(trio.current_time() - began)
            nursery.cancel_scope.cancel()
        ours.close()
        theirs.close()

    within(10, main)
    assert sorted(late)[len(late) // 2] < 10 * loop_module.TURN
    assert fuse.loop.served > 100


def test_lingering_ends_for_a_task_that_can_run(mount, monkeypatch):
    """With a runnable task or a near deadline the thread does not block for the next request."""
    lingered = []
    real = select.poll

    class Poll:
        def __init__(self):
            self.inner = real()

        def register(self, *args):
            self.inner.register(*args)

        def poll(self, milliseconds):
            if milliseconds:
                lingered.append(milliseconds)
            return self.inner.poll(milliseconds)

    monkeypatch.setattr(loop_module.select, "poll", Poll)

    async def handle(request):
        pass

    fuse = mount(handle)

    async def main():
        async with trio.open_nursery() as nursery:
            await nursery.start(fuse.run)
            for _ in range(200):
                await trio.lowlevel.checkpoint()
            fuse.kernel.send(b"end")

    within(5, main)
    assert len(lingered) <= 3


def test_between_requests_the_owner_is_called(mount):
    calls = []

    async def handle(request):
        calls.append("handled")

    fuse = mount(handle, between=lambda: calls.append("between"))
    for request in (b"a", b"b", b"end"):
        fuse.kernel.send(request)
    trio.run(fuse.run)
    assert calls[:5] == ["between", "handled", "between", "handled", "between"]


def test_the_end_of_the_mount_ends_those_who_wait(mount):
    """A pipe whose other end closes shows POLLHUP, as /dev/fuse shows POLLERR when it is unmounted."""
    cancelled = []

    async def handle(request):
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            cancelled.append(request)
            raise

    fuse = mount(handle)

    async def main():
        async with trio.open_nursery() as nursery:
            await nursery.start(fuse.run)
            fuse.kernel.send(b"wait")
            await trio.sleep(0.01)
            fuse.kernel.close()

    within(5, main)
    assert cancelled == [b"wait"]


def test_the_first_waits_come_in_order_and_once():
    calls = []

    async def first():
        calls.append(1)

    async def second():
        calls.append(2)

    loop = Loop([first, second])
    read, write = os.pipe()
    os.write(write, b"x")

    async def main():
        for _ in range(3):
            await loop.wait_readable(read)

    trio.run(main)
    os.close(read)
    os.close(write)
    assert calls == [1, 2]
