"""A full disk, a small disk, another filesystem: the store says what it could not keep, and never raises."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fsguard.versions import Limits, NotKeptError, Store, retention
from tests.kit.abilities import need_root, need_tools
from tests.unit.test_versions_repair import check, fill, kill, wait_for
from tests.unit.test_versions_store import OnDisk, contents, facts, open_store, store_dir

__all__ = ["open_store", "store_dir"]

ROOT = Path(__file__).parents[2]
Opener = Callable[..., Store]


def no_room(*args: object, **more: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def failing(*args: object, **more: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize(
    "trouble, reason", [(no_room, "disk full"), (failing, "the store failed: Input/output error")]
)
@pytest.mark.parametrize("step", ["new", "rename"])
def test_content_that_finds_no_place(
    open_store: Opener, store_dir, tmp_path, monkeypatch, size, trouble, reason, step
):
    store = open_store()
    path = tmp_path / "f"
    path.write_bytes(b"x" * size)
    with monkeypatch.context() as patch:
        patch.setattr(store._places, step, trouble)
        kept = store.keep(OnDisk(path), facts(), may_link=False)
    assert not kept.kept and kept.reason == reason
    again = store.keep(OnDisk(path), facts(version=2), may_link=False)
    assert again.kept and store.flush() and store.read(again.id) == b"x" * size
    v = store.catalogue.get(kept.id)
    assert not v.kept and v.reason == reason and v.size == size
    assert len(contents(store_dir)) == 1 and not list((store_dir / "tmp").iterdir())
    with pytest.raises(NotKeptError, match=reason):
        store.read(kept.id)


def test_a_journal_that_finds_no_place(open_store: Opener, store_dir, tmp_path, monkeypatch):
    """What can't be put on record for good has not been kept."""
    store = open_store()
    with monkeypatch.context() as patch:
        patch.setattr(store._journal, "append", no_room)
        path = tmp_path / "f"
        path.write_bytes(b"x")
        kept = store.keep(OnDisk(path), facts(), may_link=False)
        store.set_conflict(kept.id)
        assert store.flush()
    assert not kept.kept and kept.reason == "disk full"
    assert store.catalogue.get(kept.id).reason == "disk full" and not contents(store_dir)
    more = fill(store, tmp_path)
    assert store.flush()
    check(store, more)


def test_half_a_line_of_the_journal(open_store: Opener, store_dir, tmp_path, monkeypatch):
    store = open_store()
    kept = fill(store, tmp_path, 3)
    assert store.flush()
    write, fd = os.write, store._journal._fd
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda f, data: write(f, data[:20] if f == fd else data))
        path = tmp_path / "f"
        path.write_bytes(b"y")
        assert store.keep(OnDisk(path), facts(), may_link=False).reason == "disk full"
    kept |= fill(store, tmp_path, 3)
    assert store.flush()
    kill(store)
    (store_dir / "catalogue.sqlite3").unlink()
    check(open_store(), kept)


def test_large_content_waits_for_its_name(open_store: Opener, tmp_path, monkeypatch):
    store = open_store(limits=Limits(digest_bytes=10))
    path = tmp_path / "f"
    path.write_bytes(b"x" * 100_000)
    with monkeypatch.context() as patch:
        patch.setattr(store._places, "rename", no_room)
        kept = store.keep(OnDisk(path), facts(), may_link=False)
        assert kept.kept and not store.flush(0.2)
    assert store.flush(5) and store.read(kept.id) == b"x" * 100_000


def test_the_reserve_is_left_alone_but_for_conflicts(open_store: Opener, tmp_path, monkeypatch):
    monkeypatch.setattr(retention, "PAUSE", 0.0)
    store = open_store(limits=Limits(free_bytes=1 << 30, free_share=1.0))
    free = [(2 << 30, 100 << 30)]
    monkeypatch.setattr(store._places, "space", lambda: free[0])
    path = tmp_path / "f"
    path.write_bytes(b"x" * 10_000)
    first = store.keep(OnDisk(path), facts(), may_link=False)
    assert first.kept and store.flush()
    free[0] = (500 << 20, 100 << 30)
    path.write_bytes(b"y" * 10_000)
    kept = store.keep(OnDisk(path), facts(version=2), may_link=False)
    assert not kept.kept and kept.reason == "disk nearly full, 500 MiB left"
    kept = store.keep(OnDisk(path), facts(version=3, conflict=True), may_link=False)
    assert kept.kept and store.flush()
    wait_for(lambda: store.flush() and store.catalogue.get(first.id) is None)
    assert store.read(kept.id) == b"y" * 10_000


