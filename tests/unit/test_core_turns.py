"""Turns: examples of each rule, and a state machine against a model that is told the rules anew."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fsguard.core.model import Actor, Command, Process, Task
from fsguard.core.turns import LAPSE_SECONDS, Ticket, Turns

# -- examples --------------------------------------------------------------------------


class Desk:
    """Turns on strings, tasks by name (`A/B`: B below A), a clock that is told."""

    def __init__(self) -> None:
        self.turns: Turns[str] = Turns()
        self.now = 100.0
        self.tasks: dict[str, Task] = {}
        self.pids = iter(range(1, 1 << 30))
        self.told: list[Ticket[str]] = []

    def task(self, name: str) -> Task:
        if name not in self.tasks:
            above, _, _ = name.rpartition("/")
            self.tasks[name] = Task(name, parent=self.task(above) if above else None)
        return self.tasks[name]

    def actor(self, name: str, parent: Process | None = None) -> Actor:
        task, pid = self.task(name), next(self.pids)
        return Actor(task, Process(pid, pid, "sh", parent), Command(f"p{pid}", "sh", task))

    def open(self, actor: Actor | str, place: str = "x", append: bool = False, **more: bool) -> Handle:
        """Open for writing; it truncates (or appends at once) when its turn comes."""
        return Handle(self, self.actor(actor) if isinstance(actor, str) else actor, place, append, **more)

    def later(self, seconds: float) -> None:
        self.now += seconds
        for place in self.turns.contended():
            self.granted(self.turns.tick(place, self.now))

    def granted(self, tickets: list[Ticket[str]]) -> list[Ticket[str]]:
        self.told += tickets
        return tickets


class Handle:
    def __init__(self, desk: Desk, actor: Actor, place: str, append: bool, stands: bool = True) -> None:
        self.desk, self.actor, self.place, self.append = desk, actor, place, append
        self.ticket = desk.turns.enter(place, self, actor, append, desk.now, stands)
        if self.ticket is None:
            self.write()

    def write(self, by: Actor | None = None) -> bool:
        """True when it falls into a turn of its own."""
        actor = by or self.actor
        return self.desk.turns.begin(self.place, self, actor, self.append, self.desk.now) is not None

    def close(self) -> None:
        self.desk.granted(self.desk.turns.left(self, self.desk.now))

    def give_up(self) -> None:
        assert self.ticket is not None
        self.desk.granted(self.desk.turns.cancel(self.ticket, self.desk.now))

    @property
    def waits(self) -> bool:
        return self.ticket is not None and not self.ticket.granted and not self.ticket.broken


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_the_second_task_waits_until_the_first_has_closed(desk):
    a, b = desk.open("A"), desk.open("B")
    assert (a.waits, b.waits) == (False, True)
    a.close()
    assert not b.waits and desk.told == [b.ticket]
    b.close()
    assert len(desk.turns) == 0


def test_first_come_first_served(desk):
    handles = [desk.open(name) for name in "ABCDE"]
    for i, handle in enumerate(handles):
        assert [h.waits for h in handles] == [j > i for j in range(5)]
        handle.close()


def test_whoever_closed_and_comes_again_stands_at_the_end(desk):
    a, b = desk.open("A"), desk.open("B")
    a.close()
    assert desk.open("A").waits and not b.waits


def test_different_files_have_nothing_to_do_with_each_other(desk):
    desk.open("A", "x")
    assert not desk.open("B", "y").waits


def test_a_task_never_waits_for_itself(desk):
    a = desk.actor("A")
    desk.open(a)
    assert not desk.open(a).waits
    assert not desk.open("A").waits  # another process of it


def test_a_child_never_waits_for_its_parent(desk):
    desk.open("A")
    assert not desk.open("A/B").waits
    assert not desk.open("A/B/C").waits


def test_a_parent_waits_for_its_child(desk):
    child = desk.open("A/B")
    parent = desk.open("A")
    assert parent.waits
    child.close()
    assert not parent.waits


def test_two_children_wait_for_one_another_even_in_their_parents_turn(desk):
    parent = desk.open("A")
    one, two = desk.open("A/1"), desk.open("A/2")
    assert not one.waits and two.waits
    one.close()
    assert not two.waits
    parent.close()
    two.close()
    assert len(desk.turns) == 0


def test_the_holders_own_passes_those_who_wait(desk):
    desk.open("A")
    b = desk.open("B")
    assert not desk.open("A/1").waits and b.waits


def test_whoever_is_granted_takes_its_own_along(desk):
    a = desk.open("A")
    b, c, also_b, child_of_b = (desk.open(name) for name in ("B", "C", "B", "B/1"))
    a.close()
    assert [h.waits for h in (b, c, also_b, child_of_b)] == [False, True, False, False]
    for h in (b, also_b, child_of_b):
        assert c.waits
        h.close()
    assert not c.waits


def test_the_turn_ends_with_the_last_handle(desk):
    a = desk.actor("A")
    first, second = desk.open(a), desk.open(a)
    b = desk.open("B")
    first.close()
    assert b.waits
    second.close()
    assert not b.waits


def test_appends_share_a_turn(desk):
    a, b = desk.open("A", append=True), desk.open("B", append=True)
    assert not a.waits and not b.waits
    c = desk.open("C")
    assert c.waits
    a.close()
    assert c.waits
    b.close()
    assert not c.waits


def test_an_append_stands_behind_a_writer_who_waits(desk):
    a = desk.open("A", append=True)
    b = desk.open("B")
    c = desk.open("C", append=True)
    assert b.waits and c.waits, "or whoever waits could be starved by a log"
    a.close()
    assert not b.waits and c.waits


def test_one_of_several_who_append_may_go_on_appending_whoever_waits(desk):
    a = desk.actor("A")
    desk.open(a, append=True)
    assert desk.open("B").waits
    assert not desk.open(a, append=True).waits


def test_one_of_several_who_append_waits_for_the_others_to_truncate(desk):
    a = desk.actor("A")
    desk.open(a, append=True)
    b = desk.open("B", append=True)
    c = desk.open("C")
    truncating = desk.open(a)
    assert truncating.waits and c.waits
    b.close()
    assert not truncating.waits, "it would wait for itself, behind C"
    assert c.waits


def test_two_who_append_and_both_want_to_truncate_are_a_circle(desk):
    a, b = desk.actor("A"), desk.actor("B")
    desk.open(a, append=True)
    desk.open(b, append=True)
    assert desk.open(a).waits
    assert desk.open(b).ticket.broken


def test_a_turn_lapses_only_when_somebody_waits(desk):
    a = desk.open("A")
    b = desk.open("B")
    desk.later(LAPSE_SECONDS - 0.01)
    assert b.waits
    desk.later(0.02)
    assert not b.waits
    assert not a.write(), "a holder whose turn had lapsed collides"
    b.close()
    assert a.write(), "and has it again when the other is done"


def test_writing_keeps_a_turn(desk):
    a = desk.open("A")
    b = desk.open("B")
    for _ in range(20):
        desk.later(LAPSE_SECONDS * 0.9)
        assert a.write() and b.waits
    desk.later(LAPSE_SECONDS)
    assert not b.waits


def test_an_idle_handle_is_nobodys_turn(desk):
    desk.open("A")
    desk.later(LAPSE_SECONDS)
    assert not desk.open("B").waits


def test_whoever_gives_up_lets_the_next_move_up(desk):
    a, b, c = (desk.open(name) for name in "ABC")
    b.give_up()
    a.close()
    assert not c.waits
    assert [h.ticket for h in (b, c) if h.ticket.granted] == [c.ticket]


def test_whoever_gives_up_after_it_was_granted_gives_the_turn_back(desk):
    a, b, c = (desk.open(name) for name in "ABC")
    a.close()
    b.give_up()
    assert not c.waits


def test_the_head_gives_up_and_who_shares_the_turn_comes(desk):
    desk.open("A", append=True)
    b = desk.open("B")
    c = desk.open("C", append=True)
    b.give_up()
    assert not c.waits


def test_no_task_takes_no_turns(desk):
    person = Actor(None, Process(9), Command("p9", "vim"))
    desk.open("A")
    outside = Handle(desk, person, "x", False)
    assert not outside.waits
    assert len(list(desk.turns.turn("x").writers())) == 1


def test_writes_by_two_tasks_through_one_descriptor_are_no_collision(desk):
    a = desk.open("A")
    assert a.write(by=desk.actor("B"))
    assert desk.open("C").waits


def test_relatives_do_not_collide(desk):
    desk.open("A/1")
    late = Handle(desk, desk.actor("A"), "x", False)  # it waits, but in place it would be no collision
    assert late.waits
    assert desk.turns.foreign("x", late.actor, False, desk.now) is None
    assert desk.turns.foreign("x", desk.actor("A/2"), False, desk.now) is not None


# -- circles -----------------------------------------------------------------------------


def test_a_circle_of_two_is_found_at_once(desk):
    a, b = desk.actor("A"), desk.actor("B")
    desk.open(a, "x"), desk.open(b, "y")
    assert desk.open(a, "y").waits
    last = desk.open(b, "x")
    assert last.ticket.broken and not last.waits
    assert desk.turns.queue("x") == ()


def test_a_circle_of_many(desk):
    actors = [desk.actor(f"T{i}") for i in range(30)]
    for i, actor in enumerate(actors):
        desk.open(actor, f"f{i}")
    for i, actor in enumerate(actors[:-1]):
        assert desk.open(actor, f"f{i + 1}").waits
    assert desk.open(actors[-1], "f0").ticket.broken


def test_a_chain_is_no_circle(desk):
    actors = [desk.actor(f"T{i}") for i in range(30)]
    for i, actor in enumerate(actors):
        desk.open(actor, f"f{i}")
    for i, actor in enumerate(actors[:-1]):
        assert desk.open(actor, f"f{i + 1}").waits


def test_a_circle_through_children_that_the_holder_has_started(desk):
    shell, b = desk.actor("A"), desk.actor("B")
    desk.open(shell, "x"), desk.open(b, "y")
    child = desk.actor("A", parent=shell.process)
    assert desk.open(child, "y").waits
    assert desk.open(b, "x").ticket.broken


def test_another_process_of_the_holder_goes_on(desk):
    """A has two processes: one holds x, another waits for y. The first will be done."""
    holder, waiter, b = desk.actor("A"), desk.actor("A"), desk.actor("B")
    desk.open(holder, "x"), desk.open(b, "y")
    assert desk.open(waiter, "y").waits
    assert desk.open(b, "x").waits


def test_one_of_two_writers_goes_on(desk):
    one, other, b = desk.actor("A"), desk.actor("A"), desk.actor("B")
    desk.open(one, "x"), desk.open(other, "x"), desk.open(b, "y")
    assert desk.open(one, "y").waits
    assert desk.open(b, "x").waits, "the other writer of x does not stand"


def test_a_circle_that_closes_when_the_other_writer_has_gone(desk):
    one, other, b = desk.actor("A"), desk.actor("A"), desk.actor("B")
    desk.open(one, "x"), desk.open(b, "y")
    second = desk.open(other, "x")
    first, last = desk.open(one, "y"), desk.open(b, "x")
    behind = desk.open("C", "x")
    assert first.waits and last.waits and behind.waits
    second.close()
    assert desk.told == [last.ticket] and last.ticket.broken
    assert first.waits and behind.waits, "the youngest in the circle, not who only waits for it"


def test_a_pool_of_threads_goes_on(desk):
    """Two formatters write many files from threads: a thread that waits does not stop the others."""
    a, b = desk.actor("A"), desk.actor("B")
    desk.open(a, "x"), desk.open(b, "y")
    assert desk.open(a, "y", stands=False).waits
    assert desk.open(b, "x", stands=False).waits


def test_whose_turn_has_lapsed_is_not_waited_for(desk):
    a, b = desk.actor("A"), desk.actor("B")
    desk.open(a, "x"), desk.open(b, "y")
    desk.open(a, "y")
    desk.now += LAPSE_SECONDS
    late = desk.open(b, "x")
    assert not late.waits and (late.ticket is None or not late.ticket.broken)


def test_a_thousand_children_of_one_shell_are_looked_through_once(desk):
    """Not once for each way that leads to them."""
    shells = [desk.actor(name) for name in "AB"]
    places = ("x", "y")
    for shell, place in zip(shells, places, strict=True):
        desk.open(shell, place)
    free = desk.actor("C")
    desk.open(free, "z")
    for _ in range(500):
        for shell, place in zip(shells, ("z", "z"), strict=True):
            child = Actor(shell.task, Process(next(desk.pids), 0, "sh", shell.process), shell.command)
            assert desk.open(child, place).waits
    assert not desk.open(shells[0], "x").waits
    assert desk.open(free, "x").ticket.broken


def test_the_search_does_not_go_every_way_through(desk):
    """Two writers on each of 60 files, both waiting for the next: 2**60 ways lead around."""
    pairs = [[desk.actor(f"T{i}") for _ in range(2)] for i in range(60)]
    for i, pair in enumerate(pairs):
        for actor in pair:
            desk.open(actor, f"f{i}")
    began = time.process_time()
    tickets = [desk.open(actor, f"f{(i + 1) % 60}").ticket for i, pair in enumerate(pairs) for actor in pair]
    assert time.process_time() - began < 5.0
    assert [t.broken for t in tickets] == [False] * 119 + [True]


# -- the model ---------------------------------------------------------------------------

TREE = {"A": None, "A1": "A", "A2": "A", "B": None, "C": None}
PLACES = ("x", "y")


def line_of(name: str) -> list[str]:
    """A task and those above it."""
    found = [name]
    while (above := TREE[found[-1]]) is not None:
        found.append(above)
    return found


def related(one: str, other: str) -> bool:
    return one in line_of(other) or other in line_of(one)


@dataclass(eq=False, repr=False)
class Proc:
    task: str
    actor: Actor
    parent: Proc | None = None

    def __repr__(self) -> str:
        return f"{self.task}:{self.actor.process.pid}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def chain(self) -> list[Proc]:
        return [self] + (self.parent.chain() if self.parent else [])


@dataclass(eq=False, repr=False)
class Open:
    """An open file, or one that waits to be."""

    proc: Proc
    place: str
    append: bool
    stands: bool
    ticket: Ticket[str] | None = None

    def __repr__(self) -> str:
        return f"<{self.proc} {self.place}{' append' if self.append else ''}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))


@dataclass
class ModelTurn:
    append: bool
    last: float
    parts: list[tuple[Open, str, Proc]] = field(default_factory=list)

    def tasks(self) -> set[str]:
        return {task for _, task, _ in self.parts}


class Model:
    """The rules as sentences, by sets and lists; nothing is fast, nothing is remembered."""

    def __init__(self) -> None:
        self.turns: dict[str, ModelTurn] = {}
        self.queues: dict[str, list[Open]] = {place: [] for place in PLACES}

    def live(self, place: str, now: float) -> ModelTurn | None:
        turn = self.turns.get(place)
        return turn if turn and turn.parts and now - turn.last < LAPSE_SECONDS else None

    def may_share(self, turn: ModelTurn, task: str, append: bool) -> bool:
        if append and turn.append:
            return True
        return all(
            holder in line_of(task) or (task in turn.tasks() and task in line_of(holder))
            for holder in turn.tasks()
        )

    def is_own(self, turn: ModelTurn, task: str, append: bool) -> bool:
        if append and turn.append:
            return any(holder in line_of(task) for holder in turn.tasks())
        return self.may_share(turn, task, False)

    def goes_at_once(self, o: Open, now: float) -> bool:
        turn = self.live(o.place, now)
        if not self.queues[o.place] and (turn is None or self.may_share(turn, o.proc.task, o.append)):
            return True
        return turn is not None and self.is_own(turn, o.proc.task, o.append)

    def stuck(self, now: float, shells: bool = True) -> set[int]:
        """Opens that nothing but time can help: take away, again and again, those who will get on.

        `shells`: who has started a process that waits counts as waiting for it.
        """
        waiting = {id(o): o for queue in self.queues.values() for o in queue}
        while True:
            stands = {
                id(p) for o in waiting.values() if o.stands for p in (o.proc.chain() if shells else [o.proc])
            }
            helped = []
            for o in waiting.values():
                turn = self.live(o.place, now)
                if turn is None or any(id(proc) not in stands for proc in self.in_the_way(turn, o)):
                    helped.append(id(o))
            if not helped:
                return set(waiting)
            for key in helped:
                del waiting[key]

    def in_the_way(self, turn: ModelTurn, o: Open) -> list[Proc]:
        """Those for whom it really waits; all of them, when it stands behind somebody else who does."""
        mine = o.proc.task
        found = []
        for _, holder, proc in turn.parts:
            above = holder in line_of(mine)
            below = mine in turn.tasks() and mine in line_of(holder)
            if not above and not below:
                found.append(proc)
        return found or [proc for _, _, proc in turn.parts]

    def write(self, o: Open, proc: Proc, append: bool, now: float) -> bool:
        turn = self.live(o.place, now)
        if turn is None:
            turn = self.turns[o.place] = ModelTurn(append, now)
        else:
            alone = turn.tasks() == {proc.task}
            others = [task for h, task, _ in turn.parts if h is not o and not related(task, proc.task)]
            if others and not alone and not (append and turn.append):
                return False
        turn.append = turn.append and append
        turn.last = now
        if not any(h is o and task == proc.task for h, task, _ in turn.parts):
            turn.parts.append((o, proc.task, proc))
        return True

    def close(self, o: Open, now: float) -> list[Open]:
        granted = []
        for place, turn in list(self.turns.items()):
            before = turn.tasks()
            turn.parts = [part for part in turn.parts if part[0] is not o]
            if not turn.parts:
                del self.turns[place]
            if before - turn.tasks():
                granted += self.move_up(place, now, changed=True)
        return granted

    def move_up(self, place: str, now: float, changed: bool = False) -> list[Open]:
        granted: list[Open] = []
        queue = self.queues[place]

        def grant(o: Open) -> None:
            queue.remove(o)
            self.write(o, o.proc, o.append, now)
            granted.append(o)

        while queue:
            turn = self.live(place, now)
            if turn is not None and not self.may_share(turn, queue[0].proc.task, queue[0].append):
                break
            grant(queue[0])
        turn = self.live(place, now)
        if turn is not None and (granted or changed):
            for o in list(queue):  # each grant may shut out who comes later
                if self.is_own(turn, o.proc.task, o.append):
                    grant(o)
        return granted


class TurnsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.turns: Turns[str] = Turns()
        self.model = Model()
        self.now = 1000.0
        tasks: dict[str, Task] = {}
        for name, above in TREE.items():
            tasks[name] = Task(name, parent=tasks[above] if above else None)
        self.procs: list[Proc] = []
        pids = iter(range(1, 1000))
        for name, task in tasks.items():
            command = Command(name, name, task)
            shell = Proc(name, Actor(task, Process(next(pids)), command))
            self.procs.append(shell)
            if TREE[name] is None:
                child = Actor(task, Process(next(pids), parent=shell.actor.process), command)
                self.procs.append(Proc(name, child, shell))
        self.open: list[Open] = []
        self.waiting: list[Open] = []

    # -- helpers --

    def standing(self) -> set[int]:
        return {id(p) for o in self.waiting if o.stands for p in o.proc.chain()}

    def free(self) -> list[Proc]:
        stands = self.standing()
        return [p for p in self.procs if id(p) not in stands]

    def took(self, tickets: list[Ticket[str]], expected: list[Open]) -> None:
        broken = [t for t in tickets if t.broken]
        assert [t.handle for t in tickets if not t.broken] == expected
        assert all(t.granted != t.broken for t in tickets)
        for o in expected:
            self.waiting.remove(o)
            self.open.append(o)
        for ticket in broken:  # a circle may close when one of two writers goes
            o = ticket.handle
            assert id(o) in self.model.stuck(self.now)
            self.model.queues[o.place].remove(o)
            self.waiting.remove(o)
            self.open.append(o)

    # -- rules --

    @precondition(lambda self: self.free())
    @rule(
        data=st.data(),
        place=st.sampled_from(PLACES),
        append=st.sampled_from([False, False, True]),
        begins=st.sampled_from([True, True, True, False]),
        stands=st.sampled_from([True, True, True, True, False]),
    )
    def opens(self, data, place, append, begins, stands):
        self.open_by(data.draw(st.sampled_from(self.free())), place, append, begins, stands)

    @precondition(lambda self: any(p in self.free() for p in self.writing()))
    @rule(data=st.data(), place=st.sampled_from(PLACES), append=st.sampled_from([False, False, True]))
    def whoever_writes_opens_more(self, data, place, append):
        """So circles come about."""
        proc = data.draw(st.sampled_from([p for p in self.writing() if p in self.free()]))
        self.open_by(proc, place, append, True, True)

    @precondition(lambda self: any(self.family(o) for o in self.waiting))
    @rule(data=st.data(), append=st.booleans())
    def a_relative_of_whoever_waits_comes(self, data, append):
        o = data.draw(st.sampled_from([o for o in self.waiting if self.family(o)]))
        self.open_by(data.draw(st.sampled_from(self.family(o))), o.place, append, True, True)

    def writing(self) -> list[Proc]:
        turns = [turn for place in PLACES if (turn := self.model.live(place, self.now))]
        return [proc for turn in turns for _, _, proc in turn.parts]

    def family(self, o: Open) -> list[Proc]:
        return [p for p in self.free() if related(p.task, o.proc.task)]

    def open_by(self, proc, place, append, begins, stands):
        o = Open(proc, place, append, stands)
        at_once = self.model.goes_at_once(o, self.now)
        o.ticket = self.turns.enter(place, o, proc.actor, append, self.now, stands)
        if at_once:
            assert o.ticket is None
            self.open.append(o)
            if begins:
                self.write_by(o, proc)
            return
        assert o.ticket is not None and not o.ticket.granted
        before = self.model.stuck(self.now)  # a child waits, its shell does not: not seen at once
        self.model.queues[place].append(o)
        stuck = self.model.stuck(self.now)
        if before:
            assert id(o) in stuck or not o.ticket.broken
        else:
            assert o.ticket.broken == (id(o) in stuck), "circles: all real ones, and only those"
        if o.ticket.broken:
            self.model.queues[place].remove(o)
            self.open.append(o)
            return
        self.waiting.append(o)
        self.ticks(place)  # as the one who waits does first of all

    @precondition(lambda self: self.open and self.free())
    @rule(data=st.data(), itself=st.booleans())
    def writes(self, data, itself):
        """The process that has opened it, or a relative that has inherited it."""
        o = data.draw(st.sampled_from(self.open))
        proc = o.proc if itself else data.draw(st.sampled_from(self.free()))
        if id(proc) not in self.standing() and related(o.proc.task, proc.task):
            self.write_by(o, proc)

    def write_by(self, o, proc):
        mine = self.turns.begin(o.place, o, proc.actor, o.append, self.now)
        assert (mine is not None) == self.model.write(o, proc, o.append, self.now)
        assert mine is None or mine is self.turns.running(o.place, self.now)
        self.ticks(o.place, joined=True)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def closes(self, data):
        o = data.draw(st.sampled_from(self.open))
        self.open.remove(o)
        self.took(self.turns.left(o, self.now), self.model.close(o, self.now))

    @precondition(lambda self: any(o.ticket for o in self.waiting + self.open))
    @rule(data=st.data())
    def gives_up(self, data):
        """Perhaps too late: its turn has come already."""
        o = data.draw(st.sampled_from([o for o in self.waiting + self.open if o.ticket]))
        if o in self.waiting:
            self.waiting.remove(o)
            self.model.queues[o.place].remove(o)
            self.took(self.turns.cancel(o.ticket, self.now), self.model.move_up(o.place, self.now))
        elif o.ticket.granted:
            self.open.remove(o)
            self.took(self.turns.cancel(o.ticket, self.now), self.model.close(o, self.now))

    @rule(seconds=st.sampled_from([0.1, 0.2, 0.3, 0.4, LAPSE_SECONDS]))
    def time_passes(self, seconds):
        self.now += seconds
        for place in PLACES:
            self.ticks(place)

    def ticks(self, place, joined=False):
        self.took(self.turns.tick(place, self.now, joined), self.model.move_up(place, self.now, joined))

    # -- what holds at all times --

    @invariant()
    def the_same_queues_and_holders(self):
        for place in PLACES:
            assert [t.handle for t in self.turns.queue(place)] == self.model.queues[place]
            turn, expected = self.turns.running(place, self.now), self.model.live(place, self.now)
            assert {t.id for t in turn.tasks} == expected.tasks() if turn and expected else turn is expected

    @invariant()
    def no_two_tasks_of_different_families_hold_one_place(self):
        for place in PLACES:
            turn = self.turns.running(place, self.now)
            if turn is None or turn.append:
                continue
            by_one = [{w.task.id for w in writers} for writers in turn.handles.values()]
            for one, other in combinations([t.id for t in turn.tasks], 2):
                family = line_of(one)[-1] == line_of(other)[-1]
                assert family or any({one, other} <= tasks for tasks in by_one)

    @invariant()
    def nobody_waits_for_nobody(self):
        for place in PLACES:
            head = self.turns.head(place)
            turn = self.turns.running(place, self.now)
            assert head is None or (turn is not None and not turn.admits(head.actor, head.append))

    @invariant()
    def nobody_is_stuck(self):
        assert not self.model.stuck(self.now, shells=False)

    def teardown(self):
        """Nobody waits for ever, and when all have closed nothing is left."""
        for _ in range(len(self.waiting)):
            if self.waiting:
                before = len(self.waiting)
                self.time_passes(LAPSE_SECONDS)
                assert len(self.waiting) < before
        assert not self.waiting
        for o in self.open:
            self.took(self.turns.left(o, self.now), self.model.close(o, self.now))
        assert len(self.turns) == 0
        assert not self.turns.contended() and not self.turns._of_handle


TestTurns = TurnsMachine.TestCase
TestTurns.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
