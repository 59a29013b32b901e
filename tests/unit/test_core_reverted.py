"""`reverted`: what a victim is told when a sibling undid its work; and what counts as no change at all."""

import os

import pytest

from tests.kit.oracle_world import World


@pytest.fixture
def w() -> World:
    world = World()
    world.file("f", "old")
    world.file("other", "another")
    return world


def victims(w: World, path: str = "f") -> set[tuple[str, str | None]]:
    return {(t, s) for t, p, k, s in w.told() if k == "reverted" and p == path}


PUT_BACK = {
    "redirect": lambda p, data: p.write("f", data),
    "rename over": lambda p, data: p.replace("f", data),
    "git checkout": lambda p, data: p.checkout("f", data),
    "sed -i": lambda p, data: p.sed("f", lambda _: data),
}


@pytest.mark.parametrize("way", PUT_BACK)
@pytest.mark.parametrize("looked", [True, False])
def test_putting_back_an_earlier_content_is_told_to_the_victim(w, way, looked):
    w.run("A").write("f", "a's work")
    b = w.run("B", "git restore f")
    if looked:
        w.run("B", "git diff").read("f")
    PUT_BACK[way](b, b"old")
    b.end()
    assert victims(w) == {("A", "B")}
    (warning,) = [x for x in w.warnings("A") if x.kind == "reverted"]
    assert warning.sibling_command == "git restore f" and warning.severity == "conflict"
    assert "earlier content" in warning.message
    saw_it = looked or way == "sed -i"
    assert {k for t, _, k, _ in w.told() if t == "B"} == (set() if saw_it else {"stale_write"})


@pytest.mark.parametrize("way", PUT_BACK)
def test_new_content_is_no_revert(w, way):
    w.run("A").write("f", "a's work")
    b = w.run("B")
    b.read("f")
    PUT_BACK[way](b, b"b's own")
    b.end()
    assert not w.told()


WORK = {
    "redirect": lambda p: p.write("f", "a's work"),
    "append": lambda p: p.append("f", "a's work"),
    "in place": lambda p: p.patch("f", "A"),
    "rename over": lambda p: p.replace("f", "a's work"),
    "sed -i": lambda p: p.sed("f", bytes.upper),
    "git checkout": lambda p: p.checkout("f", "a's work"),
    "truncate": lambda p: p.truncate("f", 1),
}


@pytest.mark.parametrize("work", WORK)
def test_whatever_way_the_victim_wrote(w, work):
    a = w.run("A")
    WORK[work](a)
    a.end()
    w.run("B").read("f")
    w.run("B").write("f", "old")
    assert victims(w) == {("A", "B")}


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("way", ["delete", "move away"])
def test_deleting_what_the_victim_wrote(w, work, way):
    a = w.run("A")
    WORK[work](a)
    a.end()
    b = w.run("B", "git clean")
    b.read("f")
    b.unlink("f") if way == "delete" else b.rename("f", "g")
    b.end()
    assert victims(w) == {("A", "B")}
    (warning,) = w.warnings("A")
    assert ("moved away" if way == "move away" else "deleted") in warning.message


def test_the_deletion_of_what_nobody_wrote_is_silent(w):
    b = w.run("B")
    b.unlink("f"), b.end()
    assert not w.warnings()


def test_ones_own_deletion_and_restoration_are_silent(w):
    for _ in range(2):
        a = w.run("A")
        a.write("f", "new"), a.checkout("f", "old"), a.unlink("f"), a.end()
        a = w.run("A")
        a.write("f", "old"), a.end()
    assert not w.warnings()


def test_everybody_whose_work_was_between_is_told(w):
    w.run("A").append("f", " a")
    w.run("B").append("f", " b")
    w.run("C").read("f")
    w.run("C").write("f", "old")
    assert victims(w) == {("A", "C"), ("B", "C")}


