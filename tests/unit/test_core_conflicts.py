"""What a task is told when it overwrites: stale_write, lost_update, external_write, and their limits."""

import os

import pytest

from fsguard.core.guard import Limits
from fsguard.observer import Removed
from tests.kit.oracle_world import Proc, World

WAYS = {
    "redirect": lambda p: p.write("f", "mine"),
    "rename over": lambda p: p.replace("f", "mine"),
    "unlink and create": lambda p: p.checkout("f", "mine"),
    "in place": lambda p: p.patch("f", "M"),
    "truncate to nothing": lambda p: p.truncate("f", 0),
    "truncate to a part": lambda p: p.truncate("f", 1),
    "truncate to more": lambda p: p.truncate("f", 100),
    "delete": lambda p: p.unlink("f"),
    "move away": lambda p: p.rename("f", "g"),
    "exchange": lambda p: p.exchange("f", "other"),
}


@pytest.fixture
def w() -> World:
    world = World()
    world.file("f")
    world.file("other", "another")
    return world


def kinds(w: World, task: str = "A", path: str = "f") -> list[str]:
    """Conflicts of a task over a path, but what it hears as a victim."""
    return sorted(k for t, p, k, _ in w.told() if t == task and p == path and k != "reverted")


# -- stale_write ---------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_whoever_read_before_a_sibling_wrote_is_told(w, way):
    w.run("A").read("f")
    w.run("B").write("f", "theirs")
    WAYS[way](w.run("A"))
    assert kinds(w) == ["stale_write"]
    (warning,) = [x for x in w.warnings("A") if x.path == b"f"]
    assert (warning.sibling, warning.sibling_command, warning.severity) == ("B", "work of B", "conflict")
    assert warning.read_time is not None and warning.read_time < (warning.sibling_time or 0) < warning.time


@pytest.mark.parametrize("way", WAYS)
def test_whoever_never_read_what_a_sibling_wrote_is_told(w, way):
    w.run("B").write("f", "theirs")
    WAYS[way](w.run("A"))
    assert kinds(w) == ["stale_write"]
    (warning,) = [x for x in w.warnings("A") if x.path == b"f"]
    assert warning.read_time is None
    assert "never read" in warning.message


@pytest.mark.parametrize("way", WAYS)
def test_whoever_has_seen_it_is_not_told(w, way):
    w.run("B").write("f", "theirs")
    w.run("A").read("f")
    WAYS[way](w.run("A"))
    assert kinds(w) == []


@pytest.mark.parametrize("way", WAYS)
def test_the_first_write_to_a_path_nobody_touched_is_silent(w, way):
    WAYS[way](w.run("A"))
    assert not w.warnings()


@pytest.mark.parametrize("theirs", [x for x in WAYS if x not in ("delete", "move away")])
def test_every_way_a_sibling_can_write_counts(w, theirs):
    w.run("A").read("f")
    WAYS[theirs](w.run("B"))
    w.run("A").write("f", "mine too")
    assert kinds(w) == ["stale_write"]


def test_a_siblings_append_is_a_version_too(w):
    w.run("A").read("f")
    w.run("B").append("f", "theirs")
    w.run("A").write("f", "mine")
    assert kinds(w) == ["stale_write"]


def test_it_is_on_record_before_a_byte_is_gone(w):
    w.run("B").write("f", "theirs")
    p = w.run("A")
    session = w.wait(w.dispatch.open(p.caller, w.tree[b"f"], os.O_WRONLY | os.O_TRUNC))
    assert kinds(w) == ["stale_write"] and w.content("f") == b"theirs"
    session.aborted()
    assert w.guard.ledger.find(b"f").writers[-1].author == "B"  # nothing happened: nothing moved


def test_a_system_call_that_fails_leaves_the_ledger_as_it_was(w):
    w.run("B").write("f", "theirs")
    before = w.guard.ledger.find(b"f").version
    p = w.run("A")
    inode = w.tree[b"f"]
    with pytest.raises(PermissionError), w.dispatch.changing(p.caller, Removed(b"f", inode)):
        raise PermissionError
    state = w.guard.ledger.find(b"f")
    assert state.version == before and not state.absent
    w.run("A").read("f")
    w.run("A").write("f", "x")
    assert len(w.warnings("A")) == 1


