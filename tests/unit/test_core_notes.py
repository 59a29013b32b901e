"""Notes: stale_view, stale_read; and how warnings are grouped, delivered and kept."""

import os

import pytest

from fsguard.core.guard import Limits
from fsguard.core.model import Command, Kind
from fsguard.core.outbox import GROUP_SECONDS, MAX_LISTED, Outbox
from tests.kit.oracle_world import World


@pytest.fixture
def w() -> World:
    world = World()
    world.file("f", "base")
    return world


VIEW = {("A", "f", "stale_view", "B")}

# -- stale_view ---------------------------------------------------------------------


@pytest.mark.parametrize("edit", ["sed", "edit"])
def test_a_command_that_read_the_file_itself_keeps_the_change_but_the_picture_is_old(w, edit):
    w.run("A").read("f")
    w.run("B").edit("f", "theirs")
    a = w.run("A", "sed -i")
    a.sed("f", bytes.upper) if edit == "sed" else a.edit("f", "THEIRS")
    assert not w.told() and w.notes() == VIEW
    (note,) = w.warnings("A")
    assert note.severity == "note" and note.read_time is not None and "old" in note.message


def test_in_place_edits_too(w):
    w.run("A").read("f")
    w.run("B").edit("f", "theirs")
    h = w.run("A").open("f", os.O_RDWR)
    h.read(), h.write("X", 0), h.close()
    assert not w.told() and w.notes() == VIEW


def test_an_append_over_what_was_not_seen(w):
    w.run("A").read("f")
    w.run("B").edit("f", "theirs")
    w.run("A").append("f", "more")
    assert not w.told() and w.notes() == VIEW


def test_an_append_after_reading_in_the_same_command(w):
    w.run("A").read("f")
    w.run("B").edit("f", "theirs")
    a = w.run("A")
    a.read("f"), a.append("f", "more")
    assert not w.told() and w.notes() == VIEW


def test_appends_over_appends_are_silent(w):
    for t in "ABCABC":
        w.run(t).append("f", t)
    w.run("A").read("f")
    for t in "BCA":
        w.run(t).append("f", t)
    assert not w.warnings()


def test_who_never_looked_has_no_picture(w):
    w.run("B").edit("f", "theirs")
    w.run("A").sed("f", bytes.upper)
    w.run("A").append("f", "more")
    assert not w.warnings("A")


def test_who_looked_in_an_earlier_command_is_up_to_date(w):
    w.run("A").read("f")
    w.run("B").edit("f", "theirs")
    w.run("A").read("f")
    w.run("A").sed("f", bytes.upper)
    w.run("A").append("f", "more")
    assert not w.warnings("A")


def test_it_is_told_once(w):
    w.run("A").read("f")
    w.run("B").edit("f", "theirs")
    w.run("A").append("f", "1")
    w.news()
    w.run("A").append("f", "2")
    w.run("A").append("f", "3")
    assert w.news() == (set(), set())
    w.run("B").write("f", "theirs 2")
    w.news()
    w.run("A").append("f", "4")
    assert w.news()[1] == VIEW


def test_after_an_append_the_rest_is_still_unseen(w):
    w.run("A").read("f")
    w.run("B").edit("f", "theirs")
    w.run("A").append("f", "more")
    w.run("A").write("f", "mine")
    assert w.told() == {("A", "f", "stale_write", "B")}


def test_after_an_append_by_who_never_read_the_rest_is_still_unread(w):
    w.run("B").write("f", "theirs")
    w.run("A").append("f", "more")
    w.run("A").write("f", "mine")
    assert w.told() == {("A", "f", "stale_write", "B")}
    (warning,) = [x for x in w.warnings("A") if x.severity == "conflict"]
    assert warning.read_time is None


def test_a_formatter_by_the_same_task_is_silent(w):
    w.run("A").read("f")
    w.run("A").edit("f", "formatted")
    w.run("A").sed("f", bytes.upper)
    w.run("A").write("f", "mine")
    assert not w.warnings()


def test_deleting_after_a_look_in_the_same_command_keeps_nothing(w):
    w.run("A").read("f")
    w.run("B").edit("f", "theirs")
    a = w.run("A")
    a.read("f"), a.unlink("f")
    assert not w.notes()


def test_a_persons_change_is_no_siblings(w):
    w.run("A").read("f")
    w.person().write("f", "typed")
    w.run("A").sed("f", bytes.upper)
    assert not w.notes()