@pytest.mark.parametrize("edit", ["sed -i", "formatter", "read, then write"])
def test_an_edit_keeps_the_work_of_others_in_the_file(w, edit):
    """C edits what A wrote; B then throws both away."""
    w.run("A").write("f", "old a")
    c = w.run("C")
    if edit == "sed -i":
        c.sed("f", lambda t: t + b" c")
    elif edit == "formatter":
        c.edit("f", "old a c")
    else:
        c.read("f")
        w.run("C").write("f", "old a c")
    w.run("B").read("f")
    b = w.run("B")
    b.unlink("f"), b.end()
    assert victims(w) == {("A", "B"), ("C", "B")}


def test_an_edit_keeps_it_also_when_the_old_content_is_put_back(w):
    w.run("A").write("f", "old a")
    w.run("C").sed("f", lambda t: t + b" c")
    w.run("B").read("f")
    w.run("B").write("f", "old")
    assert victims(w) == {("A", "B"), ("C", "B")}


def test_what_was_overwritten_unseen_before_is_not_deleted_again(w):
    w.run("A").write("f", "a")
    w.run("C").write("f", "c")  # unseen: C is told, A's work is gone from the file
    w.run("B").read("f")
    b = w.run("B")
    b.unlink("f"), b.end()
    assert victims(w) == {("C", "B")}


def test_what_was_emptied_knowingly_is_not_deleted_again(w):
    w.run("A").write("f", "a")
    w.run("C").read("f")
    w.run("C").truncate("f", 0)
    b = w.run("B")
    b.read("f"), b.unlink("f"), b.end()
    assert victims(w) == {("C", "B")}


def test_the_newest_earlier_content_decides(w):
    w.run("A").write("f", "a")
    w.run("B").edit("f", "old")  # A is told
    assert victims(w) == {("A", "B")}
    w.news()
    w.run("C").edit("f", "c")
    w.run("B").edit("f", "old")
    assert {x for x in w.news()[0] if x[2] == "reverted"} == {("C", "f", "reverted", "B")}


def test_work_that_was_moved_to_another_name_is_still_its_authors(w):
    w.run("A").write("g", "a's work")
    c = w.run("C")
    c.read("g"), c.rename("g", "f"), c.end()
    w.news()
    b = w.run("B")
    b.read("f"), b.unlink("f"), b.end()
    assert victims(w) == {("A", "B"), ("C", "B")}


def test_work_below_a_directory_that_moved_is_still_its_authors(w):
    w.run("A").write("d/x", "a's work")
    c = w.run("C")
    c.read("d/x"), c.rename("d", "e"), c.end()
    w.news()
    b = w.run("B")
    b.read("e/x"), b.unlink("e/x"), b.end()
    assert ("A", "B") in victims(w, "e/x")


def test_bringing_back_what_a_sibling_deleted_is_told_to_it(w):
    b = w.run("B")
    b.read("f"), b.unlink("f"), b.end()
    w.run("A").read("f")
    w.run("A").write("f", "old")
    assert victims(w) == {("B", "A")}


def test_a_lock_file_that_everybody_makes_and_removes_is_nobodys_loss(w):
    for t in "ABAB":
        p = w.run(t)
        p.write("lock", f"{t}"), p.end()
        p = w.run(t)
        p.unlink("lock"), p.end()
    assert not w.told()


def test_a_person_reverts_nobody(w):
    w.run("A").write("f", "a")
    p = w.person()
    p.write("f", "old"), p.unlink("f"), p.end()
    assert not w.told()


def test_a_parent_or_child_is_a_sibling_here(w):
    w.task("C", "P")
    w.run("P").write("f", "p")
    c = w.run("C")
    c.read("f"), c.write("f", "old")
    assert victims(w) == {("P", "C")}


def test_told_when_the_session_ends_not_before(w):
    w.run("A").write("f", "a")
    w.run("B").read("f")
    h = w.run("B").open("f", os.O_WRONLY | os.O_TRUNC)
    h.write("old")
    assert not victims(w)
    h.close()
    assert victims(w) == {("A", "B")}


