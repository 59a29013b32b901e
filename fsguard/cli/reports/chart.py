"""The timeline in HTML: boxes placed by their share of the width, so that zooming needs no redrawing."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from fsguard.cli import terminal
from fsguard.cli.reports.timeline import AGED, STALE, VIEW, WRITE, Axis, Contended, Lane, Mark, Span
from fsguard.cli.reports.words import clock, day, offset, span, text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

__all__ = ["Chart"]

MOST_FILES = 60
MOST_BARS = 12_000
"""In the whole chart; beyond it the least contended files are left out."""

_KEY = """<ul class="key" id="key">
<li><i class="view" style="--c:var(--tx)"></i>has seen it, and it is still so</li>
<li><i class="aged"></i>somebody else changed it, and the task looked again</li>
<li><i class="stale"></i>somebody else changed it, and the task wrote without looking</li>
<li><i class="write" style="--c:var(--tx)"></i>wrote it (hollow: deleted or moved it)</li>
<li><i class="mark"></i>conflict told</li><li><i class="mark note"></i>note told</li>
</ul>
"""
_TOOLS = """<div class="tools" hidden>
<label>Find <input type="search" id="find" placeholder="part of a file or task name"></label>
<label><input type="checkbox" id="only"> with conflicts only</label>
<span id="count" role="status" class="soft"></span>
<span><button type="button" id="out" aria-label="zoom out">−</button>
<span id="zoom" class="soft">1×</span>
<button type="button" id="in" aria-label="zoom in">+</button>
<button type="button" id="fit">whole</button></span>
<span id="range" class="soft" role="status"></span>
</div>
"""
_VERBS = {
    "read": "read",
    "write": "wrote",
    "create": "made",
    "delete": "deleted",
    "rename": "moved away",
    "replace": "replaced",
}


class Chart:
    """The most contended of `files`, which come in that order.

    `colours` are the tasks' numbers of a colour; `listed` the ids of warnings that a
    table on the page has.
    """

    def __init__(
        self, files: Sequence[Contended], colours: Mapping[str, int], listed: Collection[int]
    ) -> None:
        self.all = len(files)
        self.files: list[Contended] = []
        bars = 0
        for file in files[:MOST_FILES]:
            bars += sum(len(lane.spans) + len(lane.marks) for lane in file.lanes.values())
            if self.files and bars > MOST_BARS:
                break
            self.files.append(file)
        self._colours = colours
        self._listed = listed
        self._axis = Axis(list(self._times()))

    def html(self) -> Iterator[str]:
        left = self.all - len(self.files)
        rest = f" These are the {len(self.files)} most contended of {self.all:,}." if left else ""
        yield (
            "<p>Each file that more than one touched, with a lane for each of its tasks. Point at a bar, or"
            f" reach it with Tab and the arrow keys, for who, what and when.{rest}</p>\n"
        )
        yield _KEY + _TOOLS
        parts = [[round(n, 6) for n in part] for part in self._axis.parts]
        yield (
            '<div class="time" id="grid" role="grid" aria-label="Timeline of tasks against contended files"'
            f' aria-describedby="key" tabindex="-1" data-parts="{parts}"'
            f' data-offset="{offset(self._axis.first)}">'
            '<div class="sheet" role="presentation">\n'
        )
        yield self._scale()
        for file in self.files:
            yield from self._file(file)
        yield "</div></div>\n"

    def _times(self) -> Iterator[float]:
        for file in self.files:
            for lane in file.lanes.values():
                for bar in lane.spans:
                    yield bar.start
                    yield bar.end
                for mark in lane.marks:
                    yield mark.time

    def _scale(self) -> str:
        axis = self._axis
        fine, days = axis.last - axis.first < 10, day(axis.first) != day(axis.last)
        ticks = "".join(
            f'<span style="left:{axis.at(t):.3f}%">{clock(t, fine, days and n == 0)}</span>'
            for n, t in enumerate(axis.ticks())
        )
        return (
            '<div class="row axis" aria-hidden="true"><div class="name soft">time of day</div>'
            f'<div class="track">{self._cuts()}{ticks}</div></div>\n'
        )

    def _cuts(self) -> str:
        at = self._axis.at
        return "".join(
            f'<b class="cut" title="nothing for {span(b - a)}" style="left:{at(a):.3f}%;'
            f'width:{at(b) - at(a):.3f}%"></b>'
            for a, b in self._axis.cuts
        )

    def _file(self, file: Contended) -> Iterator[str]:
        names = " ".join([file.path, *(task or "no task" for task in file.lanes)]).lower()
        badge = f' <span class="badge">{file.conflicts} ⚠</span>' if file.conflicts else ""
        yield (
            f'<div class="file" role="rowgroup" data-bad="{file.conflicts}" data-find="{text(names, 600)}">'
            f'<div class="row" role="row"><div class="name path" role="rowheader"'
            f' title="{text(file.path, 1000)}"><bdi>{text(file.path, 200)}</bdi>{badge}</div>'
            f'<div class="track" role="gridcell" aria-label="{file.conflicts} conflicts, {file.notes} notes">'
            "</div></div>\n"
        )
        for lane in sorted(file.lanes.values(), key=lambda lane: (lane.task is None, lane.first)):
            yield self._lane(lane, file.path)
        yield "</div>\n"

    def _lane(self, lane: Lane, path: str) -> str:
        name = text(lane.task, 80) if lane.task is not None else "no task"
        bars = [(bar.start, self._bar(bar, lane, path)) for bar in lane.spans]
        bars += [(mark.time, self._mark(mark)) for mark in lane.marks]
        bars.sort(key=lambda item: item[0])
        return (
            f'<div class="row lane" role="row" style="--c:var(--t{self._colours.get(lane.task or "", "x")})">'
            f'<div class="name" role="rowheader" title="{lane.reads} reads, {lane.writes} writes">'
            f'<span class="chip"></span><bdi>{name}</bdi></div>'
            f'<div class="track" role="presentation">{"".join(bar for _, bar in bars)}</div></div>\n'
        )

    def _bar(self, bar: Span, lane: Lane, path: str) -> str:
        left = self._axis.at(bar.start)
        width = max(0.0, self._axis.at(bar.end) - left)
        kind = bar.kind + (" gone" if bar.kind == WRITE and bar.op in ("delete", "rename") else "")
        return (
            f'<i class="{kind}" role="gridcell" tabindex="-1" style="left:{left:.3f}%;width:{width:.3f}%"'
            f' aria-label="{escape(_said(bar, lane, path))}"></i>'
        )

    def _mark(self, mark: Mark) -> str:
        w = mark.warning
        kind = "mark" if w["severity"] == "conflict" else "mark note"
        body = terminal.shown(w["message"].partition("\n")[0])[:700]
        said = f"{w['kind']}, told to {terminal.cut(w['task'])} at {clock(mark.time, True)}\n{body}"
        target = f' data-w="{w["id"]}"' if w["id"] in self._listed else ""
        return (
            f'<i class="{kind}" role="gridcell" tabindex="-1"{target}'
            f' style="left:{self._axis.at(mark.time):.3f}%" aria-label="{escape(said)}"></i>'
        )


def _said(bar: Span, lane: Lane, path: str) -> str:
    """What a bar says when it is pointed at."""
    task = terminal.cut(lane.task) if lane.task is not None else "no task"
    name = terminal.cut(path, 120)
    command = f"with {terminal.quoted(bar.command, 160)} (pid {bar.pid})"
    start, end = clock(bar.start, True), clock(bar.end, True)
    times = f"from {start} to {end} ({span(bar.end - bar.start)})" if bar.end > bar.start else f"at {start}"
    many = f", {bar.count:,} times" if bar.count > 1 else ""
    verb = _VERBS.get(bar.op, bar.op)
    if bar.kind in (AGED, STALE):
        then = "wrote without looking" if bar.kind == STALE else "looked again"
        by = terminal.cut(bar.by)
        return (
            f"{task} had an old picture of {name} {times}, then {then}\n{by} {verb} it at {start}, {command}"
        )
    if bar.kind == VIEW:
        return f"{task} knew {name} as it was {times}\nit {verb} it{many} at {start}, {command}"
    to = f" (now {terminal.cut(bar.target, 120)})" if bar.op == "rename" and bar.target is not None else ""
    return f"{task} {verb} {name}{to} {times}{many}\n{command}"
