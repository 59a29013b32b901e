"""A process of ours is killed at any moment: what goes on knows, and says, what it would have.

FSGUARD_REPLAY_SEQUENCES makes it longer.
"""

from __future__ import annotations

import itertools
import mmap
import os
import random
from collections import deque
from typing import Any

import pytest

from fsguard import restart, taping
from fsguard.dispatch.replay import Replay
from fsguard.restart import KEPT, UNDER_WAY
from fsguard.taping import AT_ONCE
from tests.kit.taped import TAPE_BYTES, Inside, Kernel, canonical

SEQUENCES = int(os.environ.get("FSGUARD_REPLAY_SEQUENCES", "100"))
HEAD, PAGE = 2, mmap.PAGESIZE  # of the tape's memory: where its header says how long it is
PATHS = (b"f", b"g", b"d/x", b"d/y", b"e/x", b"h.o", b"q.db")
TASKS = ("A", "B", "C", None)


def everything(inside: Inside) -> list[Any]:
    parts = inside.parts()
    names = {id(part): name for name, part in parts.items()} | {
        id(file): name for name, file in inside.kernel.names().items()
    }
    state = {
        name: {
            field: getattr(parts[name], field) for kept in (KEPT, UNDER_WAY) for field in kept.get(name, ())
        }
        for name in parts
        if name not in ("lane", "account", "versions")  # when they were made
    }
    return canonical(state, names)


