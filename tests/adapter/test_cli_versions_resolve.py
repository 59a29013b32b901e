"""fsguard resolve and fsguard undo, against kept versions in memory and git's own merge."""

import base64
import json
import os
import re
import shlex

import pytest

from fsguard.errors import UsageError
from tests.adapter.test_cli_versions import FIELDS, daemon, lines, ok, on_terminal, store

__all__ = ["daemon", "store"]  # fixtures

BASE = "".join(f"def f{n}():\n    return {n}\n\n\n" for n in range(6))
ALICE = BASE.replace("return 1", "return 'alice'")
BOB = BASE.replace("return 4", "return 'bob'")
BOTH = ALICE.replace("return 4", "return 'bob'")
CLASH = BASE.replace("return 1", "return 'bob'")


@pytest.fixture
def conflict(daemon, store):
    """alice changed f; bob wrote over it what he had made from an older look. The way to do it."""

    def make(present=BOB, theirs=ALICE, base=BASE, name="f.py", **more):
        row = store.add(name, theirs.encode(), base_version=90, **more)
        if base is not None:
            store.bases[row["id"]] = base.encode()
        place = daemon.workspace / name
        place.write_text(present)
        place.chmod(0o755)
        return place

    return make


# ---- resolve: two edits to different functions ------------------------------------------------


def test_a_clean_merge_is_applied_at_once(daemon, store, conflict):
    place = conflict()
    os.setxattr(place, "user.colour", b"blue")
    inode = place.stat().st_ino
    said = ok(daemon.fsguard("resolve", "f.py", "--apply")).stdout
    assert place.read_text() == BOTH
    assert store.rows[0]["resolved"]
    found = place.stat()
    assert found.st_mode & 0o7777 == 0o755 and found.st_ino != inode
    assert found.st_mtime_ns > 1_700_000_000_000_000_000  # what was merged is new
    assert os.getxattr(place, "user.colour") == b"blue"
    assert "merged without conflicts" in said
    undo = re.search(r"to undo: (.*)", said)[1]
    ok(daemon.fsguard(*shlex.split(undo)[1:]))
    assert place.read_text() == BOB


def test_without_apply_it_is_shown_only(daemon, store, conflict):
    place = conflict()
    done = ok(daemon.fsguard("resolve", "f.py"))
    assert "-    return 1\n+    return 'alice'\n" in done.stdout
    assert "nothing was written" in done.stderr and "fsguard resolve f.py@101 --apply" in done.stderr
    assert place.read_text() == BOB and not store.rows[0]["resolved"] and len(store.rows) == 1


def test_a_terminal_is_asked(daemon, store, conflict):
    place = conflict()
    code, said = on_terminal(daemon, "resolve", "f.py", answer="n\n")
    assert code == 0 and "write it to f.py? [y/N]" in said and place.read_text() == BOB
    assert not store.rows[0]["resolved"]
    code, said = on_terminal(daemon, "resolve", "f.py", answer="y\n")
    assert code == 0 and place.read_text() == BOTH and store.rows[0]["resolved"]


def test_the_merge_on_stdout(daemon, store, conflict):
    place = conflict()
    done = ok(daemon.fsguard("resolve", "f.py", "--stdout"))
    assert (done.stdout, done.stderr) == (BOTH, "") and place.read_text() == BOB
    done = ok(daemon.fsguard("resolve", "f.py", "--stdout", "--apply"))
    assert done.stdout == BOTH and place.read_text() == BOTH and "to undo" in done.stderr


def test_resolve_json(daemon, store, conflict):
    place = conflict()
    answer = json.loads(ok(daemon.fsguard("resolve", "f.py", "--json")).stdout)
    assert answer.keys() >= FIELDS
    assert (answer["clean"], answer["base"], answer["applied"], answer["resolved"]) == (
        True,
        True,
        False,
        False,
    )
    assert base64.b64decode(answer["data"]).decode() == BOTH
    answer = json.loads(ok(daemon.fsguard("resolve", "f.py", "--json", "--apply")).stdout)
    assert (answer["applied"], answer["resolved"], answer["before"]) == (True, True, 102)
    assert answer["undo"] == "fsguard restore f.py@102" and place.read_text() == BOTH
    assert daemon.fsguard("resolve", "f.py", "--json", "--stdout").returncode == 2


# ---- resolve: the same lines ---------------------------------------------------------------------


