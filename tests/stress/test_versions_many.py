"""100,000 versions: every query below 100 ms; opening, looking what to drop, filling anew."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path

import pytest

from fsguard.versions import Limits, Store
from fsguard.versions.journal import put_line
from fsguard.versions.retention import choose
from fsguard.versions.rows import blank, to_line
from tests.unit.test_versions_store import OnDisk, facts

COUNT = 100_000
NOW = 2e9


def content(id_: int) -> bytes:
    return b"%d" % (id_ // 2)


def rows() -> Iterator[dict[str, object]]:
    """3,000 paths, 20 tasks, one conflict in ten, one path with every fifth version."""
    for i in range(1, COUNT + 1):
        path = b"src/hot.py" if i % 5 == 0 else b"src/deep/er/module%d.py" % (i % 3000)
        one = facts(
            path,
            i,
            task=f"agent-{i % 20}",
            sibling=f"agent-{i % 19}",
            command="python -m something --with arguments",
            time=NOW - COUNT + i,
            conflict=i % 10 == 0,
            base_version=i - 7,
        )
        row = blank(one)
        digest = blake2b(content(i), digest_size=32).digest()
        row.update(id=i, size=len(content(i)), kept=1, digest=digest, mode=0o644, resolved=int(i % 20 == 0))
        yield row


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a journal and a catalogue of COUNT versions of 50,000 contents."""
    place = tmp_path_factory.mktemp("many") / "versions"
    Store.open(place).close()
    (place / "catalogue.sqlite3").unlink()
    for short in range(256):
        os.makedirs(place / "blobs" / f"{short:02x}", exist_ok=True)
    with (place / "journal" / f"{1:016x}.log").open("wb") as f:
        for row in rows():
            digest = row["digest"].hex()  # type: ignore[attr-defined]
            (place / "blobs" / digest[:2] / digest[2:]).write_bytes(content(row["id"]))  # type: ignore[arg-type]
            f.write(put_line(row, None))
        f.write(to_line([COUNT + 1, "synced", COUNT]))
    return place


def timed(name: str, times: int, call: Callable[[], object]) -> float:
    best, worst = 9e9, 0.0
    for _ in range(times):
        start = time.perf_counter()
        call()
        took = time.perf_counter() - start
        best, worst = min(best, took), max(worst, took)
    print(f"{name:32} best {best * 1e3:9.2f} ms   worst {worst * 1e3:9.2f} ms")
    return best


def test_a_hundred_thousand(filled: Path, tmp_path: Path) -> None:
    opened: list[Store] = []

    def reopen() -> None:
        if opened:
            opened.pop().close()
        opened.append(Store.open(filled, limits=Limits(age=1e12, per_path=10**6), clock=lambda: NOW))

    print()
    assert timed("filled anew from the journal", 1, reopen) < 120
    store = opened[0]
    assert store.catalogue.count() == COUNT
    assert timed("opened again after a clean end", 3, reopen) < 5
    store = opened[0]
    c, hot = store.catalogue, b"src/hot.py"
    queries: dict[str, Callable[[], object]] = {
        "versions(hot path), 100": lambda: c.versions(hot, 100),
        "versions(other path), 100": lambda: c.versions(b"src/deep/er/module17.py", 100),
        "versions(no such path)": lambda: c.versions(b"src/nothing", 100),
        "find(path, version)": lambda: c.find(hot, 50_000),
        "newest_of(path)": lambda: c.newest_of(hot),
        "get(id)": lambda: c.get(77_777),
        "conflicts(), 100": lambda: c.conflicts(limit=100),
        "conflicts(all), 100": lambda: c.conflicts(include_resolved=True, limit=100),
        "conflicts(task), 100": lambda: c.conflicts("agent-3", limit=100),
        "conflicts(no such task)": lambda: c.conflicts("nobody", limit=100),
        "destroyed_by(task), 1000": lambda: c.destroyed_by("agent-3", limit=1000),
        "destroyed_by(task, last hour)": lambda: c.destroyed_by("agent-3", NOW - 3600),
        "destroyed_by(no such task)": lambda: c.destroyed_by("nobody"),
        "count()": c.count,
        "read(id)": lambda: store.read(50_000),
    }
    for name, query in queries.items():
        query()
        assert timed(name, 5, query) < 0.1, name
    path = tmp_path / "f"
    path.write_bytes(os.urandom(4096))

    def keep() -> None:
        assert store.keep(OnDisk(path), facts(hot), may_link=False).kept

    assert timed("keep", 20, keep) < 0.1
    assert timed("keep + flush", 5, lambda: (keep(), store.flush(10))) < 1
    store.flush(10)
    time.sleep(0.2)
    limits = Limits(age=COUNT / 2, per_path=100, total_bytes=10 << 20)
    assert timed("what to drop", 3, lambda: choose(c, limits, NOW, 1 << 40, 1 << 41)) < 10
    size = sum(p.stat().st_size for p in filled.glob("catalogue*"))
    journal = sum(p.stat().st_size for p in (filled / "journal").iterdir())
    print(f"catalogue {size / COUNT:.0f} bytes, journal {journal / COUNT:.0f} bytes for each version")
    opened.pop().close()
    shutil.rmtree(filled)
