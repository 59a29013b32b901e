"""Opens that wait, on a clock that is told: who comes when, and what a wait ends with."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

from fsguard.core.turns import LAPSE_SECONDS, Turns
from fsguard.dispatch import Dispatch, OpenFile
from fsguard.observer import Caller
from tests.kit.oracle_world import START, Handle, Proc, World, name

WAIT = 5.0


class Desk(World):
    """The world of the oracle, in which an open may wait; one clock for all."""

    now = property(lambda self: START + trio.current_time(), lambda self, value: None)  # type: ignore[assignment]

    def __init__(self, nursery: trio.Nursery, **more: Any) -> None:
        super().__init__(**more)
        self.nursery = nursery
        self.dispatch.waiting.now = trio.current_time
        self.dispatch.waiting.seconds = WAIT
        self.numbers_of_requests = iter(range(1, 1 << 30))
        self.pending: set[int] = set()

    def wants_out(self, tid: int) -> bool:
        return tid in self.pending

    def later(self, proc: Proc, path: str, flags: int = os.O_WRONLY | os.O_TRUNC) -> Later:
        return Later(self, proc, path, flags)


class Later:
    """An open(2) that may take a while; like the kernel, it looks a name up again once."""

    def __init__(self, desk: Desk, proc: Proc, path: str, flags: int) -> None:
        self.desk, self.proc, self.path, self.flags = desk, proc, name(path), flags
        self.unique = next(desk.numbers_of_requests)
        self.began = trio.current_time()
        self.ended: float | None = None
        self.error: OSError | None = None
        self.handle: Handle | None = None
        self.tries = 0
        desk.nursery.start_soon(self._run)

    async def _run(self) -> None:
        try:
            await self._try()
        except OSError as error:
            if error.errno == errno.ESTALE and self.tries == 1:
                try:
                    await self._try()
                except OSError as again:
                    self.error = again
            else:
                self.error = error
        self.ended = trio.current_time()

    async def _try(self) -> None:
        self.tries += 1
        desk, caller = self.desk, Caller(self.proc.tid, 0, 0, 0o22, self.unique)
        inode = desk.tree.get(self.path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "gone", self.path)
        session = await desk.dispatch.open(caller, inode, self.flags)
        assert isinstance(session, OpenFile)
        if self.flags & os.O_TRUNC:
            inode.data = b""
        session.opened(inode)
        self.handle = Handle(self.proc, inode, session, self.flags)

    def signal(self, ends: bool) -> None:
        if ends:
            self.desk.pending.add(self.proc.tid)
        self.desk.dispatch.interrupted(self.unique)

    @property
    def waits(self) -> bool:
        return self.ended is None

    @property
    def waited(self) -> float:
        assert self.ended is not None
        return self.ended - self.began

    def close(self) -> None:
        assert self.handle is not None
        self.handle.close()


def desk(policy: str = "warn") -> Callable[[Callable[[Desk], Awaitable[None]]], Callable[[], None]]:
    """Runs the test in a desk of its own, on a clock that jumps."""

    def decorate(test: Callable[[Desk], Awaitable[None]]) -> Callable[[], None]:
        async def main() -> None:
            async with trio.open_nursery() as nursery:
                d = Desk(nursery, policy=policy)
                for path in ("f", "g"):
                    d.file(path)
                await test(d)
                nursery.cancel_scope.cancel()

        def run() -> None:
            trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

        run.__name__ = test.__name__
        run.__doc__ = test.__doc__
        return run

    return decorate


settle = trio.testing.wait_all_tasks_blocked


async def holding(d: Desk, task: str = "A", path: str = "f") -> Handle:
    later = d.later(d.run(task), path)
    await settle()
    assert later.handle is not None
    later.handle.write("held")
    return later.handle


def errno_of(later: Later) -> int | None:
    return later.error.errno if later.error is not None else None


# -- waiting and coming next --------------------------------------------------------------


@desk()
async def test_first_come_first_served(d):
    handle = await holding(d)
    line = []
    for task in "BCDE":
        line.append(d.later(d.run(task), "f"))
        await settle()
    assert [w.waits for w in line] == [True] * 4
    handle.close()
    for i, later in enumerate(line):
        await settle()
        assert [w.waits for w in line] == [False] * (i + 1) + [True] * (3 - i)
        later.close()
    assert len(d.dispatch.waiting.turns) == 0


@desk()
async def test_whoever_comes_again_before_its_release_has_arrived_stands_at_the_end(d):
    handle = await holding(d)
    late = d.later(d.run("B"), "f")
    await settle()
    again = d.later(handle.proc, "f")
    await trio.sleep(0.002)
    handle.close()
    await trio.sleep(0.01)
    assert not late.waits and again.waits
    late.close()
    await settle()
    assert not again.waits


@desk()
async def test_the_holders_own_goes_on_whoever_waits(d):
    handle = await holding(d)
    late = d.later(d.run("B"), "f")
    await settle()
    inside = d.later(handle.proc, "f")
    await trio.sleep(0.02)
    assert late.waits and not inside.waits and inside.waited < 0.01


@desk()
async def test_all_checks_are_made_when_the_turn_comes(d):
    d.run("B").read("f")
    handle = await holding(d)
    late = d.later(d.run("B"), "f")
    await settle()
    assert d.told() == set(), "nothing is said when the wait begins"
    handle.close()
    await settle()
    assert d.told() == {("B", "f", "stale_write", "A")}
    assert d.notes() == set() or {n[2] for n in d.notes()} == {"waited"}
    late.close()


@desk()
async def test_how_long_and_for_whom_is_noted(d):
    handle = await holding(d)
    late = d.later(d.run("B"), "f")
    await trio.sleep(0.5)
    handle.write("more")
    await trio.sleep(0.25)
    handle.close()
    await settle()
    assert late.waited == pytest.approx(0.75)
    (note,) = [w for w in d.warnings("B") if w.kind == "waited"]
    assert note.sibling == "A" and "waited 0.8 s" in note.message


@desk()
async def test_an_idle_holder_loses_its_turn_after_a_second(d):
    await holding(d)
    late = d.later(d.run("B"), "f")
    await trio.sleep(LAPSE_SECONDS * 0.9)
    assert late.waits
    await trio.sleep(LAPSE_SECONDS * 0.2)
    assert late.waited == pytest.approx(LAPSE_SECONDS, abs=0.05)


@desk()
async def test_only_the_next_in_line_watches_the_clock(d):
    await holding(d)
    line = [d.later(d.run(f"T{i}"), "f") for i in range(50)]
    await settle()
    before = sum(w.statistics().tasks_waiting for w in [x.event for x in d.dispatch.waiting._waits.values()])
    assert before == 50
    # Each comes a second after the one before it, who writes nothing.
    await trio.sleep(3 * LAPSE_SECONDS + 0.5)
    assert [w.waits for w in line].count(False) == 3


@desk()
async def test_opens_that_never_write_hold_nobody_up(d):
    touch = d.later(d.run("A"), "f", os.O_WRONLY)
    await settle()
    late = d.later(d.run("B"), "f")
    await settle()
    assert not touch.waits and not late.waits


@desk()
async def test_appends_do_not_wait_for_one_another(d):
    flags = os.O_WRONLY | os.O_APPEND
    logs = [d.later(d.run(task), "f", flags) for task in "ABC"]
    await settle()
    for _ in range(3):
        for log in logs:
            assert log.handle is not None
            log.handle.write("line\n")
    assert d.warnings() == []
    rewriter = d.later(d.run("D"), "f")
    await settle()
    assert rewriter.waits
    for log in logs:
        log.close()
    await settle()
    assert not rewriter.waits


@desk()
async def test_reads_never_wait(d):
    await holding(d)
    assert d.run("B").read("f") == b"held"


# -- what a wait ends with ---------------------------------------------------------------


@desk()
async def test_when_the_wait_runs_out_it_goes_on_and_both_are_told(d):
    handle = await holding(d)
    late = d.later(d.run("B"), "f")
    for _ in range(20):
        await trio.sleep(0.3)
        handle.write("more")
    assert late.waited == pytest.approx(WAIT)
    assert d.told() == {("B", "f", "concurrent_write", "A"), ("A", "f", "concurrent_write", "B")}
    late.handle.write("x" * 10)
    assert len(d.told()) == 2, "said once"


@desk("block")
async def test_under_block_it_ends_with_eagain_in_the_same_words_each_time(d):
    handle = await holding(d)
    words = []
    for _ in range(2):
        late = d.later(d.run("B", "the command"), "f")
        while late.waits:
            await trio.sleep(0.3)
            handle.write("more")
        assert errno_of(late) == errno.EAGAIN
        words.append(str(late.error))
    assert words[0] == words[1]
    assert '"A"' in words[0] and " f " in words[0] and "5 s" in words[0] and "nothing was changed" in words[0]
    assert d.tree[b"f"].data.startswith(b"held")


@pytest.mark.parametrize("how", ["at first", "after a signal that has a handler"])
def test_whoever_is_told_to_stop_leaves_at_once(how):
    @desk()
    async def test(d):
        handle = await holding(d)
        doomed, late = d.later(d.run("B"), "f"), d.later(d.run("C"), "f")
        await trio.sleep(0.1)
        if how != "at first":
            doomed.signal(ends=False)
            await trio.sleep(0.2)
            assert doomed.waits
            d.pending.add(doomed.proc.tid)  # the kernel sends no second FUSE_INTERRUPT
        else:
            doomed.signal(ends=True)
        at = trio.current_time()
        await trio.sleep(0.05)
        assert errno_of(doomed) == errno.EINTR and doomed.ended - at <= 0.03
        assert late.waits
        handle.close()
        await settle()
        assert not late.waits

    test()


@desk()
async def test_a_handled_signal_never_fails_a_call(d):
    handle = await holding(d)
    late = d.later(d.run("B"), "f")
    for _ in range(10):
        await trio.sleep(0.05)
        late.signal(ends=False)
    assert late.waits
    handle.close()
    await settle()
    assert late.error is None and not late.waits


@desk()
async def test_a_signal_during_the_wait_for_a_lease_still_counts_in_the_queue(d):
    """One FUSE_INTERRUPT is all that comes, whatever the open waits for by then."""
    waiting = d.dispatch.waiting
    lease = waiting.leases.ask(d.task("L"), ["f"], 60.0, "", trio.current_time()).lease
    doomed = d.later(d.run("B"), "f")
    await settle()
    doomed.signal(ends=False)
    await settle()
    handle = await holding(d, "L")
    waiting.leases.release(lease, trio.current_time())
    await settle()
    assert doomed.waits and [t.actor.task.id for t in waiting.turns.queue(d.tree[b"f"])] == ["B"]
    d.pending.add(doomed.proc.tid)
    await trio.sleep(0.05)
    assert errno_of(doomed) == errno.EINTR
    handle.close()


@desk()
async def test_a_circle_is_found_at_once_and_the_youngest_goes_on(d):
    a, b = d.run("A"), d.run("B")
    x, y = d.later(a, "f"), d.later(b, "g")
    await settle()
    x.handle.write("a"), y.handle.write("b")
    first = d.later(a, "g")
    await settle()
    last = d.later(b, "f")
    await settle()
    assert first.waits and not last.waits and last.waited == 0
    assert ("B", "f", "concurrent_write", "A") in d.told()
    assert "neither could go on" in next(w.message for w in d.warnings("B"))
    last.close(), y.close()
    await settle()
    assert not first.waits


@desk("block")
async def test_under_block_the_youngest_of_a_circle_is_refused(d):
    a, b = d.run("A"), d.run("B")
    x, y = d.later(a, "f"), d.later(b, "g")
    await settle()
    x.handle.write("a"), y.handle.write("b")
    d.later(a, "g")
    await settle()
    last = d.later(b, "f")
    await settle()
    assert errno_of(last) == errno.EAGAIN and last.waited == 0


@desk()
async def test_no_circle_where_threads_of_a_pool_wait(d):
    """Two formatters rewrite many files from threads: each will close what it holds."""
    a, b = d.run("A"), d.run("B")
    x, y = d.later(a, "f"), d.later(b, "g")
    await settle()
    x.handle.write("a"), y.handle.write("b")
    threads = []
    for proc, path in ((a, "g"), (b, "f")):
        thread = Proc(d, next(d.numbers), proc.actor)  # another thread of the process
        threads.append(d.later(thread, path))
        await settle()
    assert [t.waits for t in threads] == [True, True]
    x.close(), y.close()
    await settle()
    assert [t.waits for t in threads] == [False, False]
    assert not [k for _, _, k, _ in d.told() if k == "concurrent_write"]


# -- names that change meanwhile ---------------------------------------------------------


def change_while_waiting(change: Callable[[Desk, Proc], None], again: bool = False) -> Later:
    found: list[Later] = []

    @desk()
    async def test(d):
        a = d.run("A")
        holder = d.later(a, "f")
        await settle()
        holder.handle.write("half")
        late = d.later(d.run("B"), "f")
        await settle()
        assert late.waits
        change(d, a)
        await settle()
        found.append(late)
        if late.handle is not None:
            late.handle.write("late")
        holder.handle.write("more")
        assert len(d.dispatch.waiting.turns.queue(holder.handle.inode)) == 0
        late.where = {p: i.data for p, i in d.tree.items()}  # type: ignore[attr-defined]

    test()
    return found[0]


def test_another_file_takes_the_name_while_it_waits():
    late = change_while_waiting(lambda d, a: a.replace("f", "replaced"))
    assert late.tries == 2 and late.error is None
    assert late.where[b"f"] == b"late", "written into the file that has the name now"


def test_the_file_is_deleted_while_it_waits():
    late = change_while_waiting(lambda d, a: a.unlink("f"))
    assert late.tries == 2 and errno_of(late) == errno.ENOENT, "as if it had come then"


def test_the_file_is_deleted_and_made_anew_while_it_waits():
    late = change_while_waiting(lambda d, a: a.checkout("f", "anew"))
    assert late.where[b"f"] == b"late"


def test_the_file_is_renamed_while_it_waits():
    late = change_while_waiting(lambda d, a: a.rename("f", "elsewhere"))
    assert errno_of(late) == errno.ENOENT
    assert late.where[b"elsewhere"] == b"halfmore"


def test_the_directory_is_renamed_while_it_waits():
    @desk()
    async def test(d):
        d.file("d/f")
        a = d.run("A")
        handle = d.later(a, "d/f")
        await settle()
        handle.handle.write("half")
        late = d.later(d.run("B"), "d/f")
        await settle()
        a.rename("d", "e")
        await settle()
        assert errno_of(late) == errno.ENOENT

    test()


def test_the_names_are_exchanged_while_it_waits():
    late = change_while_waiting(lambda d, a: a.exchange("f", "g"))
    assert late.where[b"f"] == b"late" and late.where[b"g"] == b"halfmore"


@desk()
async def test_whoever_was_sent_to_look_again_is_not_sent_twice(d):
    """The kernel looks again once; then the call would fail."""
    a = d.run("A")
    await holding(d, "A")
    late = d.later(d.run("B"), "f")
    await settle()
    for _ in range(2):
        a.unlink("f")
        handle = a.open("f", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        handle.write("half")
        await settle()
        assert late.waits and late.tries == 2
    handle.close()
    await trio.sleep(WAIT)
    assert late.error is None and late.tries == 2


@desk()
async def test_hard_links_share_one_turn(d):
    d.run("A").link("f", "a-link")
    handle = await holding(d, "A", "f")
    late = d.later(d.run("B"), "a-link")
    await settle()
    assert late.waits
    handle.close()
    await settle()
    assert not late.waits


@desk()
async def test_a_further_name_takes_no_waiter_away(d):
    handle = await holding(d, "A", "f")
    late = d.later(d.run("B"), "f")
    await settle()
    d.run("C").link("f", "a-link")
    await settle()
    assert late.waits and late.tries == 1
    handle.close()
    await settle()
    assert late.tries == 1 and late.error is None


@desk()
async def test_one_of_its_names_goes_and_it_looks_again(d):
    d.run("A").link("f", "a-link")
    await holding(d, "A", "f")
    late = d.later(d.run("B"), "f")
    await settle()
    d.run("A").unlink("a-link")
    await settle()
    assert late.waits and late.tries == 2, "by which name it came is not known"


# -- leases ---------------------------------------------------------------------------------


def lease(d: Desk, task: str = "L", pattern: str = "f", ttl: float = 60.0) -> Any:
    found = d.dispatch.waiting.leases.ask(d.task(task), [pattern], ttl, "why", trio.current_time()).lease
    assert found is not None
    return found


@desk()
async def test_opens_wait_behind_a_lease_and_come_in_their_order(d):
    held = lease(d)
    line = []
    for task in "BCDE":
        line.append(d.later(d.run(task), "f"))
        await trio.sleep(0.1)
    assert all(w.waits for w in line)
    d.dispatch.waiting.leases.release(held, trio.current_time())
    for later in line:
        await settle()
        assert not later.waits and later.error is None
        later.handle.write("x")
        later.close()
    log = [e.task for e in d.guard.history.newest(b"f", None, 100) if e.op == "write"]
    assert list(dict.fromkeys(reversed(log))) == ["B", "C", "D", "E"]


@desk()
async def test_a_lease_that_outlasts_the_wait_refuses_with_what_one_can_do(d):
    held = lease(d)
    late = d.later(d.run("B"), "f")
    await trio.sleep(WAIT + 0.5)
    assert errno_of(late) == errno.EBUSY and late.waited == pytest.approx(WAIT)
    words = str(late.error)
    for part in ('"L"', "why", "since", "until", "lease request", f"lease release {held.id} --force"):
        assert part in words
    assert d.tree[b"f"].data == b"base"


@desk()
async def test_what_is_not_an_open_of_a_file_that_is_there_is_refused_at_once(d):
    lease(d, pattern="*")
    b = d.run("B")
    began = trio.current_time()
    for act in (
        lambda: b.open("new", os.O_WRONLY | os.O_CREAT),
        lambda: b.unlink("f"),
        lambda: b.rename("f", "h"),
        lambda: b.truncate("f"),
    ):
        with pytest.raises(OSError, match="lease") as e:
            act()
        assert e.value.errno == errno.EBUSY
    assert trio.current_time() == began


@desk()
async def test_a_lease_ends_with_its_task_and_those_behind_it_go_on(d):
    lease(d)
    late = d.later(d.run("B"), "f")
    await trio.sleep(0.5)
    d.guard.task_ended(d.task("L"), d.now)
    await trio.sleep(0.3)
    assert not late.waits and late.error is None


@desk()
async def test_a_lease_ends_after_its_ttl_without_a_write(d):
    lease(d, ttl=2.0)
    own = d.later(d.run("L"), "f")
    await settle()
    late = d.later(d.run("B"), "f")
    await trio.sleep(1.0)
    own.handle.write("activity")
    await trio.sleep(1.9)
    assert late.waits
    own.close()
    await trio.sleep(0.2)
    assert not late.waits and late.error is None
    assert late.waited == pytest.approx(3.0, abs=0.1)


@desk()
async def test_parent_and_child_share_a_lease(d):
    lease(d, "L")
    child, parent = (d.later(p, "f", os.O_WRONLY) for p in (d.run("L.1", parent="L"), d.run("L")))
    await settle()
    assert not child.waits and not parent.waits


@desk()
async def test_a_lease_on_everything_does_not_stop_what_is_ignored(d):
    lease(d, pattern="*")
    b = d.run("B")
    b.write(".git/index.lock", "x")
    held = d.dispatch.waiting.leases.find(1, trio.current_time())
    d.dispatch.waiting.leases.release(held, trio.current_time())
    lease(d, pattern=".git/")
    with pytest.raises(OSError, match="lease"):
        b.write(".git/new", "x")


@desk()
async def test_policy_off_waits_for_nothing(d):
    d.guard.policies.set("off", task="B")
    await holding(d, "A", "f")
    lease(d, pattern="g")
    off = [d.later(d.run("B"), path) for path in ("f", "g")]
    await settle()
    assert [o.waits for o in off] == [False, False]
    assert d.warnings("B") == []


@desk()
async def test_whom_the_policy_is_off_for_holds_no_turn(d):
    d.guard.policies.set("off", task="A")
    await holding(d, "A", "f")
    late = d.later(d.run("B"), "f")
    await settle()
    assert not late.waits


@desk()
async def test_the_policy_may_change_while_somebody_holds_and_waits(d):
    handle = await holding(d, "A", "f")
    late = d.later(d.run("B"), "f")
    await settle()
    d.guard.policies.set("off")
    handle.write("goes on")
    d.guard.policies.set("warn")
    handle.write("goes on")
    assert late.waits
    handle.close()
    await settle()
    assert not late.waits
    late.close()
    assert len(d.dispatch.waiting.turns) == 0


# -- nothing is left ---------------------------------------------------------------------


@desk()
async def test_a_thousand_waiters_leave_nothing_behind(d):
    handle = await holding(d)
    line = [d.later(d.run(f"T{i}"), "f") for i in range(1000)]
    await settle()
    assert all(w.waits for w in line)
    for later in line[::3]:
        later.signal(ends=True)
    await trio.sleep(2.0)
    handle.close()
    await trio.sleep(WAIT)
    await settle()
    assert not any(w.waits for w in line)
    for later in line:
        if later.handle is not None:
            later.close()
    waiting = d.dispatch.waiting
    assert len(waiting.turns) == 0 and not waiting.turns.contended()
    assert (
        not waiting._waits and not waiting.pending and not waiting.pending._signalled and not waiting.behind
    )
    assert not d.dispatch._writable and not d.dispatch.open_files


def test_the_lapse_that_was_asked_for_is_the_one_that_counts():
    world = World()
    assert Dispatch(world.guard, world, turns=Turns(7.0)).waiting.turns.lapse == 7.0
    assert Dispatch(world.guard, world).waiting.turns.lapse == LAPSE_SECONDS
