"""Sentences: what others chose can't drive a terminal, nor the shell an agent pastes a command into."""

import subprocess

import pytest

from fsguard.core.wording import command

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
