"""Nothing is lost: each destructive way, by two tasks on a real tree, and the way back."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.kit.abilities import need_tools
from tests.kit.agents import Agent
from tests.kit.mounting import Workspace

FIELDS = {"path", "version", "task", "sibling", "time", "cause", "size", "kept"}
MTIME = 1_600_000_000_123_456_789


@dataclass(frozen=True)
class Facts:
    """What must come back."""

    data: bytes
    mode: int
    mtime_ns: int


def facts(place: Path) -> Facts:
    found = place.lstat()
    data = os.fsencode(os.readlink(place)) if place.is_symlink() else place.read_bytes()
    return Facts(data, stat.S_IMODE(found.st_mode), found.st_mtime_ns)


def conflicts(workspace: Workspace, *options: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = workspace.fsguard("conflicts", "--json", *options).lines()
    return rows


def conflict(workspace: Workspace, path: str, task: str = "bob", sibling: str = "alice") -> dict[str, Any]:
    """The one unresolved conflict over `path`, kept, and by the right people."""
    (row,) = [row for row in conflicts(workspace, "--task", task) if row["path"] == path]
    assert row.keys() >= FIELDS
    assert (row["task"], row["sibling"], row["kept"], row["reason"]) == (task, sibling, True, None)
    return row


def restored(workspace: Workspace, row: dict[str, Any]) -> Facts:
    """After `fsguard restore`; the command that undoes it brings back what was there before."""
    place = workspace.root / row["path"]
    before = facts(place) if os.path.lexists(place) else None
    name = f"{row['path']}@{row['version']}"
    answer = workspace.fsguard("restore", name, "--json").json()
    found = facts(place)
    assert answer["changed"] and answer["unrestored"] == []
    workspace.plain("sh", "-c", answer["undo"]).ok()
    assert (facts(place) if os.path.lexists(place) else None) == before
    workspace.fsguard("restore", name).ok()
    assert facts(place) == found
    assert not [left for left in os.listdir(place.parent) if left.startswith(".fsguard")]
    return found


WRITE = """
import os, sys
mtime, *paths = sys.argv[1:]
for path in paths:
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "wb") as file:
        file.write((b"alice's " + os.fsencode(path) + b"\\n") * 50)
    os.chmod(path, 0o640)
    os.utime(path, ns=(int(mtime), int(mtime)))