def test_several_writers_are_named_the_newest_first(w):
    w.run("A").read("f")
    w.run("B", "b's tool").write("f", "1")
    c = w.run("C", "c's tool")
    c.read("f"), c.write("f", "2")
    w.run("A").write("f", "3")
    (warning,) = w.warnings("A")
    assert warning.sibling == "C" and warning.sibling_command == "c's tool"
    assert 'task "C"' in warning.message and 'task "B"' in warning.message


def test_many_writers_are_counted(w):
    w.run("A").read("f")
    for i in range(7):
        p = w.run(f"B{i}")
        p.read("f"), p.write("f", f"{i}")
    w.run("A").write("f", "x")
    (warning,) = w.warnings("A")
    assert warning.sibling == "B6" and "more" in warning.message


def test_a_sibling_that_ended_is_still_named_and_said_to_have_ended(w):
    w.run("A").read("f")
    w.run("B").write("f", "theirs")
    w.guard.task_ended(w.task("B"), w.step())
    w.run("A").write("f", "mine")
    (warning,) = w.warnings("A")
    assert "ended" in warning.message and warning.sibling == "B"


def test_own_consecutive_writes_are_silent_in_every_way(w):
    for name in ("redirect", "in place", "rename over", "unlink and create", "redirect", "truncate to more"):
        WAYS[name](w.run("A"))
    w.run("A").append("f", "x")
    w.run("A").unlink("f")
    w.run("A").write("f", "again")
    assert not w.warnings()


def test_siblings_that_only_read_are_silent(w):
    for t in "ABC":
        w.run(t).read("f")
    w.run("A").write("f", "mine")
    w.run("B").read("f")
    w.run("A").write("f", "mine again")
    assert not w.warnings()


def test_opening_for_writing_without_writing_is_no_change(w):
    w.run("B").write("f", "theirs")
    p = w.run("A")
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND):
        p.open("f", flags).close()
    assert not w.warnings()
    w.run("B").write("f", "theirs 2")
    assert not w.warnings()


def test_truncating_an_empty_file_is_no_change(w):
    w.run("B").write("f", "")
    w.run("A").open("f", os.O_WRONLY | os.O_TRUNC).close()
    w.run("A").truncate("f", 0)
    assert not kinds(w)


def test_a_write_that_fails_is_no_change(w):
    w.run("B").write("f", "theirs")
    h = w.run("A").open("f", os.O_WRONLY)
    h.session.writing(h.proc.tid, 0, b"mine")
    assert kinds(w) == ["stale_write"]
    h.close()  # the disk was full: nothing landed
    assert not kinds(w)
    w.run("B").write("f", "theirs 2")
    assert not w.told()


def test_read_write_without_a_read_is_no_look(w):
    w.run("B").write("f", "theirs")
    w.run("A").open("f", os.O_RDWR).close()
    w.run("A").write("f", "mine")
    assert kinds(w) == ["stale_write"]


def test_read_write_is_a_look_once_a_read_is_seen(w):
    w.run("B").write("f", "theirs")
    h = w.run("A").open("f", os.O_RDWR)
    h.read(), h.close()
    w.run("A").write("f", "mine")
    assert not kinds(w)


def test_what_counts_is_the_time_of_the_write_not_of_the_open(w):
    late = w.run("B").open("f", os.O_RDWR)
    w.now += 10
    w.run("A").read("f")
    late.write("B", 0)
    late.close()
    w.run("A").write("f", "mine")
    assert kinds(w) == ["stale_write"]


def test_a_handle_opened_for_reading_looks_when_its_bytes_are_taken(w):
    h = w.run("A").open("f")
    w.run("B").write("f", "theirs")
    assert h.read() == b"theirs"
    h.close()
    w.run("A").write("f", "mine")
    assert not kinds(w)


def test_stat_and_listing_are_no_look(w):
    w.run("B").write("f", "theirs")
    assert w.run("A").stat("f")
    w.run("A").write("f", "mine")
    assert kinds(w) == ["stale_write"]


# -- told once, cleared by a look ----------------------------------------------------


def test_a_task_that_overwrote_after_a_warning_is_not_told_again(w):
    w.run("A").read("f")
    w.run("B").write("f", "theirs")
    w.run("A").write("f", "1")
    w.news()
    w.run("A").write("f", "2")
    w.run("A").replace("f", "3")
    w.run("A").patch("f", "4")
    assert w.news() == (set(), set())