def test_nothing_to_a_victim_whose_checks_are_off(w):
    w.guard.policies.set("off", task="A")
    w.run("A").write("f", "a")
    w.run("B").edit("f", "old")
    assert not w.told()


def test_under_block_the_restorer_goes_on_and_the_victim_hears():
    w = World(policy="block")
    w.file("f", "old")
    w.run("A").write("f", "a")
    w.run("B").read("f")
    w.run("B").write("f", "old")
    assert victims(w) == {("A", "B")}


# -- a deletion waits for what comes after ----------------------------------------------


def test_deleted_and_made_anew_by_one_command_is_a_replacement(w):
    w.run("A").write("f", "a")
    b = w.run("B")
    b.read("f"), b.unlink("f")
    assert not victims(w)
    b.fork().write("f", "b's version of it")
    b.end()
    assert not w.told()


def test_moved_away_and_made_anew_by_one_command_is_a_replacement(w):
    w.run("A").write("f", "a")
    vim = w.run("B")
    vim.read("f"), vim.rename("f", "f~"), vim.write("f", "b's version"), vim.unlink("f~"), vim.end()
    assert not w.told()


def test_moved_away_and_back_by_one_command_is_nothing(w):
    w.run("A").write("f", "a")
    b = w.run("B")
    b.read("f"), b.rename("f", "f.bak"), b.rename("f.bak", "f"), b.end()
    assert not w.told()


def test_deleted_and_replaced_by_rename_in_one_command_is_a_replacement(w):
    w.run("A").write("f", "a")
    b = w.run("B")
    b.read("f"), b.unlink("f"), b.write("tmp", "new"), b.rename("tmp", "f"), b.end()
    assert not w.told()


def test_deleted_by_one_command_and_made_by_another_stays_a_deletion(w):
    w.run("A").write("f", "a")
    b = w.run("B")
    b.read("f"), b.unlink("f")
    w.run("B").write("f", "anew")
    assert victims(w) == {("A", "B")}


def test_a_lone_process_is_judged_when_it_is_gone_or_a_second_later(w):
    w.run("A").write("f", "a"), w.run("A").write("other", "a")
    rm = w.bare("B", "rm f")
    rm.read("f"), rm.unlink("f")
    assert w.guard.settle(w.now, w.gone)
    assert not victims(w)
    rm.exit()
    assert not w.guard.settle(w.now, w.gone)
    assert victims(w) == {("A", "B")}
    slow = w.bare("B", "slow")
    slow.read("other"), slow.unlink("other")
    w.now += 1.1
    assert not w.guard.settle(w.now, w.gone)
    assert victims(w, "other") == {("A", "B")}


def test_a_run_that_goes_on_is_judged_three_seconds_later(w):
    w.run("A").write("f", "a")
    b = w.run("B")
    b.read("f"), b.unlink("f")
    w.now += 2
    assert w.guard.settle(w.now, w.gone) and not victims(w)
    w.now += 2
    assert not w.guard.settle(w.now, w.gone)
    assert victims(w) == {("A", "B")}


# -- no change at all --------------------------------------------------------------------

SAME = {
    "redirect": lambda p: p.write("f", "old"),
    "formatter": lambda p: p.edit("f", "old"),
    "rename over": lambda p: p.replace("f", "old"),
    "unlink and create": lambda p: p.checkout("f", "old"),
    "in place": lambda p: p.patch("f", "old"),
    "sed -i": lambda p: p.sed("f", lambda t: t),
    "copy aside and back": lambda p: (p.write("g", "old"), p.rename("g", "f")),
    "vim": lambda p: (p.rename("f", "f~"), p.write("f", "old"), p.unlink("f~")),
}


@pytest.mark.parametrize("way", SAME)
def test_a_sibling_that_writes_the_same_bytes_has_changed_nothing(w, way):
    w.run("A").read("f")
    b = w.run("B")
    SAME[way](b)
    b.end()
    w.run("A").write("f", "mine")
    assert not w.told()


