"""Who knew what of a file, and when: what the report's timeline says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fsguard.cli.reports.timeline import AGED, MOST_SPANS, STALE, VIEW, WRITE, Axis, Contended, contended
from tests.kit.reported import NOON, entry, warning


def spans(file: Contended, task: str | None) -> list[tuple[str, float, float]]:
    return [(s.kind, round(s.start - NOON, 3), round(s.end - NOON, 3)) for s in file.lanes[task].spans]


def test_only_what_two_touched_and_one_wrote_is_contended() -> None:
    log = [entry(1, "A", "read", "both"), entry(2, "B", "write", "both")]
    log += [entry(3, "A", "read", "seen"), entry(4, "B", "read", "seen"), entry(5, "A", "write", "own")]
    assert [f.path for f in contended(log, [])] == ["both"]


def test_what_a_warning_names_is_contended_and_comes_first() -> None:
    log = [entry(1, "A", "read", "a"), entry(2, "B", "write", "a"), entry(3, "A", "write", "z")]
    files = contended(log, [warning(1, 3, "stale_write", "A", "z")])
    assert [(f.path, f.conflicts, f.notes) for f in files] == [("z", 1, 0), ("a", 0, 0)]
    assert [m.warning["id"] for m in files[0].lanes["A"].marks] == [1]


def test_a_picture_is_true_until_somebody_else_writes_and_stale_until_the_task_acts() -> None:
    log = [entry(1, "A", "read", "f"), entry(4, "B", "write", "f"), entry(9, "A", "write", "f")]
    (file,) = contended(log, [])
    assert spans(file, "A") == [(VIEW, 1, 4), (STALE, 4, 9), (VIEW, 9, 9), (WRITE, 9, 9)]
    stale = file.lanes["A"].spans[1]
    assert (stale.by, stale.command) == ("B", "write f")
    # B's own picture was true from its write until A overwrote it; it never came back to act on that.
    assert spans(file, "B") == [(VIEW, 4, 9), (WRITE, 4, 4)]


def test_who_looks_again_before_writing_had_an_old_picture_and_no_stale_write() -> None:
    log = [entry(1, "A", "read", "f"), entry(4, "B", "write", "f")]
    log += [entry(6, "A", "read", "f"), entry(9, "A", "write", "f")]
    (file,) = contended(log, [])
    assert spans(file, "A") == [(VIEW, 1, 4), (AGED, 4, 6), (VIEW, 6, 9), (WRITE, 9, 9)]


def test_consecutive_writes_are_one_bar_and_others_in_between_make_two() -> None:
    log = [entry(t, "A", "write", "f", began=entry(t - 0.5, "A", "write", "f")["time"]) for t in (1, 2)]
    log += [entry(3, "B", "write", "f"), entry(4, "A", "write", "f")]
    (file,) = contended(log, [])
    writes = [s for s in file.lanes["A"].spans if s.kind == WRITE]
    assert [(s.start - NOON, s.end - NOON, s.count) for s in writes] == [(0.5, 2, 2), (4, 4, 1)]


def test_a_rename_moves_one_file_away_and_replaces_the_other() -> None:
    log = [entry(1, "A", "read", "old"), entry(1, "A", "read", "new")]
    log += [entry(2, "B", "rename", "old", target="new")]
    files = {f.path: f for f in contended(log, [])}
    ops = {path: [s.op for s in f.lanes["B"].spans if s.kind == WRITE] for path, f in files.items()}
    assert ops == {"old": ["rename"], "new": ["replace"]}


def test_a_lane_has_so_many_bars_at_most_and_loses_no_operation() -> None:
    log = [entry(n, "AB"[n % 2], "write", "f") for n in range(5000)]
    (file,) = contended(log, [])
    for lane in file.lanes.values():
        assert len(lane.spans) == MOST_SPANS
        assert sum(s.count for s in lane.spans if s.kind == WRITE) == 2500


def test_long_pauses_are_cut_short_and_the_rest_keeps_its_proportions() -> None:
    axis = Axis([0, 10, 20, 20 + 36_000, 36_040])
    assert axis.cuts == [(20, 36_020)]
    assert axis.at(36_020) - axis.at(20) == Axis.WIDTH
    assert abs((axis.at(20) - axis.at(0)) - (axis.at(36_040) - axis.at(36_020))) < 1e-6
    assert all(
        b - a > 4 for a, b in zip(map(axis.at, axis.ticks()), map(axis.at, axis.ticks()[1:]), strict=False)
    )


@given(st.lists(st.floats(0, 1e9), max_size=40))
def test_an_axis_is_monotonous_and_covers_the_whole_width(times: list[float]) -> None:
    axis = Axis(times)
    shares = [axis.at(t) for t in sorted(times)]
    assert shares == sorted(shares)
    assert all(0 <= share <= 100 for share in shares)
    assert axis.at(axis.first) == 0 and abs(axis.at(axis.last) - 100) < 1e-2
    assert len(axis.ticks()) < 100