def test_a_read_clears_it_for_that_version_only(w):
    w.run("B").write("f", "1")
    w.run("A").read("f")
    w.run("A").write("f", "2")
    assert not kinds(w)
    b = w.run("B")
    b.read("f"), b.write("f", "3")
    w.run("A").write("f", "4")
    assert kinds(w) == ["stale_write"]


def test_the_clearing_sequence_of_the_field(w):
    w.run("A").read("f")
    w.run("B").write("f", "b")
    w.run("A").write("f", "1")
    assert list(w.news()[0]) == [("A", "f", "stale_write", "B")]
    w.run("A").write("f", "2")
    b = w.run("B")
    b.read("f"), b.write("f", "b2")
    w.run("A").read("f")
    w.run("A").write("f", "3")
    assert not w.news()[0]


def test_reading_inside_a_run_renews_the_tasks_look(w):
    w.run("A").read("f")
    w.run("B").write("f", "theirs")
    a = w.run("A")
    a.fork().read("f")
    a.fork().write("f", "mine")
    assert not kinds(w)


# -- lost_update ---------------------------------------------------------------------


def test_a_process_that_writes_from_an_old_copy_is_told_whatever_its_task_has_seen(w):
    a = w.run("A")
    a.read("f")
    w.run("B").write("f", "theirs")
    w.run("A").read("f")  # a parallel command of the same task has seen it
    a.write("f", "mine")
    assert w.told() == {("A", "f", "lost_update", "B")}
    (warning,) = w.warnings("A")
    assert "old copy" in warning.message


@pytest.mark.parametrize("way", [x for x in WAYS if x not in ("delete", "move away", "unlink and create")])
def test_a_lost_update_by_any_kind_of_write(w, way):
    a = w.run("A")
    a.read("f")
    w.run("B").write("f", "theirs")
    WAYS[way](a)
    assert kinds(w) == ["lost_update"]


def test_parallel_commands_of_one_task_lose_updates_too(w):
    one, two = w.run("A", "one"), w.run("A", "two")
    one.read("f"), two.read("f")
    two.write("f", "2")
    one.write("f", "1")
    assert w.told() == {("A", "f", "lost_update", "A")}
    (warning,) = w.warnings("A")
    assert warning.sibling_command == "two"


@pytest.mark.parametrize("policy", ["warn", "block"])
def test_an_update_is_lost_by_unlink_and_create_too(policy):
    """It is told, never refused: the file is gone by then."""
    w = World(policy=policy)
    w.file("f")
    one, two = w.run("A", "one"), w.run("A", "two")
    one.read("f"), two.read("f")
    two.write("f", "2")
    one.checkout("f", "1")
    assert w.told() == {("A", "f", "lost_update", "A")}
    assert w.content("f") == b"1"


def test_whoever_only_deletes_what_a_parallel_command_wrote_loses_no_update(w):
    one, two = w.run("A", "one"), w.run("A", "two")
    one.read("f"), two.read("f")
    two.write("f", "2")
    one.unlink("f")
    two.write("f", "3")
    assert not kinds(w)


def test_processes_of_one_command_do_not(w):
    a = w.run("A")
    one, two = a.fork(), a.fork()
    one.read("f"), two.read("f")
    two.write("f", "2")
    one.write("f", "1")
    assert not w.warnings()


def test_a_child_process_is_ones_own_work_even_as_a_command_of_its_own(w):
    shell = w.bare("A", "bash")
    shell.read("f")
    shell.fork("fmt f").edit("f", "formatted")
    shell.write("f", "mine")
    assert not w.warnings()


def test_parallel_processes_with_an_exported_task_are_parallel_commands(w):
    one, two = w.bare("A"), w.bare("A")
    one.read("f"), two.read("f")
    two.write("f", "2")
    one.write("f", "1")
    assert w.told() == {("A", "f", "lost_update", "A")}


@pytest.mark.parametrize("writer", ["child", "grandchild"])
def test_never_between_ancestor_and_descendant(w, writer):
    w.task("child", "A"), w.task("grandchild", "child")
    a = w.run("A")
    a.read("f")
    w.run(writer).edit("f", "theirs")
    w.run("A").read("f")  # the task has seen it, this process has not
    a.write("f", "mine")
    assert not kinds(w)


