"""The screen itself: four lists, and what opens over them. Built on Textual.

The daemon is asked in a thread, so that a slow answer never stops the keys; a
lost one is said in the line above, what was last known stays (dimmed), and it is
looked for again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Static

from fsguard.cli import terminal, who
from fsguard.cli.screen.rows import HEADS, TITLES, head, rows
from fsguard.errors import DaemonError, FsguardError, NotMountedError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Top"]

_STYLES = {"bad": "bold red", "dim": "dim", "": ""}


class Facts(Protocol):
    """What the screen asks; `fsguard.cli.screen.source` is the real one."""

    def activity(self) -> dict[str, Any]: ...
    def who(self, path: str) -> dict[str, Any]: ...
    def diff(self, path: str) -> str: ...
    def end(self, task: str) -> str: ...


class Sheet(ModalScreen[None]):
    """Some text over the lists, to be scrolled and closed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "dismiss", "close"),
        Binding("up,k", "scroll(-1)", "up", show=False),
        Binding("down,j", "scroll(1)", "down", show=False),
    ]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="sheet") as sheet:
            sheet.border_title = Text(self._title)
            sheet.border_subtitle = "Esc closes"
            yield Static(_coloured(self._text), id="text")

    def action_scroll(self, lines: int) -> None:
        self.query_one("#sheet", VerticalScroll).scroll_relative(y=lines, animate=False)


class Question(ModalScreen[bool]):
    """Yes or no; anything but y is no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes"),
        Binding("n,escape,q,enter", "answer(False)", "no"),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with Container(id="question"):
            yield Static(Text(f"{self._text}\n\ny yes   n no"))

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)


class List(DataTable[Text]):
    """One of the lists; Enter has a name in the footer."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select_cursor", "inspect")]