def test_conflict_markers_are_written_only_with_apply(daemon, store, conflict):
    place = conflict(present=CLASH)
    done = daemon.fsguard("resolve", "f.py")
    assert done.returncode == 1
    assert "+<<<<<<<" in done.stdout and "1 conflict to settle by hand" in done.stdout
    assert "--ours, --theirs or --union" in done.stderr
    assert place.read_text() == CLASH and not store.rows[0]["resolved"]
    code, said = on_terminal(daemon, "resolve", "f.py")
    assert code == 1 and "[y/N]" not in said
    done = daemon.fsguard("resolve", "f.py", "--apply")
    assert done.returncode == 1 and "has conflict markers now, in 1 conflict: edit it" in done.stderr
    assert re.search(r"<{7}.*return 'bob'.*={7}.*return 'alice'.*>{7}", place.read_text(), re.DOTALL)
    assert store.rows[0]["resolved"]  # both are in it


@pytest.mark.parametrize(("side", "result"), [("--ours", CLASH), ("--theirs", ALICE)])
def test_a_side_decides(daemon, store, conflict, side, result):
    place = conflict(present=CLASH)
    ok(daemon.fsguard("resolve", "f.py", side, "--apply"))
    assert place.read_text() == result and store.rows[0]["resolved"]


def test_a_side_decides_only_where_both_changed_it(daemon, store, conflict):
    place = conflict(present=CLASH.replace("return 4", "return 'bob'"))
    ok(daemon.fsguard("resolve", "f.py", "--theirs", "--apply"))
    assert place.read_text() == BOTH


def test_union_has_both(daemon, store, conflict):
    place = conflict(present=CLASH)
    ok(daemon.fsguard("resolve", "f.py", "--union", "--apply"))
    assert "return 'bob'\n    return 'alice'\n" in place.read_text()
    assert daemon.fsguard("resolve", "f.py", "--union", "--ours").returncode == 2


# ---- resolve: no merge possible --------------------------------------------------------------------


def test_without_a_base_it_says_so_and_offers_the_sides(daemon, store, conflict):
    place = conflict(base=None)
    for flags in ([], ["--union"], ["--apply"]):
        done = daemon.fsguard("resolve", "f.py", *flags)
        assert done.returncode == 1 and done.stdout == ""
        assert "what bob had read is not kept, so there is nothing to merge" in done.stderr
        assert "fsguard resolve f.py@101 --theirs --apply: what alice wrote" in done.stderr
        assert "fsguard resolve f.py@101 --ours --apply: leave it" in done.stderr
    assert place.read_text() == BOB
    ok(daemon.fsguard("resolve", "f.py", "--theirs", "--apply"))
    assert place.read_text() == ALICE and store.rows[0]["resolved"]


def test_ours_keeps_the_file_and_settles_the_conflict(daemon, store, conflict):
    place = conflict(base=None)
    inode = place.stat().st_ino
    said = ok(daemon.fsguard("resolve", "f.py", "--ours", "--apply")).stdout
    assert "stays as it is" in said and place.stat().st_ino == inode
    assert store.rows[0]["resolved"] and len(store.rows) == 1


def test_a_file_that_was_deleted_comes_back_whole_or_stays_away(daemon, store, conflict):
    place = conflict(cause="delete")
    place.unlink()
    done = daemon.fsguard("resolve", "f.py")
    assert done.returncode == 1 and "f.py is not there any more" in done.stderr
    ok(daemon.fsguard("resolve", "f.py", "--ours", "--apply"))
    assert not place.exists() and store.rows[0]["resolved"]
    ok(daemon.fsguard("resolve", "f.py@101", "--theirs", "--apply"))
    assert place.read_text() == ALICE
    assert place.stat().st_mtime_ns == 1_600_000_000_123_456_789
    assert "versions.merge" not in [name for name, _ in daemon.calls]


def test_symlinks_are_chosen_not_merged(daemon, store, conflict):
    place = conflict(name="l", kind="symlink", target="theirs")
    place.unlink()
    place.symlink_to("ours")
    assert "l is a symlink" in daemon.fsguard("resolve", "l").stderr
    ok(daemon.fsguard("resolve", "l", "--theirs", "--apply"))
    assert os.readlink(place) == "theirs"