def test_a_childs_work_is_a_siblings_to_a_parent_that_has_not_seen_it(w):
    w.task("C", "P")
    w.run("P").read("f")
    w.run("C").edit("f", "theirs")
    w.run("P").write("f", "mine")
    assert w.told() == {("P", "f", "stale_write", "C")}


def test_a_shell_knows_what_its_own_child_has_read(w):
    shell = w.run("A")
    shell.read("f")
    w.run("B").write("f", "theirs")
    shell.fork().read("f")  # text=$(cat f)
    shell.write("f", "mine")
    assert not kinds(w)


def test_a_lost_update_is_told_once(w):
    a = w.run("A")
    a.read("f")
    w.run("B").write("f", "theirs")
    a.write("f", "1")
    w.news()
    a.write("f", "2")
    assert w.news() == (set(), set())


def test_a_process_that_read_again_is_not_told(w):
    a = w.run("A")
    a.read("f")
    w.run("B").write("f", "theirs")
    a.read("f"), a.write("f", "mine")
    assert not kinds(w)


# -- external_write ------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_a_persons_change_is_told_to_a_task_that_has_looked(w, way):
    w.run("A").read("f")
    w.person("vim f").write("f", "typed")
    WAYS[way](w.run("A"))
    told = [(k, s) for t, p, k, s in w.told() if p == "f"]
    assert told == [("external_write", None)]
    (warning,) = [x for x in w.warnings("A") if x.path == b"f"]
    assert "pid" in warning.message and "task" not in warning.message.replace("no task", "")
    assert warning.sibling_command == "vim f"


def test_a_persons_change_is_nothing_to_a_task_that_never_looked(w):
    w.person().write("f", "typed")
    w.run("A").write("f", "mine")
    assert not w.warnings()


def test_a_person_is_never_told_anything(w):
    w.run("A").write("f", "1")
    vim = w.person()
    vim.read("f"), vim.write("f", "2"), vim.unlink("f"), vim.write("f", "3")
    assert not w.warnings()


def test_a_sibling_and_a_person_the_sibling_is_named(w):
    w.run("A").read("f")
    w.run("B").patch("f", "X", 0)
    w.person().patch("f", "Y", 1)
    w.run("A").write("f", "mine")
    assert w.told() == {("A", "f", "stale_write", "B")}


def test_a_person_recreated_what_the_task_saw(w):
    w.run("A").read("f")
    w.person("rm f").unlink("f")
    w.run("A").write("f", "mine")
    assert w.told() == {("A", "f", "external_write", None)}


# -- resurrected ---------------------------------------------------------------------

MAKING = {
    "redirect": lambda p: p.write("f", "again"),
    "append": lambda p: p.append("f", "again"),
    "rename": lambda p: p.rename("other", "f"),
    "link": lambda p: p.link("other", "f"),
    "symlink": lambda p: p.symlink("f"),
}


@pytest.mark.parametrize("way", MAKING)
def test_making_anew_what_a_sibling_deleted_since_it_was_seen(w, way):
    w.run("A").read("f")
    w.run("B").unlink("f")
    MAKING[way](w.run("A"))
    assert w.told() == {("A", "f", "resurrected", "B")}


@pytest.mark.parametrize("way", MAKING)
def test_making_what_was_never_seen_is_silent(w, way):
    w.run("B").unlink("f")
    MAKING[way](w.run("A"))
    assert not w.told()


def test_moving_away_is_a_deletion(w):
    w.run("A").read("f")
    w.run("B").rename("f", "g")
    w.run("A").write("f", "again")
    assert w.told() == {("A", "f", "resurrected", "B")}


def test_a_failed_read_is_a_look_at_nothing(w):
    w.run("A").read("f")
    w.run("B").unlink("f")
    assert w.run("A").read("f") is None
    w.run("A").write("f", "again")
    assert not w.told()


def test_a_stat_of_nothing_is_no_look(w):
    w.run("A").read("f")
    w.run("B").unlink("f")
    assert not w.run("A").stat("f")
    w.run("A").write("f", "again")
    assert w.told() == {("A", "f", "resurrected", "B")}


def test_what_it_saw_absent_last_may_be_made(w):
    w.run("A").read("f")
    w.run("A").unlink("f")
    b = w.run("B")
    b.write("f", "b"), b.unlink("f")
    w.run("A").write("f", "again")
    assert not [x for x in w.told() if x[2] == "resurrected"]