# -- stale_read: asked for, and when a child ends ----------------------------------------


def test_what_a_task_read_and_others_changed_is_known_when_asked(w):
    w.file("g"), w.file("h")
    w.run("A").read("f"), w.run("A").read("g"), w.run("A").read("h")
    w.run("B").write("f", "theirs"), w.run("A").write("g", "mine")
    assert w.guard.stale_reads(w.task("A")) == [b"f"]
    assert not w.warnings("A"), "never pushed"


def test_a_parent_is_told_what_an_ended_child_changed_of_what_it_had_read(w):
    w.task("C", "P")
    for n in range(10):
        w.file(f"x{n}")
        w.run("P").read(f"x{n}")
    w.file("unread")
    w.run("P").read("f")
    for n in range(10):
        w.run("C").edit(f"x{n}", "theirs")
    w.run("C").edit("unread", "theirs")
    w.run("B").edit("f", "not the child")
    w.guard.task_ended(w.task("C"), w.step())
    (note,) = w.warnings("P")
    assert (note.kind, note.severity, note.sibling, note.count) == (Kind.STALE_READ, "note", "C", 10)
    assert "x0, x1, x2, x3, x4, x5, x6, x7, +2 more" in note.message
    assert "unread" not in note.message and not {b"f", b"unread"} & set(note.paths)


def test_a_grandchilds_work_counts_as_the_childs(w):
    w.task("C", "P"), w.task("G", "C")
    w.run("P").read("f")
    w.run("G").edit("f", "theirs")
    w.run("C").write("other", "x")
    w.guard.task_ended(w.task("C"), w.step())
    (note,) = w.warnings("P")
    assert note.paths == {b"f": None}


def test_a_child_that_changed_nothing_of_it_is_not_mentioned(w):
    w.task("C", "P")
    w.run("P").read("f")
    w.run("C").read("f"), w.run("C").write("new", "x")
    w.guard.task_ended(w.task("C"), w.step())
    w.guard.task_ended(w.task("P"), w.step())
    assert not w.warnings()


# -- check ------------------------------------------------------------------------------------


def test_check_says_what_a_write_now_would_say_and_changes_nothing(w):
    w.run("A").read("f")
    assert w.guard.check(w.task("A"), b"f") is None
    w.run("B").write("f", "theirs")
    found = w.guard.check(w.task("A"), b"f")
    assert found is not None and found[0].kind is Kind.STALE_WRITE and "B" in found[1]
    assert w.guard.check(w.task("A"), b"f") is not None and not w.warnings()
    w.run("B").unlink("f")
    found = w.guard.check(w.task("A"), b"f")
    assert found is not None and found[0].kind is Kind.RESURRECTED
    assert w.guard.check(w.task("A"), b"never heard of") is None
    assert w.guard.check(w.task("A"), b".git/index") is None


# -- grouping -------------------------------------------------------------------------------------


def test_one_command_over_many_files_gives_one_warning(w):
    names = [f"d/{i}" for i in range(40)]
    for n in names:
        w.run("B", f"work on {n}").write(n, "theirs" + n)
    git = w.run("A", "git checkout .")
    for n in names:
        git.fork().checkout(n, "old")
    git.end()
    (warning,) = list(w.warnings("A"))
    assert warning.count == 40 and len(warning.paths) == 40 and warning.kind is Kind.STALE_WRITE
    assert "39 more paths" in warning.message


def test_siblings_kinds_and_commands_are_told_apart(w):
    for n, t in (("b1", "B"), ("b2", "B"), ("c1", "C"), ("c2", "C")):
        w.run(t).write(n, "theirs")
    one, two = w.run("A", "one"), w.run("A", "two")
    one.write("b1", "x"), one.write("c1", "x"), two.write("b2", "x"), two.write("c2", "x")
    assert sorted((x.command, x.sibling, x.path) for x in w.warnings("A")) == [
        ("one", "B", b"b1"),
        ("one", "C", b"c1"),
        ("two", "B", b"b2"),
        ("two", "C", b"c2"),
    ]


