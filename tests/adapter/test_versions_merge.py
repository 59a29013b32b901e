"""Three-way merges by git: clean, with conflicts, refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fsguard.errors import DaemonError, MissingError, UsageError
from fsguard.versions import merge as module
from fsguard.versions.merge import Merge, merge
from tests.kit.abilities import need_tools

LABELS = ("A's", "what A read", "B's")
BASE = b"def f():\n    return 1\n\n\n# between\n\n\ndef g():\n    return 1\n"


@pytest.fixture(autouse=True)
def _git() -> None:
    need_tools("git")


def test_two_edits_to_different_functions():
    ours, theirs = BASE.replace(b"f():\n    return 1", b"f():\n    return 2"), BASE[:-2] + b"3\n"
    assert merge(BASE, ours, theirs, LABELS) == Merge(ours[:-2] + b"3\n", True, 0)


def test_the_same_line():
    done = merge(b"a\n", b"b\n", b"c\n", LABELS)
    assert done == Merge(b"<<<<<<< A's\nb\n=======\nc\n>>>>>>> B's\n", False, 1)
    assert merge(b"a\n", b"b\n", b"c\n", LABELS, "ours") == Merge(b"b\n", True, 0)
    assert merge(b"a\n", b"b\n", b"c\n", LABELS, "theirs") == Merge(b"c\n", True, 0)
    assert merge(b"a\n", b"b\n", b"c\n", LABELS, "union") == Merge(b"b\nc\n", True, 0)


def test_many_conflicts_are_counted_up_to_what_git_says():
    part = b"".join(b"%%d stays %d\n" % i for i in range(5))
    sides = [
        b"".join(b"%s %d\n" % (who, i) + part % ((i,) * 5) for i in range(300)) for who in (b"o", b"a", b"b")
    ]
    assert merge(*sides, LABELS).conflicts == 127


@pytest.mark.parametrize("place", range(3))
def test_no_text(place):
    sides = [b"a\n", b"b\n", b"c\n"]
    sides[place] = b"x\0y"
    with pytest.raises(UsageError, match="binary"):
        merge(*sides, LABELS)


def test_not_utf8_and_no_line_break_at_the_end():
    assert merge(b"\xff", b"\xff", b"\xfe", LABELS) == Merge(b"\xfe", True, 0)
    assert merge(b"", b"", b"", LABELS) == Merge(b"", True, 0)


def test_words_of_others_stay_one_line():
    done = merge(b"a\n", b"b\n", b"c\n", ("-p\nx\0\x1b[2J", "--help", "\udcff" + "y" * 999))
    assert done.content.splitlines()[0] == b"<<<<<<< -p?x??[2J" and len(done.content.splitlines()) == 5


def test_nobodys_configuration_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / ".gitconfig").write_text("[merge]\n\tconflictStyle = diff3\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    assert merge(b"a\n", b"b\n", b"c\n", LABELS).content.count(b"\n") == 5


def test_no_such_way():
    with pytest.raises(UsageError, match="no way 'mine'"):
        merge(b"", b"", b"", LABELS, "mine")


def fake_git(place: Path, script: str) -> None:
    git = place / "git"
    git.write_text(f"#!/bin/sh\n{script}\n")
    git.chmod(0o755)


def test_git_fails_hangs_or_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", f"{tmp_path}")
    with pytest.raises(MissingError, match="not installed"):
        merge(b"a", b"b", b"c", LABELS)
    fake_git(tmp_path, "echo broken >&2; exit 255")
    with pytest.raises(DaemonError, match="broken"):
        merge(b"a", b"b", b"c", LABELS)
    monkeypatch.setattr(module, "SECONDS", 0.2)
    fake_git(tmp_path, "exec /bin/sleep 20")
    with pytest.raises(DaemonError, match=r"within 0\.2 s"):
        merge(b"a", b"b", b"c", LABELS)


def test_nothing_is_left_and_nobody_else_can_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    (tmp_path / "bin").mkdir()
    seen = tmp_path / "seen"
    fake_git(tmp_path / "bin", f"for f; do [ -f $f ] && stat -c '%a' $f $(dirname $f) >>{seen}; done; exit 0")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    merge(b"a", b"b", b"c", LABELS)
    assert set(seen.read_text().split()) == {"600", "700"} and not list((tmp_path / "tmp").iterdir())
