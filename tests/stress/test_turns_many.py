"""A thousand processes wait to write one file: reads, other files, releases and the control socket go on."""

from __future__ import annotations

from collections.abc import Callable

from tests.kit.mounting import Workspace
from tests.mounted.test_turns import crowd


def test_a_thousand_blocked_writers(make_workspace: Callable[..., Workspace]) -> None:
    crowd(make_workspace, 10, 100)
