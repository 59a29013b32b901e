"""Others' words on a terminal: harmless, cut, and coloured only where wanted."""

import io
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsguard.cli import terminal


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain näme 文", "plain näme 文"),
        ("a\nb\tc\rd", "a\\nb\\tc\\rd"),
        ("\x1b[31mred\x07\x7f", "\\x1b[31mred\\x07\\x7f"),
        ("\x9b2J", "\\u009b2J"),
        ("abc\u202edcba", "abc\\u202edcba"),
        ("\u2066x\u2069\u200b\ufeff\u2028", "\\u2066x\\u2069\\u200b\\ufeff\\u2028"),
        ("hidden\U000e0041\U000e01ef", "hidden\\U000e0041\\U000e01ef"),
        (os.fsdecode(b"caf\xe9"), "caf\\xe9"),
        ("\ud800", "\\ud800"),
        ("", ""),
        (7, "7"),
    ],
)
def test_what_does_not_simply_print_is_spelled_out(text, shown):
    assert terminal.shown(text) == shown


@settings(deadline=None)
@given(st.text() | st.binary().map(os.fsdecode))
def test_the_result_prints_on_one_line_in_any_case(text):
    shown = terminal.shown(text)
    assert shown.isprintable()
    shown.encode("utf-8")
    lines = terminal.shown(text, lines=True)
    assert lines.replace("\n", "").replace("\t", "").isprintable()
    assert lines.count("\n") == text.count("\n")


@settings(deadline=None)
@given(st.text(max_size=200), st.integers(2, 80))
def test_cutting_says_that_it_cut(text, limit):
    cut = terminal.cut(text, limit)
    assert len(cut) <= limit
    assert cut == terminal.shown(text) or cut.endswith("…")


class Tty(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "env", "coloured"),
    [
        (Tty(), {}, True),
        (Tty(), {"NO_COLOR": ""}, True),
        (Tty(), {"NO_COLOR": "1"}, False),
        (Tty(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
    ],
)
def test_colours_only_on_a_terminal_that_wants_them(stream, env, coloured, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert terminal.paint("x", "red", stream) == ("\x1b[31mx\x1b[0m" if coloured else "x")


def test_a_table_lines_up_and_is_harmless():
    text = terminal.table(("TASK", "N"), [("a\nb", 1), ("long name", 22)])
    assert text == "TASK       N\na\\nb       1\nlong name  22"
    assert terminal.table(("A", "B"), []) == "A  B"