def test_the_resurrection_is_told_once(w):
    w.run("A").read("f")
    w.run("B").unlink("f")
    w.run("A").write("f", "1")
    w.news()
    w.run("A").unlink("f")
    w.run("A").write("f", "2")
    assert "resurrected" not in {x[2] for x in w.news()[0]}


def test_deleted_and_made_anew_by_the_sibling_is_a_stale_write(w):
    w.run("A").read("f")
    b = w.run("B")
    b.unlink("f"), b.write("f", "two"), b.end()
    w.run("A").write("f", "three")
    assert kinds(w) == ["stale_write"]


# -- policies, ignored paths, programs that lock for themselves ------------------------


def refused(p: Proc, act) -> OSError:
    with pytest.raises(OSError) as e:
        act(p)
    return e.value


@pytest.mark.parametrize("way", WAYS)
def test_block_refuses_before_any_byte_changes_with_the_same_text_until_a_look(way):
    w = World(policy="block")
    w.file("f"), w.file("other", "another")
    w.run("A").read("f")
    w.run("B").edit("f", "theirs")
    one, two = (refused(w.run("A", "tool"), WAYS[way]) for _ in range(2))
    assert w.content("f") == b"theirs"
    assert one.errno == two.errno == 16 and one.strerror == two.strerror
    assert "refused" in one.strerror and "Read f first" in one.strerror
    w.run("A").read("f")
    WAYS[way](w.run("A"))


def test_block_refuses_to_resurrect_and_a_failed_read_clears_it():
    w = World(policy="block")
    w.file("f")
    w.run("A").read("f")
    w.run("B").unlink("f")
    assert refused(w.run("A"), lambda p: p.write("f", "x")).errno == 16
    assert refused(w.run("A"), lambda p: p.append("f", "x")).errno == 16
    w.run("A").read("f")
    w.run("A").write("f", "x")


def test_block_is_cleared_for_a_link_by_reading_it():
    w = World(policy="block")
    w.run("B").symlink("l", "v1")
    with pytest.raises(OSError, match="See where l leads") as first:
        w.run("A", "rm l").unlink("l")
    with pytest.raises(OSError) as again:
        w.run("A", "rm l").unlink("l")
    assert str(first.value) == str(again.value)
    assert w.run("A").readlink("l") == b"v1"
    w.run("A", "rm l").unlink("l")
    assert w.content("l") is None


def test_block_does_not_refuse_notes_nor_reads():
    w = World(policy="block")
    w.file("f")
    w.run("A").read("f")
    w.run("B").edit("f", "theirs")
    w.run("A").append("f", "more")
    w.run("A").sed("f", bytes.upper)
    assert w.run("A").read("f")


def test_policies_for_a_task_and_for_a_path():
    w = World()
    for f in ("a.txt", "b.md", "c.txt"):
        w.file(f)
    w.guard.policies.set("off", path="*.md")
    w.guard.policies.set("block", task="S")
    for f in ("a.txt", "b.md", "c.txt"):
        w.run("B").write(f, "theirs")
    w.run("A").write("a.txt", "x")
    w.run("A").write("b.md", "x")
    assert w.told() == {("A", "a.txt", "stale_write", "B")}
    assert refused(w.run("S"), lambda p: p.write("c.txt", "x")).errno == 16
    w.guard.policies.set("warn", task="S")
    w.run("S").write("c.txt", "x")


def test_off_says_nothing_but_remembers():
    w = World(policy="off")
    w.file("f")
    w.run("A").read("f")
    w.run("B").write("f", "theirs")
    w.run("A").write("f", "mine")
    assert not w.warnings()
    w.guard.policies.set("warn")
    w.run("B").write("f", "theirs 2")
    assert w.told() == {("B", "f", "stale_write", "A")}


def test_a_disabled_command_is_told_nothing_but_its_work_counts(w):
    w.run("B").write("f", "theirs")
    p = w.run("A")
    p.actor.disabled = True
    p.write("f", "mine")
    assert not w.warnings()
    w.run("B").write("f", "theirs 2")
    assert w.told() == {("B", "f", "stale_write", "A")}


@pytest.mark.parametrize(
    "path",
    [
        ".git/index",
        "node_modules/x/y.js",
        "a/__pycache__/m.pyc",
        "target/o",
        ".venv/b",
        "f~",
        ".f.swp",
        "4913",
    ],
)
def test_ignored_paths(path):
    w = World()
    w.run("B").write(path, "theirs")
    w.run("A").write(path, "mine")
    w.run("B").unlink(path)
    w.run("A").write(path, "mine")
    assert not w.warnings()
    assert w.guard.ledger.find(path.encode()) is None