@pytest.mark.parametrize("way", SAME)
def test_who_writes_the_bytes_that_are_there_unseen_is_not_told(w, way):
    w.run("B").write("f", "b"), w.run("B").write("f", "old")
    a = w.run("A")
    SAME[way](a)
    a.end()
    assert not w.told()


@pytest.mark.parametrize("way", [x for x in SAME if x != "in place"])
def test_writing_all_the_bytes_that_are_there_shows_that_one_knows_them(w, way):
    w.run("B").write("f", "b"), w.run("B").write("f", "old")
    a = w.run("A")
    SAME[way](a)
    a.end()
    w.run("A").write("f", "mine")
    assert not w.told()


def test_after_the_same_bytes_the_next_change_is_noticed(w):
    w.run("A").read("f")
    w.run("B").write("f", "old")
    w.run("B").write("f", "new")
    w.run("A").write("f", "mine")
    assert ("A", "f", "stale_write", "B") in w.told()


def test_a_file_too_large_to_compare_counts_as_changed():
    w = World()
    w.dispatch.digest_limit = 10
    w.file("f", "0123456789 and more")
    w.run("A").read("f")
    w.run("B").write("f", "0123456789 and more")
    w.run("A").write("f", "mine")
    assert w.told() == {("A", "f", "stale_write", "B")}


def test_a_withdrawn_warning_leaves_the_others_of_its_group(w):
    w.run("B").write("f", "b"), w.run("B").write("other", "b")
    a = w.run("A")
    a.write("f", "a"), a.write("other", "b")
    (warning,) = w.warnings("A")
    assert list(warning.paths) == [b"f"] and warning.count == 1 and "more path" not in warning.message


@pytest.mark.parametrize("content", ["", "same for all"])
def test_tasks_that_make_and_remove_the_same_file_in_turn_lose_nothing(w, content):
    for _ in range(3):
        for task in ("A", "B"):
            run = w.run(task)
            run.write("lock", content)
            run.fork().unlink("lock")
            run.end()
    assert w.told() == set()


def test_what_somebody_else_had_deleted_is_its_authors_loss_when_it_goes_again(w):
    w.run("A").write("new", "a")
    one = w.run("B")
    one.read("new")
    one.unlink("new")
    one.end()
    two = w.run("C")
    two.checkout("new", "a")
    two.end()
    three = w.run("B")
    three.read("new")
    three.unlink("new")
    three.end()
    assert sum(1 for x in w.warnings("A") if str(x.kind) == "reverted") == 2


def test_what_its_author_deleted_and_a_sibling_brought_back_is_no_more_the_authors(w):
    w.run("B").write("f", "b's work")
    b = w.run("B")
    b.unlink("f"), b.end()
    w.run("A").write("f", "b's work")
    d = w.run("D")
    d.unlink("f"), d.end()
    assert ("B", "D") not in victims(w) and ("A", "D") in victims(w)


def test_work_undone_by_one_sibling_is_not_undone_by_the_next_one_again(w):
    w.run("D").write("f", "d's work")
    w.run("A").append("f", " and a's")
    c = w.run("C")
    c.read("f"), c.write("f", "d's work"), c.end()
    d = w.run("D")
    d.read("f"), d.write("f", "old"), d.end()
    assert victims(w) == {("A", "C"), ("C", "D")}


def test_what_its_author_made_anew_is_its_loss_when_it_goes(w):
    """B's second process replaced the file by unlink and create: that is no giving up."""
    w.task("C")  # a task that is alone need not be remembered so well
    w.run("B").write("f", "b's work")
    b = w.run("B")
    b.read("f"), b.checkout("f", "b's work and more"), b.end()
    w.run("C").truncate("f", len("b's work"))
    d = w.run("D")
    d.unlink("f"), d.end()
    assert victims(w) == {("B", "C"), ("B", "D"), ("C", "D")}


