"""The core against an independent model: what has to be told is told, and nothing else.

FSGUARD_ORACLE_EXAMPLES and FSGUARD_ORACLE_STEPS make it longer; hypothesis
prints what reproduces a failure.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.kit.oracle_model import Finding, Oracle, Who, kind_class
from tests.kit.oracle_world import Proc, Told, World

TASKS = ("A", "B", "C", "D")
PARENTS = {"D": "C"}  # the others are strangers to each other
FILES = ("f", "g", "h", "d/x", "d/y")
NAMES = (*FILES, "d2/x", "k")
ACTOR = st.integers(0, 11)
PATH = st.sampled_from(NAMES)


def findings(told: set[Told]) -> set[Finding]:
    return {Finding(t, p, kind_class(k), s) for t, p, k, s in told}


class CoreAgainstOracle(RuleBasedStateMachine):
    """Every rule is one program, or one act of a program that lives on."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(tick=0.001)
        self.oracle = Oracle(PARENTS)
        self.live: list[Proc] = []
        self.handles: list[tuple[Proc, str]] = []
        self.marks = self.temps = 0
        self.commands: dict[str, int] = {}
        for child, parent in PARENTS.items():
            self.world.task(child, parent)

    # -- who ----------------------------------------------------------------------

    def who(self, p: Proc) -> Who:
        above, node = [], p.actor.process.parent
        while node is not None:
            above.append(node.pid)
            node = node.parent
        number = self.commands.setdefault(p.actor.command.key, len(self.commands) + 1)
        return Who(p.task, number, p.actor.process.pid, tuple(above))

    def pick(self, actor: int) -> Proc:
        """One of the living, or a new command: of a task, a bare process of it, or a person."""
        if actor < len(self.live):
            return self.live[actor]
        task = (*TASKS, None)[actor % 5]
        world = self.world
        p = world.person() if task is None else world.bare(task) if actor % 2 else world.run(task)
        if len(self.live) < 7:
            self.live.append(p)
        return p

    def mark(self, p: Proc) -> bytes:
        self.marks += 1
        return f"{p.task or '-'}{self.marks:06d};".encode()

    def compare(self, what: str) -> None:
        conflicts, notes = self.world.news()
        told = findings(conflicts)
        must, may, want_notes = self.oracle.take()
        assert must <= told, f"{what}: not told: {must - told} (told: {told})"
        assert told <= must | may, f"{what}: told without need: {told - must - may} (must: {must})"
        assert want_notes <= findings(notes) <= want_notes | may, f"{what}: {notes}, wanted {want_notes}"
        for path, box in self.oracle.files.items():
            assert self.world.content(path) == box[0]

    # -- the world ------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        for path in FILES:
            content = self.mark(self.world.person()) * 2
            self.world.file(path, content)
            self.oracle.file(path, content)

    @rule(actor=ACTOR, same=st.booleans())
    def fork(self, actor: int, same: bool) -> None:
        if len(self.live) < 10:
            self.live.append(self.pick(actor).fork(None if same else "child"))

    @rule(actor=ACTOR)
    def end(self, actor: int) -> None:
        if not self.live:
            return
        p = self.live[actor % len(self.live)]
        command = p.actor.command
        self.live = [q for q in self.live if q.actor.command is not command]
        p.end()
        self.oracle.end(self.who(p).command)
        self.compare("end")

    @rule(actor=ACTOR, path=PATH)
    def read(self, actor: int, path: str) -> None:
        p = self.pick(actor)
        content = p.read(path)
        assert content == self.oracle.content(path)
        self.oracle.look(self.who(p), path)
        self.compare("read")

    def make(self, p: Proc, path: str, content: bytes, way: str) -> None:
        oracle, who = self.oracle, self.who(p)
        if way == "checkout" and path in oracle.files:
            p.checkout(path, content)
            oracle.delete(who, path)
            oracle.write(who, path, content)
        elif way == "replace":
            self.temps += 1
            temp = f"t{self.temps}.tmp"
            p.write(temp, content)
            p.rename(temp, path)
            oracle.write(who, temp, content)
            oracle.rename(who, temp, path)
        else:
            p.write(path, content)
            oracle.write(who, path, content)
        self.compare(way)

    WAY = st.sampled_from(("write", "write", "replace", "checkout"))

    @rule(actor=ACTOR, path=PATH, way=WAY)
    def edit(self, actor: int, path: str, way: str) -> None:
        """What it knows of the file, and more: an agent that edits."""
        p = self.pick(actor)
        known = self.oracle.known_content(self.who(p), path)
        self.make(p, path, known[:48] + self.mark(p), way)

    @rule(actor=ACTOR, path=PATH, way=WAY)
    def formatter(self, actor: int, path: str, way: str) -> None:
        p = self.pick(actor)
        content = p.read(path) or b""
        self.oracle.look(self.who(p), path)
        self.make(p, path, content[:48] + self.mark(p), way)

    @rule(actor=ACTOR, path=PATH, way=WAY)
    def afresh(self, actor: int, path: str, way: str) -> None:
        p = self.pick(actor)
        self.make(p, path, self.mark(p), way)

    @rule(actor=ACTOR, path=PATH, way=WAY, back=st.integers(0, 5), look=st.booleans())
    def restore(self, actor: int, path: str, way: str, back: int, look: bool) -> None:
        """An earlier content again; or, with `back` 0 on what has not changed, the same."""
        contents = self.oracle.name(path).contents
        if back >= len(contents):
            return
        p = self.pick(actor)
        if look:
            p.read(path)
            self.oracle.look(self.who(p), path)
        content = contents[-1 - back][1]
        if content:
            self.make(p, path, content, way)

    @rule(actor=ACTOR, path=PATH, slot=st.integers(0, 3))
    def patch(self, actor: int, path: str, slot: int) -> None:
        content = self.oracle.content(path)
        if content is None:
            return
        p = self.pick(actor)
        mark, at = self.mark(p), min(slot * 8, len(content))
        p.patch(path, mark, at)
        self.oracle.patch(self.who(p), path, content[:at] + mark + content[at + 8 :])
        self.compare("patch")

    @rule(actor=ACTOR, path=PATH, slots=st.integers(0, 3))
    def truncate(self, actor: int, path: str, slots: int) -> None:
        content = self.oracle.content(path)
        if content is None or slots * 8 > len(content):
            return
        p = self.pick(actor)
        p.truncate(path, slots * 8)
        self.oracle.patch(self.who(p), path, content[: slots * 8])
        self.compare("truncate")

    @rule(actor=ACTOR, path=PATH, look=st.booleans())
    def append(self, actor: int, path: str, look: bool) -> None:
        p = self.pick(actor)
        if look:
            p.read(path)
            self.oracle.look(self.who(p), path)
        mark = self.mark(p)
        p.append(path, mark)
        self.oracle.append(self.who(p), path, mark)
        self.compare("append")

    @rule(actor=ACTOR, path=PATH)
    def delete(self, actor: int, path: str) -> None:
        if path in self.oracle.files:
            p = self.pick(actor)
            p.unlink(path)
            self.oracle.delete(self.who(p), path)
            self.compare("delete")

    @rule(actor=ACTOR, source=PATH, other=PATH)
    def rename(self, actor: int, source: str, other: str) -> None:
        files = self.oracle.files
        if source in files and source != other and files[source] is not files.get(other):
            p = self.pick(actor)
            p.rename(source, other)
            self.oracle.rename(self.who(p), source, other)
            self.compare("rename")

    @rule(actor=ACTOR, back=st.booleans())
    def rename_directory(self, actor: int, back: bool) -> None:
        source, target = ("d2", "d") if back else ("d", "d2")
        files = self.oracle.files
        if any(p.startswith(target + "/") for p in files) or not any(
            p.startswith(source + "/") for p in files
        ):
            return
        p = self.pick(actor)
        p.rename(source, target)
        self.oracle.rename_directory(self.who(p), source, target)
        self.compare("rename directory")

    @rule(actor=ACTOR, known=PATH, other=PATH)
    def link(self, actor: int, known: str, other: str) -> None:
        if known in self.oracle.files and other not in self.oracle.files:
            p = self.pick(actor)
            p.link(known, other)
            self.oracle.link(self.who(p), known, other)
            self.compare("link")