def test_the_victims_of_one_command_get_one_warning_each(w):
    for n in range(5):
        w.run("B").write(f"b{n}", "theirs"), w.run("C").write(f"c{n}", "theirs")
    clean = w.run("A", "git clean -fd")
    for n in range(5):
        clean.unlink(f"b{n}"), clean.unlink(f"c{n}")
    clean.end()
    reverted = [x for x in w.warnings() if x.kind is Kind.REVERTED]
    assert sorted((x.task, x.count) for x in reverted) == [("B", 5), ("C", 5)]


def fill(outbox: Outbox, paths: int, command: Command, now: float = 0.0, **more):
    for i in range(paths):
        warning = outbox.add(
            **{
                "kind": Kind.STALE_WRITE,
                "severity": "conflict",
                "task": "A",
                "pid": 1,
                "command": command,
                "sibling": "B",
                "sibling_command": "b",
                "sibling_time": 1.0,
                "read_time": None,
                "path": b"%d" % i,
                "now": now,
                "message": lambda more: f"text +{more}",
                **more,
            }
        )
    return warning


def test_a_thousand_paths_are_listed_all_are_counted():
    warning = fill(Outbox(), 2500, Command("c", "c"))
    assert (warning.count, len(warning.paths), warning.message) == (2500, MAX_LISTED, "text +2499")


def test_the_same_path_again_is_not_counted_twice():
    outbox, command = Outbox(), Command("c", "c")
    fill(outbox, 3, command)
    assert fill(outbox, 3, command).count == 3


def test_a_group_ends_with_delivery_and_with_time():
    outbox, command = Outbox(), Command("c", "c")
    one = fill(outbox, 2, command)
    outbox.deliver([one])
    two = fill(outbox, 2, command)
    three = fill(outbox, 2, command, now=GROUP_SECONDS + 1)
    assert len({one.id, two.id, three.id}) == 3
    assert one.count == 2 and [x.id for x in outbox.pending()] == [two.id, three.id]


def test_kind_severity_and_refusal_are_never_mixed_in_a_group():
    outbox, command = Outbox(), Command("c", "c")
    ids = {
        fill(outbox, 1, command).id,
        fill(outbox, 1, command, kind=Kind.LOST_UPDATE).id,
        fill(outbox, 1, command, severity="note").id,
        fill(outbox, 1, command, refused=True).id,
        fill(outbox, 1, command, sibling=None).id,
        fill(outbox, 1, command, task="Z").id,
        fill(outbox, 1, Command("d", "c")).id,
    }
    assert len(ids) == 7


def test_warnings_are_bounded_the_oldest_goes_first():
    outbox = Outbox(10)
    heard = []
    outbox.listeners.add(heard.append)
    for i in range(25):
        fill(outbox, 1, Command(str(i), "c"))
    kept = list(outbox)
    assert len(kept) == 10 and outbox.total == 25 and len(heard) == 25
    assert [x.id for x in kept] == sorted(x.id for x in kept)[-10:]
    assert outbox.find(1) is None and outbox.find(25) is kept[-1]


def test_a_withdrawn_warning_is_on_no_list():
    outbox = Outbox()
    warning = fill(outbox, 1, Command("c", "c"))
    outbox.withdraw(warning, b"another path")
    assert list(outbox) == [warning]
    outbox.withdraw(warning, b"0")
    assert not list(outbox) and not outbox.pending() and outbox.total == 0


def test_withdrawing_again_changes_nothing():
    outbox = Outbox()
    warning = fill(outbox, 1, Command("c", "c"))
    outbox.withdraw(warning, b"0"), outbox.withdraw(warning, b"0")
    assert outbox.total == 0


def test_paths_beyond_those_listed_can_be_withdrawn_too():
    outbox = Outbox()
    warning = fill(outbox, MAX_LISTED + 5, Command("c", "c"))
    for i in range(MAX_LISTED):
        outbox.withdraw(warning, b"%d" % i)
    assert not warning.withdrawn and warning.count == 5


# -- forgotten tasks, footprints, history --------------------------------------------------------------


def test_a_forgotten_task_is_not_blamed_for_what_it_once_knew():
    w = World(limits=Limits(tasks=3))
    w.file("f")
    w.run("A").read("f")
    w.run("B").edit("f", "old work of B")
    for t in ("X1", "X2", "X3"):
        w.run(t)
    assert w.guard.tasks.find("A") is None
    w.run("A").write("f", "mine")
    assert not w.told()
    w.run("B2").edit("f", "newer")
    w.run("A").write("f", "mine again")
    assert w.told() == {("A", "f", "stale_write", "B2")}