def test_a_rename_is_ignored_only_if_both_names_are(w):
    w.run("B").edit("f", "theirs")
    vim = w.run("A", "vim f")
    vim.rename("f", "f~")
    assert kinds(w) == ["stale_write"]
    vim.unlink("f~")
    vim.end()
    assert ("B", "f", "reverted", "A") in w.told()


def test_renaming_an_ignored_name_over_a_file_is_a_write(w):
    w.run("A").read("f")
    b = w.run("B", "ed")
    b.write("f~", "theirs"), b.rename("f~", "f")
    w.run("A").write("f", "mine")
    assert kinds(w) == ["stale_write"]


def test_what_the_repository_ignores_gives_notes_at_most():
    w = World(policy="block")
    w.facts.ignored.add(b"dist/app.js")
    w.file("dist/app.js")
    w.run("A").read("dist/app.js")
    w.run("B").write("dist/app.js", "built by b")
    w.run("A").write("dist/app.js", "built by a")
    assert not w.told() and w.notes() == {("A", "dist/app.js", "stale_write", "B")}
    w.run("B").unlink("dist/app.js")
    assert not w.told()


def test_a_file_that_programs_lock_for_themselves_gives_no_conflict_in_place(w):
    w.facts.locking.add(b"f")
    w.run("A").read("f")
    w.run("B").patch("f", "X")
    w.run("A").patch("f", "Y")
    assert not w.warnings()
    w.run("B").patch("f", "Z")
    w.run("A").replace("f", "new")
    assert kinds(w) == ["stale_write"], "replacing such a file is judged as ever"


def test_once_seen_locked_it_stays_so(w):
    w.facts.locking.add(b"f")
    w.run("B").patch("f", "X")
    w.run("A").patch("f", "Y")
    w.facts.locking.clear()
    w.run("B").patch("f", "Z")
    assert not w.warnings()


# -- inherited descriptors, mappings ---------------------------------------------------


def test_a_write_through_an_inherited_descriptor_is_the_writers(w):
    w.run("B").write("f", "theirs")
    outer = w.person("sh")
    h = outer.open("f", os.O_WRONLY | os.O_TRUNC)
    h.write("x", by=w.run("A"))
    h.close()
    assert w.guard.ledger.find(b"f").writers[-1].author == "A"


def test_a_mapping_that_is_flushed_belongs_to_who_opened_it(w):
    w.run("B").write("f", "theirs")
    h = w.run("A").open("f", os.O_RDWR)
    h.write("M", 0, tid=0)
    h.close()
    assert kinds(w) == ["stale_write"]


def test_the_same_bytes_in_place_are_no_change(w):
    w.run("A").read("f")
    w.run("B").patch("f", "base")
    w.run("A").write("f", "mine")
    assert not w.warnings()


# -- bulk commands and partial looks ----------------------------------------------------


def many(w: World, n: int) -> list[str]:
    names = [f"d/{i}" for i in range(n)]
    for n_ in names:
        w.file(n_, "x" + n_)
    return names


def test_a_command_that_reads_very_many_files_is_no_look_of_the_agent():
    w = World(limits=Limits(bulk_files=20))
    names = many(w, 21)
    for n in names:
        w.run("B").write(n, "theirs" + n)
    grep = w.run("A", "grep -r")
    for n in names:
        grep.fork().read(n)
    w.run("A").write(names[0], "mine")
    w.run("A").write(names[-1], "mine")
    assert {p for _, p, _, _ in w.told()} == {names[0], names[-1]}


def test_up_to_the_limit_it_is_a_look():
    w = World(limits=Limits(bulk_files=20))
    names = many(w, 20)
    for n in names:
        w.run("B").write(n, "theirs" + n)
    cat = w.run("A", "cat")
    for n in names:
        cat.read(n)
        cat.read(n)  # the same again is not another file
    w.run("A").write(names[0], "mine")
    assert not w.told()


def test_a_bulk_formatter_that_read_what_it_writes_is_no_conflict():
    w = World(limits=Limits(bulk_files=20))
    names = many(w, 30)
    for n in names:
        w.run("B").write(n, "theirs" + n)
    fmt = w.run("A", "fmt .")
    for n in names:
        fmt.edit(n, "formatted" + n)
    assert not w.told()


