"""Parameters of a request: the right type or a UsageError that names them."""

import pytest

from fsguard.control import params
from fsguard.errors import UsageError

GIVEN = {"text": "t", "flag": True, "n": 3, "list": ["a"], "null": None, "zero": "a\0b", "empty": ""}


def test_values_of_the_right_type_pass():
    assert params.text(GIVEN, "text") == "t"
    assert params.optional_text(GIVEN, "null") is None
    assert params.optional_text(GIVEN, "absent") is None
    assert params.optional_text(GIVEN, "empty") == ""
    assert params.texts(GIVEN, "list") == ["a"]
    assert params.texts(GIVEN, "absent") == []
    assert params.flag(GIVEN, "flag") is True
    assert params.flag(GIVEN, "absent") is False
    assert params.number(GIVEN, "n") == 3
    assert params.number(GIVEN, "null", 7) == 7
    params.known(GIVEN, GIVEN)


@pytest.mark.parametrize(
    ("read", "name"),
    [
        (params.text, "absent"),
        (params.text, "empty"),
        (params.text, "n"),
        (params.text, "zero"),
        (params.optional_text, "flag"),
        (params.texts, "text"),
        (params.flag, "n"),
        (params.number, "flag"),
        (params.number, "absent"),
        (params.number, "text"),
    ],
)
def test_others_are_refused_by_name(read, name):
    with pytest.raises(UsageError, match=f"`{name}`"):
        read(GIVEN, name)


def test_a_number_out_of_range_and_an_unknown_name_are_refused():
    with pytest.raises(UsageError, match="from 5"):
        params.number(GIVEN, "n", low=5)
    with pytest.raises(UsageError, match="unknown parameter `zz`"):
        params.known({"zz": 1}, ["text"])
