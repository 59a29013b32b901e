"""Somebody sets the clock, by years: who has seen what, turns and leases do not depend on it."""

from __future__ import annotations

import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kit.abilities import need_tools
from tests.kit.agents import Agent
from tests.kit.mounting import Workspace

YEAR = 365 * 86400
SOURCE = Path(__file__).resolve().parents[1] / "kit" / "clock.c"


class Clock:
    def __init__(self, top: Path) -> None:
        self.library, self._file = top / "clock.so", top / "offset"
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(self.library), str(SOURCE)], check=True)
        self._file.write_bytes(bytes(8))
        self.env = {"LD_PRELOAD": str(self.library), "TEST_CLOCK": str(self._file)}

    def jump(self, seconds: int) -> None:
        """For the daemon and all commands, from now on; from the real time."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("=q", seconds))


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    need_tools("cc")
    return Clock(tmp_path)


@pytest.fixture
def timed(make_workspace: Callable[..., Workspace], clock: Clock) -> Iterator[Workspace]:
    workspace = make_workspace(mount=False)
    (workspace.root / "fsguard.toml").write_text("[turns]\nwait = 0.5\n")
    workspace.env |= clock.env
    workspace.mount()
    yield workspace


@pytest.mark.parametrize(
    "seconds", [YEAR, -YEAR, -int(time.time()) + 86400], ids=["forth", "back", "to 1970"]
)
def test_what_was_seen_before_counts_after(timed: Workspace, clock: Clock, seconds: int) -> None:
    timed.sh("A", "echo one > f; echo mine > g; cat f g").ok()
    timed.sh("B", "cat f; echo two > f").ok()
    clock.jump(seconds)
    timed.sh("A", "echo three > f; echo mine too > g").ok()
    (warning,) = [w for w in timed.conflicts("A") if w["kind"] == "stale_write"]
    assert (warning["path"], warning["sibling"]) == ("f", "B")
    timed.sh("A", "echo four > f").ok()
    timed.sh("B", "cat f; echo five > f").ok()
    clock.jump(0)
    timed.sh("A", "cat f; echo six > f").ok()
    assert not [w for w in timed.conflicts() if w["id"] > warning["id"] and w["kind"] == "stale_write"]
    for command in (
        "status",
        "log",
        "warnings --all",
        "task list",
        "who f",
        "versions f",
        "report --format json",
    ):
        said = timed.fsguard(*command.split())
        assert said.code == 0 and "Traceback" not in said.err, said
    timed.fsguard("restore", "f@" + str(timed.fsguard("versions", "f", "--json").lines()[0]["version"])).ok()


@pytest.mark.parametrize("seconds", [YEAR, -YEAR], ids=["forth", "back"])
def test_turns_and_leases_take_as_long_as_they_should(timed: Workspace, clock: Clock, seconds: int) -> None:
    (timed.root / "f").write_text("x")
    timed.fsguard("lease", "acquire", "kept/", "--task", "A", "--ttl", "300").ok()
    script = """
        f = open("f", "r+")
        f.write("from A"); f.flush()
        stop("holds its turn")
        f.write("more"); f.close()
    """
    with Agent(timed, "A", script) as holder:
        holder.until("holds its turn")
        waiter = timed.start("B", "sh", "-c", "cat f > /dev/null; echo from B >> f; echo B > f")
        clock.jump(seconds)
        begin = time.monotonic()
        assert waiter.wait(20) == 0
        assert time.monotonic() - begin < 10
        holder.finish()
    (lease,) = timed.fsguard("lease", "list", "--json").json()["leases"]
    assert lease["task"] == "A"
    refused = timed.sh("B", "mkdir kept; echo x > kept/f")
    assert refused.code and "busy" in refused.err.lower()