def test_looks_from_before_the_bulk_command_stay():
    w = World(limits=Limits(bulk_files=20))
    names = many(w, 30)
    w.run("A").read(names[0])
    grep = w.run("A", "grep -r")
    for n in names:
        grep.read(n)
    w.run("B").write(names[0], "theirs")
    w.run("A").write(names[0], "mine")
    (warning,) = w.warnings("A")
    assert warning.read_time is not None


def test_a_long_lived_process_that_reads_slowly_is_not_bulk():
    w = World(limits=Limits(bulk_files=20))
    names = many(w, 60)
    editor = w.bare("A", "agent")
    for n in names:
        w.run("B").write(n, "theirs" + n)
        editor.read(n)
        w.now += 30
    editor.write(names[0], "mine")
    assert not w.told()


def test_a_whole_overwrite_after_a_partial_read_is_a_note(w):
    a = w.run("A")
    w.guard.looked(a.actor, [b"f"], w.step(), partial=True)
    w.run("A").write("f", "mine")
    assert not w.told() and w.notes() == {("A", "f", "partial_view", None)}


def test_a_partial_read_does_not_bless_what_a_sibling_wrote_since(w):
    w.guard.looked(w.run("A").actor, [b"f"], w.step(), partial=True)
    w.run("B").patch("f", "X")
    w.run("A").write("f", "mine")
    assert kinds(w) == ["stale_write"]


def test_a_partial_read_then_an_edit_in_place_is_silent(w):
    w.guard.looked(w.run("A").actor, [b"f"], w.step(), partial=True)
    w.run("A").patch("f", "X")
    w.run("A").append("f", "X")
    assert not w.warnings()


def test_moving_a_file_away_and_back_is_no_look_at_it(w):
    w.file("f", b"at first")
    w.run("A").write("f", b"by A")
    b = w.bare("B")
    b.rename("f", "g")
    b.rename("g", "f")
    w.news()
    b.unlink("f")
    assert w.news()[0] == {("B", "f", "stale_write", "A")}


@pytest.mark.parametrize("way", ["write", "replace"])
def test_a_sibling_is_not_hidden_by_who_wrote_over_it_unseen(way):
    """B and then a person changed it since A read it: A hears of B, in whatever way the person wrote."""
    w = World()
    w.file("f", "old")
    w.run("A").read("f")
    w.run("B").write("f", "b's work")
    person = w.person()
    person.write("f", "by hand") if way == "write" else person.replace("f", "by hand")
    w.run("A").write("f", "a's work")
    assert w.told() == {("A", "f", "stale_write", "B")}


def test_who_replaced_a_siblings_file_unseen_is_told_of_it_once():
    w = World()
    w.file("f", "old")
    w.run("A").read("f")
    w.run("B").write("f", "b's work")
    w.run("A").replace("f", "a's work")
    assert w.told() == {("A", "f", "stale_write", "B")}
    w.guard.outbox.deliver(w.guard.outbox.pending())
    w.run("A").write("f", "more of a's")
    assert len(w.warnings("A")) == 1


def test_a_sibling_is_not_forgotten_because_others_write_often():
    w = World()
    w.file("f", "old")
    w.run("A").read("f")
    w.run("B").write("f", "b's work")
    for i in range(20):
        w.person(f"vim {i}").append("f", "more")
    w.run("A").write("f", "mine")
    assert w.told() == {("A", "f", "stale_write", "B")}


@pytest.mark.parametrize("tasks", ["A", "AB", "ABA", "ABC"])
def test_a_handle_that_no_task_has_opened_is_written_by_several(w, tasks):
    """`(fsguard run --task A …; fsguard run --task B …) > f`: who came first did what the shell has done."""
    shell = w.person()
    handle = shell.open("f", os.O_WRONLY | os.O_TRUNC)
    procs = {name: w.run(name) for name in tasks}
    # B's process is looked up before A has written: both could take the shell's part.
    for name in tasks:
        handle.session._writer(procs[name].tid, handle.inode)
    for name in tasks:
        handle.write(f"{name}\n", by=procs[name])
    handle.close()
    writers = [x.author for x in w.guard.ledger.find(b"f").writers]
    assert writers[0] == "A" and set(writers) == set(tasks), writers