def test_binary_files_are_chosen_too(daemon, store, conflict):
    place = conflict(present="\0bob", theirs="\0alice")

    def refuse(params):
        raise UsageError("a binary file cannot be merged", "Choose a side: --ours or --theirs.")

    daemon.answers["versions.merge"] = refuse
    for flags in ([], ["--union", "--apply"]):
        done = daemon.fsguard("resolve", "f.py", *flags)
        assert done.returncode == 1 and done.stderr.startswith("fsguard: a binary file cannot be merged\n")
        assert "fsguard resolve f.py@101 --theirs --apply" in done.stderr
    assert "binary: 4 B now, 6 B then" in ok(daemon.fsguard("resolve", "f.py", "--theirs")).stdout
    ok(daemon.fsguard("resolve", "f.py", "--theirs", "--apply"))
    assert place.read_text() == "\0alice" and store.rows[0]["resolved"]


def test_what_was_not_kept_can_only_be_let_go(daemon, store, conflict):
    conflict(kept=False, reason="larger than 64 MiB")
    for flags in ([], ["--theirs", "--apply"]):
        done = daemon.fsguard("resolve", "f.py", *flags)
        assert done.returncode == 1 and "was not kept: larger than 64 MiB" in done.stderr
    ok(daemon.fsguard("resolve", "f.py", "--ours", "--apply"))
    assert store.rows[0]["resolved"]


def test_which_conflict(daemon, store, conflict):
    store.add("f.py", b"first")
    conflict()
    store.add("f.py", b"newest", conflict=False)
    store.add("f.py", b"settled", resolved=True)
    assert json.loads(ok(daemon.fsguard("resolve", "f.py", "--json")).stdout)["version"] == 102
    assert json.loads(ok(daemon.fsguard("resolve", "f.py@101", "--ours", "--json")).stdout)["version"] == 101
    done = daemon.fsguard("resolve", "other")
    assert done.returncode == 2 and "no unresolved conflict over other" in done.stderr


def test_a_file_that_changes_meanwhile_is_not_overwritten(daemon, store, conflict):
    place = conflict()

    def merge(params):
        answer = store.merge(params)
        place.write_text("carol was here")
        return answer

    daemon.answers["versions.merge"] = merge
    done = daemon.fsguard("resolve", "f.py", "--apply")
    assert done.returncode == 4 and "changed while it was merged" in done.stderr
    assert place.read_text() == "carol was here" and not store.rows[0]["resolved"]


def test_a_merge_that_cannot_keep_the_present_is_not_written(daemon, store, conflict):
    place = conflict()
    store.refusing = "no space left"
    done = daemon.fsguard("resolve", "f.py", "--apply")
    assert done.returncode == 1 and "would be lost" in done.stderr
    assert place.read_text() == BOB and not store.rows[0]["resolved"]


def test_secrets_are_not_shown_by_resolve_either(daemon, store, conflict):
    conflict(name=".env")
    said = ok(daemon.fsguard("resolve", ".env"))
    assert "looks like a secret" in said.stdout and "alice'" not in said.stdout + said.stderr


# ---- undo -----------------------------------------------------------------------------------------


@pytest.fixture
def plan(daemon, store):
    """bob overwrote a, deleted d/b and a symlink, overwrote c (not kept), and carol changed e since."""
    since = {"a": None, "d/b": None, "l": None, "c": None, "e": "carol"}
    for path in ("a", "c", "e"):
        (daemon.workspace / path).write_text(f"present {path}")
    store.add("a", b"old a")
    store.add("d/b", b"old b", cause="delete")
    store.add("l", kind="symlink", target="t", cause="delete")
    store.add("c", b"", kept=False, reason="larger than 64 MiB")
    store.add("e", b"old e")
    store.plan = [
        {**row, "changed_since_by": since[row["path"]], "present": row["path"] in ("a", "c", "e")}
        for row in list(store.rows)
    ]
    return daemon.workspace


def state(top):
    found = {}
    for path in sorted(top.rglob("*")):
        if not path.is_dir():
            found[str(path.relative_to(top))] = os.readlink(path) if path.is_symlink() else path.read_text()
    return found


UNTOUCHED = {"a": "present a", "c": "present c", "e": "present e"}


def test_undo_shows_the_plan_and_needs_a_yes(daemon, plan):
    done = daemon.fsguard("undo", "--task", "bob")
    assert done.returncode == 2 and "--yes" in done.stderr
    said = done.stdout.splitlines()
    assert [line.split()[0] for line in said] == ["PATH", "a", "d/b", "l", "c", "e"]
    assert "replaced" in said[1] and "made again" in said[2] and "symlink" in said[3]
    assert "not kept: larger than 64 MiB" in said[4] and said[5].endswith("carol")
    assert state(plan) == UNTOUCHED
    assert ok(daemon.fsguard("undo", "--task", "bob", "--dry-run")).stdout == done.stdout
    assert state(plan) == UNTOUCHED and {name for name, _ in daemon.calls} == {"versions.undo_plan"}
    assert daemon.fsguard("undo", "--task", "bob", "--dry-run", "--yes").returncode == 2


