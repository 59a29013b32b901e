"""What a warning shows of a file, and of which files it shows nothing."""

from __future__ import annotations

import difflib
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsguard.versions.diff import short_diff
from fsguard.versions.secrets import Secrets


def diff(old: str, new: str, **more: int) -> list[str]:
    return short_diff(old.encode(), new.encode(), "what you read", "now", **more).splitlines()


def numbered(*lines: int) -> str:
    return "".join(f"line {n}\n" for n in lines)


def test_a_changed_line():
    assert diff(numbered(*range(9)), numbered(0, 1, 2, 3, 44, 5, 6, 7, 8)) == [
        "--- what you read",
        "+++ now",
        "@@ -3,5 +3,5 @@",
        " line 2",
        " line 3",
        "-line 4",
        "+line 44",
        " line 5",
        " line 6",
    ]


def test_longer_and_shorter_is_said():
    assert diff(numbered(1, 2), numbered(1, 2, 3, 4))[-1] == "(the file is 2 lines longer now)"
    assert diff(numbered(1, 2), numbered(2))[-1] == "(the file is 1 line shorter now)"
    assert diff("", numbered(1))[2:] == ["@@ -0,0 +1 @@", "+line 1", "(the file is 1 line longer now)"]
    assert diff(numbered(1), "")[2:] == ["@@ -1 +0,0 @@", "-line 1", "(the file is 1 line shorter now)"]


def test_what_has_no_diff():
    assert diff("same\n", "same\n") == []
    assert short_diff(b"a\0b", b"text", "a", "b") == "" == short_diff(b"text", b"\0", "a", "b")
    assert diff("a\n", "a") == ["(only the line break at the end differs)"]


lines = st.lists(st.sampled_from(["a", "b", "c", "", "\tx"]), max_size=30)


@settings(deadline=None)
@given(lines, lines)
def test_it_is_a_diff(a, b):
    """Applied to the old lines it gives the new ones, and it is no longer than another's."""
    old, new = "".join(x + "\n" for x in a), "".join(x + "\n" for x in b)
    if old == new:
        return
    shown = [x for x in diff(old, new, max_lines=10_000) if not x.startswith("(")][2:]
    made: list[str] = []
    at = 0
    for line in shown:
        if line.startswith("@@"):
            start, _, count = line.split()[1][1:].partition(",")
            first = int(start) - (count != "0")
            made += a[at:first]
            at = first
        elif line.startswith("+"):
            made.append(line[1:])
        else:
            assert a[at] == line[1:]
            made += [line[1:]] * (line[0] == " ")
            at += 1
    assert made + a[at:] == b
    changed = sum(line[:1] in "+-" for line in shown)
    other = list(difflib.unified_diff(a, b, lineterm=""))[2:]
    assert changed <= sum(line[:1] in "+-" for line in other)


@pytest.mark.parametrize("seed", range(4))
def test_its_cost_has_a_bound(seed):
    rng = random.Random(seed)
    if seed == 0:
        a, b = ([str(rng.random()) for _ in range(50_000)] for _ in "ab")
    elif seed == 1:
        a, b = ([str(rng.randrange(90)) for _ in range(20_000)] for _ in "ab")
    elif seed == 2:
        a, b = ["x"] * 200_000, ["x"] * 100_000 + ["y"] + ["x"] * 100_000
    else:
        a = [str(i % 7) for i in range(100_000)]
        b = [line for i, line in enumerate(a) if i % 500]
    start = time.perf_counter()
    shown = diff("\n".join(a), "\n".join(b))
    assert len(shown) <= 43 and any("cut after 40 lines" in s for s in shown) == (seed != 2)
    assert time.perf_counter() - start < 3, "generous: it is about a tenth of that"


def test_the_text_is_somebody_elses():
    (line,) = [x for x in diff("a\n", "\x1b[2Ja\u202eb\u2028c\r\x07\U000e0041é\t😀\n") if x.startswith("+\\")]
    assert line == "+\\x1b[2Ja\\u202eb\\u2028c\\x0d\\x07\\U000e0041é\t😀"
    (line,) = [x for x in diff("a\n", "x" * 5000) if x.startswith("+x")]
    assert len(line) == 201 and line.endswith("…")
    assert "\N{REPLACEMENT CHARACTER}" in short_diff(b"a\n", b"\xff\n", "a", "b")
    assert short_diff(b"a", b"b", "\x1b[2J", "b\nc").splitlines()[:2] == ["--- \\x1b[2J", "+++ b\\x0ac"]


SECRET = [".env", "a/.ENV", ".env.local", "deploy/tls.pem", "id_rsa", "x/.ssh/config", "a/credentials"]
SECRET += ["client_secret.json", ".netrc", "terraform.tfstate", "release.Key"]
PLAIN = [".env.example", "environment.py", "keyboard.py", "pem.txt", "src/credential_types.md", "rsa.c"]


def test_secrets():
    looks = Secrets()
    assert [p for p in SECRET if not looks(p.encode())] == []
    assert [p for p in PLAIN if looks(p.encode())] == []
    assert not looks(b"\xff\xfe") and looks(b"\xff/.env")
    mine = Secrets(["*.Vault", "!ok.vault"])
    assert mine(b"a/B.VAULT") and not mine(b"ok.vault") and not mine(b".env")
    assert not Secrets([])(b".env")
