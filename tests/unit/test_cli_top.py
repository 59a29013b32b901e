"""`fsguard top` where its screen cannot be shown."""

from __future__ import annotations

import sys

import pytest

from fsguard.cli import top
from fsguard.control.registry import Mount
from fsguard.errors import MissingError

MOUNT = Mount("/w", "/w", "/s", 1, 0, 0)


@pytest.mark.parametrize("missing", ["textual", "rich"])
def test_a_missing_library_is_named_with_what_goes_without_it(monkeypatch, missing):
    monkeypatch.delitem(sys.modules, "fsguard.cli.screen.app", raising=False)
    for name in [name for name in sys.modules if name.split(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingError) as caught:
        top._screen(MOUNT, 1.0)
    assert caught.value.exit_code == 5 and "--once" in str(caught.value.hint)


def test_a_fault_of_our_own_is_not_taken_for_a_missing_library(monkeypatch):
    monkeypatch.delitem(sys.modules, "fsguard.cli.screen.app", raising=False)
    monkeypatch.setitem(sys.modules, "fsguard.cli.screen.rows", None)
    with pytest.raises(ModuleNotFoundError):
        top._screen(MOUNT, 1.0)
