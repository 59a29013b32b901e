"""Policy `block` with real programs: refused before a byte changes, in the same words, until a look."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess

import pytest

from tests.kit.abilities import lacking
from tests.kit.agents import Agent, together, until
from tests.kit.mounting import Result, Workspace

GIT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "t",
    "GIT_AUTHOR_EMAIL": "t@e",
    "GIT_COMMITTER_NAME": "t",
    "GIT_COMMITTER_EMAIL": "t@e",
}

VIM = shutil.which("vim") or shutil.which("vim.tiny")

#: how A would destroy what B wrote into "$1"; each works on a file (or tree) of its own
WAYS = {
    "redirect": 'echo mine > "$1"',
    "cp": 'cp old "$1"',
    "cp-force": 'cp -f old "$1"',
    "tee": 'echo mine | tee "$1"',
    "mv": 'cp old fresh && mv fresh "$1"',
    "rm": 'rm "$1"',
    "rm-force": 'rm -f "$1"',
    "away": 'mv "$1" elsewhere',
    "truncate": 'truncate -s 3 "$1"',
    "dd": 'printf XXXX | dd of="$1" conv=notrunc status=none',
    "install": 'install -m 644 old "$1"',
    "link": 'ln -f old "$1"',
    "symlink": 'ln -sf old "$1"',
    "python-replace": 'cp old fresh && python3 -c "import os, sys; os.replace(\'fresh\', sys.argv[1])" "$1"',
    "python-open": "python3 -c \"import sys; open(sys.argv[1], 'w').write('mine')\" \"$1\"",
    "checkout": 'git checkout -q -- "$1"',
    "restore": 'git restore "$1"',
}


@pytest.fixture
def blocked(workspace: Workspace) -> Workspace:
    """A repository with a committed file for each way, and policy `block`."""
    workspace.env.update(GIT)
    files = " ".join(WAYS)
    workspace.plain(
        "sh",
        "-c",
        f"git init -q . && for f in old {files}; do echo base > $f; done; git add . && git commit -qm one",
    ).ok()
    workspace.fsguard("policy", "block").ok()
    return workspace


def errors(result: Result) -> list[str]:
    """What fsguard says at the end of a command, without what the command said itself."""
    return [line for line in result.err.splitlines() if line.startswith("fsguard:")]


def test_every_way_to_destroy_unseen_work_fails_until_a_look(blocked: Workspace) -> None:
    every = " ".join(WAYS)
    blocked.sh("A", f"cat old {every} > /dev/null").ok()
    wrong = []
    for way, script in WAYS.items():
        blocked.sh("B", f"echo of B > {way}").ok()  # not earlier: git reads what others have changed
        tries = [blocked.run("A", "sh", "-c", script, "sh", way) for _ in range(2)]
        if any(t.code == 0 for t in tries):
            wrong.append(f"{way}: went on")
        if (blocked.root / way).read_text() != "of B\n":
            wrong.append(f"{way}: the sibling's bytes are gone")
        first, again = map(errors, tries)
        if not first or first != again:
            wrong.append(f"{way}: not the same words: {first} {again}")
        elif not all(
            part in first[0]
            for part in ('task "B"', way, "refused, nothing was changed", f"Read {way} first")
        ):
            wrong.append(f"{way}: {first}")
        if os.strerror(errno.EBUSY) not in tries[0].err:
            wrong.append(f"{way}: not EBUSY: {tries[0].err}")
    assert not wrong, "\n".join(wrong)
    left = set(os.listdir(blocked.root)) - {".git", "old", "fresh", *WAYS}
    assert not left, "temporary files of what was refused"
    blocked.sh("A", f"cat {every} > /dev/null").ok()
    for way, script in WAYS.items():
        result = blocked.run("A", "sh", "-c", script, "sh", way)
        if result.code != 0 or errors(result):
            wrong.append(f"{way}: still refused after a look: {result.err}")
    assert not wrong, "\n".join(wrong)


def test_sed_that_read_before_the_sibling_wrote(blocked: Workspace) -> None:
    """`sed -i` reads by itself: it is refused when somebody wrote while it was at work."""
    script = 'sed -i \'1e echo reads > "$POINT_OUT"; read x < "$POINT_IN"\' cp'
    with Agent(blocked, "A", script, shell=True) as agent:
        agent.until("reads")
        blocked.sh("B", "echo of B > cp").ok()
        result = agent.finish()
    assert result.code != 0 and os.strerror(errno.EBUSY) in result.err
    assert (blocked.root / "cp").read_text() == "of B\n"
    assert not [name for name in os.listdir(blocked.root) if name.startswith("sed")]
    (warning,) = blocked.conflicts("A")
    assert warning["kind"] == "lost_update" and "from that old copy: refused" in warning["message"]
    blocked.sh("A", "sed -i s/of/by/ cp").ok()
    assert (blocked.root / "cp").read_text() == "by B\n"


EDITORS = {
    "vim": (("-u", "NONE", "-i", "NONE", "-n", "-es"), ("0file", "w! cp", "q!")),
    "vim-backup": (
        ("-u", "NONE", "-i", "NONE", "-n", "-es", "--cmd", "set backup backupcopy=no"),
        ("0file", "w! cp", "q!"),
    ),
    "vim-in-place": (
        ("-u", "NONE", "-i", "NONE", "-n", "-es", "--cmd", "set backupcopy=yes"),
        ("0file", "w! cp", "q!"),
    ),
    "ed": (("-s",), ("w", "Q", "Q")),
}


@pytest.mark.parametrize("editor", EDITORS)
def test_an_editor_with_the_old_text_in_its_buffer(blocked: Workspace, editor: str) -> None:
    program = VIM if editor.startswith("vim") else shutil.which("ed")
    if program is None:
        if editor == "ed":
            pytest.skip("ed is not installed")
        lacking("vim is not installed")
    options, leave = EDITORS[editor]
    before = set(os.listdir(blocked.root))
    process = blocked.start("A", str(program), *options, "cp", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write("1s/base/mine/\nw buffer\n")
    process.stdin.flush()
    until((blocked.root / "buffer").exists, "the editor has read the file")
    blocked.sh("B", "echo of B > cp").ok()
    process.stdin.write("\n".join((*leave, "")))
    (result,) = together(process)
    assert (blocked.root / "cp").read_text() == "of B\n", result
    assert errors(result) and "refused, nothing was changed" in errors(result)[0], result
    assert set(os.listdir(blocked.root)) == before | {"buffer"}


def test_whole_trees(blocked: Workspace) -> None:
    """What changes many files at once stops at those that were not seen."""
    blocked.sh("B", "mkdir d; echo 1 > d/f; git add d; echo 1 > cp; git commit -qam two").ok()
    for script in (
        "rm -rf d",
        "mv d e",
        "git checkout -qf HEAD~1",
        "git reset -q --hard",
        "git clean -qfdx d",
    ):
        blocked.sh("B", "echo of B > d/f; echo of B > cp").ok()
        result = blocked.sh("A", script)
        assert (blocked.root / "d/f").read_text() == "of B\n", script
        assert (blocked.root / "cp").read_text() == "of B\n", script
        if "clean" not in script:
            assert result.code != 0 and "refused" in result.err, (script, result)
    blocked.sh("A", "cat d/f cp").ok()
    blocked.sh("A", "rm -rf d && test ! -e d").ok()


def test_the_error_number(blocked: Workspace) -> None:
    blocked.sh("B", "echo of B > cp").ok()
    script = """if True:
        import os
        def attempt(call, *args):
            try:
                call(*args)
            except OSError as error:
                print(error.errno)
        fd = os.open("cp", os.O_WRONLY)
        attempt(os.write, fd, b"mine")
        attempt(os.ftruncate, fd, 0)
        attempt(os.open, "cp", os.O_WRONLY | os.O_TRUNC)
        attempt(os.truncate, "cp", 1)
        attempt(os.rename, "old", "cp")
        attempt(os.unlink, "cp")
    """
    assert blocked.python("A", script).out.split() == [str(errno.EBUSY)] * 6
    assert (blocked.root / "cp").read_text() == "of B\n"


def test_what_loses_nothing_is_not_refused(blocked: Workspace) -> None:
    blocked.sh("A", "cat old cp mv rm > /dev/null").ok()
    blocked.sh("B", "for f in cp mv rm; do echo of B > $f; done; mkfifo pipe").ok()
    blocked.sh("A", "echo more >> cp; sed -i s/of/by/ mv; touch rm; : >> rm; rm pipe").ok()
    assert (blocked.root / "cp").read_text() == "of B\nmore\n"
    assert (blocked.root / "mv").read_text() == "by B\n"
    assert blocked.conflicts("A") == []


def test_a_link_is_looked_at_by_reading_it_not_by_following_it(blocked: Workspace) -> None:
    blocked.sh("B", "mkdir v1 v2; echo 1 > v1/f; ln -s v1 current").ok()
    blocked.sh("A", "readlink current; cat current/f").ok()
    blocked.sh("B", "ln -sfn v2 current").ok()
    first = blocked.sh("A", "ln -sfn v1 current")
    assert first.code != 0 and "See where current leads (`readlink`), then do it again" in first.err
    assert os.readlink(blocked.root / "current") == "v2"
    assert blocked.sh("A", "ls current/; ln -sfn v1 current").code != 0, (
        "led through it, and saw nothing of it"
    )
    blocked.sh("A", "readlink current; ln -sfn v1 current").ok()
    assert os.readlink(blocked.root / "current") == "v1"
