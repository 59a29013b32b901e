"""fsguard versions, show, diff, restore and conflicts, against kept versions in memory."""

import base64
import json
import os
import pty
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fsguard.errors import RefusedError
from tests.adapter.fake_store import daemon_with

FIELDS = {"path", "version", "task", "sibling", "time", "cause", "size", "kept"}
COMMANDS = ["versions", "show", "diff", "restore", "conflicts", "resolve", "undo"]
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for other owners")


@pytest.fixture
def daemon(tmp_path):
    fake, store = daemon_with(tmp_path)
    fake.store = store
    with fake:
        yield fake


@pytest.fixture
def store(daemon):
    return daemon.store


def ok(done):
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def lines(done):
    return [json.loads(line) for line in ok(done).stdout.splitlines()]


def on_terminal(daemon, *words, answer="", cwd=None):
    """(exit code, what was printed) of a command at a terminal."""
    controller, terminal = pty.openpty()
    env = {name: value for name, value in daemon.env.items() if name not in ("NO_COLOR", "TERM")}
    process = subprocess.Popen(
        daemon.command(*words),
        cwd=cwd or daemon.workspace,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=env | {"TERM": "xterm"},
    )
    os.close(terminal)
    os.write(controller, answer.encode())
    said = b""
    while True:
        try:
            part = os.read(controller, 4096)
        except OSError:
            break
        if not part:
            break
        said += part
    os.close(controller)
    return process.wait(30), said.decode("utf-8", "replace").replace("\r\n", "\n")


# ---- all of them ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples_and_exit_codes(daemon, name):
    said = ok(daemon.fsguard(name, "--help")).stdout
    assert f"fsguard {name} " in said.partition("examples:")[2]
    assert re.search(r"exit codes:\n  0   ", said)
    assert max(map(len, said.splitlines())) <= 110


@pytest.mark.parametrize("name", COMMANDS)
def test_none_imports_what_a_command_can_do_without(daemon, name):
    program = f"import sys, fsguard.cli.{name}; print(*sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", program], env=daemon.env, capture_output=True, text=True, check=True
    ).stdout.split()
    heavy = {
        "trio",
        "pyfuse3",
        "psutil",
        "pathspec",
        "sqlite3",
        "typing",
        "subprocess",
        "difflib",
        "datetime",
    }
    assert heavy.isdisjoint(found)


# ---- versions --------------------------------------------------------------------------------


def test_versions_newest_first_with_who_and_why(daemon, store):
    store.add("src/f", b"one", command="vim f")
    store.add("src/f", b"x" * 3000, task=None, sibling=None, conflict=False)
    store.add("src/f", b"", kept=False, reason="larger than 64 MiB", resolved=True)
    said = ok(daemon.fsguard("versions", "src/f")).stdout.splitlines()
    assert [line.split()[0] for line in said] == ["VERSION", "103", "102", "101"]
    assert "no: larger than 64 MiB, conflict (resolved)" in said[1]
    assert "no task" in said[2] and "2.9 KiB" in said[2] and said[2].endswith("yes")
    assert "alice" in said[3] and "bob “vim f”" in said[3] and "replace" in said[3]


def test_versions_json_and_limit(daemon, store):
    rows = [store.add("f", b"1"), store.add("f", b"2"), store.add("other", b"3")]
    assert lines(daemon.fsguard("versions", "f", "--json")) == [rows[1], rows[0]]
    assert lines(daemon.fsguard("versions", "f", "--json", "--limit", "1")) == [rows[1]]
    assert rows[0].keys() >= FIELDS
    assert daemon.fsguard("versions", "f", "--limit", "0").returncode == 2


def test_versions_of_nothing(daemon):
    assert ok(daemon.fsguard("versions", "f")).stdout == "no version of f was kept\n"
    assert ok(daemon.fsguard("versions", "f", "--json")).stdout == ""


def test_names_cannot_forge_a_line(daemon, store):
    store.add("f", b"", task="x\nfsguard: all is well", sibling="\x1b[31m", command="a\u202eb")
    said = ok(daemon.fsguard("versions", "f")).stdout
    assert len(said.splitlines()) == 2
    assert "\x1b" not in said and "\u202e" not in said
    said = ok(daemon.fsguard("conflicts")).stdout
    assert "\x1b" not in said and "\u202e" not in said