def test_what_a_rename_brings_is_in_it_though_the_name_held_the_same_before(w):
    w.task("C")  # B is not alone: what it deletes is remembered
    w.run("B").write("g", "the same")
    w.run("B").unlink("g")
    w.run("B").write("f", "the same")
    a = w.run("A")
    a.read("f"), a.rename("f", "g"), a.end()
    c = w.run("C")
    c.read("g"), c.unlink("g"), c.end()
    assert ("B", "C") in victims(w, "g")


def test_who_read_half_of_a_run_of_writes_keeps_no_more_than_that_half(w):
    """C wrote from B's first content, the second was gone then: D, who puts the first back, undoes C's."""
    b, c = w.run("B"), w.run("C")
    b.write("f", "one")
    c.read("f")
    b.write("f", "two")
    c.write("f", "one and c's")
    d = w.run("D")
    d.read("f"), d.write("f", "one")
    assert victims(w) == {("C", "D")}


def test_what_takes_the_place_of_a_file_is_not_its_makers_own_file(w):
    """A replaced f and then deleted it: who brings it back undoes that."""
    w.run("A").replace("f", "a's work")
    a = w.run("A")
    a.unlink("f"), a.end()
    b = w.run("B")
    b.write("f", "old"), b.end()
    assert victims(w) == {("A", "B")}


@pytest.mark.parametrize("there", [True, False])
def test_a_name_that_a_command_gives_and_takes_is_nobodys_loss(w, there):
    if there:
        w.file("g", "another")
    w.run("B").write("f", "b's work")
    a = w.run("A")
    a.read("f"), a.read("g")
    a.rename("f", "g"), a.rename("g", "h"), a.end()
    assert victims(w, "f") == {("B", "A")} and not victims(w, "g")


@pytest.mark.parametrize("way", ["filled anew", "moved"])
def test_nothing_is_left_in_a_file_that_was_emptied(w, way):
    w.run("B").write("f", "b's work")
    a = w.run("A")
    a.read("f"), a.truncate("f", 0), a.end()
    if way == "filled anew":
        w.run("A").write("f", "a's work")
    else:
        w.run("A").rename("f", "g")
    w.news()
    name = "f" if way == "filled anew" else "g"
    c = w.run("C")
    c.read(name), c.unlink(name), c.end()
    assert w.news()[0] == {("A", name, "reverted", "C")}


def test_a_program_that_empties_a_file_and_fills_it_keeps_what_it_had_read(w):
    """Python's open(…, "r+"), read, truncate, write; or a shell that empties it for its child."""
    w.run("B").write("f", "b's work")
    a = w.run("A")
    a.read("f"), a.truncate("f", 0)
    a.fork().patch("f", "b's work and a's"), a.end()
    c = w.run("C")
    c.read("f"), c.unlink("f"), c.end()
    assert victims(w) == {("A", "C"), ("B", "C")}


def test_what_was_put_back_twice_undoes_nothing_the_second_time(w):
    """B had put the old bytes back already, when D, in the moved directory's place, writes them again."""
    w.file("d/x", "old")
    w.run("C").write("d/x", "c's work")
    b = w.run("B")
    b.read("d/x"), b.write("d/x", "old"), b.end()
    w.news()
    d = w.run("D")
    d.read("d/x"), d.rename("d", "d2"), d.write("d/x", "old"), d.end()
    assert w.news()[0] == set()


def test_who_makes_a_file_anew_and_moves_it_away_has_not_made_the_first_one(w):
    """A moved the directory away and made f again in its place: it was a person's f that A replaced."""
    w.person().write("d/f", "a person's")
    a = w.run("A")
    a.rename("d", "d2"), a.fork().write("d/f", "a's work")
    a.rename("d/f", "f2"), a.rename("f2", "f3"), a.end()
    b = w.run("B")
    b.write("f2", "a's work"), b.end()
    assert victims(w, "f2") == {("A", "B")}


