"""Patterns as .gitignore means them, whichever way they are matched."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pathspec import GitIgnoreSpec

from fsguard.core.policy import DEFAULT_IGNORE, Patterns

NAMES = [
    ".git",
    "node_modules",
    "target",
    "targets",
    "a.py",
    "x~",
    ".x.swp",
    "4913",
    "#x#",
    "a\nb",
    "\n",
    "é",
    "\udcff",
]
LISTS = {
    "the default": list(DEFAULT_IGNORE),
    "anchored and nested": ["/a.py", "target/**", "**/x~", "node_modules/*.py", "# a comment", "", "  "],
    "taken back": ["*", "!a.py", "target/", "!target/x~"],
    "none": [],
}


@pytest.mark.parametrize("name", LISTS)
@given(parts=st.lists(st.sampled_from(NAMES), min_size=1, max_size=4))
def test_all_in_one_match_means_the_same(name: str, parts: list[str]) -> None:
    lines, path = LISTS[name], "/".join(parts)
    patterns = Patterns(lines)
    assert patterns(path.encode("utf-8", "surrogateescape")) == GitIgnoreSpec.from_lines(lines).match_file(
        path
    )