def test_paths_from_anywhere(daemon, store, tmp_path):
    (daemon.workspace / "src").mkdir()
    store.add("src/f", b"bytes")
    ws = str(daemon.workspace)
    for words, cwd in [
        (["f@101"], daemon.workspace / "src"),
        (["src/f@101"], daemon.workspace / "src"),  # as it stands in a warning
        ([f"{ws}/src/f@101"], tmp_path),
        (["src/f@101", "--workspace", ws], tmp_path),
        (["f@101", "--workspace", ws], daemon.workspace / "src"),
    ]:
        assert ok(daemon.fsguard("show", *words, cwd=cwd)).stdout == "bytes"
    said = ok(daemon.fsguard("versions", "src/f", cwd=daemon.workspace / "src"))
    assert "101" in said.stdout and "from the workspace's top" in said.stderr
    assert daemon.fsguard("show", "f@101", "--workspace", ws, cwd=tmp_path).returncode == 2
    assert daemon.fsguard("show", "../x@1", "--workspace", ws, cwd=tmp_path).returncode == 2


# ---- show -----------------------------------------------------------------------------------


def test_show_is_binary_safe_and_comes_in_pieces(daemon, store):
    data = bytes(range(256)) * 20
    store.add("f", data)
    done = daemon.fsguard("show", "f@101", text=False, errors=None)
    assert (done.returncode, done.stdout, done.stderr) == (0, data, b"")
    assert [params["offset"] for name, params in daemon.calls if name == "versions.read"][:2] == [0, 1000]
    answer = json.loads(ok(daemon.fsguard("show", "f@101", "--json")).stdout)
    assert answer.keys() >= FIELDS and base64.b64decode(answer["data"]) == data


