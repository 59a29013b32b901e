"""The screen of `fsguard top`, driven by the library's own pilot; the daemon behind it is made of facts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from fsguard.cli.screen.app import Question, Sheet, Top
from fsguard.errors import DaemonError, FsguardError, NotMountedError
from tests.kit.reported import at, task, warning

EVIL = "[red]x[/red]\x1b[2J\n\u202e"


class Daemon:
    """Answers as `fsguard.cli.screen.source.Source` does."""

    def __init__(self) -> None:
        self.fault: FsguardError | None = None
        self.ended: list[str] = []
        self.asked: list[str] = []
        self.facts: dict[str, Any] = {
            "workspace": "/srv/w",
            "mountpoint": "/srv/w",
            "version": "0",
            "pid": 1,
            "uptime": 75.0,
            "disabled": False,
            "memory_bytes": 1 << 20,
            "cpu_seconds": 1.0,
            "time": at(0),
            "policy": "warn",
            "pending": 1,
            "warnings_total": 2,
            "tasks_total": 2,
            "tasks": [
                {**task("A", state="running", pending=1), "reading": ["in"], "writing": ["out", "b", "c"]},
                {**task("B", name="helper", intent=EVIL), "reading": [], "writing": []},
            ],
            "external": {"reading": ["seen"], "writing": []},
            "open": [],
            "open_total": 3,
            "contended": [
                {
                    "path": EVIL,
                    "time": at(1),
                    "tasks": ["A", "B"],
                    "writers": ["A"],
                    "external": False,
                    "conflicts": 1,
                },
                {
                    "path": "f",
                    "time": at(1),
                    "tasks": ["A"],
                    "writers": ["A"],
                    "external": True,
                    "conflicts": 0,
                },
            ],
            "queues": [
                {
                    "path": "f",
                    "holder": ["A"],
                    "since": 1.5,
                    "queue": [{"task": "B", "pid": 2, "command": "x", "waiting": 0.7, "next": True}],
                }
            ],
            "leases": [],
            "warnings": [warning(2, 2, "stale_write", "A", "f"), warning(1, 1, "waited", "B", "g")],
            "recent": [],
        }

    def activity(self) -> dict[str, Any]:
        if self.fault is not None:
            raise self.fault
        return self.facts

    def who(self, path: str) -> dict[str, Any]:
        self.asked.append(path)
        if self.fault is not None:
            raise self.fault
        return {"path": path, "version": 7, "writers": [], "readers": [], "open": []}

    def diff(self, path: str) -> str:
        self.asked.append(path)
        raise FsguardError("no version of it is kept", "nothing to be done")

    def end(self, name: str) -> str:
        self.ended.append(name)
        return f"task {name} has ended"


def drive(
    daemon: Daemon, steps: Callable[[Top, Pilot[None]], Awaitable[None]], size: tuple[int, int] = (140, 40)
) -> None:
    async def run() -> None:
        app = Top(daemon, interval=3600)  # asked again when a step says so
        async with app.run_test(size=size) as pilot:
            await settled(app, pilot, lambda: table(app, "tasks").row_count > 0 or "lost" in line(app))
            await steps(app, pilot)

    asyncio.run(asyncio.wait_for(run(), 60))


async def settled(app: Top, pilot: Pilot[None], done: Callable[[], bool]) -> None:
    for _ in range(500):
        await pilot.pause()
        if done():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"the screen did not come to that: {line(app)}")


def table(app: Top, name: str) -> DataTable[Any]:
    return app.screen_stack[0].query_one(f"#{name}", DataTable)


def cells(app: Top, name: str) -> list[list[str]]:
    shown = table(app, name)
    return [[str(cell) for cell in shown.get_row_at(n)] for n in range(shown.row_count)]


def line(app: Top) -> str:
    return str(app.screen_stack[0].query_one("#head", Static).content)


def sheet(app: Top) -> str:
    return str(app.screen.query_one("#text", Static).content)


def test_the_lists_say_who_does_what() -> None:
    async def steps(app: Top, pilot: Pilot[None]) -> None:
        assert "/srv/w" in line(app) and "policy warn" in line(app) and "2 warnings, 1 pending" in line(app)
        assert cells(app, "tasks")[0] == ["A", "running", "1", "out, b +1", "in", ""]
        assert cells(app, "tasks")[2][0] == "(no task)"
        assert [row[0] for row in cells(app, "contended")] == [r"[red]x[/red]\x1b[2J\n\u202e", "f"]
        assert cells(app, "contended")[1][3] == "A, (no task)"
        assert cells(app, "queue") == [["f", "A", "1.5 s", "B 0.7 s"]]
        assert [row[1] for row in cells(app, "warnings")] == ["stale_write", "waited"]

    drive(Daemon(), steps)


@pytest.mark.parametrize("size", [(80, 24), (140, 40), (30, 8)])
def test_the_screen_fits_any_terminal(size: tuple[int, int]) -> None:
    async def steps(app: Top, pilot: Pilot[None]) -> None:
        for name in ("tasks", "contended", "queue", "warnings"):
            region = table(app, name).region
            assert region.right <= size[0] and (size[1] < 20 or region.bottom <= size[1])

    drive(Daemon(), steps, size)


def test_enter_inspects_and_d_shows_a_difference_or_why_there_is_none() -> None:
    daemon = Daemon()

    async def steps(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press("enter")
        assert isinstance(app.screen, Sheet) and "out" in sheet(app) and "reads now" in sheet(app)
        await pilot.press("escape")
        await pilot.press("tab", "enter")
        await settled(app, pilot, lambda: isinstance(app.screen, Sheet))
        assert daemon.asked == [EVIL] and "version 7" in sheet(app) and "\x1b" not in sheet(app)
        await pilot.press("q")
        assert not isinstance(app.screen, Sheet)
        await pilot.press("down", "d")
        await settled(app, pilot, lambda: isinstance(app.screen, Sheet))
        assert daemon.asked[1:] == ["f"] and "no version of it is kept" in sheet(app)
        await pilot.press("escape", "tab", "tab", "enter")
        await settled(app, pilot, lambda: isinstance(app.screen, Sheet))
        assert 'task "B" replaced f' in sheet(app)

    drive(daemon, steps)


def test_a_task_is_ended_after_yes_alone() -> None:
    daemon = Daemon()

    async def steps(app: Top, pilot: Pilot[None]) -> None:
        for key in ("n", "enter", "escape"):
            await pilot.press("down", "e")
            assert isinstance(app.screen, Question)
            await pilot.press(key)
            await pilot.press("up")
        assert daemon.ended == []
        await pilot.press("down", "e", "y")
        await settled(app, pilot, lambda: isinstance(app.screen, Sheet))
        assert daemon.ended == ["B"] and "has ended" in sheet(app)
        # Neither processes of no task nor a path can be ended.
        await pilot.press("escape", "down", "e")
        assert not isinstance(app.screen, Question)
        await pilot.press("tab", "e")
        assert not isinstance(app.screen, Question) and daemon.ended == ["B"]

    drive(daemon, steps)


def test_the_cursor_stays_at_what_it_was_at() -> None:
    daemon = Daemon()

    async def steps(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press("down")
        daemon.facts["tasks"].insert(0, {**task("NEW"), "reading": [], "writing": []})
        await app.refresh_now()
        await pilot.pause()
        assert cells(app, "tasks")[table(app, "tasks").cursor_row][0] == "B"
        daemon.facts["tasks"] = daemon.facts["tasks"][:1]
        daemon.facts["external"] = {"reading": [], "writing": []}
        await app.refresh_now()
        await pilot.pause()
        assert table(app, "tasks").cursor_row == 0

    drive(daemon, steps)


@pytest.mark.parametrize("fault", [DaemonError("it does not answer"), NotMountedError("/srv/w is gone")])
def test_a_lost_daemon_is_said_and_what_was_known_stays_until_it_is_back(fault: FsguardError) -> None:
    daemon = Daemon()

    async def steps(app: Top, pilot: Pilot[None]) -> None:
        daemon.fault = fault
        await app.refresh_now()
        await pilot.pause()
        assert line(app).startswith("daemon lost, looking for it") and fault.message in line(app)
        assert len(cells(app, "tasks")) == 3
        await pilot.press("tab", "enter")  # a key on a lost daemon is answered with a sentence
        await settled(app, pilot, lambda: isinstance(app.screen, Sheet))
        assert fault.message in sheet(app)
        await pilot.press("escape")
        daemon.fault = None
        await app.refresh_now()
        await pilot.pause()
        assert "policy warn" in line(app)

    drive(daemon, steps)


def test_a_daemon_that_is_lost_from_the_start_is_said_too() -> None:
    daemon = Daemon()
    daemon.fault = DaemonError("it does not answer")

    async def steps(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press("enter", "d", "e", "p", "p")
        assert "it does not answer" in line(app)

    drive(daemon, steps)


def test_p_stops_asking() -> None:
    daemon = Daemon()

    async def steps(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press("p")
        assert line(app).startswith("paused")
        await pilot.press("p")
        assert not line(app).startswith("paused")

    drive(daemon, steps)