class Sequence:
    """Something happens, at random, to a kernel whose processes die."""

    def __init__(self, seed: int, mortal: bool = True) -> None:
        self.random = random.Random(seed)
        self.mortal = mortal
        policy = self.random.choice(("warn", "warn", "block"))
        self.kernel = Kernel(deaths=True, policy=policy)
        self.policy = policy
        self.tids = 0
        for path in PATHS[:4]:
            self.kernel.place(path, self.kernel.make(b"base"))

    def tid(self, alive: bool = True) -> int:
        procs = [p.tid for p in self.kernel.procs.values() if p.alive or not alive]
        busy = {w.tid for w in self.kernel.inside.dispatch.waiting.pending.all().values()}
        free = [t for t in procs if t not in busy]
        return self.random.choice(free) if free else 0

    def act(self) -> tuple[Any, ...] | None:
        rng, k = self.random, self.kernel
        tid, path, other = self.tid(), rng.choice(PATHS), rng.choice(PATHS)
        there, handle = path in k.tree, rng.choice(list(k.handles)) if k.handles else 0
        file = k.tree.get(path)
        weighed: list[tuple[int, bool, tuple[Any, ...]]] = [
            (6 if len(k.procs) < 6 else 1, True, self.spawn()),
            (1, tid > 0, ("exit", tid)),
            (1, tid > 0, ("exec", tid)),
            (8, tid > 0 and there, ("open", tid, path, rng.choice(FLAGS))),
            (1, tid > 0 and there, ("fail_open", tid, path, os.O_WRONLY | os.O_TRUNC)),
            (6, tid > 0 and not there, ("create", tid, path, os.O_WRONLY)),
            (2, handle > 0 and tid > 0, ("read", handle, rng.choice((tid, 0)))),
            (
                9,
                handle > 0 and tid > 0,
                ("write", handle, self.writer(handle, tid), rng.randrange(6), self.data()),
            ),
            (1, handle > 0, ("went_on", handle)),
            (7, handle > 0, ("release", handle)),
            (1, tid > 0 and there, ("truncate", tid, path, rng.randrange(3), 0)),
            (1, tid > 0 and handle > 0, ("truncate", tid, path, rng.randrange(3), handle)),
            (3, tid > 0 and there, ("unlink", tid, path, rng.random() < 0.2)),
            (
                3,
                tid > 0 and there and path != other and k.tree.get(other) is not file,
                ("rename", tid, path, other),
            ),
            (1, tid > 0, ("rename_directory", tid, b"d", b"e")),
            (1, tid > 0 and there and other in k.tree and path != other, ("exchange", tid, path, other)),
            (1, tid > 0 and there and other not in k.tree, ("link", tid, path, other)),
            (1, tid > 0 and not there, ("symlink", tid, path)),
            (2, tid > 0 and not there, ("lookup", tid, path)),
            (1, tid > 0 and there and file is not None and not file.regular, ("readlink", tid, path)),
            (7, tid > 0 and there, ("look", tid, path)),
            (1, tid > 0 and there, ("attribute", tid, path)),
            (5, tid in k.known and there, ("past_look", tid, path)),
            (3, tid in k.known and not there, ("past_make", tid, path)),
            (2, there, ("past_outside", ("write",), path, None, rng.choice((tid, 0, 9999)))),
            (1, not there, ("past_outside", ("delete",), path, None, rng.choice((tid, 0)))),
            (1, True, ("past_outside", ("rename",), path, other, tid)),
            (2, True, ("take",)),
            (9 if k.requests else 0, bool(k.requests), ("resume", rng.choice(list(k.requests) or [0]))),
            (1, bool(k.requests), self.interrupt()),
            (2, True, ("settle",)),
            (1, tid > 0, ("run", f"t{rng.randrange(4)}", rng.choice("ABC"), tid)),
            (1, tid > 0, ("announce", f"c{rng.randrange(3)}", rng.choice("AB"), tid, path)),
            (1, True, ("lease", rng.choice("AB"), rng.choice(("f", "d/", "*.o")))),
            (1, True, ("pump",)),
            (1, True, ("lease_over", rng.random() < 0.5)),
            (1, True, ("end_run", f"t{rng.randrange(4)}")),
            (1, True, ("forget_runs",)),
            (6, tid > 0, self.question(tid, path)),
        ]
        possible = [(weight, act) for weight, can, act in weighed if can and weight]
        chosen = rng.choices([a for _, a in possible], [w for w, _ in possible])[0]
        return (rng.choice((0.0, 0.001, 0.01, 0.2, 0.6, 1.2)), *chosen)

    def spawn(self) -> tuple[Any, ...]:
        rng = self.random
        token = f"t{rng.randrange(4)}" if rng.random() < 0.3 else ""
        parent = rng.choice([1, *self.kernel.procs])
        self.tids += 1
        return ("spawn", 100 + self.tids, rng.choice(TASKS), parent, token, rng.random() < 0.3)

    def writer(self, handle: int, tid: int) -> int:
        opener = self.kernel.handles[handle].proc.tid if handle else 0
        return self.random.choice((opener, opener, tid, 0))

    def data(self) -> bytes:
        return self.random.choice((b"base", b"aaaa", b"bb", b"cccccc"))

    def question(self, tid: int, path: bytes) -> tuple[Any, ...]:
        rng, pick = self.random, self.random.choice
        if not tid:
            return ("take",)
        what, token, call = pick(("read", "write")), f"t{rng.randrange(4)}", f"c{rng.randrange(3)}"
        params = {
            "task": pick("ABC"),
            "parent": pick("ABC"),
            "what": what,
            "path": path.decode(),
            "policy": pick(("warn", "block", "off")),
            "ack": pick((True, False)),
            "tool_use_id": call,
            "token": token,
            "argv": ["true"],
            "pid": self.kernel.procs[tid].parent,
            "patterns": [path.decode()],
            "force": pick((True, False)),
            "wait": pick((1, 3)),
            "idle": pick((True, False)),
        }
        name = pick(AT_ONCE)
        if name == "run.begin":
            return ("asked", name, params["pid"], {**params, "pid": tid})
        return ("asked", name, pick((tid, 1)), params)

    def interrupt(self) -> tuple[Any, ...]:
        waits = self.kernel.inside.dispatch.waiting.pending.all()
        if not waits:
            return ("take",)
        unique = self.random.choice(list(waits))
        return ("interrupt", unique, waits[unique].tid, self.random.random() < 0.5)

    def step(self) -> None:
        rng = self.random
        act = self.act()
        assert act is not None
        if not self.mortal:
            self.kernel.do(act)
            return
        points = rng.choice((rng.randrange(1, 12), rng.randrange(1, 50))) if rng.random() < 0.15 else -1
        self.kernel.do(act, rng, points)
        if rng.random() < 0.05:
            self.kernel.die(rng)
        if rng.random() < 0.05 and self.kernel.inside.recorder.settled:
            self.kernel.save()