def test_show_of_a_symlink_is_its_target(daemon, store):
    store.add("l", kind="symlink", target="a/b")
    assert ok(daemon.fsguard("show", "l@101")).stdout == "a/b"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["f"], 2, "which version? PATH@VERSION; fsguard versions f"),
        (["f@7"], 2, "no version 7 of f\n  there are: 101"),
        (["f@x7"], 2, "which version?"),
        (["f@101", "--version", "x"], 2, "x is no version number"),
        (["f@999999999999999999"], 2, "no version number"),
        (["g@102"], 1, "version 102 of g was not kept: no space left"),
        (["/@1"], 2, "not in"),
        (["f@101", "--verion", "1"], 2, "did you mean --version?"),
    ],
)
def test_show_says_what_is_wrong(daemon, store, words, code, said):
    store.add("f", b"1")
    store.add("g", b"2", kept=False, reason="no space left")
    done = daemon.fsguard("show", *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr


def test_a_path_with_a_number_of_its_own(daemon, store):
    store.add("odd@12", b"odd")
    assert ok(daemon.fsguard("show", "odd@12@101")).stdout == "odd"
    assert ok(daemon.fsguard("show", "odd@12", "--version", "101")).stdout == "odd"
    name = os.fsdecode(b"caf\xe9 'x'\n")
    store.add(name, b"bytes")
    assert ok(daemon.fsguard("show", f"{name}@102")).stdout == "bytes"


def test_bytes_that_stop_too_early_are_an_error(daemon, store):
    store.add("f", b"x" * 5000)
    (daemon.workspace / "f").write_text("present")
    for broken in (
        lambda params: {"data": "", "size": 5000, "eof": False},
        lambda params: {"data": "AAAA", "size": 5000, "eof": True},
    ):
        daemon.answers["versions.read"] = broken
        assert daemon.fsguard("show", "f@101").returncode == 7
        assert daemon.fsguard("restore", "f@101").returncode == 7
        assert (daemon.workspace / "f").read_text() == "present"
        assert os.listdir(daemon.workspace) == ["f"]


def test_a_terminal_is_spared_binary_bytes(daemon, store):
    store.add("f", b"\0\x1b[31m")
    code, said = on_terminal(daemon, "show", "f@101")
    assert code == 2 and "binary" in said and "\0" not in said


def test_a_reader_that_goes_away(daemon, store):
    store.add("f", b"line\n" * 100_000)
    done = subprocess.run(
        f"{shlex.join(daemon.command('show', 'f@101'))} | head -n 1",
        shell=True,
        cwd=daemon.workspace,
        env=daemon.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("line\n", "")


# ---- diff -----------------------------------------------------------------------------------


def test_diff_of_the_newest_version_against_now(daemon, store):
    store.add("f", b"old\n")
    store.add("f", b"one\ntwo\nthree\n", mode=0o644)
    store.add("f", b"", kept=False, reason="full")
    (daemon.workspace / "f").write_bytes(b"one\n2\nthree")
    (daemon.workspace / "f").chmod(0o644)
    said = ok(daemon.fsguard("diff", "f")).stdout.splitlines()
    assert said[0].startswith("--- f\t@102, alice, ") and said[1] == "+++ f\tnow"
    assert said[2:] == [
        "@@ -1,3 +1,3 @@",
        " one",
        "-two",
        "-three",
        "+2",
        "+three",
        "\\ No newline at end of file",
    ]


def test_diff_of_two_versions_and_the_way_back_by_patch(daemon, store):
    before, after = (b"".join(b"%d\n" % (n * k) for n in range(50)) for k in (1, 2))
    store.add("f", before)
    store.add("f", after)
    patch = ok(daemon.fsguard("diff", "f@101..102", text=False, errors=None)).stdout
    (daemon.workspace / "f").write_bytes(before)
    subprocess.run(["patch", "-p0"], input=patch, cwd=daemon.workspace, check=True, capture_output=True)
    assert (daemon.workspace / "f").read_bytes() == after
    assert ok(daemon.fsguard("diff", "f", "--version", "101..102")).stdout == patch.decode()


def test_diff_of_modes_of_what_is_gone_and_of_no_difference(daemon, store):
    store.add("f", b"same\n", mode=0o644)
    (daemon.workspace / "f").write_bytes(b"same\n")
    (daemon.workspace / "f").chmod(0o755)
    assert ok(daemon.fsguard("diff", "f@101")).stdout == "old mode 100644\nnew mode 100755\n"
    (daemon.workspace / "f").chmod(0o644)
    done = ok(daemon.fsguard("diff", "f@101"))
    assert (done.stdout, done.stderr) == ("", "fsguard: f: no difference\n")
    (daemon.workspace / "f").unlink()
    said = ok(daemon.fsguard("diff", "f@101")).stdout
    assert "deleted f (100644)\n" in said and "+++ /dev/null\n@@ -1 +0,0 @@\n-same\n" in said
    answer = json.loads(ok(daemon.fsguard("diff", "f@101", "--json")).stdout)
    assert answer.keys() >= FIELDS and answer["present"] is False and answer["identical"] is False


def test_diff_of_a_symlink_that_was_a_file(daemon, store):
    store.add("f", b"text\n", mode=0o644)
    (daemon.workspace / "f").symlink_to("elsewhere")
    said = ok(daemon.fsguard("diff", "f")).stdout
    assert said.startswith("old mode 100644\nnew mode 120000\n") and "+elsewhere\n" in said


def test_binary_files_are_said_to_differ(daemon, store):
    store.add("f", b"\0" * 10)
    (daemon.workspace / "f").write_bytes(b"text")
    (daemon.workspace / "f").chmod(0o640)
    assert ok(daemon.fsguard("diff", "f")).stdout == "binary files differ: f (10 B and 4 B)\n"
    answer = json.loads(ok(daemon.fsguard("diff", "f", "--json")).stdout)
    assert (answer["binary"], answer["diff"], answer["identical"]) == (True, None, False)


def test_secrets_are_not_shown_unless_asked_for(daemon, store):
    store.add(".env", b"KEY=hunter2\n")
    (daemon.workspace / ".env").write_text("KEY=changed\n")
    for flags in ([], ["--json"]):
        done = daemon.fsguard("diff", ".env", *flags)
        assert done.returncode == 6 and "looks like a secret" in done.stderr
        assert "hunter2" not in done.stdout + done.stderr
    assert "-KEY=hunter2" in ok(daemon.fsguard("diff", ".env", "--secrets")).stdout


def test_a_diff_has_colours_and_harmless_lines_on_a_terminal_only(daemon, store):
    store.add("f", b"\x1b]0;title\x07\xe9\n")
    (daemon.workspace / "f").write_bytes(b"new\n")
    plain = ok(daemon.fsguard("diff", "f", text=False, errors=None)).stdout
    assert b"-\x1b]0;title\x07\xe9\n+new\n" in plain
    code, said = on_terminal(daemon, "diff", "f")
    assert code == 0
    assert "\x1b[31m-\\x1b]0;title\\x07\\xe9\x1b[0m\n\x1b[32m+new\x1b[0m" in said


def test_diff_of_what_is_no_file_or_nowhere(daemon, store):
    assert daemon.fsguard("diff", "f").returncode == 2
    store.add("d", b"was a file\n")
    (daemon.workspace / "d").mkdir()
    done = daemon.fsguard("diff", "d")
    assert done.returncode == 1 and "no file now" in done.stderr


# ---- restore ----------------------------------------------------------------------------------


def test_restore_brings_back_bytes_mode_time_and_xattrs(daemon, store):
    data = os.urandom(5000)
    store.add("a/b/f", data, xattrs={"user.colour": base64.b64encode(b"blue\0").decode()})
    said = ok(daemon.fsguard("restore", "a/b/f@101")).stdout
    place = daemon.workspace / "a/b/f"
    found = place.stat()
    assert place.read_bytes() == data
    assert (found.st_mode & 0o7777, found.st_mtime_ns) == (0o640, 1_600_000_000_123_456_789)
    assert os.getxattr(place, "user.colour") == b"blue\0"
    assert said.splitlines() == [
        "a/b/f: version 101 is back (alice, 4.9 KiB)",
        "  to undo: rm -- a/b/f",
        "  the conflict over it counts as resolved",
    ]
    assert os.listdir(place.parent) == ["f"]
    assert store.rows[0]["resolved"]


def test_what_was_there_is_kept_and_comes_back(daemon, store):
    store.add("f", b"old")
    place = daemon.workspace / "f"
    place.write_bytes(b"present")
    place.chmod(0o600)
    os.utime(place, ns=(1, 77))
    said = ok(daemon.fsguard("restore", "f@101")).stdout
    assert place.read_bytes() == b"old"
    undo = re.search(r"to undo: (.*)", said)[1]
    assert undo == "fsguard restore f@102"
    ok(daemon.fsguard(*shlex.split(undo)[1:]))
    found = place.stat()
    assert (place.read_bytes(), found.st_mode & 0o7777, found.st_mtime_ns) == (b"present", 0o600, 77)


def test_the_present_file_is_looked_at_kept_and_only_then_replaced(daemon, store):
    store.add("f", b"old")
    place = daemon.workspace / "f"
    place.write_bytes(b"present")
    inode = place.stat().st_ino

    def keep(params):
        assert place.stat().st_ino == inode and os.listdir(daemon.workspace) == ["f"]
        return store.keep_now(params)

    daemon.answers["versions.keep_now"] = keep
    with place.open() as before:
        ok(daemon.fsguard("restore", "f@101"))
        assert before.read() == "present"  # another file, renamed over
    assert place.stat().st_ino != inode


def test_restore_never_loses_what_cannot_be_kept(daemon, store):
    store.add("f", b"old")
    store.refusing = "no space left"
    place = daemon.workspace / "f"
    place.write_bytes(b"present")
    done = daemon.fsguard("restore", "f@101")
    assert done.returncode == 1
    assert "what is in f now would be lost: it cannot be kept (no space left)" in done.stderr
    assert place.read_bytes() == b"present" and os.listdir(daemon.workspace) == ["f"]


def test_restore_of_what_is_as_it_was_changes_attributes_only(daemon, store):
    store.add("f", b"same")
    place = daemon.workspace / "f"
    place.write_bytes(b"same")
    os.setxattr(place, "user.other", b"x")
    inode = place.stat().st_ino
    answer = json.loads(ok(daemon.fsguard("restore", "f@101", "--json")).stdout)
    assert (answer["changed"], answer["undo"], answer["before"]) == (False, None, None)
    found = place.stat()
    assert (found.st_ino, found.st_mode & 0o7777, found.st_mtime_ns) == (
        inode,
        0o640,
        1_600_000_000_123_456_789,
    )
    assert os.listxattr(place) == []
    assert len(store.rows) == 1
    assert "already" in ok(daemon.fsguard("restore", "f@101")).stdout


def test_restore_of_a_symlink_and_over_a_symlink(daemon, store):
    store.add("l", kind="symlink", target="nowhere/at/all")
    store.add("f", b"file")
    (daemon.workspace / "l").write_bytes(b"now a file")
    outside = daemon.top / "outside"
    outside.write_text("untouched")
    (daemon.workspace / "f").symlink_to(outside)
    ok(daemon.fsguard("restore", "l@101"))
    assert os.readlink(daemon.workspace / "l") == "nowhere/at/all"
    assert (daemon.workspace / "l").lstat().st_mtime_ns == 1_600_000_000_123_456_789
    undo = json.loads(ok(daemon.fsguard("restore", "f@102", "--json")).stdout)["undo"]
    assert (daemon.workspace / "f").read_bytes() == b"file" and not (daemon.workspace / "f").is_symlink()
    ok(daemon.fsguard(*shlex.split(undo)[1:]))
    assert (daemon.workspace / "f").readlink() == outside and outside.read_text() == "untouched"
    assert "already" in ok(daemon.fsguard("restore", "l@101")).stdout


def test_restore_does_not_follow_a_symlink_out_of_the_workspace(daemon, store):
    """Kept when d was a directory; now it leads elsewhere."""
    outside = daemon.top / "outside"
    outside.mkdir()
    store.add("d/f", b"bytes")
    store.plan = [{**store.rows[0], "changed_since_by": None, "present": False}]
    (daemon.workspace / "d").symlink_to(outside)
    done = daemon.fsguard("undo", "--task", "bob", "--yes")
    assert done.returncode == 1 and "d is no directory any more" in done.stderr
    assert os.listdir(outside) == []
    assert daemon.fsguard("restore", "d/f@101").returncode == 2  # this names a path outside


@pytest.mark.parametrize("what", ["directory", "fifo", "socket"])
def test_restore_over_something_else(daemon, store, what, tmp_path):
    store.add("f", b"bytes")
    place = daemon.workspace / "f"
    if what == "directory":
        place.mkdir()
    elif what == "fifo":
        os.mkfifo(place)
    else:
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(os.path.relpath(place))
        sock.close()
    done = daemon.fsguard("restore", "f@101")
    assert done.returncode == 1 and "--to FILE" in done.stderr
    assert not place.is_file()


def test_restore_to_another_file(daemon, store):
    store.add("src/f", b"old")
    (daemon.workspace / "g").write_bytes(b"present g")
    said = ok(daemon.fsguard("restore", "src/f@101", "--to", "g")).stdout
    assert (daemon.workspace / "g").read_bytes() == b"old" and not (daemon.workspace / "src").exists()
    assert "fsguard restore g@102" in said and store.rows[1]["path"] == "g"
    assert not store.rows[0]["resolved"]  # it is not back in its place
    (daemon.workspace / "d").mkdir()
    ok(daemon.fsguard("restore", "src/f@101", "--to", "d"))
    assert (daemon.workspace / "d/f").read_bytes() == b"old"


def test_restore_to_a_file_outside(daemon, store):
    store.add("f", b"old")
    target = daemon.top / "new" / "f"
    said = ok(daemon.fsguard("restore", "f@101", "--to", str(target))).stdout
    assert target.read_bytes() == b"old" and f"rm -- {target}" in said
    target.write_bytes(b"mine")
    done = daemon.fsguard("restore", "f@101", "--to", "../new/f")
    assert done.returncode == 2 and "exists" in done.stderr and target.read_bytes() == b"mine"
    assert "versions.keep_now" not in [name for name, _ in daemon.calls]


def test_restore_says_what_it_cannot_bring_back(daemon, store):
    store.add("f", b"old", xattrs={"nonsense.name": "AA=="})
    (daemon.workspace / "f").write_bytes(b"present")
    os.link(daemon.workspace / "f", daemon.workspace / "other")
    done = ok(daemon.fsguard("restore", "f@101"))
    assert "f: could not be brought back with it: nonsense.name" in done.stderr
    assert "had 2 names" in done.stderr
    assert (daemon.workspace / "other").read_bytes() == b"present"
    assert json.loads(ok(daemon.fsguard("restore", "f@101", "--json")).stdout)["unrestored"] == [
        "nonsense.name"
    ]


@ROOT_ONLY
def test_restore_brings_back_the_owner_and_setuid(daemon, store):
    store.add("f", b"old", uid=1234, gid=4321, mode=0o4755)
    ok(daemon.fsguard("restore", "f@101"))
    found = (daemon.workspace / "f").stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (1234, 4321, 0o4755)


@ROOT_ONLY
def test_setuid_is_not_given_to_another_owner(tmp_path):
    """Who may not give files away gets the bytes, and no setuid program of its own."""
    program = """
import os, sys
from fsguard.cli.putback import Attributes, put
os.setgroups([]); os.setresgid(1000, 1000, 1000); os.setresuid(1000, 1000, 1000)
lost = put(sys.argv[1], "f", [b"x"], Attributes(0o6755, 0, 0, 5, {}))
found = os.stat(sys.argv[1] + "/f")
print(found.st_uid, oct(found.st_mode & 0o7777), found.st_mtime_ns, lost)
"""
    base = Path("/dev/shm") / tmp_path.name
    base.mkdir(mode=0o777)
    base.chmod(0o777)
    try:
        root = Path(__file__).resolve().parents[2]
        done = subprocess.run(
            [sys.executable, "-c", program, str(base)],
            env={"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout == "1000 0o755 5 ['group 0', 'owner 0']\n", done.stderr
    finally:
        for file in base.iterdir():
            file.unlink()
        base.rmdir()


def test_a_refused_restore_leaves_everything_as_it_was(daemon, store):
    store.add("f", b"old")
    (daemon.workspace / "f").write_bytes(b"present")

    def refuse(params):
        raise RefusedError("not for you")

    daemon.answers["versions.keep_now"] = refuse
    done = daemon.fsguard("restore", "f@101")
    assert done.returncode == 6 and (daemon.workspace / "f").read_bytes() == b"present"
    assert os.listdir(daemon.workspace) == ["f"]


def test_the_undoing_command_fits_where_one_stands(daemon, store):
    (daemon.workspace / "src").mkdir()
    place = daemon.workspace / "src/-odd name\x1b"
    store.add("src/-odd name\x1b", b"old")
    place.write_bytes(b"present")
    said = ok(daemon.fsguard("restore", "./-odd name\x1b@101", cwd=place.parent)).stdout
    undo = re.search(r"to undo: (.*)", said)[1]
    assert undo == "fsguard restore $'./-odd name\\x1b@102'"
    command = f'fsguard() {{ {shlex.join(daemon.command())} "$@"; }}; {undo}'
    subprocess.run(["bash", "-c", command], cwd=place.parent, env=daemon.env, check=True, capture_output=True)
    assert place.read_bytes() == b"present"


# ---- conflicts --------------------------------------------------------------------------------


def test_conflicts_newest_first_with_the_way_back(daemon, store):
    store.add("src/f", b"one")
    store.add("g", b"two", kept=False, reason="larger than 64 MiB", message=None, task="carol")
    store.add("h", b"three", conflict=False)
    store.add("i", b"four", resolved=True)
    said = ok(daemon.fsguard("conflicts")).stdout
    assert said.index("g@102") < said.index("src/f@101")
    assert "its bytes were not kept: larger than 64 MiB" in said
    assert "What alice had written was destroyed by carol" in said
    assert "  Alice changed it. You did not look.\n  to bring it back: fsguard restore src/f@101\n" in said
    assert "  to merge the two: fsguard resolve src/f@101\n" in said
    assert "h@103" not in said and "i@104" not in said
    assert "i@104 (resolved)" in ok(daemon.fsguard("conflicts", "--all")).stdout
    found = lines(daemon.fsguard("conflicts", "--json", "--task", "carol"))
    assert [row["path"] for row in found] == ["g"] and found[0].keys() >= FIELDS


def test_no_conflicts(daemon):
    assert ok(daemon.fsguard("conflicts")).stdout == "no unresolved conflicts\n"
    assert ok(daemon.fsguard("conflicts", "--json")).stdout == ""