class Top(App[None]):
    """:param source: whom to ask; FsguardError from it is shown.
    :param interval: seconds between two questions.
    """

    TITLE = "fsguard top"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (120, "-wide")]
    CSS = """
    #head { height: 1; padding: 0 1; background: $panel; }
    #head.lost { background: $error; color: $text; text-style: bold; }
    #lists { layout: grid; grid-size: 1 4; grid-rows: 3fr 3fr 2fr 3fr; }
    .-wide #lists { grid-size: 2 2; grid-rows: 1fr 1fr; }
    DataTable { border: round $surface-lighten-2; border-title-color: $text-muted; height: 100%; }
    DataTable:focus { border: round $accent; border-title-color: $accent; }
    .lost DataTable { opacity: 60%; }
    Sheet, Question { align: center middle; }
    #sheet { width: 90%; height: 85%; border: round $accent; background: $surface; padding: 0 1; }
    #text { width: 100%; height: auto; }
    #question { width: 60; height: auto; border: round $warning; background: $surface; padding: 1 2; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d", "diff", "diff"),
        Binding("e", "end", "end task"),
        Binding("p", "pause", "pause"),
        Binding("tab", "app.focus_next", "next list", priority=True),
        Binding("q,ctrl+c", "quit", "quit"),
    ]

    def __init__(self, source: Facts, interval: float = 1.0) -> None:
        super().__init__()
        self._source = source
        self._interval = interval
        self._facts: dict[str, Any] | None = None
        self._about: dict[str, list[str]] = {name: [] for name in TITLES}
        self._asking = asyncio.Lock()  # the source takes one question at a time
        self._paused = False

    def compose(self) -> ComposeResult:
        yield Static("", id="head")
        with Container(id="lists"):
            for name, title in TITLES.items():
                table = List(id=name, cursor_type="row", zebra_stripes=True)
                table.border_title = title
                yield table
        yield Footer()

    def on_mount(self) -> None:
        for name, heads in HEADS.items():
            self._table(name).add_columns(*heads)
        self._table("tasks").focus()
        self.run_worker(self._follow(), exit_on_error=True)

    async def _follow(self) -> None:
        while True:
            if not self._paused:
                await self.refresh_now()
            await asyncio.sleep(self._interval)

    async def _ask(self, question: Callable[[], Any]) -> Any:
        async with self._asking:
            return await asyncio.to_thread(question)

    async def refresh_now(self) -> None:
        """Ask once, and show the answer, or that there is none."""
        try:
            facts = await self._ask(self._source.activity)
        except FsguardError as error:
            self._lost(error)
            return
        self._facts = facts
        self.screen_stack[0].remove_class("lost")
        line = self._line()
        line.remove_class("lost")
        line.update(Text(("paused  ·  " if self._paused else "") + head(facts)))
        for name in TITLES:
            self._fill(name, rows(name, facts))

    def _lost(self, error: FsguardError) -> None:
        gone = isinstance(error, DaemonError | NotMountedError)
        what = "daemon lost, looking for it" if gone else "no answer"
        self.screen_stack[0].add_class("lost")
        line = self._line()
        line.add_class("lost")
        line.update(Text(f"{what}: {terminal.shown(error.message)}"))

    def _line(self) -> Static:
        return self.screen_stack[0].query_one("#head", Static)

    def _table(self, name: str) -> DataTable[Text]:
        return self.screen_stack[0].query_one(f"#{name}", DataTable)

    def _fill(self, name: str, found: list[tuple[str, tuple[str, ...], str]]) -> None:
        """New rows; the cursor stays at what it was at."""
        table, before = self._table(name), self._about[name]
        at = before[table.cursor_row] if table.cursor_row < len(before) else None
        place = table.cursor_row, table.scroll_offset
        self._about[name] = [about for about, _, _ in found]
        table.clear()
        for _, cells, style in found:
            # As Text: nothing in it is markup, whoever chose the name.
            table.add_row(*(Text(cell, style=_STYLES[style], no_wrap=True) for cell in cells))
        table.border_title = f"{TITLES[name]} ({len(found)})" if found else f"{TITLES[name]}: none"
        if found:
            row = self._about[name].index(at) if at in self._about[name] else min(place[0], len(found) - 1)
            table.move_cursor(row=row, animate=False, scroll=False)
            table.scroll_to(y=place[1].y, animate=False)

    # ---- keys ---------------------------------------------------------------------

    def _chosen(self) -> tuple[str, str, int] | None:
        """(list, what its row is about, row) under the cursor."""
        table = self.focused
        if not isinstance(table, DataTable) or table.id is None:
            return None
        about = self._about[table.id]
        return (
            (table.id, about[table.cursor_row], table.cursor_row) if table.cursor_row < len(about) else None
        )

    def on_data_table_row_selected(self) -> None:
        self.action_inspect()  # by Enter, or by a click

    def action_inspect(self) -> None:
        chosen = self._chosen()
        if chosen is None or self._facts is None:
            return
        name, about, row = chosen
        if name == "tasks":
            task = next((t for t in self._facts["tasks"] if t["task"] == about), None)
            self._show(f"task {about}" if task else "no task", _task_text(task or self._facts["external"]))
        elif name == "warnings" and row < len(self._facts["warnings"]):
            warning = self._facts["warnings"][row]
            self._show(
                f"{warning['kind']} told to {warning['task']}", terminal.shown(warning["message"], lines=True)
            )
        else:
            self.run_worker(self._look(f"who {about}", lambda: who.text(self._source.who(about))))

    def action_diff(self) -> None:
        chosen = self._chosen()
        if chosen is None or chosen[0] == "tasks":
            self.notify("choose a path in one of the other lists")
            return
        self.run_worker(self._look(f"diff {chosen[1]}", lambda: self._source.diff(chosen[1])))

    async def _look(self, title: str, question: Callable[[], str]) -> None:
        try:
            text = await self._ask(question)
        except FsguardError as error:
            text = "\n".join(filter(None, (error.message, error.hint)))
        self._show(title, text)

    def action_end(self) -> None:
        chosen = self._chosen()
        if chosen is None or chosen[0] != "tasks" or not chosen[1]:
            self.notify("choose a task first")
            return
        task = chosen[1]
        question = Question(
            f"End task {terminal.cut(task)}? Its parent is told what it changed; its processes go on."
        )

        def answered(yes: bool | None) -> None:
            if yes:
                self.run_worker(self._look("end", lambda: self._source.end(task)))

        self.push_screen(question, answered)

    def action_pause(self) -> None:
        self._paused = not self._paused
        if self._facts is not None:
            self._line().update(Text(("paused  ·  " if self._paused else "") + head(self._facts)))

    def _show(self, title: str, text: str) -> None:
        self.push_screen(Sheet(terminal.cut(title, 80), text))


def _task_text(task: dict[str, Any]) -> str:
    lines = []
    for name in ("name", "intent", "parent", "state", "runs", "reads", "writes", "pending"):
        if task.get(name) not in (None, ""):
            lines.append(f"{name + ':':<9} {terminal.shown(task[name])}")
    for name, paths in (("writes now", task["writing"]), ("reads now", task["reading"])):
        lines += ["", f"{name}:", *(f"  {terminal.shown(path)}" for path in paths or ["nothing"])]
    return "\n".join(lines)


def _coloured(text: str) -> Text:
    """A diff in its colours; every other line as it is."""
    shown = Text()
    for line in text.split("\n"):
        style = (
            "bold"
            if line.startswith(("--- ", "+++ "))
            else {"+": "green", "-": "red", "@": "dim"}.get(line[:1], "")
        )
        shown.append(line + "\n", style)
    return shown
