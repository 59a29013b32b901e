"""Renames, hard links, temporary names, directories: what goes along and what does not."""

import pytest

from tests.kit.oracle_world import World


@pytest.fixture
def w() -> World:
    world = World()
    for f in ("f", "d/x", "d/y", "d/e/z", "dx"):
        world.file(f, f"base of {f}")
    return world


# -- looks go along with a rename ---------------------------------------------------


def test_a_look_goes_along_with_the_file(w):
    w.run("A").read("f")
    b = w.run("B")
    b.read("f"), b.rename("f", "g"), b.end()
    w.run("A").write("g", "mine")  # content that A has seen
    assert not w.told()


def test_an_old_look_stays_old_under_the_new_name(w):
    w.run("A").read("f")
    b = w.run("B")
    b.edit("f", "b"), b.rename("f", "g"), b.end()
    w.run("A").write("g", "mine")
    assert w.told() == {("A", "g", "stale_write", "B")}


def test_no_look_stays_no_look(w):
    w.run("B").write("f", "b")
    w.run("B").rename("f", "g")
    w.run("A").write("g", "mine")
    (warning,) = w.warnings("A")
    assert warning.sibling == "B" and warning.read_time is None


def test_looks_go_along_with_a_directory_above(w):
    w.run("A").read("d/x"), w.run("A").read("d/e/z"), w.run("A").read("dx")
    w.run("B").write("d/y", "b")
    b = w.run("B")
    b.read("d/x"), b.read("d/e/z"), b.rename("d", "n"), b.end()
    w.news()
    w.run("A").write("n/x", "mine"), w.run("A").write("n/e/z", "mine")
    assert w.news()[0] == set()
    w.run("A").write("n/y", "mine")
    assert w.news()[0] == {("A", "n/y", "stale_write", "B")}
    w.run("A").write("dx", "mine")
    assert w.news()[0] == set()


def test_a_directory_moved_with_unseen_work_below_is_told_for_every_path(w):
    w.run("B").write("d/x", "b"), w.run("B").write("d/e/z", "b")
    a = w.run("A")
    a.rename("d", "n"), a.end()
    assert {x for x in w.told() if x[0] == "A"} == {
        ("A", "d/x", "stale_write", "B"),
        ("A", "d/e/z", "stale_write", "B"),
    }
    assert len(w.warnings("A")) == 1
    assert {x for x in w.told() if x[0] == "B"} == {
        ("B", "d/x", "reverted", "A"),
        ("B", "d/e/z", "reverted", "A"),
    }


def test_the_mover_of_what_it_never_read_has_not_seen_it(w):
    w.run("B").write("g", "b's work")
    w.run("A").read("f")
    w.run("A").rename("g", "f")
    assert w.told() == {("A", "g", "stale_write", "B"), ("B", "g", "reverted", "A")} - (
        {("B", "g", "reverted", "A")} if not [x for x in w.told() if x[0] == "B"] else set()
    )
    w.news()
    w.run("A").write("f", "mine")  # now B's bytes are really gone
    assert w.news()[0] >= {("A", "f", "stale_write", "B")}


def test_a_file_renamed_over_another_hides_it_from_who_saw_the_other(w):
    w.run("A").read("f")
    b = w.run("B")
    b.write("g", "b's"), b.rename("g", "f")
    w.run("A").write("f", "mine")
    assert w.told() == {("A", "f", "stale_write", "B")}


def test_who_saw_the_moved_content_knows_it_under_the_other_name(w):
    w.run("B").write("g", "b's")
    w.run("A").read("g"), w.run("A").read("f")
    w.run("B").rename("g", "f")
    w.run("A").write("f", "mine")
    assert not w.told()


def test_moving_there_and_back_keeps_the_look(w):
    w.run("A").read("f")
    b = w.run("B")
    b.read("f"), b.rename("f", "g"), b.end()
    b = w.run("B")
    b.rename("g", "f"), b.end()
    w.run("A").write("f", "mine")
    assert not w.told()


def test_the_source_of_a_rename_is_gone(w):
    w.run("A").read("f")
    w.run("B").rename("f", "g")
    w.run("A").write("f", "again")
    assert w.told() == {("A", "f", "resurrected", "B")}


def test_exchange_changes_both(w):
    w.run("A").read("f"), w.run("A").read("dx")
    w.run("B").exchange("f", "dx")
    w.run("A").write("f", "1"), w.run("A").write("dx", "2")
    assert w.told() == {("A", "f", "stale_write", "B"), ("A", "dx", "stale_write", "B")}


# -- temporary names ---------------------------------------------------------------------


def test_own_atomic_saves_are_silent(w):
    for i in range(4):
        a = w.run("A")
        a.write(".f.tmp", str(i)), a.rename(".f.tmp", "f"), a.end()
    w.run("A").read("f")
    w.run("A").write("f", "x")
    assert not w.warnings()


