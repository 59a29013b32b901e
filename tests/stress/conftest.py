"""The long runs end with what they did, as a table."""

from __future__ import annotations

import pytest

from tests.kit.tally import table


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = table()
    if lines:
        terminalreporter.section("operations and failures")
        for line in lines:
            terminalreporter.write_line(line)