"""


def alice_writes(workspace: Workspace, *paths: str) -> dict[str, Facts]:
    workspace.python("alice", WRITE, str(MTIME), *paths).ok()
    return {path: facts(workspace.root / path) for path in paths}


# ---- each way by itself ---------------------------------------------------------------------

SHELL = {
    "O_TRUNC": "echo bob >f",
    "truncate to nothing": "truncate -s 0 f",
    "truncate to a part": "truncate -s 5 f",
    "truncate to more": "truncate -s 5000 f",
    "write in place": "printf bob | dd of=f conv=notrunc status=none",
    "rename over": "echo bob >new && mv new f",
    "copy over": "echo bob >new && cp new f",
    "install over": "echo bob >new && install new f",
    "unlink": "rm f",
    "unlink and make anew": "rm f && echo bob >f",
    "symlink over": "ln -sf away f",
    "hard link over": "echo bob >new && ln -f new f",
}
PYTHON = {
    "ftruncate": "import os; fd = os.open('f', os.O_RDWR); os.ftruncate(fd, 3)",
    "pwrite": "import os; fd = os.open('f', os.O_WRONLY); os.pwrite(fd, b'bob', 100)",
    "exchange": "import ctypes; open('new', 'w').write('bob');"
    " assert ctypes.CDLL(None).renameat2(-100, b'new', -100, b'f', 2) == 0",
}


@pytest.mark.parametrize("way", [*SHELL, *PYTHON])
def test_one_file(workspace: Workspace, way: str) -> None:
    was = alice_writes(workspace, "f")["f"]
    if way in SHELL:
        workspace.sh("bob", SHELL[way]).ok()
    else:
        workspace.python("bob", PYTHON[way]).ok()
    assert not os.path.lexists(workspace.root / "f") or facts(workspace.root / "f").data != was.data
    row = conflict(workspace, "f")
    assert row["size"] == len(was.data)
    assert workspace.fsguard("show", f"f@{row['version']}").ok().out.encode() == was.data
    assert restored(workspace, row) == was
    assert conflicts(workspace) == []
    assert "f" in [row["path"] for row in conflicts(workspace, "--all")]


MAPPED = """
import mmap
with open("f", "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
    assert memory[0:4] == b"base"
    stop("has looked")
    memory[0:3] = b"BOB"
    memory.flush()
"""


def test_a_mapping_made_before(workspace: Workspace) -> None:
    workspace.sh("setup", "yes base | head -n 300 >f").ok()
    with Agent(workspace, "bob", MAPPED) as bob:
        bob.until("has looked")
        was = alice_writes(workspace, "f")["f"]
        bob.finish().ok()
    row = conflict(workspace, "f")
    assert (workspace.root / "f").read_bytes() == b"BOB" + was.data[3:]
    assert restored(workspace, row) == was


def test_a_mapping_that_reads_what_it_writes_over(workspace: Workspace) -> None:
    """The page was looked at when it was touched: no conflict, and yet it is kept."""
    was = alice_writes(workspace, "f")["f"]
    workspace.python("bob", MAPPED.replace('stop("has looked")', "").replace("base", "alic")).ok()
    (row,) = workspace.fsguard("versions", "--json", "f").lines()
    assert (row["task"], row["sibling"], row["kept"]) == ("bob", "alice", True)
    assert restored(workspace, row) == was


def test_what_was_moved_away_and_then_destroyed(workspace: Workspace) -> None:
    was = alice_writes(workspace, "a", "b", "src/c")
    workspace.sh("bob", "mv a x; echo bob >x; mv b y; rm y; mv src z; rm -r z").ok()
    for path, old in (("x", was["a"]), ("y", was["b"]), ("z/c", was["src/c"])):
        (row,) = workspace.fsguard("versions", "--json", path).lines()
        assert (row["task"], row["kept"]) == ("bob", True)
        assert restored(workspace, row) == old


def test_a_symlink(workspace: Workspace) -> None:
    workspace.sh("alice", "ln -s target l && touch -h -d '2020-01-02 03:04:05.678' l").ok()
    was = facts(workspace.root / "l")
    workspace.sh("bob", "rm l && echo bob >l").ok()
    row = conflict(workspace, "l")
    assert (row["kind"], row["target"]) == ("symlink", "target")
    assert restored(workspace, row) == was
    assert (workspace.root / "l").is_symlink()


def test_extended_attributes_and_acls(workspace: Workspace) -> None:
    need_tools("setfacl")
    alice_writes(workspace, "f")
    workspace.sh("alice", "setfacl -m u:1234:r f").ok()
    place = workspace.root / "f"
    os.setxattr(place, "user.colour", b"blue\0")
    names = {name: os.getxattr(place, name) for name in os.listxattr(place)}
    workspace.sh("bob", "rm f").ok()
    workspace.fsguard("restore", f"f@{conflict(workspace, 'f')['version']}").ok()
    assert {name: os.getxattr(place, name) for name in os.listxattr(place)} == names


def test_a_file_of_several_names(workspace: Workspace) -> None:
    was = alice_writes(workspace, "f")["f"]
    workspace.sh("alice", "ln f g").ok()
    workspace.sh("bob", "echo bob >f").ok()
    assert restored(workspace, conflict(workspace, "f")) == was


def test_an_empty_file_and_a_large_one(workspace: Workspace) -> None:
    workspace.python(
        "alice", "import os, sys; open('f', 'wb'); open('g', 'wb').write(os.urandom(3000000))"
    ).ok()
    data = (workspace.root / "g").read_bytes()
    workspace.sh("bob", "echo bob >f; rm g").ok()
    for path, was in (("f", b""), ("g", data)):
        (row,) = workspace.fsguard("versions", "--json", path).lines()
        workspace.fsguard("restore", f"{path}@{row['version']}").ok()
        assert (workspace.root / path).read_bytes() == was


def test_odd_names(workspace: Workspace) -> None:
    names = ["two words", "-n", "a@12", "caf\udce9", "new\nline", "“q”"]
    was = alice_writes(workspace, *(f"./{name}" for name in names))
    workspace.sh("bob", "rm ./*").ok()
    for row in conflicts(workspace):
        answer = workspace.fsguard("restore", f"./{row['path']}@{row['version']}", "--json").json()
        assert answer["changed"]
    assert {name: facts(workspace.root / name) for name in was} == was


# ---- git ---------------------------------------------------------------------------------------

TRACKED = ["a.txt", "src/b.txt", "src/deep/c.txt"]
GIT = {
    "checkout": ("git checkout -q -- .", TRACKED),
    "restore": ("git restore .", TRACKED),
    "stash": ("git stash -q", TRACKED),
    "stash, untracked too": ("git stash -q -u", [*TRACKED, "new.txt", "fresh/n.txt"]),
    "reset --hard": ("git reset -q --hard", TRACKED),
    "reset --hard over untracked files": ("git reset -q --hard topic", [*TRACKED, "new.txt"]),
    "checkout -f": ("git checkout -q -f topic", [*TRACKED, "new.txt"]),
    "clean": ("git clean -qfd", ["new.txt", "fresh/n.txt"]),
    "rm -r": ("git rm -qrf .", TRACKED),
}


@pytest.fixture
def repository(workspace: Workspace) -> Workspace:
    need_tools("git")
    script = """
    set -e
    git init -q -b main . && git config user.name S && git config user.email s@example.org
    mkdir -p src/deep && echo base | tee a.txt src/b.txt >src/deep/c.txt
    git add -A && git commit -qm base
    git checkout -q -b topic && echo topic | tee a.txt new.txt >src/b.txt
    git add -A && git commit -qm topic
    git checkout -q main
    """
    workspace.sh("setup", script).ok()
    return workspace


@pytest.mark.parametrize("way", GIT)
def test_git(repository: Workspace, way: str) -> None:
    command, destroyed = GIT[way]
    was = alice_writes(repository, *TRACKED, "new.txt", "fresh/n.txt")
    repository.sh("bob", command).ok()
    changed = [
        path
        for path, old in was.items()
        if not (repository.root / path).exists() or facts(repository.root / path) != old
    ]
    assert sorted(changed) == sorted(destroyed)
    found = {row["path"]: row for row in conflicts(repository, "--task", "bob")}
    assert sorted(found) == sorted(destroyed)
    for path in destroyed:
        assert restored(repository, conflict(repository, path)) == was[path]


# ---- a formatter ----------------------------------------------------------------------------------

FORMAT = """
import glob
texts = {path: open(path).read() for path in sorted(glob.glob("src/*.txt"))}
stop("has read")
for path, text in texts.items():
    open(path, "w").write(text.upper())
"""


def test_a_formatter_over_the_tree_that_read_before(workspace: Workspace) -> None:
    paths = [f"src/{n}.txt" for n in range(20)]
    workspace.sh("setup", "mkdir src; for n in $(seq 0 19); do echo base >src/$n.txt; done").ok()
    with Agent(workspace, "bob", FORMAT) as bob:
        bob.until("has read")
        was = alice_writes(workspace, *paths)
        bob.finish().ok()
    assert sorted(row["path"] for row in conflicts(workspace, "--task", "bob")) == sorted(paths)
    for path in paths:
        workspace.fsguard("restore", f"{path}@{conflict(workspace, path)['version']}").ok()
    assert {path: facts(workspace.root / path) for path in paths} == was


@pytest.mark.parametrize(
    "way", ["sed -i s/alice/ALICE/ src/*", "for f in src/*; do tr a-z A-Z <$f >t; cp t $f; done"]
)
def test_a_formatter_that_reads_what_it_rewrites_loses_nothing(workspace: Workspace, way: str) -> None:
    """A note, not a conflict: and yet the bytes are kept, for bob has not seen them."""
    was = alice_writes(workspace, "src/a", "src/b")
    workspace.sh("bob", way).ok()
    for path, old in was.items():
        (row,) = workspace.fsguard("versions", "--json", path).lines()
        assert (row["task"], row["sibling"], row["kept"]) == ("bob", "alice", True)
        assert restored(workspace, row) == old


# ---- what is kept, and what not -------------------------------------------------------------------


def test_own_work_is_not_kept(workspace: Workspace) -> None:
    script = "for n in 1 2 3; do echo $n >f; cp f g; mv g f; sed -i s/$n/x/ f; done; rm f"
    script += "; mkdir d; touch d/x; rm -r d"
    workspace.sh("alice", script).ok()
    for path in ("f", "g", "d/x"):
        assert workspace.fsguard("versions", "--json", path).lines() == []


def test_what_the_task_has_seen_is_no_conflict(workspace: Workspace) -> None:
    alice_writes(workspace, "f")
    workspace.sh("bob", "cat f >/dev/null; echo bob >f").ok()
    assert conflicts(workspace) == []


def test_the_warning_ends_with_the_command_that_brings_the_bytes_back(workspace: Workspace) -> None:
    was = alice_writes(workspace, "src/f")["src/f"]
    said = workspace.sh("bob", "echo bob >src/f").ok().err
    row = conflict(workspace, "src/f")
    command = f"fsguard restore src/f@{row['version']}"
    assert command in said and command in workspace.conflicts("bob")[0]["message"]
    workspace.plain(
        "sh", "-c", command, cwd=workspace.root / "src"
    ).ok()  # from the top or from where one stands
    assert facts(workspace.root / "src/f") == was


# ---- restore is a write as any other ----------------------------------------------------------------


def test_a_restore_is_on_record_as_the_writer_s(workspace: Workspace) -> None:
    alice_writes(workspace, "f")
    workspace.sh("bob", "echo bob >f").ok()
    workspace.run("alice", "fsguard", "restore", f"f@{conflict(workspace, 'f')['version']}").ok()
    newest = workspace.fsguard("who", "--json", "f").json()["writers"][0]
    assert newest["task"] == "alice"
    assert "reverted" in [warning["kind"] for warning in workspace.warnings("bob")]
    assert [w for w in workspace.conflicts("alice") if w["kind"] != "reverted"] == []


@pytest.mark.parametrize("task", [None, "alice", "carol"])
def test_a_restore_is_not_refused_for_what_it_looked_at(workspace: Workspace, task: str | None) -> None:
    """`block` is for what was not seen; restore has looked, and what it replaces is kept."""
    was = alice_writes(workspace, "f", "g")
    workspace.sh("bob", "echo bob >f; rm g").ok()
    workspace.fsguard("policy", "block").ok()
    for path, old in was.items():
        name = f"{path}@{conflict(workspace, path)['version']}"
        if task is None:
            workspace.fsguard("restore", name).ok()
        else:
            workspace.run(task, "fsguard", "restore", name).ok()
        assert facts(workspace.root / path) == old
    newest = workspace.fsguard("versions", "--json", "f").lines()[0]
    assert (newest["task"], newest["sibling"], newest["size"]) == (task, "bob", 4)


def test_a_lease_keeps_a_restore_out(workspace: Workspace) -> None:
    alice_writes(workspace, "f")
    workspace.sh("bob", "echo bob >f").ok()
    version = conflict(workspace, "f")["version"]
    workspace.fsguard("lease", "acquire", "f", "--task", "bob").ok()
    refused = workspace.run("alice", "fsguard", "restore", f"f@{version}")
    assert refused.code == 4 and "refused" in refused.err
    assert (workspace.root / "f").read_text() == "bob\n" and os.listdir(workspace.root) == ["f"]


def test_on_a_mount_elsewhere(split_workspace: Workspace) -> None:
    """By the mountpoint's path and by the backing directory's, it is written through the mount."""
    workspace = split_workspace
    was = alice_writes(workspace, "src/f", "src/g")
    workspace.sh("bob", "rm -r src").ok()
    for path, top in (("src/f", workspace.root), ("src/g", workspace.directory)):
        version = conflict(workspace, path)["version"]
        workspace.fsguard("restore", f"{top}/{path}@{version}", cwd="/").ok()
        assert facts(workspace.root / path) == was[path]
        assert workspace.fsguard("who", "--json", path).json()["writers"][0]["how"] in ("replace", "create")


# ---- diff --------------------------------------------------------------------------------------------


def test_diff(workspace: Workspace) -> None:
    alice_writes(workspace, "f", ".env")
    workspace.sh("bob", "echo bob >f; echo bob >.env").ok()
    said = workspace.fsguard("diff", "f").ok().out
    assert "-alice's f\n" in said and "+bob\n" in said
    secret = workspace.fsguard("diff", ".env")
    assert secret.code == 6 and "alice" not in secret.out
    assert "alice" in workspace.fsguard("diff", ".env", "--secrets").ok().out


# ---- resolve -----------------------------------------------------------------------------------------

MODULE = "".join(f"def f{n}():\n    return {n}\n\n\n" for n in range(6))
EDIT = """
import sys
old, new, *more = sys.argv[1:]
text = open("m.py").read()
%s
open("m.py", "w").write(text.replace(old, new))
"""


def two_edits(workspace: Workspace, alice: tuple[str, str], bob: tuple[str, str]) -> None:
    """Both read m.py; alice writes; bob writes what it made from its older look."""
    workspace.python("setup", "import sys; open('m.py', 'w').write(sys.argv[1])", MODULE).ok()
    with Agent(workspace, "bob", EDIT % 'stop("has read")', *bob) as agent:
        agent.until("has read")
        workspace.python("alice", EDIT % "", *alice).ok()
        agent.finish().ok()


def test_two_edits_to_different_functions_merge_cleanly(workspace: Workspace) -> None:
    two_edits(workspace, ("return 1", "return 'alice'"), ("return 4", "return 'bob'"))
    place = workspace.root / "m.py"
    bobs = MODULE.replace("return 4", "return 'bob'")
    assert place.read_text() == bobs
    conflict(workspace, "m.py")
    shown = workspace.fsguard("resolve", "m.py").ok()
    assert "+    return 'alice'" in shown.out and place.read_text() == bobs
    answer = workspace.fsguard("resolve", "m.py", "--apply", "--json").json()
    assert (answer["clean"], answer["base"], answer["applied"], answer["resolved"]) == (
        True,
        True,
        True,
        True,
    )
    assert place.read_text() == bobs.replace("return 1", "return 'alice'")
    assert conflicts(workspace) == []
    workspace.plain("sh", "-c", answer["undo"]).ok()
    assert place.read_text() == bobs


def test_two_edits_to_one_line_get_markers_or_a_side(workspace: Workspace) -> None:
    two_edits(workspace, ("return 1", "return 'alice'"), ("return 1", "return 'bob'"))
    place = workspace.root / "m.py"
    bobs = place.read_text()
    refused = workspace.fsguard("resolve", "m.py")
    assert refused.code == 1 and place.read_text() == bobs and conflict(workspace, "m.py")
    version = conflict(workspace, "m.py")["version"]
    for flag, result in (("--ours", bobs), ("--theirs", bobs.replace("'bob'", "'alice'"))):
        assert workspace.fsguard("resolve", f"m.py@{version}", flag, "--stdout").ok().out == result
    union = workspace.fsguard("resolve", "m.py", "--union", "--stdout").ok().out
    assert "return 'bob'\n" in union and "return 'alice'\n" in union and "<<<<" not in union
    assert workspace.fsguard("resolve", "m.py", "--apply").code == 1
    assert "<<<<<<<" in place.read_text() and ">>>>>>>" in place.read_text()
    assert conflicts(workspace) == []


def test_what_was_never_read_has_no_base(workspace: Workspace) -> None:
    was = alice_writes(workspace, "f")["f"]
    workspace.sh("bob", "echo bob >f").ok()
    said = workspace.fsguard("resolve", "f")
    assert said.code == 1 and "nothing to merge" in said.err and "--theirs" in said.err
    workspace.fsguard("resolve", "f", "--theirs", "--apply").ok()
    assert (workspace.root / "f").read_bytes() == was.data and conflicts(workspace) == []


def test_a_binary_file_is_resolved_by_choosing(workspace: Workspace) -> None:
    workspace.sh("alice", r"printf '\0alice' >f").ok()
    workspace.sh("bob", r"printf '\0bob' >f").ok()
    assert workspace.fsguard("resolve", "f").code == 1
    workspace.fsguard("resolve", "f", "--theirs", "--apply").ok()
    assert (workspace.root / "f").read_bytes() == b"\0alice" and conflicts(workspace) == []


def test_a_deleted_file_is_resolved_by_bringing_it_back(workspace: Workspace) -> None:
    was = alice_writes(workspace, "f")["f"]
    workspace.sh("bob", "rm f").ok()
    assert workspace.fsguard("resolve", "f").code == 1
    workspace.fsguard("resolve", "f", "--theirs", "--apply").ok()
    assert facts(workspace.root / "f") == was and conflicts(workspace) == []


# ---- undo ---------------------------------------------------------------------------------------------


def tree(top: Path) -> dict[str, Facts]:
    return {
        str(path.relative_to(top)): facts(path)
        for path in sorted(top.rglob("*"))
        if path.is_symlink() or not path.is_dir()
    }


def test_undo_brings_back_all_that_a_task_destroyed(workspace: Workspace) -> None:
    alice_writes(workspace, "a", "src/b", "src/deep/c", "d")
    workspace.sh("alice", "ln -s deep/c src/link && touch -h -d 2020-01-02 src/link").ok()
    was = tree(workspace.root)
    workspace.sh("bob", "echo one >a; echo two >a; rm -r src; mv d e; echo bob >new").ok()
    refused = workspace.fsguard("undo", "--task", "bob")
    assert refused.code == 2 and "src/deep/c" in refused.out
    bobs = tree(workspace.root)
    planned = workspace.fsguard("undo", "--task", "bob", "--dry-run", "--json").lines()
    assert sorted(row["path"] for row in planned) == sorted(was.keys() - {"d"})  # that is in e
    assert all(row.keys() >= FIELDS and row["would_restore"] for row in planned)
    assert tree(workspace.root) == bobs
    done = workspace.fsguard("undo", "--task", "bob", "--yes").ok()
    found = tree(workspace.root)
    assert found.pop("new").data == b"bob\n"
    assert found.pop("e") == was.pop("d")
    assert found == was
    assert conflicts(workspace) == []
    undo = [line.partition("to undo: ")[2] for line in done.out.splitlines() if line.startswith("a:")]
    workspace.plain("sh", "-c", undo[0]).ok()
    assert (workspace.root / "a").read_text() == "two\n"


def test_undo_since_and_what_others_changed_since(workspace: Workspace) -> None:
    was = alice_writes(workspace, "a", "b", "c")
    workspace.sh("bob", "echo bob >a").ok()
    moment = workspace.plain("date", "+%Y-%m-%dT%H:%M:%S.%N%:z").ok().out.strip()
    workspace.sh("bob", "echo bob >b; echo bob >c").ok()
    workspace.sh("alice", "cat c >/dev/null; echo again >c").ok()
    rows = workspace.fsguard("undo", "--task", "bob", "--since", moment, "--dry-run", "--json").lines()
    assert {row["path"]: row["changed_since_by"] for row in rows} == {"b": None, "c": "alice"}
    workspace.fsguard("undo", "--task", "bob", "--since", moment, "--keep-changed", "--yes").ok()
    assert facts(workspace.root / "b") == was["b"]
    assert [(workspace.root / path).read_text() for path in "ac"] == ["bob\n", "again\n"]
    workspace.fsguard("undo", "--task", "bob", "--yes").ok()
    assert tree(workspace.root) == was
    assert (workspace.root / "c").read_bytes() == was["c"].data


def test_undo_by_the_task_itself_and_twice(workspace: Workspace) -> None:
    was = alice_writes(workspace, "a", "b")
    workspace.sh("bob", "echo bob >a; rm b").ok()
    for _ in range(2):
        workspace.run("bob", "fsguard", "undo", "--task", "bob", "--yes").ok()
        assert tree(workspace.root) == was