FLAGS = (
    os.O_WRONLY | os.O_TRUNC,
    os.O_WRONLY | os.O_TRUNC,
    os.O_WRONLY | os.O_APPEND,
    os.O_WRONLY,
    os.O_RDWR,
    os.O_RDONLY,
)


def told(inside: Inside) -> list[Any]:
    return [
        (w.id, w.task, w.kind, w.sibling, w.message, list(w.paths), w.time, w.delivered, w.withdrawn)
        for w in inside.guard.outbox._all.values()
    ]


def check(seed: int, steps: int = 120) -> int:
    one = Sequence(seed)
    for _ in range(steps):
        one.step()
    other = Kernel(deaths=False, policy=one.policy)
    for path in PATHS[:4]:
        other.place(path, other.make(b"base"))
    other.follow(one.kernel.log)
    assert told(one.kernel.inside) == told(other.inside), seed
    assert one.kernel.answers == other.answers
    assert everything(one.kernel.inside) == everything(other.inside), seed
    return one.kernel.deaths_seen


@pytest.mark.parametrize("first", range(0, SEQUENCES, 10))
def test_what_goes_on_is_what_there_was(first: int) -> None:
    assert sum(check(seed) for seed in range(first, first + 10)) > 10


@pytest.mark.parametrize("seed", range(40))
def test_a_tape_that_does_not_fit_costs_silence_and_no_more(seed: int) -> None:
    """An entry is lost, comes twice, or answers something else: nobody is told of what was before."""
    one = Sequence(1_000_000 + seed)
    rng, kernel = one.random, one.kernel
    for _ in range(60):
        one.step()
    for request in list(kernel.requests.values()):
        kernel.requests.pop(request.unique)  # nobody asks again in this test
    kernel.do((0.0, "take"))
    kernel.records.clear()  # nor is anything told twice
    data, mark = kernel.checkpoint
    entries = list(kernel.inside.tape.entries(mark))
    if not entries:
        return
    at = rng.randrange(len(entries))
    kind, unique, args, items = entries[at]
    entries[at : at + 1] = rng.choice(
        (
            [],
            [entries[at], entries[at]],
            [(kind, unique, args, [*items, 1])],
            [(kind, unique, args, items[:-1])],
            [("nonsense", unique, args, items)],
            [(kind, unique, args[:-1], items)],
            [(kind, unique, args, [None, *items])],
        )
    )
    inside = Inside(kernel, None, one.policy)
    for file in kernel.files.values():
        file.__class__ = kernel.files_as
    restart.restore(data, {**inside.parts(), **kernel.names()}, kernel.files.__getitem__)
    inside.tape.entries = lambda mark: iter(entries)  # type: ignore[method-assign]
    doubt = taping.play_back(inside.recorder, Replay(inside.recorder, kernel.files.__getitem__), mark)
    kernel.inside = inside
    before = told(inside)
    if doubt is None:
        return  # it made no difference
    assert not inside.recorder.opening and not inside.dispatch.waiting.pending.all()
    for _ in range(3):
        path = rng.choice(list(kernel.tree) or [b"f"])
        tid = one.tid()
        if tid and path in kernel.tree:
            kernel.do((0.1, "truncate", tid, path, 0, 0))
        kernel.tree.pop(path, None)  # one change of each: the next would be told about this one
    kernel.do((60.0, "settle"))
    # Who writes at this very moment is no matter of the past.
    assert [w for w in told(inside) if w not in before and w[2] != "concurrent_write"] == []


