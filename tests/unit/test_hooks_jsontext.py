"""JSON edited as text: what was put in comes out again, and nothing else moves."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsguard.hooks.jsontext import JsonError, added, parsed, removed

HOOK = {"matcher": "*", "hooks": [{"type": "command", "command": "x y", "timeout": 5}]}

TEXTS = {
    "plain": '{\n  "a": 1\n}\n',
    "one line": '{"a":1}',
    "four spaces": '{\n    "a": [\n        1\n    ]\n}',
    "tabs": '{\n\t"a": {\n\t\t"b": 1\n\t}\n}\n',
    "crlf": '{\r\n  "a": 1,\r\n  "b": [\r\n    2\r\n  ]\r\n}\r\n',
    "byte order mark": '\ufeff{\n  "a": 1\n}\n',
    "comments": '// top\n{\n  // of a\n  "a": 1, // of a\n  /* of b */ "b": 2 // of b\n  // last\n}\n// z\n',
    "trailing commas": '{\n  "a": [\n    1,\n  ],\n}\n',
    "others' hooks": '{\n  "hooks": {\n    "P": [\n      {"hooks": [{"command": "mine"}]}\n    ],\n'
    '    "Q": []\n  },\n  "z": null\n}\n',
    "hooks in one line": '{\n  "hooks": {"P": [{"command": "mine"}]}\n}',
    "only a comment": "{\n  // nothing yet\n}",
    "comment in one line": "{ /* nothing yet */ }",
    "comment behind": '{ "a": 1 // one\n}',
    "commented hooks": '{\n  "hooks": {\n    // "P": []\n  }\n}\n',
    "not ascii": '{\n  "é\\u00e9": "\U0001f600 // no comment /* nor this */"\n}\n',
}


@pytest.mark.parametrize("name", TEXTS)
def test_in_and_out_again(name: str) -> None:
    text = TEXTS[name]
    before = parsed(text).plain()
    more = added(text, ["hooks", "P"], HOOK)
    hooks = parsed(more).plain()
    assert hooks["hooks"]["P"][-1] == HOOK
    assert list(hooks) == [*before, *([] if "hooks" in before else ["hooks"])], "the order stays"
    index = len(hooks["hooks"]["P"]) - 1
    assert removed(more, ["hooks", "P", index]) == text
    comments = [line.partition("// ")[2] for line in text.splitlines() if "// " in line]
    assert all(comment in more for comment in comments)


@pytest.mark.parametrize("text", ["", "{}", "{}\n", " {} ", "// only a comment\n", "{ }"])
def test_out_of_nothing(text: str) -> None:
    more = added(text, ["hooks", "P"], HOOK)
    assert parsed(more).plain() == {"hooks": {"P": [HOOK]}}
    assert text.strip("{} \n") in more
    assert "\n" in more, "laid out for people"


def test_two_of_three_are_taken_out_and_the_comments_stay() -> None:
    text = '{"hooks": {"P": [\n  1, // one\n  2, // two\n  3 // three\n]}}'
    assert removed(text, ["hooks", "P", 1]) == '{"hooks": {"P": [\n  1, // one\n // two\n  3 // three\n]}}'
    last = removed(text, ["hooks", "P", 2])
    assert parsed(last).plain() == {"hooks": {"P": [1, 2]}} and "// three" in last
    for index in (0, 1, 2):
        left = removed(text, ["hooks", "P", index])
        assert parsed(left).plain()["hooks"]["P"] == [n for n in (1, 2, 3) if n != index + 1]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('{\n  "a": 1\n  "b": 2\n}', "line 3, column 3: a comma or } is missing"),
        ('{\n  "a": }', "line 2, column 8: not JSON"),
        ("{'a': 1}", "line 1, column 2: a name in quotation marks"),
        ('{\n"a": 1,\n"a": 2}', "line 3, column 4: 'a' is there twice"),
        ('{"a": 1} x', "line 1, column 10: something after the end"),
        ("{\n\n/* open", "line 3, column 1: a comment that does not end"),
        ('{"a" 1}', "a : is missing"),
        ('{"a": [1, 2', "a comma or ] is missing"),
        ("[" * 300, "nested too deep"),
        ('{"a": "\\ud800"', "a comma or }"),
        ("{", "a name in quotation marks"),
        ("nul", "line 1, column 1: not JSON"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, where: str) -> None:
    with pytest.raises(JsonError) as error:
        added(text, ["hooks", "P"], 1)
    assert where in error.value.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "line 1: the whole should be an object"),
        ('{\n "hooks": []}', "line 2: `hooks` should be an object"),
        ('{"hooks": {"P": {}}}', "`hooks.P` should be an array"),
    ],
)
def test_what_is_not_as_we_know_it_is_left_alone(text: str, said: str) -> None:
    with pytest.raises(JsonError) as error:
        added(text, ["hooks", "P"], 1)
    assert said in error.value.message


SPACES = st.sampled_from(["", " ", "\n", "\n  ", "\t", " // c\n", "/* c */", "\r\n"])
KEYS = st.text(max_size=4)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def written(draw: Any, value: Any) -> str:
    """`value` in some layout, with comments and trailing commas."""

    def write(value: Any) -> str:
        if isinstance(value, dict):
            parts = [f"{json.dumps(k)}{draw(SPACES)}:{draw(SPACES)}{write(v)}" for k, v in value.items()]
            return "{" + spread(parts) + "}"
        if isinstance(value, list):
            return "[" + spread([write(v) for v in value]) + "]"
        return json.dumps(value)

    def spread(parts: list[str]) -> str:
        text = ",".join(draw(SPACES) + part + draw(SPACES) for part in parts) + draw(SPACES)
        return text + ("," if parts and draw(st.booleans()) else "") + draw(SPACES)

    return draw(SPACES) + write(value) + draw(SPACES)


@given(st.data())
def test_any_layout(data: st.DataObject) -> None:
    value = data.draw(st.dictionaries(KEYS.filter(lambda k: k != "hooks"), PLAIN, max_size=3))
    if data.draw(st.booleans()):
        value["hooks"] = data.draw(
            st.dictionaries(st.sampled_from("PQ"), st.lists(PLAIN, max_size=3), max_size=2)
        )
    text = data.draw(written(value))
    assert parsed(text).plain() == value
    more = added(text, ["hooks", "P"], HOOK)
    wanted = {**value, "hooks": {**value.get("hooks", {})}}
    wanted["hooks"]["P"] = [*wanted["hooks"].get("P", []), HOOK]
    assert parsed(more).plain() == wanted
    back = parsed(removed(more, ["hooks", "P", len(wanted["hooks"]["P"]) - 1])).plain()
    for empty in ({"hooks": {"P": []}}, {"hooks": {}}):  # what is left empty goes too, whoever made it
        assert back.get("hooks", {}).get("P", []) == value.get("hooks", {}).get("P", []) or empty
    assert {k: v for k, v in back.items() if k != "hooks"} == {k: v for k, v in value.items() if k != "hooks"}
    assert text.count("// c") == removed(more, ["hooks", "P", len(wanted["hooks"]["P"]) - 1]).count("// c")


@given(st.data())
def test_anything_is_taken_out(data: st.DataObject) -> None:
    value = data.draw(st.lists(PLAIN, min_size=1, max_size=4))
    text = data.draw(written({"hooks": {"P": value}}))
    index = data.draw(st.integers(0, len(value) - 1))
    left = parsed(removed(text, ["hooks", "P", index])).plain()
    rest = value[:index] + value[index + 1 :]
    assert left.get("hooks", {}).get("P", []) == rest


@given(st.text('{}[]",:/*\n\\ a1', max_size=30))
def test_nonsense_is_an_error_and_nothing_else(text: str) -> None:
    try:
        added(text, ["hooks", "P"], 1)
    except JsonError as error:
        assert "line " in error.message
