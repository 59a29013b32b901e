"""Sentences: what others chose can't drive a terminal, nor the shell an agent pastes a command into."""

import re
import subprocess
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsguard.core.model import Act, Command, Kind, Process, Task, Write
from fsguard.core.rules import Finding
from fsguard.core.wording import clock, command, rfc3339, sentence

NAMES = [
    b"plain/x.py",
    b"with space",
    b"x;touch${IFS}pwned;",
    b"$(id)",
    b"a`id`b",
    b"it's",
    b"\xff\xe9",
    b"\x1b[31mred\nnext\\line'",
    "\u202eright to left\U000e0041".encode(),
    b"-rf",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_command_in_a_sentence_is_one_word_whatever_the_name(name):
    text = command("restore", name, 7)
    assert text.startswith("`fsguard restore ") and text.endswith("`")
    assert text.isprintable()
    argument = text[len("`fsguard restore ") : -1]
    got = subprocess.run(
        ["bash", "-c", f"printf %s\\\\0 {argument}"],
        env={"LC_ALL": "C.UTF-8"},
        capture_output=True,
        check=True,
    ).stdout
    assert got == (b"./" if name.startswith(b"-") else b"") + name + b"@7\0"


def test_what_was_not_today_comes_with_its_date():
    now = datetime(2026, 1, 31, 14, 3, 22).timestamp()
    days = 86_400.0
    assert clock(now - 10, now) == "14:03:12" == clock(now - 10)
    assert clock(now - 3 * days, now) == "2026-01-28 14:03:22"
    sibling = Task("B", ended=now - 2 * days)
    write = Write(sibling, Process(1), Command("c", "sed", sibling), Act.REPLACE, now - 3 * days, 7, 7)
    finding = Finding(Kind.STALE_WRITE, Act.TRUNCATE, (write,), now - 4 * days)
    text = sentence(finding, b"f", "cp g f", False, now=now)
    for words in (
        "ended at 2026-01-29 14:03:22",
        "f at 2026-01-28 14:03:22",
        "saw it at 2026-01-27 14:03:22",
    ):
        assert words in text


@given(st.floats(0, 4e9))
def test_times_are_rfc_3339_with_microseconds_and_zone(t: float) -> None:
    text = rfc3339(t)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}[+-]\d\d:\d\d", text)
    assert abs(datetime.fromisoformat(text).timestamp() - t) <= 1e-6