@pytest.mark.parametrize("seed", range(30))
def test_wherever_the_tape_ends_the_state_is_that_of_the_last_call_on_it(seed: int) -> None:
    one = Sequence(2_000_000 + seed, mortal=False)
    rng, kernel = one.random, one.kernel
    for _ in range(40):
        one.step()
    kernel.save()
    header, states = kernel.inside.tape._header, []
    for _ in range(30):
        states.append((header[HEAD], everything(kernel.inside)))
        one.step()
    ends = list(dict(states).items())  # of several without a call, any
    memory = bytes(kernel.inside.tape._map)
    for (end, state), (after, _) in rng.sample(list(itertools.pairwise(ends)), 4):
        length = int.from_bytes(memory[PAGE + end % TAPE_BYTES :][:4], "little")
        fd = os.memfd_create("cut")
        os.write(fd, memory)
        os.pwrite(fd, rng.randrange(end, min(after, end + 4 + length)).to_bytes(8, "little"), 8 * HEAD)
        back = kernel.revived(fd)
        os.close(fd)
        assert everything(back) == state, seed


@pytest.mark.parametrize("late", [False, True])
def test_a_fault_of_ours_is_one_when_it_is_played_back(late: bool) -> None:
    kernel = Kernel(deaths=True)
    kernel.faulty = True
    kernel.place(b"f", kernel.make(b"base"))
    for tid, task in ((101, "A"), (102, "B")):
        kernel.do((1.0, "spawn", tid, task, 1, "", False))
    kernel.do((1.0, "look", 101, b"f"))
    kernel.do((1.0, "truncate", 102, b"f", 2, 0))
    kernel.do((1.0, "open", 101, b"f", os.O_WRONLY) if late else (1.0, "open", 101, b"f", FLAGS[0]))
    if late:
        kernel.do((0.1, "write", kernel.last_unique, 101, 0, b"aaaa"))
    assert kernel.inside.shield.faults and not told(kernel.inside)
    before = everything(kernel.inside)
    kernel.die(random.Random(0))
    assert everything(kernel.inside) == before


def shared(inside: Inside) -> set[tuple[str, ...]]:
    """Containers that several parts, or what is theirs alone, have in common: their names."""
    found: dict[int, list[str]] = {}
    parts = inside.parts()
    taken = set(map(id, parts.values()))
    for name, part in parts.items():
        waiting = [(name, part)]
        while waiting:
            where, thing = waiting.pop()
            slots = [s for above in type(thing).__mro__ for s in getattr(above, "__slots__", ())]
            for attribute in (*getattr(thing, "__dict__", ()), *slots):
                value = getattr(thing, attribute, None)
                if isinstance(value, dict | list | set | deque):
                    found.setdefault(id(value), []).append(f"{where}.{attribute}")
                elif type(value).__module__.startswith("fsguard.") and id(value) not in taken:
                    taken.add(id(value))
                    waiting.append((f"{where}.{attribute}", value))
    return {tuple(sorted(names)) for names in found.values() if len(names) > 1}


@pytest.mark.parametrize("under_way", [False, True])
def test_what_parts_have_in_common_they_have_afterwards(under_way: bool) -> None:
    one = Sequence(7)
    for _ in range(60):
        one.step()
    kernel = one.kernel
    before = shared(Inside(kernel, None, "warn"))
    assert ("dispatch._writable", "waiting._writable") in before
    for file in kernel.files.values():
        file.__class__ = kernel.files_as
    data = restart.gather({**kernel.inside.parts(), **kernel.names()}, under_way)
    fresh = Inside(kernel, None, "warn")
    restart.restore(data, {**fresh.parts(), **kernel.names()}, kernel.files.__getitem__)
    assert before <= shared(fresh)
