"""Whatever state a store was left in, it opens, with everything that can be saved."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fsguard.versions import Limits, Store
from fsguard.versions import journal as journal_module
from tests.unit.test_versions_store import OnDisk, contents, facts, open_store, store_dir

__all__ = ["open_store", "store_dir"]

Opener = Callable[..., Store]


def fill(store: Store, tmp_path: Path, count: int = 20) -> dict[int, bytes]:
    """Keep `count` versions; their content by id."""
    path, kept = tmp_path / "f", {}
    for i in range(count):
        data = b"content %d" % (i % 15) + b"x" * (70_000 * (i % 4 == 3))
        path.write_bytes(data)
        one = store.keep(OnDisk(path), facts(b"p%d" % (i % 3), i, conflict=i % 2 == 0), may_link=i % 5 == 0)
        assert one.kept
        kept[one.id] = data
        if i % 5 == 0:
            path.unlink()
    return kept


def check(store: Store, kept: dict[int, bytes]) -> None:
    for id_, data in kept.items():
        v = store.catalogue.get(id_)
        assert v is not None and v.kept, (id_, v)
        assert store.read(id_) == data


def wait_for(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def kill(store: Store, *, join: bool = True) -> None:
    """End it as a SIGKILL would: nothing is carried over any more."""
    background = store._background
    background._round = lambda: None  # type: ignore[method-assign]
    background.stop(5 if join else 0)
    for connection in (background.catalogue.reader, background.catalogue.writer):
        connection.close()
    os.close(store._lock_fd)
    store._lock_fd = -1


DAMAGES: dict[str, Callable[[Path], object]] = {
    "removed": lambda p: p.unlink(),
    "emptied": lambda p: p.write_bytes(b""),
    "garbage": lambda p: p.write_bytes(b"no database" * 1000),
    "head": lambda p: p.write_bytes(b"\0" * 100 + p.read_bytes()[100:]),
    "middle": lambda p: p.write_bytes(p.read_bytes()[:5000] + b"\xa5" * 20_000 + p.read_bytes()[25_000:]),
    "cut": lambda p: p.write_bytes(p.read_bytes()[: p.stat().st_size // 2]),
    "directory": lambda p: (p.unlink(), p.mkdir()),
    "symlink": lambda p: (p.unlink(), p.symlink_to("/nonexistent/x")),
    "foreign": lambda p: (
        p.unlink(),
        sqlite3.connect(p).execute("CREATE TABLE versions (a)").connection.commit(),
    ),
    "newer": lambda p: sqlite3.connect(p).execute("PRAGMA user_version = 99").connection.close(),
}


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("clean", [True, False])
def test_a_damaged_catalogue_is_filled_anew(open_store: Opener, store_dir, tmp_path, how, clean, caplog):
    store = open_store()
    kept = fill(store, tmp_path)
    store.set_resolved([1, 3])
    store.withdraw([2])
    store.set_warning(4, 44)
    assert store.flush()
    before = [store.catalogue.get(i) for i in kept]
    store.close() if clean else kill(store)
    DAMAGES[how](store_dir / "catalogue.sqlite3")
    if how != "removed":
        for suffix in ("-wal", "-shm"):
            (store_dir / f"catalogue.sqlite3{suffix}").unlink(missing_ok=True)
    caplog.clear()
    store = open_store()
    if clean and how in ("middle", "cut"):  # seen when it is used, perhaps
        store.catalogue.damaged = True
        fill(store, tmp_path, 1)
        assert store.flush()
    assert [store.catalogue.get(i) for i in kept] == before
    check(store, {i: data for i, data in kept.items() if i != 2})
    more = fill(store, tmp_path)
    store.close()
    store = open_store()
    check(store, more)


def test_damage_while_it_runs(open_store: Opener, store_dir, tmp_path, caplog):
    store = open_store()
    kept = fill(store, tmp_path)
    assert store.flush()
    store.catalogue.writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with (store_dir / "catalogue.sqlite3").open("r+b") as f:
        f.seek(4096)
        f.write(b"\xa5" * 200_000)
    for connection in (store.catalogue.writer, store.catalogue.reader):
        connection.execute("PRAGMA shrink_memory")
    kept |= fill(store, tmp_path, 50)
    assert store.flush(20)
    check(store, kept)
    assert "filled anew from the journal" in caplog.text
    assert list(store_dir.glob("aside-*/catalogue.sqlite3"))


def test_the_file_is_removed_while_it_runs(open_store: Opener, store_dir, tmp_path):
    store = open_store()
    kept = fill(store, tmp_path)
    assert store.flush()
    for name in store_dir.glob("catalogue.sqlite3*"):
        name.unlink()
    kept |= fill(store, tmp_path)
    assert store.flush(20)
    store.close()
    check(open_store(), kept)


def test_only_some_damaged_catalogues_are_left_lying_about(open_store: Opener, store_dir):
    for i in range(6):
        store = open_store(clock=lambda i=i: 1e9 + i)
        store.close()
        (store_dir / "catalogue.sqlite3").write_bytes(b"garbage" * 100)
    open_store(clock=lambda: 2e9)
    assert len(list(store_dir.glob("aside-*"))) == 3


def test_killed_before_anything_was_carried_over(open_store: Opener, store_dir, tmp_path):
    store = open_store(limits=Limits(digest_bytes=50_000))
    store._background._round = lambda: None  # type: ignore[method-assign]
    kept = fill(store, tmp_path)
    store.set_resolved([1])
    assert not store.flush(0.1) and store.catalogue.count() == 0
    kill(store)
    store = open_store()
    check(store, kept)
    assert store.catalogue.get(1).resolved and not list((store_dir / "tmp").iterdir())


def test_killed_between_the_digest_and_the_name(open_store: Opener, store_dir, tmp_path, monkeypatch):
    """Large content gets its name in the background: either side of the rename."""
    for after in (False, True):
        store = open_store(limits=Limits(digest_bytes=10))
        rename = store._places.rename

        reached = threading.Event()

        def torn(source: bytes, target: bytes, after=after, rename=rename, reached=reached) -> None:
            if after:
                rename(source, target)
            reached.set()
            threading.Event().wait()

        monkeypatch.setattr(store._places, "rename", torn)
        path = tmp_path / "f"
        path.write_bytes(os.urandom(80_000))
        kept = store.keep(OnDisk(path), facts(), may_link=False)
        assert reached.wait(5)
        kill(store, join=False)
        monkeypatch.undo()
        store = open_store()
        check(store, {kept.id: path.read_bytes()})
        assert not list((store_dir / "tmp").iterdir())
        store.close()


def test_a_link_whose_file_was_not_destroyed_before_the_kill(open_store: Opener, tmp_path):
    store = open_store()
    store._background._round = lambda: None  # type: ignore[method-assign]
    path = tmp_path / "f"
    path.write_bytes(b"old")
    kept = store.keep(OnDisk(path), facts(), may_link=True)
    kill(store)
    store = open_store()
    with path.open("r+b") as f:
        f.write(b"NEW")
    check(store, {kept.id: b"old"})


@pytest.mark.parametrize("carried_over", [True, False])
def test_content_that_is_missing_or_torn(open_store: Opener, store_dir, tmp_path, carried_over, caplog):
    store = open_store()
    if not carried_over:
        store._background._round = lambda: None  # type: ignore[method-assign]
    kept = fill(store, tmp_path, 14)
    if carried_over:
        assert store.flush()
    kill(store)
    blobs = contents(store_dir)
    gone, torn = blobs[0].read_bytes(), blobs[1].read_bytes()
    blobs[0].unlink()
    blobs[1].write_bytes(torn[:-1])
    store = open_store()
    for id_, data in kept.items():
        v = store.catalogue.get(id_)
        if data in (gone, torn):
            assert not v.kept and v.reason == "it was lost when fsguard or the machine stopped"
        else:
            assert v.kept and store.read(id_) == data
    assert len(contents(store_dir)) == len(blobs) - 2


def test_leftovers_go(open_store: Opener, store_dir, tmp_path):
    store = open_store()
    kept = fill(store, tmp_path)
    assert store.flush()
    kill(store)
    before = contents(store_dir)
    (store_dir / "tmp" / "c77").write_bytes(b"torn")
    (store_dir / "blobs" / "00").mkdir(exist_ok=True)
    (store_dir / "blobs" / "00" / ("0" * 62)).write_bytes(b"nobody's")
    (store_dir / "blobs" / "00" / "strange").write_bytes(b"x")
    (store_dir / "blobs" / "00" / "deep").mkdir()
    (store_dir / "linked" / "stray").write_bytes(b"x")
    store = open_store()
    assert contents(store_dir) == before and not list((store_dir / "tmp").iterdir())
    assert not (store_dir / "blobs" / "00" / "deep").exists()
    check(store, kept)


JOURNALS: dict[str, Callable[[bytes], bytes]] = {
    "torn at the end": lambda d: d[:-7],
    "a bad line": lambda d: d[:300] + b"#" + d[301:],
    "garbage in between": lambda d: d[:300] + os.urandom(3000) + d[300:],
    "zeros at the end": lambda d: d + b"\0" * 5000,
    "no JSON list": lambda d: d + b"0a05db76 {}\n" + b"x" * 300 + b"\n\n\n",
}


@pytest.mark.parametrize("how", JOURNALS)
def test_a_damaged_journal(open_store: Opener, store_dir, tmp_path, how):
    """With a good catalogue it does not matter; without one the other lines count."""
    store = open_store()
    kept = fill(store, tmp_path)
    assert store.flush()
    kill(store)
    (segment,) = (store_dir / "journal").glob("*.log")
    segment.write_bytes(JOURNALS[how](segment.read_bytes()))
    store = open_store()
    check(store, kept)
    kept |= fill(store, tmp_path, 3)
    assert store.flush()
    kill(store)
    (store_dir / "catalogue.sqlite3").unlink()
    store = open_store()
    present = {i: d for i, d in kept.items() if store.catalogue.get(i) is not None}
    assert len(present) >= len(kept) - 2
    check(store, present)


@pytest.mark.parametrize("clean", [True, False])
def test_without_its_journal(open_store: Opener, store_dir, tmp_path, clean):
    """The catalogue is whole by itself; what was lost is written again."""
    store = open_store()
    kept = fill(store, tmp_path)
    assert store.flush()
    store.close() if clean else kill(store)
    shutil.rmtree(store_dir / "journal")
    store = open_store()
    check(store, kept)
    kept |= fill(store, tmp_path, 1)
    assert store.flush()
    wait_for((store_dir / "journal" / "snapshot").exists)
    store.close()
    (store_dir / "catalogue.sqlite3").unlink()
    check(open_store(), kept)


def test_nothing_left_but_content(open_store: Opener, store_dir, tmp_path):
    store = open_store()
    data = set(fill(store, tmp_path).values())
    assert store.flush()
    store.close()
    shutil.rmtree(store_dir / "journal")
    (store_dir / "catalogue.sqlite3").write_bytes(b"garbage" * 1000)
    store = open_store()
    found = store.catalogue.destroyed_by("A") + [v for i in range(99) if (v := store.catalogue.get(i))]
    assert {store.read(v.id) for v in found} == data
    assert all(v.path.startswith(b"recovered/") and v.cause == "recovered" for v in found)


def test_the_journal_is_shortened_and_still_complete(open_store: Opener, store_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", 5000)
    monkeypatch.setattr(journal_module, "LONG_BYTES", 20_000)
    kept: dict[int, bytes] = {}
    for round_ in range(3):
        store = open_store()
        for _ in range(10):
            kept |= fill(store, tmp_path, 10)
            assert store.flush()
        dropped = [i for i in list(kept) if i % 7 == round_]
        store.withdraw(dropped)
        store.set_resolved([i for i in kept if i % 2])
        for i in dropped:
            del kept[i]
        assert store.flush()
        assert (store_dir / "journal" / "snapshot").exists()
        size = sum(p.stat().st_size for p in (store_dir / "journal").iterdir())
        assert size < 400_000, "it does not grow without end"
        before = [store.catalogue.get(i) for i in kept]
        kill(store) if round_ % 2 else store.close()
        (store_dir / "catalogue.sqlite3").unlink()
        store = open_store()
        check(store, kept)
        assert [store.catalogue.get(i) for i in kept] == before
        assert store.catalogue.count() == len(kept)
        store.close()


def test_a_sync_that_fails_is_said(open_store: Opener, store_dir, tmp_path, monkeypatch):
    store = open_store()
    sync = store._places.sync_file

    def failing(name: bytes) -> None:
        if name.startswith(b"blobs/"):
            raise OSError(5, "x")
        sync(name)

    monkeypatch.setattr(store._places, "sync_file", failing)
    path = tmp_path / "f"
    path.write_bytes(b"x")
    kept = store.keep(OnDisk(path), facts(), may_link=False)
    assert kept.kept and store.flush() and store.flush()
    v = store.catalogue.get(kept.id)
    assert not v.kept and v.reason == "the store failed: Input/output error" and not contents(store_dir)


def test_a_journal_that_cannot_be_synced_is_replaced(open_store: Opener, store_dir, tmp_path, monkeypatch):
    store = open_store()
    sync = store._places.sync_file

    def failing(name: bytes) -> None:
        if name.endswith(b".log"):
            raise OSError(5, "x")
        sync(name)

    monkeypatch.setattr(store._places, "sync_file", failing)
    kept = fill(store, tmp_path)
    assert store.flush()
    monkeypatch.undo()
    kept |= fill(store, tmp_path, 1)
    assert store.flush()
    assert (store_dir / "journal" / "snapshot").exists()
    check(store, kept)


def test_a_catalogue_that_is_busy_is_tried_again(open_store: Opener, store_dir, tmp_path, caplog):
    store = open_store()
    store.catalogue.writer.execute("PRAGMA busy_timeout = 0")
    other = sqlite3.connect(store_dir / "catalogue.sqlite3", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    kept = fill(store, tmp_path)
    assert not store.flush(0.3) and store.read(1) == kept[1]
    other.execute("COMMIT")
    other.close()
    assert store.flush(5)
    check(store, kept)
    assert caplog.text.count("is waiting") == 1
