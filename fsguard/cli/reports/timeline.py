"""Who knew what of which file, and when: the picture that the report draws.

A file is *contended* when two of them touched it and one wrote, or when a
warning names it. For each of its tasks there is a lane of spans:

    view    the task's picture of the file was true: from a read (or a write of its own)
            until it last acted on it, or until somebody else wrote
    aged    it was not: from there until the task read it again
    stale   it was not, and the task wrote all the same
    write   it wrote: from the first to the last of consecutive writes

and marks for the warnings it was given. Pure: values in, values out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from fsguard.cli.reports.records import moment

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["AGED", "STALE", "VIEW", "WRITE", "Axis", "Contended", "Lane", "Mark", "Span", "contended"]

VIEW, AGED, STALE, WRITE = "view", "aged", "stale", "write"
EXTERNAL = "external"
MOST_SPANS = 120
"""In one lane; beyond it neighbours of one kind are drawn as one."""


@dataclass(slots=True)
class Span:
    """From `start` to `end` (seconds since the epoch). `op` is what began it, `command` with what,
    `by` who made a stale picture old; `count` operations are in it."""

    kind: str
    start: float
    end: float
    op: str
    command: str
    pid: int
    count: int = 1
    by: str | None = None
    target: str | None = None


@dataclass(slots=True)
class Mark:
    """A warning in the lane of the task that was told."""

    time: float
    warning: dict[str, Any]


@dataclass(slots=True)
class Lane:
    """One task (None: processes of no task) at one file; `fresh` while its picture is true."""

    task: str | None
    spans: list[Span] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    reads: int = 0
    writes: int = 0
    view: Span | None = None
    old: Span | None = None

    @property
    def first(self) -> float:
        return min([s.start for s in self.spans] + [m.time for m in self.marks], default=0.0)


@dataclass(slots=True)
class Contended:
    """A file that more than one touched, with a lane for each."""

    path: str
    lanes: dict[str | None, Lane] = field(default_factory=dict)
    conflicts: int = 0
    notes: int = 0

    @property
    def weight(self) -> tuple[int, int, int, int]:
        """What is looked at first has most."""
        acts = sum(lane.reads + lane.writes for lane in self.lanes.values())
        return self.conflicts, self.notes, len(self.lanes), acts


def contended(log: Sequence[dict[str, Any]], warnings: Sequence[dict[str, Any]]) -> list[Contended]:
    """The contended files, the one with most conflicts first. `log` is oldest first."""
    writers: dict[str, set[str | None]] = {}
    everybody: dict[str, set[str | None]] = {}
    for entry in log:
        for path in _names(entry):
            everybody.setdefault(path, set()).add(entry["task"])
            if entry["op"] != "read":
                writers.setdefault(path, set()).add(entry["task"])
    told = Counter(path for w in warnings for path in w["paths"])
    chosen = {path for path in writers if len(everybody[path]) > 1} | set(told)
    files = {path: Contended(path) for path in chosen}
    for entry in log:
        for path in _names(entry):
            if path in files:
                _add(files[path], entry)
    for warning in warnings:
        for path in warning["paths"]:
            file = files[path]
            if warning["severity"] == "conflict":
                file.conflicts += 1
            else:
                file.notes += 1
            lane = file.lanes.setdefault(warning["task"], Lane(warning["task"]))
            lane.marks.append(Mark(moment(warning["time"]), warning))
    for file in files.values():
        for lane in file.lanes.values():
            lane.spans = _thinned(lane.spans)
    return sorted(files.values(), key=lambda f: ([-n for n in f.weight], f.path))


def _names(entry: dict[str, Any]) -> list[str]:
    """The paths that an entry is about; a rename is about both."""
    target = entry.get("target")
    return [entry["path"]] if target is None else [entry["path"], target]


def _add(file: Contended, entry: dict[str, Any]) -> None:
    task, start, end = entry["task"], moment(entry.get("began") or entry["time"]), moment(entry["time"])
    lane = file.lanes.setdefault(task, Lane(task))
    op, count = entry["op"], entry.get("count", 1)
    if file.path == entry.get("target"):
        op = "replace"
    if lane.old is not None:  # a stale picture is worth showing once it is acted on
        lane.old.end = max(lane.old.start, start)
        lane.old.kind = AGED if op == "read" else STALE
        lane.spans.append(lane.old)
        lane.old = None
    if lane.view is None:
        lane.view = Span(VIEW, start, end, op, entry["command"], entry["pid"], count)
        lane.spans.append(lane.view)
    else:
        lane.view.end = max(lane.view.end, end)
        lane.view.count += count
    if op == "read":
        lane.reads += count
        return
    lane.writes += count
    last = next((s for s in reversed(lane.spans[-3:]) if s.kind == WRITE), None)
    if last is not None and (last.op, last.pid, last.by) == (op, entry["pid"], None):
        last.end, last.count = end, last.count + count
    else:
        span = Span(WRITE, start, end, op, entry["command"], entry["pid"], count, target=entry.get("target"))
        lane.spans.append(span)
    for other in file.lanes.values():
        if other is lane:
            continue
        for span in reversed(other.spans[-3:]):
            if span.kind == WRITE and span.by is None:
                span.by = ""  # whatever it writes next is another stretch
                break
        if other.view is not None:
            other.view.end = max(other.view.start, start)
            name = task if task is not None else EXTERNAL
            other.old = Span(STALE, start, start, op, entry["command"], entry["pid"], by=name)
            other.view = None


def _thinned(spans: list[Span]) -> list[Span]:
    """At most MOST_SPANS: the narrowest gaps between spans of one kind are closed."""
    if len(spans) <= MOST_SPANS:
        return spans
    kinds: dict[str, list[Span]] = {}
    for span in spans:
        kinds.setdefault(span.kind, []).append(span)
    gaps = [
        # Of equal ones, those that a multiplicative hash picks: some everywhere, the same each time.
        (after.start - before.end, number * 0x9E3779B1 & 0xFFFFFFFF, id(after))
        for some in kinds.values()
        for number, (before, after) in enumerate(pairwise(some))
    ]
    gaps.sort()
    closed = {after for _, _, after in gaps[: len(spans) - MOST_SPANS]}
    kept: list[Span] = []
    for some in kinds.values():
        for span in some:
            if id(span) in closed:
                kept[-1].end = max(kept[-1].end, span.end)
                kept[-1].count += span.count
            else:
                kept.append(span)
    return sorted(kept, key=lambda span: span.start)


class Axis:
    """Time to a share of the width, 0 to 100; long pauses in which nothing happened are cut short.

    `cuts` are the pauses as (start, end) in seconds since the epoch, `parts` the
    pieces of the scale as (start, share there, share for each second).
    """

    PAUSE = 60.0
    SHARE = 0.08
    WIDTH = 3.0

    def __init__(self, times: Sequence[float]) -> None:
        moments = sorted(times) or [0.0]
        first, last = moments[0], moments[-1]
        whole = max(last - first, 1e-3)
        self.first, self.last = first, first + whole
        pauses = pairwise(moments)
        self.cuts = [(a, b) for a, b in pauses if b - a > self.PAUSE and b - a > whole * self.SHARE][:20]
        cut = set(self.cuts)
        lively = sum(b - a for a, b in pairwise(moments) if (a, b) not in cut)
        if not lively and not cut:
            lively = whole
        pause = self.WIDTH if lively > 0 else 100.0 / len(self.cuts)
        room = 100.0 - pause * len(self.cuts)
        self._starts: list[float] = []
        self.parts: list[tuple[float, float, float]] = []
        at, share = first, 0.0
        for a, b in [*self.cuts, (self.last, self.last)]:
            scale = room / lively if lively > 0 else 0.0
            self._part(at, share, scale)
            share += (a - at) * scale
            if b > a:
                self._part(a, share, pause / (b - a))
                share += pause
            at = b

    def _part(self, start: float, share: float, scale: float) -> None:
        self._starts.append(start)
        self.parts.append((start, share, scale))

    def at(self, time: float) -> float:
        start, share, scale = self.parts[max(0, bisect_right(self._starts, time) - 1)]
        return min(100.0, max(0.0, share + (time - start) * scale))

    def ticks(self, most: int = 8) -> list[float]:
        """Round times to write at the axis."""
        lively = (self.last - self.first) - sum(b - a for a, b in self.cuts)
        for step in (
            0.001,
            0.01,
            0.1,
            1,
            2,
            5,
            10,
            15,
            30,
            60,
            120,
            300,
            600,
            900,
            1800,
            3600,
            7200,
            21600,
            86400,
        ):
            if lively / step <= most:
                break
        else:
            step = lively / most
        found: list[float] = []
        time = (self.first // step + 1) * step
        for a, b in [*self.cuts, (self.last, self.last)]:
            while time <= a and len(found) < 10 * most:
                found.append(time)
                time += step
            time = max(time, (b // step + 1) * step)
        return [self.first, *[t for t in found if self.at(t) - 0.0 > 6 and self.at(t) < 97]]