@pytest.mark.parametrize("known", [True, False])
def test_a_save_by_one_process_leaves_a_record_that_a_look_reaches(w, known):
    path = "f" if known else "new"
    if known:
        w.run("B").read("f")
    w.run("A").replace(path, "a")
    w.run("B").read(path)
    w.run("B").write(path, "b")
    assert not w.told()
    state = w.guard.ledger.find(path.encode())
    assert state.version == max(x.version for x in state.writers)


def test_two_tasks_with_the_same_temporary_name_in_turn(w):
    for i in range(3):
        for t in "AB":
            p = w.run(t)
            p.read("f")
            p.write("f.tmp", f"{t}{i}"), p.rename("f.tmp", "f"), p.end()
    assert not w.told()


def test_the_look_at_a_temporary_name_does_not_leak(w):
    """A has read B's temporary file; that says nothing about the next of that name."""
    b = w.run("B")
    b.write("t", "1")
    w.run("A").read("t")
    b.rename("t", "f"), b.end()
    b = w.run("B")
    b.write("t", "2")
    w.run("A").write("t", "mine")
    assert w.told() == {("A", "t", "stale_write", "B")}


def test_a_new_temporary_file_of_that_name_is_no_resurrection(w):
    for t in "ABAB":
        p = w.run(t)
        p.write("t", t), p.unlink("t"), p.end()
    assert {x[2] for x in w.told()} <= {"reverted"}
    assert not w.told()


def test_a_temporary_name_that_a_command_gave_and_took_is_nobodys_loss(w):
    w.run("A").write("f", "a")
    b = w.run("B", "rotate")
    b.read("f"), b.rename("f", "f.1"), b.rename("f.1", "f.2"), b.write("f", "new"), b.end()
    assert {x for x in w.told() if x[1] == "f.1"} == set()


# -- hard links -----------------------------------------------------------------------------


def test_a_write_through_one_name_moves_every_known_name(w):
    w.run("A").link("f", "g")
    w.run("A").read("f")
    b = w.run("B")
    b.read("g"), b.write("g", "b")
    w.run("A").write("f", "mine")
    assert w.told() == {("A", "f", "stale_write", "B"), ("A", "g", "stale_write", "B")}
    (warning,) = w.warnings("A")
    assert warning.count == 2


def test_a_look_at_one_name_is_a_look_at_all(w):
    w.run("B").write("f", "b")
    w.run("B").link("f", "g")
    w.run("A").read("g")
    w.run("A").write("f", "mine")
    assert not w.told()


def test_looks_go_along_to_a_new_name(w):
    w.run("A").read("f")
    w.run("B").link("f", "g")
    w.run("A").write("g", "mine")
    assert not w.told()


def test_a_rename_over_one_name_leaves_the_others(w):
    w.run("B").link("f", "g")
    w.run("A").read("f")
    w.run("B").replace("g", "b")
    w.run("A").write("f", "mine")
    assert not w.told()
    w.run("A").write("g", "mine")
    assert w.told() == {("A", "g", "stale_write", "B")}


def test_a_new_link_is_no_change_of_the_linked_file(w):
    w.run("A").read("f")
    w.run("B").link("f", "g")
    w.run("A").write("f", "mine")
    assert not w.told()


def test_deleting_a_link_that_a_sibling_made(w):
    w.run("B").link("f", "g")
    a = w.run("A")
    a.unlink("g"), a.end()
    assert w.told() == {("A", "g", "stale_write", "B"), ("B", "g", "reverted", "A")}


# -- names that are no text -------------------------------------------------------------------


def test_names_that_are_not_utf8_survive(w):
    path = b"caf\xe9/\xff\x00".rstrip(b"\x00")
    w.run("B").write(path, "b")
    w.run("A").write(path, "a")
    (warning,) = w.warnings("A")
    assert warning.path == path and "\\xe9" in warning.message


# -- what a rename carries, and what it leaves behind ----------------------------------


def test_whoever_was_replaced_unseen_goes_along_with_the_file(w):
    """A read f, B and a person changed it, the person gave it another name: A hears of B there."""
    w.run("A").read("f")
    w.run("B").write("f", "b's work")
    w.person().replace("f", "by hand")
    w.person().rename("f", "g")
    w.run("A").write("g", "mine")
    assert w.told() == {("A", "g", "stale_write", "B")}


def test_what_was_there_before_a_deletion_does_not_go_along_with_the_next_file(w):
    w.run("B").write("f", "b's work")
    w.run("B").unlink("f")
    w.person().write("f", "by hand")
    w.person().rename("f", "g")
    w.run("A").write("g", "mine")
    assert not w.told()


