"""What is dropped, compared with a model that knows nothing of SQL."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace as Row

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fsguard.versions import Limits, Store, retention
from fsguard.versions.catalogue import Catalogue
from fsguard.versions.retention import choose, protected, stored_bytes
from fsguard.versions.rows import blank
from tests.unit.test_versions_store import OnDisk, contents, facts, open_store, store_dir

__all__ = ["open_store", "store_dir"]

GIB = 1 << 30


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalogue]:
    c = Catalogue(os.fsencode(tmp_path_factory.mktemp("c") / "c"))
    yield c
    c.close()


# ---- the model -----------------------------------------------------------------


def blocks(row: Row) -> int:
    return -(-row.size // 4096) * 4096


def is_content(row: Row) -> bool:
    return row.kept and row.kind == "file"


def safe(rows: list[Row]) -> set[int]:
    """Ids that no limit drops."""
    newest: dict[tuple[bytes, str | None], Row] = {}
    for row in rows:
        if row.conflict and not row.resolved and row.kept:
            newest[row.path, row.sibling] = row
    ids = {row.id for row in newest.values()}
    for last in newest.values():
        ids |= {r.id for r in rows if r.kept and r.path == last.path and r.version == last.base_version}
    return ids


def weight(rows: list[Row]) -> int:
    by_digest: dict[bytes, int] = defaultdict(int)
    for row in rows:
        if is_content(row):
            by_digest[row.digest] = max(by_digest[row.digest], blocks(row))
    return sum(by_digest.values())


def model(rows: list[Row], limits: Limits, now: float, free: int, total: int) -> set[int]:
    """Ids of the versions that go; `rows` are oldest first."""
    keep = safe(rows)
    gone = {r.id for r in rows if now - r.time > limits.age}
    for path in {r.path for r in rows}:
        for kept in (True, False):
            of = [r for r in rows if r.path == path and r.kept == kept]
            gone |= {r.id for r in of[: max(0, len(of) - limits.per_path)]}
    gone -= keep
    reserve = min(limits.free_bytes, int(total * limits.free_share))
    before = weight(rows)
    while True:
        left = [r for r in rows if r.id not in gone]
        used = weight(left)
        if used <= limits.total_bytes and free + before - used >= reserve:
            return gone
        needed = {r.digest for r in left if r.id in keep and is_content(r)}
        last = {r.digest: r.id for r in left if is_content(r) and r.digest not in needed}
        if not last:
            return gone
        victim = min(last, key=lambda d: last[d])
        gone |= {r.id for r in left if is_content(r) and r.digest == victim}


SIZES = {b"d%d" % i: size for i, size in enumerate([0, 1, 4096, 4097, 100_000, 1 << 20])}
NOW = 1_000_000.0


@st.composite
def histories(draw: st.DrawFn) -> list[Row]:
    rows = []
    for id_ in range(1, draw(st.integers(0, 25)) + 1):
        kind = draw(st.sampled_from(["file", "file", "file", "symlink", "special"]))
        kept = kind != "special" and draw(st.booleans() | st.just(True))
        digest = draw(st.sampled_from(sorted(SIZES)))
        rows.append(
            Row(
                id=id_ * 3,
                path=draw(st.sampled_from([b"a", b"b"])),
                sibling=draw(st.sampled_from(["B", "C", None])),
                version=draw(st.integers(1, 6)),
                base_version=draw(st.none() | st.integers(1, 6)),
                time=NOW - draw(st.integers(0, 200)),
                kind=kind,
                kept=kept,
                digest=digest if kept else None,
                size=SIZES[digest],
                conflict=draw(st.booleans()),
                resolved=draw(st.booleans()),
            )
        )
    return rows


def load(catalogue: Catalogue, rows: list[Row]) -> None:
    with catalogue.transaction():
        catalogue.writer.execute("DELETE FROM versions")
        for row in rows:
            given_ = blank(facts())
            given_.update((k, int(v) if isinstance(v, bool) else v) for k, v in vars(row).items())
            catalogue.put(given_)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=histories(),
    limits=st.builds(
        Limits,
        age=st.sampled_from([100.0, 1000.0]),
        per_path=st.integers(1, 12),
        total_bytes=st.sampled_from([0, 4096, 150_000, 2 << 20, GIB]),
        free_share=st.sampled_from([0.05, 0.5]),
        free_bytes=st.sampled_from([0, 1 << 20, GIB]),
    ),
    free=st.sampled_from([0, 50_000, 1 << 20, GIB]),
)
def test_exactly_what_should_go_goes(catalogue, rows, limits, free):
    total = 4 << 20
    load(catalogue, rows)
    assert protected(catalogue) == safe(rows) and stored_bytes(catalogue) == weight(rows)
    chosen = choose(catalogue, limits, NOW, free, total)
    assert chosen == sorted(model(rows, limits, NOW, free, total))
    assert not safe(rows) & set(chosen)
    left = [r for r in rows if r.id not in chosen]
    load(catalogue, left)
    freed = weight(rows) - weight(left)
    assert choose(catalogue, limits, NOW, free + freed, total) == [], "and then there is nothing more to do"


def test_the_reserve_is_the_smaller_of_both():
    limits = Limits()
    assert limits.floor(10 * GIB) == 10 * GIB // 20 and limits.floor(1000 * GIB) == GIB


# ---- in the store ---------------------------------------------------------------


def keep(store: Store, path: Path, data: bytes, **more: object) -> int:
    path.write_bytes(data)
    kept = store.keep(OnDisk(path), facts(os.fsencode(path.name), **more), may_link=False)
    assert kept.kept
    return kept.id


def housekeep(store: Store) -> None:
    store._background._keeper._looked = -1e9
    store._background._wake.set()
    for _ in range(2):
        store.set_warning(0, None)
        assert store.flush()


def test_the_store_drops_rows_and_content(open_store, store_dir, tmp_path):
    now = [1e9]
    store = open_store(limits=Limits(age=100, per_path=3), clock=lambda: now[0])
    old = keep(store, tmp_path / "old", b"old", time=now[0])
    conflict = keep(store, tmp_path / "conflict", b"precious", time=now[0], conflict=True)
    now[0] += 200
    many = [keep(store, tmp_path / "f", b"%d" % i, time=now[0]) for i in range(5)]
    same = keep(store, tmp_path / "same", b"0", time=now[0])
    assert store.flush()
    housekeep(store)
    there = [i for i in (old, conflict, *many, same) if store.catalogue.get(i)]
    assert there == [conflict, *many[2:], same]
    assert store.read(same) == b"0", "its content belongs to others too"
    assert len(contents(store_dir)) == 5
    store.set_resolved([conflict])
    assert store.flush()
    housekeep(store)
    assert store.catalogue.get(conflict) is None and len(contents(store_dir)) == 4


def test_a_conflict_noticed_at_the_last_moment_is_spared(open_store, tmp_path, monkeypatch):
    now = [1e9]
    store = open_store(limits=Limits(age=100), clock=lambda: now[0])
    kept = keep(store, tmp_path / "f", b"x", time=now[0])
    assert store.flush()

    def plan(*args: object) -> list[int]:
        store.set_conflict(kept)  # between the decision and the deed
        return [kept]

    monkeypatch.setattr(retention, "plan", plan)
    housekeep(store)
    housekeep(store)
    assert store.read(kept) == b"x"
    store.close()
    os.unlink(store._places.directory + b"/catalogue.sqlite3")
    assert open_store().read(kept) == b"x", "also by the journal alone"


def test_bytes_beyond_the_limit_go_soon(open_store, store_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(retention, "PAUSE", 0.05)
    store = open_store(limits=Limits(total_bytes=1 << 20))
    for i in range(60):
        keep(store, tmp_path / "f", os.urandom(100_000), version=i)
        if i % 10 == 9:
            assert store.flush()
            time.sleep(0.1)
    store.flush()
    deadline = time.monotonic() + 10
    while len(contents(store_dir)) > 10:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert [v.version for v in store.catalogue.versions(b"f")] == list(range(59, 49, -1))


def test_more_than_one_portion(open_store, tmp_path, monkeypatch):
    monkeypatch.setattr(retention, "BATCH", 7)
    now = [1e9]
    store = open_store(limits=Limits(age=100), clock=lambda: now[0])
    for i in range(50):
        keep(store, tmp_path / "f", b"%d" % i, time=now[0])
    assert store.flush()
    now[0] += 200
    housekeep(store)
    deadline = time.monotonic() + 10
    while store.catalogue.count():
        assert time.monotonic() < deadline
        time.sleep(0.02)