@pytest.mark.parametrize("read", [True, False])
def test_an_editor_keeps_what_came_into_a_file_that_it_had_read(w, read):
    """It read the file when nobody on record had written it; what it changed in place it knows."""
    editor = w.person()
    if read:
        editor.read("f")
    w.run("A").append("f", " and a's")
    editor.patch("f", "O"), editor.write("f", "Old and a's, edited"), editor.end()
    b = w.run("B")
    b.read("f"), b.unlink("f"), b.end()
    assert victims(w) == ({("A", "B")} if read else set())


@pytest.mark.parametrize("since", ["deleted", "another directory"])
def test_an_editor_has_not_read_what_has_another_name_since(w, since):
    w.file("d/x", "old")
    editor = w.person()
    editor.read("d/x")
    if since == "deleted":
        editor.unlink("d/x"), editor.write("d/x", "anew")
    else:
        w.file("e/x", "old")
        w.run("C").rename("d", "c"), w.run("C").rename("e", "d")
    w.run("A").append("d/x", " and a's")
    editor.patch("d/x", "O"), editor.write("d/x", "Old and a's, edited"), editor.end()
    w.news()
    b = w.run("B")
    b.read("d/x"), b.unlink("d/x"), b.end()
    assert victims(w, "d/x") == set()


def long_then_other(w: World) -> None:
    """B makes three contents in one run, the second from a part of the first."""
    b = w.run("B")
    b.write("f", "long one"), b.truncate("f", 4), b.write("f", "other"), b.end()


def test_what_its_author_took_back_itself_is_not_taken_back_by_a_sibling(w):
    long_then_other(w)
    w.run("A").write("f", "long one")
    assert victims(w) == {("B", "A")}
    w.news()
    w.run("C").truncate("f", 4)
    assert {x for x in w.news()[0] if x[2] == "reverted"} == {("A", "f", "reverted", "C")}


def test_the_same_of_a_content_that_was_made_from_it_and_put_back(w):
    long_then_other(w)
    w.run("A").edit("f", "long one")
    w.run("A").edit("f", "long one, edited")
    w.run("C").edit("f", "c's")
    w.run("C").edit("f", "long one, edited")
    w.news()
    w.run("D").edit("f", "long")
    assert {x for x in w.news()[0] if x[2] == "reverted"} == {(t, "f", "reverted", "D") for t in "AC"}


@pytest.mark.parametrize("back", ["at once", "after its first content", "after an edit", "moved"])
def test_all_that_a_run_of_writes_left_is_lost_with_its_last_content(w, back):
    """C puts B's last content back; what D throws away is B's again."""
    long_then_other(w)
    if back != "at once":
        w.run("A").edit("f", "long one")
    if back == "after an edit":
        w.run("A").edit("f", "long one, edited")
    if back == "at once":
        w.run("C").edit("f", "c's")
    w.run("C").edit("f", "other")
    name = "f"
    if back == "moved":
        c, name = w.run("C"), "g"
        c.read("f"), c.rename("f", "g"), c.end()
    w.news()
    w.run("D").edit(name, "long")
    assert {x for x in w.news()[0] if x[2] == "reverted"} == {(t, name, "reverted", "D") for t in "BC"}


def test_what_its_author_moved_away_and_a_sibling_moved_back_is_still_its_authors(w):
    """B moved it, which is a deletion of the name; with the file it is there again, and not given up."""
    w.run("B").write("f", "b's work")
    b = w.run("B")
    b.rename("f", "g"), b.end()
    c = w.run("C")
    c.read("g"), c.rename("g", "f"), c.end()
    w.run("A").edit("f", "a's")
    w.run("C").edit("f", "b's work")
    w.news()
    d = w.run("D")
    d.read("f"), d.unlink("f"), d.end()
    assert ("B", "f", "reverted", "D") in w.news()[0]