def test_what_came_with_a_rename_is_not_known_to_who_looked_before(w):
    """D's work came to f after A's process had read f: what A makes of it holds nothing of D's."""
    w.run("D").write("g", "d's work")
    a = w.run("A")
    a.read("f")
    w.person().rename("g", "f")
    a.write("f", "mine")
    w.news()
    c = w.run("C")
    c.read("f"), c.unlink("f"), c.end()
    assert w.news()[0] == {("A", "f", "reverted", "C")}


def test_moving_a_file_there_and_back_undoes_none_of_it(w):
    """D gave it a name, A gave it back: when B cuts off C's line, that is C's loss alone."""
    w.person().write("d/x", "line\n")
    w.run("D").rename("d/x", "k")
    w.run("C").append("k", "more\n")
    w.run("A").rename("k", "d/x")
    w.news()
    w.run("B").truncate("d/x", 5)
    assert {told for told in w.news()[0] if told[2] == "reverted"} == {
        ("C", "d/x", "reverted", "B"),
        ("A", "d/x", "reverted", "B"),
    }


def test_moving_away_and_back_is_nothing_though_another_file_had_the_name_in_between(w):
    w.run("B").write("f", "b's work")
    w.run("C").write("dx", "c's work")
    person = w.person()
    person.rename("f", "dx")
    person.rename("dx", "f")
    w.run("A").unlink("f")
    assert w.told() == {("A", "f", "stale_write", "B")}


def test_the_picture_goes_along_to_a_new_name(w):
    """A edits a file, moves it in its next command, and formats it there: B's change in between is news."""
    w.run("A").write("f", "mine")
    a = w.run("A")
    a.rename("f", "g")
    w.run("B").edit("g", "b's work")
    a.edit("g", "formatted")
    assert w.notes() == {("A", "g", "stale_view", "B")} and not w.told()


def test_a_siblings_file_that_somebody_moved_here_is_the_siblings(w):
    w.run("D").write("g", "d's work")
    w.run("C").write("f", "c's work")
    w.run("A").read("f")
    w.person("mv g f").rename("g", "f")
    w.run("A").write("f", "mine")
    assert w.told() == {("A", "f", "stale_write", "D")}


def test_what_was_seen_before_a_rename_is_no_news_after_it(w):
    w.run("B").write("f", "b's work")
    w.run("A").read("f")
    w.person().append("f", "by hand")
    w.person().rename("f", "g")
    w.run("A").write("g", "mine")
    assert w.told() == {("A", "g", "external_write", None)}


def test_moving_a_file_away_and_back_leaves_the_picture_as_old_as_it_was(w):
    w.run("A").write("f", "mine")
    w.person().write("f", "by hand")
    a = w.run("A")
    a.rename("f", "g"), a.rename("g", "f"), a.end()
    w.news()
    w.run("A").write("f", "mine again")
    assert w.news()[0] == {("A", "f", "external_write", None)}


def test_a_directory_moves_without_files_that_nobody_has_changed_or_looked_at(w):
    w.task("A")
    w.person().write("d/x", w.content("d/x"))  # the same bytes: no change, no look of a task
    w.run("D").rename("d", "d2")
    w.run("A").patch("d2/x", "a")
    assert not w.told()


def test_an_old_look_goes_along_though_somebody_else_has_looked_at_the_name(w):
    w.run("A").write("f", "mine")
    w.run("B").edit("f", "b's work")
    w.run("C").read("dx")
    b = w.run("B")
    b.rename("f", "dx"), b.end()
    w.run("A").edit("dx", "formatted")
    assert w.notes() == {("A", "dx", "stale_view", "B")}


@pytest.mark.parametrize("there", ["nothing", "a file", "a person's file"])
def test_an_old_look_goes_along_over_what_no_task_has_written(there):
    """What E once saw as f is called g now: its picture of that is old, whatever stood there."""
    w = World()
    w.file("f", "base")
    if there == "a file":
        w.file("g", "another")
    elif there == "a person's file":
        w.person().write("g", "another")
    w.run("E").read("f")
    w.run("C").edit("f", "c's work")
    c = w.run("C")
    c.rename("f", "g"), c.end()
    w.run("E").sed("g", lambda data: data + b"e's")
    assert w.notes() == {("E", "g", "stale_view", "C")}


@pytest.mark.parametrize("later", ["a", "z"])
def test_of_the_looks_at_the_names_of_a_file_the_latest_goes_to_a_further_one(w, later):
    """D wrote f, and later moved it: that look, by another command, is what it has of the new name."""
    first = w.run("D")
    first.write("f", "d's")
    w.run("C").link("f", "g")
    w.run("D").rename("f", later)
    w.run("C").link("g", "new")
    w.run("B").patch(later, "B")
    w.news()
    first.append(later, " more")
    assert ("D", "new", "stale_view", "B") in w.news()[1]
