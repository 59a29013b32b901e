"""For how long the kernel may believe what it knows, and the words about it."""

from __future__ import annotations

from errno import ENOSPC, EREMOTE

import pytest

from fsguard.caching import LONG, SHORT, Caching, why_not


@pytest.mark.parametrize(
    ("asked", "in_place", "lane", "seconds"),
    [
        ("auto", True, True, (SHORT, LONG)),
        ("auto", True, False, (SHORT, SHORT)),
        ("auto", False, True, (0.0, 0.0)),
        ("auto", False, False, (0.0, 0.0)),
        ("short", True, True, (SHORT, SHORT)),
        ("short", False, True, (SHORT, SHORT)),
        ("trust", True, False, (LONG, LONG)),
        ("trust", False, True, (LONG, LONG)),
    ],
)
def test_how_long(asked: str, in_place: bool, lane: bool, seconds: tuple[float, float]) -> None:
    chosen = Caching.choose(asked, in_place, lane)
    assert (chosen.plain, chosen.watched) == seconds


def test_what_is_said_about_it() -> None:
    auto = Caching.choose("auto", True, True)
    heard = {"foreign": 3, "refused": 0, "error": 0}
    assert auto.report(heard, None) == {
        "mode": "auto",
        "seconds": LONG,
        "reason": "changes behind the mount are heard of at once",
        "heard": heard,
    }
    some = auto.report({"refused": 2, "error": ENOSPC}, None)
    assert some["seconds"] == LONG and "but in 2 directories" in str(some["reason"])
    assert "max_user_marks" in str(some["reason"])
    none = auto.report({}, why_not(EREMOTE))
    assert none["seconds"] == SHORT and "not heard of: other machines" in str(none["reason"])
    assert "--io lane" in str(Caching.choose("auto", True, False).report(heard, None)["reason"])
    separate = Caching.choose("auto", False, True).report(heard, None)
    assert separate["seconds"] == 0.0 and "--cache trust" in str(separate["reason"])
    assert Caching.choose("trust", False, True).report({}, "no")["reason"] == "asked for"