def test_undo_brings_everything_back_and_says_what_not(daemon, plan, store):
    done = daemon.fsguard("undo", "--task", "bob", "--yes")
    assert done.returncode == 1
    assert state(plan) == {"a": "old a", "c": "present c", "d/b": "old b", "e": "old e", "l": "t"}
    assert "c stays as it is: not kept: larger than 64 MiB" in done.stderr
    assert "4 files brought back, 1 not" in done.stdout
    for undo in re.findall(r"to undo: (.*)", done.stdout):
        if undo.startswith("fsguard"):
            ok(daemon.fsguard(*shlex.split(undo)[1:]))
    assert {k: v for k, v in state(plan).items() if k in UNTOUCHED} == UNTOUCHED
    assert [row["resolved"] for row in store.rows[:5]] == [True, True, True, False, True]


def test_undo_twice_changes_nothing_more(daemon, plan, store):
    store.plan = [row for row in store.plan if row["kept"]]
    assert "4 files brought back\n" in ok(daemon.fsguard("undo", "--task", "bob", "--yes")).stdout
    count = len(store.rows)
    assert "a is as it was already" in ok(daemon.fsguard("undo", "--task", "bob", "--yes")).stdout
    assert len(store.rows) == count


def test_undo_can_leave_alone_what_others_changed_since(daemon, plan, store):
    store.plan = [row for row in store.plan if row["kept"]]
    done = ok(daemon.fsguard("undo", "--task", "bob", "--yes", "--keep-changed"))
    assert (plan / "e").read_text() == "present e" and (plan / "a").read_text() == "old a"
    assert "e stays as it is: changed since" in done.stderr


def test_undo_asks_at_a_terminal(daemon, plan, store):
    code, said = on_terminal(daemon, "undo", "--task", "bob", answer="\n")
    assert code == 1 and "bring back 4 files? [y/N]" in said and state(plan) == UNTOUCHED
    code, said = on_terminal(daemon, "undo", "--task", "bob", answer="yes\n")
    assert code == 1 and (plan / "a").read_text() == "old a"  # 1: c was not kept


def test_one_path_that_fails_does_not_stop_the_others(daemon, plan, store):
    (plan / "a").unlink()
    (plan / "a").mkdir()
    done = daemon.fsguard("undo", "--task", "bob", "--yes")
    assert done.returncode == 1 and "a is a directory now" in done.stderr
    assert (plan / "d/b").read_text() == "old b"


def test_undo_json(daemon, plan, store):
    planned = lines(daemon.fsguard("undo", "--task", "bob", "--dry-run", "--json"))
    assert [row["would_restore"] for row in planned] == [True, True, True, False, True]
    assert all(row.keys() >= FIELDS for row in planned)
    assert daemon.fsguard("undo", "--task", "bob", "--json").returncode == 2
    done = daemon.fsguard("undo", "--task", "bob", "--yes", "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["restored"] for row in found] == [True, True, True, False, True]
    assert [row["before"] for row in found] == [106, None, None, None, 107]
    assert [row["undo"] for row in found[:2]] == ["fsguard restore a@106", "rm -- d/b"]


def test_nothing_to_undo(daemon, store):
    for flags in ([], ["--yes"], ["--dry-run"]):
        assert "nothing to bring back" in ok(daemon.fsguard("undo", "--task", "bob", *flags)).stdout
    assert ok(daemon.fsguard("undo", "--task", "bob", "--json")).stdout == ""


def test_since_when(daemon, store):
    ok(daemon.fsguard("undo", "--task", "bob", "--dry-run"))
    ok(daemon.fsguard("undo", "--task", "bob", "--dry-run", "--since", "2024-05-06T07:08:09Z"))
    assert [params["since"] for _, params in daemon.calls] == [None, 1714979289.0]
    done = daemon.fsguard("undo", "--task", "bob", "--since", "yesterday")
    assert done.returncode == 2 and "yesterday is no time" in done.stderr
    assert daemon.fsguard("undo", "--since", "10m").returncode == 2