def test_an_id_used_again_by_the_same_agent_has_no_quarrel_with_itself():
    w = World(limits=Limits(tasks=2))
    w.run("A").write("f", "1")
    for t in ("X1", "X2"):
        w.run(t)
    w.run("A").write("f", "2")
    assert not w.told()


def test_forgetting_by_age():
    w = World()
    w.run("A")
    w.now += 100
    w.run("B")
    assert w.guard.tasks.forget_idle(w.now - 50) == 1
    assert [t.id for t in w.guard.tasks] == ["B"]


def test_a_forgotten_parent_leaves_its_children():
    w = World()
    w.task("C", "P")
    w.guard.tasks._forget(w.task("P"))
    assert w.task("C").parent is None


def test_the_tree_of_tasks_has_no_circles():
    w = World()
    w.task("B", "A"), w.task("C", "B")
    tasks = w.guard.tasks
    assert not tasks.adopt(w.task("A"), w.task("C"))
    assert not tasks.adopt(w.task("A"), w.task("A"))
    assert not tasks.adopt(w.task("C"), w.task("A")), "it has a parent"
    assert tasks.adopt(w.task("C"), w.task("B"))


def test_a_footprint_is_exact(w):
    w.file("old"), w.file("gone"), w.file("g")
    a = w.run("A", footprint=True)
    a.read("f"), a.write("new", "x"), a.write("g", "y"), a.append("f", "z")
    a.unlink("gone"), a.rename("old", "moved"), a.open("f", os.O_WRONLY).close()
    a.read(".git/config") or a.write(".git/config", "z")
    fp = a.actor.command.footprint
    assert list(fp.read) == [b"f"]
    assert set(fp.written) == {b"new", b"g", b"f", b"moved", b".git/config"}
    assert set(fp.created) == {b"new", b".git/config"}
    assert list(fp.deleted) == [b"gone"] and fp.renamed == [(b"old", b"moved")]


def test_history_newest_first_filtered_and_bounded():
    w = World(limits=Limits(log=5))
    for i in range(4):
        w.run("A").write(f"d/{i}", "x")
    w.run("B").read("d/3")
    w.run("B").rename("d/3", "e")
    entries = list(w.guard.history.newest())
    assert len(w.guard.history) == 5 and entries[0].op == "rename" and entries[0].target == b"e"
    assert [e.op for e in w.guard.history.newest(path=b"e")] == ["rename"]
    assert {e.path for e in w.guard.history.newest(path=b"d")} <= {b"d/1", b"d/2", b"d/3"}
    assert {e.task for e in w.guard.history.newest(task="B")} == {"B"}
    assert len(list(w.guard.history.newest(limit=2))) == 2


def test_a_note_taken_back_is_told_when_the_same_command_does_change_the_file(w):
    """Formatted twice: the first time it left the bytes as they were."""
    w.run("C").read("f")
    w.run("A").write("f", "a's work")
    c = w.run("C")
    data = c.read("f")
    c.write("f", data)
    assert not w.notes()
    c.write("f", "c's work")
    assert w.notes() == {("C", "f", "stale_view", "A")}


MADE_ANEW = {
    "git checkout": lambda p: p.checkout("f", "a's work"),
    "deleted, a copy takes the name": lambda p: (p.unlink("f"), p.replace("f", "a's work")),
    "moved away, a copy takes the name": lambda p: (p.rename("f", "f~"), p.replace("f", "a's work")),
}


@pytest.mark.parametrize("way", MADE_ANEW)
def test_a_note_on_a_file_made_anew_with_the_same_bytes_is_still_due(w, way):
    w.run("C").read("f")
    w.run("A").write("f", "a's work")
    c = w.run("C")
    MADE_ANEW[way](c)
    assert not w.warnings()
    c.patch("f", "c")
    assert w.notes() == {("C", "f", "stale_view", "A")} and not w.told()


def test_writing_what_is_there_already_is_a_look(w):
    """A command of A's left the bytes as they were: it has seen them, and not what came since."""
    first = w.run("A")
    first.write("f", "a's work")
    w.run("A").write("f", "a's work")
    w.run("B").edit("f", "b's work")
    first.edit("f", "more of a's")
    assert w.notes() == {("A", "f", "stale_view", "B")} and not w.told()