def test_opened_on_a_full_disk(open_store: Opener, store_dir, tmp_path, monkeypatch, caplog):
    """A catalogue elsewhere takes its place, until there is room again."""
    from fsguard.versions import background
    from fsguard.versions.catalogue import Catalogue

    store = open_store()
    kept = fill(store, tmp_path)
    assert store.flush()
    kill(store)
    before = {p.name: p.read_bytes() for p in store_dir.glob("catalogue*")}
    opening = Catalogue._open

    def full(self: Catalogue) -> None:
        if self.path.startswith(os.fsencode(store_dir)):
            no_room()
        opening(self)

    with monkeypatch.context() as patch:
        patch.setattr(Catalogue, "_open", full)
        store = open_store()
        check(store, kept)
        lodging = store.catalogue.lodging
        assert lodging and before == {p.name: p.read_bytes() for p in store_dir.glob("catalogue*")}
        kept |= fill(store, tmp_path)
        assert store.flush()
        check(store, kept)
    monkeypatch.setattr(background, "RENEW_PAUSE", 0.0)
    kept |= fill(store, tmp_path, 1)
    assert store.flush()
    wait_for(lambda: store.catalogue.lodging is None)
    check(store, kept)
    assert not os.path.exists(lodging)
    store.close()
    os.mkdir(lodging)  # as a killed daemon leaves it
    check(open_store(), kept)
    assert not os.path.exists(lodging)


# ---- a real one ------------------------------------------------------------------

SMALL_DISK = """
import os, subprocess, sys, time
from pathlib import Path
from fsguard.versions import Limits, Store
from tests.unit.test_versions_store import OnDisk, facts

place = Path(sys.argv[1])
disk, work = place / "disk", place / "work"
disk.mkdir(); work.mkdir()
subprocess.run(["mount", "-t", sys.argv[2], *sys.argv[3:], disk], check=True)
try:
    store = Store.open(disk / "versions", limits=Limits(free_bytes=0))
    (disk / "ballast").write_bytes(bytes(3_000_000))
    answers = []
    for i in range(60):
        path = work / "f"
        path.write_bytes(os.urandom(500_000))
        one = store.keep(OnDisk(path), facts(b"f", i, conflict=True), may_link=False)
        answers.append(one)
        if one.kept:
            assert len(store.read(one.id)) == 500_000
    kept = [a for a in answers if a.kept]
    lost = [a for a in answers if not a.kept]
    assert kept and lost and {a.reason for a in lost} == {"disk full"}, (len(kept), {a.reason for a in lost})
    (disk / "filler").touch()
    with open(disk / "filler", "wb", buffering=0) as f:
        try:
            while True:
                f.write(b"x" * 4096)
        except OSError:
            pass
    path = work / "g"
    path.write_bytes(b"small")
    print("full to the brim:", store.keep(OnDisk(path), facts(b"g", 1), may_link=False), store.flush(0.5))
    for step in "close", "open again", "keep":
        if step == "close":
            store.close(5)
        elif step == "open again":
            store = Store.open(disk / "versions", limits=Limits(free_bytes=0))
            print("lodging:", store.catalogue.lodging)
            for a in kept:
                assert len(store.read(a.id)) == 500_000
        else:
            assert store.keep(OnDisk(path), facts(b"g", 2), may_link=False).reason in (None, "disk full")
    os.unlink(disk / "filler")
    os.unlink(disk / "ballast")
    os.sync()
    import fsguard.versions.background as background
    background.RENEW_PAUSE = 0.0
    one = store.keep(OnDisk(path), facts(b"g", 3), may_link=False)
    assert one.kept, one
    assert store.flush(20)
    deadline = time.monotonic() + 20
    while store.catalogue.lodging:
        store.keep(OnDisk(path), facts(b"g", 4), may_link=False)
        assert store.flush(20) and time.monotonic() < deadline
        time.sleep(0.1)
    store.close()
    store = Store.open(disk / "versions")
    for a in [*kept, one]:
        assert store.catalogue.get(a.id).kept and store.read(a.id)
    store.close()
    print(len(kept), "kept,", len(lost), "not")
finally:
    subprocess.run(["umount", "-l", disk], check=True)
"""


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_a_small_disk_runs_full(tmp_path: Path, kind: str) -> None:
    need_root()
    need_tools("unshare", "mount", "mkfs.ext4")
    options = ["-o", "size=12m", "none"]
    if kind == "ext4":
        image = tmp_path / "image"
        image.write_bytes(b"")
        os.truncate(image, 20 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", image], check=True)
        options = ["-o", "loop", os.fspath(image)]
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", SMALL_DISK]
    done = subprocess.run(
        [*command, tmp_path, kind, *options],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
