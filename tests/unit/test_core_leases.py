"""Leases: what clashes, who comes next, when one ends."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsguard.core.leases import Leases, LeaseTicket, as_path
from fsguard.core.model import Task
from fsguard.core.policy import Patterns


class Desk:
    """Leases, tasks by name (`A/B`: B below A), who is writing, and a clock that is told."""

    def __init__(self) -> None:
        self.writing: dict[bytes, Task] = {}
        self.ended = 0
        self.leases = Leases(self._writing, self._ended)
        self.tasks: dict[str, Task] = {}
        self.now = 100.0

    def _writing(self, patterns: Patterns, task: Task) -> str | None:
        return next((t.id for p, t in self.writing.items() if patterns(p) and not t.related(task)), None)

    def _ended(self) -> None:
        self.ended += 1

    def task(self, name: str) -> Task:
        if name not in self.tasks:
            above, _, _ = name.rpartition("/")
            self.tasks[name] = Task(name, parent=self.task(above) if above else None)
        return self.tasks[name]

    def ask(self, task: str, *patterns: str, ttl: float = 10.0) -> LeaseTicket:
        return self.leases.ask(self.task(task), patterns, ttl, "", self.now)

    def release(self, ticket: LeaseTicket) -> None:
        assert ticket.lease is not None
        self.leases.release(ticket.lease, self.now)

    def over(self, path: str, task: str) -> str | None:
        lease = self.leases.over(path.encode(), self.task(task), self.now)
        return lease.task.id if lease is not None else None


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_it_keeps_others_off_and_only_others(desk):
    assert desk.ask("A", "src/").lease is not None
    assert desk.over("src/x", "B") == "A"
    assert desk.over("lib/x", "B") is None
    for relative in ("A", "A/child", "A/child/grandchild"):
        assert desk.over("src/x", relative) is None
    assert desk.leases.over(b"src/x", None, desk.now) is None, "a person, an editor"


def test_parent_and_child_share_whoever_asked(desk):
    assert desk.ask("A/child", "src/").lease is not None
    assert desk.over("src/x", "A") is None
    assert desk.ask("A", "src/x").lease is not None
    assert desk.over("src/x", "A/other") == "A/child", "siblings do not"


@dataclass
class Pair:
    one: str
    other: str
    clash: bool


PAIRS = [
    Pair("src/", "src/", True),
    Pair("src/", "src/api/", True),
    Pair("src/api/", "src/", True),
    Pair("src", "src/a.py", True),
    Pair("/lib/", "/src/", False),
    Pair("lib/", "/src/", False),  # a lib/ in src is not what is meant
    Pair("lib/", "/src/lib/x", True),
    Pair("src/", "docs/", False),
    Pair("schema.sql", "src/", False),
    Pair("schema.sql", "*.sql", True),
    Pair("*.py", "src/", True),
    Pair("*.py", "*.txt", False),
    Pair("*.py", "src/a.py", True),
    Pair("*.py", "src/a.ts", False),
    Pair("a?c", "abc", True),
    Pair("/a?c", "/ac", False),
    Pair("src/**/z.c", "src/z.c", True),
    Pair("src/**/z.c", "src/y/z.c", True),
    Pair("src/**/z.c", "lib/z.c", False),
    Pair("/*/x.c", "/src/x.c", True),
    Pair("/*/x.c", "/src/y.c", False),
    Pair("docs/[a-c]x.md", "docs/bx.md", True),
    Pair("/\\*", "/a", False),
    Pair("*", "deep/below/x", True),
    Pair("schema.sql", "schema.sql", True),
    Pair("schema.sql", "schemas.sql", False),
]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda p: f"{p.one} {p.other}")
def test_what_clashes(pair):
    for one, other in ((pair.one, pair.other), (pair.other, pair.one)):
        desk = Desk()
        desk.ask("A", one)
        assert (desk.ask("B", other).lease is None) == pair.clash


NAMES = st.text("ab*?.", min_size=1, max_size=4).filter(lambda s: s not in (".", "..") and "***" not in s)
LINES = st.tuples(st.booleans(), st.lists(NAMES, min_size=1, max_size=3), st.booleans()).map(
    lambda x: "/" * x[0] + "/".join(x[1]) + "/" * x[2]
)
PATHS = st.lists(st.text("ab.", min_size=1, max_size=3), min_size=1, max_size=4).map(
    lambda parts: "/".join(parts).encode()
)


@given(LINES, LINES, PATHS)
def test_whatever_matches_both_is_a_clash(one, other, path):
    """Where the older of the two decides: a bare name below the top, a directory named like a file."""
    if b".a" in path or b".b" in path or not {"/", "*", "?"} & set(one.rstrip("/")):
        return
    if not {"/", "*", "?"} & set(other.rstrip("/")):
        return
    if Patterns([one])(path) and Patterns([other])(path):
        desk = Desk()
        desk.ask("A", one)
        assert desk.ask("B", other).lease is None


def test_first_come_first_served(desk):
    first = desk.ask("A", "src/")
    line = [desk.ask(task, "src/") for task in "BCD"]
    for ticket in line:
        assert ticket.lease is None and "lease 1 of task 'A'" in ticket.blocker
    desk.release(first)
    for i, ticket in enumerate(line):
        assert [t.lease is not None for t in line] == [j <= i for j in range(3)]
        desk.release(ticket)
    assert not desk.leases.held and not desk.leases.waiting()


def test_whoever_waits_blocks_only_what_it_clashes_with(desk):
    desk.ask("A", "src/")
    desk.ask("B", "src/", "lib/")
    assert desk.ask("C", "lib/x").lease is None, "behind B, or B would never get both"
    assert desk.ask("D", "/doc/").lease is not None


def test_the_queue_is_pumped_when_somebody_gives_up(desk):
    desk.ask("A", "src/")
    b, c = desk.ask("B", "src/", "lib/"), desk.ask("C", "lib/")
    assert b.lease is None and c.lease is None
    desk.leases.cancel(b, desk.now)
    assert c.lease is not None


def test_giving_up_what_was_granted_already_changes_nothing(desk):
    a = desk.ask("A", "src/")
    desk.leases.cancel(a, desk.now)
    assert desk.over("src/x", "B") == "A"


def test_the_ttl_counts_from_the_last_write(desk):
    desk.ask("A", "src/", ttl=10)
    desk.now += 9
    desk.leases.wrote([b"src/x"], desk.task("A/child"), desk.now)
    desk.leases.wrote([b"src/x"], desk.task("B"), desk.now + 5)
    desk.now += 9
    assert desk.over("src/x", "B") == "A"
    desk.now += 1
    assert desk.over("src/x", "B") is None
    desk.leases.wrote([b"src/x"], desk.task("A"), desk.now)
    assert desk.leases.all(desk.now) == [], "what has ended does not come back"
    assert desk.ended == 1


def test_it_ends_with_its_task(desk):
    a = desk.ask("A", "src/")
    b = desk.ask("B", "src/")
    desk.task("A").ended = desk.now
    desk.leases.pump(desk.now)
    assert b.lease is not None and a.lease not in desk.leases.all(desk.now)


def test_whoever_ends_while_it_waits_gets_none(desk):
    a, b, c = (desk.ask(task, "src/") for task in "ABC")
    desk.task("B").ended = desk.now
    desk.release(a)
    assert b.lease is None and c.lease is not None


def test_none_over_a_path_that_another_writes_right_now(desk):
    desk.writing[b"src/x"] = desk.task("W")
    b = desk.ask("B", "src/")
    assert b.lease is None and b.blocker == "task 'W', which is writing there"
    assert desk.ask("W/child", "src/y").lease is None, "B was first"
    desk.writing.clear()
    desk.leases.pump(desk.now)
    assert b.lease is not None


def test_the_writer_itself_and_its_family_may_have_it(desk):
    desk.writing[b"src/x"] = desk.task("W")
    assert desk.ask("W", "src/").lease is not None


def test_of_two_that_overlap_the_older_decides(desk):
    """None is granted over another; two may come to meet in a directory that is named like a file."""
    desk.ask("A", "my.pkg")
    desk.ask("B", "x.py")
    assert desk.over("my.pkg/x.py", "B") == "A" and desk.over("my.pkg/x.py", "A") is None


@pytest.mark.parametrize(
    ("pattern", "held"),
    [
        ("src/", True),
        ("src/api/f.py", True),
        ("*.py", True),
        ("/lib/", False),
        ("lib/", False),
        ("src", True),
        ("/src2/", False),
    ],
)
def test_a_directory_with_something_leased_in_it(desk, pattern, held):
    desk.ask("A", pattern)
    assert (desk.leases.below(b"src", desk.task("B"), desk.now) is not None) == held
    assert desk.leases.below(b"src", desk.task("A"), desk.now) is None


def test_in_the_way(desk):
    a, _, c = desk.ask("A", "src/"), desk.ask("A", "/doc/"), desk.ask("C", "/etc/")
    assert desk.leases.in_the_way(desk.task("B"), ["src/x", "/etc/"], desk.now) == [a.lease, c.lease]


def test_a_pattern_as_a_path():
    assert [as_path(p) for p in ("src/", "/a/b", "x")] == [b"src/x", b"a/b", b"x"]