CoreAgainstOracle.TestCase.settings = settings(
    max_examples=int(os.environ.get("FSGUARD_ORACLE_EXAMPLES", "60")),
    stateful_step_count=int(os.environ.get("FSGUARD_ORACLE_STEPS", "50")),
    deadline=None,
    print_blob=True,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
test_what_has_to_be_told_is_told_and_nothing_else = CoreAgainstOracle.TestCase


def test_a_file_that_comes_back_with_its_directory_need_not_be_known_again() -> None:
    """B moves D's file, by the name that A gave it, to where it was: nobody has read it."""
    m = CoreAgainstOracle()
    m.begin()
    d, a, b = 8, 10, 6
    m.afresh(d, "d/x", "write")
    m.link(a, "d/x", "d2/x")
    m.delete(b, "d/x"), m.end(2)
    m.delete(b, "d/y"), m.end(2)
    m.rename_directory(b, back=True), m.end(2)
    m.delete(b, "d/x"), m.end(2)
    m.afresh(d, "d/x", "write")


def test_who_emptied_a_file_may_be_said_to_have_a_part_in_what_fills_it() -> None:
    """D's own bytes take the place of an empty file again, as they once did; C had emptied it last."""
    m = CoreAgainstOracle()
    m.begin()
    d, b, c, person = 8, 6, 7, 9
    m.truncate(d, "g", slots=0)
    m.afresh(d, "g", "write")
    m.rename(b, "g", "h")
    m.truncate(c, "h", slots=0)
    m.rename(person, "h", "f")
    m.restore(2, "f", "write", back=2, look=False)
