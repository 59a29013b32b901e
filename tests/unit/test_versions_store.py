"""The store of kept versions: what goes in comes out, whatever it is called and however it was kept."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path

import pytest

from fsguard.errors import BusyError
from fsguard.versions import DamagedError, Facts, Limits, NotKeptError, Store


class OnDisk:
    """A `Source`: a plain file, symlink or whatever else lies at `path`."""

    def __init__(self, path: Path | bytes) -> None:
        self.path = os.fsencode(path)

    def stat(self) -> os.stat_result:
        return os.lstat(self.path)

    def open(self) -> int:
        return os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)

    def readlink(self) -> bytes:
        return os.readlink(self.path)

    def link(self, dir_fd: int, name: bytes) -> None:
        os.link(self.path, name, dst_dir_fd=dir_fd, follow_symlinks=False)

    def xattrs(self) -> dict[bytes, bytes]:
        names = os.listxattr(self.path, follow_symlinks=False)
        return {os.fsencode(n): os.getxattr(self.path, n, follow_symlinks=False) for n in names}


def facts(path: bytes = b"f", version: int = 1, **more: object) -> Facts:
    given = {
        "path": path,
        "version": version,
        "task": "A",
        "sibling": "B",
        "command": "cmd",
        "time": time.time(),
        "cause": "replace",
    }
    return Facts(**(given | more))  # type: ignore[arg-type]


def contents(store_dir: Path) -> list[Path]:
    """The files that hold kept content."""
    return sorted(p for tree in ("blobs", "linked") for p in (store_dir / tree).rglob("*") if p.is_file())


@pytest.fixture
def store_dir(tmp_path: Path) -> Path:
    return tmp_path / "state" / "versions"


@pytest.fixture
def open_store(store_dir: Path) -> Iterator[Callable[..., Store]]:
    opened: list[Store] = []

    def open_(**more: object) -> Store:
        opened.append(Store.open(store_dir, **more))  # type: ignore[arg-type]
        return opened[-1]

    yield open_
    for store in opened:
        store.close()


# ---- round trips -------------------------------------------------------------

SIZES = [0, 1, 4096, 64 << 10, (64 << 10) + 1, (1 << 20) + 3]


@pytest.mark.parametrize("may_link", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_files_come_back_with_what_belongs_to_them(open_store, store_dir, tmp_path, size, may_link):
    data, path = os.urandom(size), tmp_path / "f"
    path.write_bytes(data)
    path.chmod(0o4751)
    os.utime(path, ns=(1, 1_234_567_890_123_456_789))
    os.setxattr(path, "user.note", b"\0any\xff")
    store = open_store()
    kept = store.keep(OnDisk(path), facts(b"d/f", 7, conflict=True, base_version=3), may_link=may_link)
    assert kept.kept and kept.reason is None and kept.size == size
    assert kept.digest == blake2b(data, digest_size=32).digest()
    path.unlink()
    assert store.read(kept.id) == data, "it can be read before it is durable"
    assert store.flush()
    (v,) = store.catalogue.versions(b"d/f")
    assert (v.id, v.version, v.size, v.kept, v.digest) == (kept.id, 7, size, True, kept.digest)
    assert (v.kind, v.mode, v.uid, v.gid) == ("file", 0o4751, os.getuid(), os.getgid())
    assert v.mtime_ns == 1_234_567_890_123_456_789 and v.xattrs == {b"user.note": b"\0any\xff"}
    assert (v.task, v.sibling, v.command, v.cause) == ("A", "B", "cmd", "replace")
    assert (v.conflict, v.resolved, v.base_version, v.warning) == (True, False, 3, None)
    assert store.read(v.id) == data
    assert store.read(v.id, size // 2, 10) == data[size // 2 : size // 2 + 10]
    assert store.read(v.id, size + 5, 10) == b""
    (blob,) = contents(store_dir)
    assert (blob.parts[-3] == "linked") == may_link
    if not may_link:
        assert stat.S_IMODE(blob.stat().st_mode) == 0o600
    assert stat.S_IMODE(store_dir.stat().st_mode) == 0o700


@pytest.mark.parametrize("may_link", [False, True])
def test_a_large_file_gets_its_digest_in_the_background(open_store, store_dir, tmp_path, may_link):
    path, data = tmp_path / "f", os.urandom(300_000)
    path.write_bytes(data)
    store = open_store(limits=Limits(digest_bytes=100_000))
    kept = store.keep(OnDisk(path), facts(), may_link=may_link)
    again = store.keep(OnDisk(path), facts(version=2), may_link=False)
    assert kept.kept and kept.digest is None and kept.size == 300_000
    path.unlink()
    assert store.flush()
    assert store.read(kept.id) == store.read(again.id) == data
    assert store.catalogue.get(kept.id).digest == blake2b(data, digest_size=32).digest()
    assert len(contents(store_dir)) == 1 and not list((store_dir / "tmp").iterdir())


@pytest.mark.parametrize("target", [b"there", b"/abs/\xff\n", b"x" * 4000])
def test_symlinks(open_store, tmp_path, target):
    path = tmp_path / "l"
    os.symlink(target, path)
    store = open_store()
    kept = store.keep(OnDisk(path), facts(), may_link=True)
    assert kept.kept and kept.size == len(target)
    assert kept.digest == blake2b(target, digest_size=32, person=b"symlink").digest()
    assert store.flush()
    v = store.catalogue.get(kept.id)
    assert v.kind == "symlink" and v.target == target and store.read(v.id) == target
    assert store.read(v.id, 1, 2) == target[1:3]


def test_equal_content_is_kept_once(open_store, store_dir, tmp_path):
    store = open_store()
    for i, data in enumerate([b"same", b"same", b"x" * 100_000, b"x" * 100_000]):
        path = tmp_path / f"f{i}"
        path.write_bytes(data)
        assert store.keep(OnDisk(path), facts(b"f%d" % i), may_link=i % 2 == 0).kept
        path.unlink()
    assert store.flush() and len(contents(store_dir)) == 2
    assert [store.read(i) for i in (1, 2)] == [b"same"] * 2


def test_a_link_whose_file_lives_on_is_made_a_copy(open_store, store_dir, tmp_path):
    """The destructive step failed after the content was kept: later writes must not reach it."""
    path = tmp_path / "f"
    path.write_bytes(b"old")
    store = open_store()
    kept = store.keep(OnDisk(path), facts(), may_link=True)
    assert store.flush()
    with path.open("r+b") as f:
        f.write(b"NEW")
    assert store.read(kept.id) == b"old"
    assert path.stat().st_nlink == 1 and contents(store_dir)[0].parts[-3] == "blobs"


def test_what_has_two_names_is_copied(open_store, tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"old")
    os.link(path, tmp_path / "other")
    store = open_store()
    kept = store.keep(OnDisk(path), facts(), may_link=True)
    (tmp_path / "other").write_bytes(b"new")
    assert store.read(kept.id) == b"old" and store.flush() and store.read(kept.id) == b"old"


def test_a_link_that_cannot_be_had_is_a_copy(open_store, tmp_path):
    class Unlinkable(OnDisk):
        def link(self, dir_fd: int, name: bytes) -> None:
            raise PermissionError(1, "no")

    class Elsewhere(OnDisk):
        def link(self, dir_fd: int, name: bytes) -> None:  # another file took the name meanwhile
            (tmp_path / "other").write_bytes(b"other")
            os.link(tmp_path / "other", name, dst_dir_fd=dir_fd)

    path = tmp_path / "f"
    path.write_bytes(b"bytes")
    store = open_store()
    for kind in (Unlinkable, Elsewhere):
        kept = store.keep(kind(path), facts(), may_link=True)
        assert kept.kept and store.read(kept.id) == b"bytes"


# ---- hostile names and words -------------------------------------------------

NAMES = [
    b"\xff\xfe",
    b"a\nb",
    b"-rf",
    b"'\";drop table versions",
    b"%s%n",
    b"\x01\x1b[2J",
    b"x" * 255,
    b"\xf0\x9f\x98\x80",
]


@pytest.mark.parametrize("name", NAMES)
def test_any_bytes_are_a_path(open_store, tmp_path, name):
    path = os.fsencode(tmp_path) + b"/" + name
    with open(path, "wb") as f:
        f.write(name)
    store = open_store()
    kept = store.keep(OnDisk(path), facts(b"d/" + name), may_link=False)
    assert store.flush()
    assert store.catalogue.newest_of(b"d/" + name).path == b"d/" + name
    assert store.catalogue.versions(b"d/") == [] and store.read(kept.id) == name


WORDS = ["", "a\udcffb", "\ud800", "nul\0in", "ü😀", "'\"", "x" * 100_000]


@pytest.mark.parametrize("word", WORDS, ids=range(len(WORDS)))
def test_any_text_is_a_word(open_store, tmp_path, word):
    path = tmp_path / "f"
    path.write_bytes(b"x")
    store = open_store()
    given = {"task": word, "sibling": word + "s", "command": word, "cause": word, "conflict": True}
    store.keep(OnDisk(path), facts(**given), may_link=False)
    store.flush()
    for _ in range(2):
        (v,) = store.catalogue.conflicts(word)
        assert (v.task, v.sibling, v.command, v.cause) == (word, word + "s", word, word)
        assert store.catalogue.conflicts(word + "s") == store.catalogue.destroyed_by(word) == [v]
        store.close()
        os.unlink(store._places.directory + b"/catalogue.sqlite3")  # from the journal it is the same
        store = open_store()


def test_numbers_that_no_database_holds(open_store, tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"x")
    store = open_store()
    kept = store.keep(
        OnDisk(path), facts(version=1 << 80, base_version=-(1 << 70), time=float("nan")), may_link=False
    )
    assert kept.kept and store.flush() and store.catalogue.get(kept.id).version == (1 << 63) - 1


# ---- what is not kept --------------------------------------------------------


def test_larger_than_the_limit(open_store, store_dir, tmp_path):
    path = tmp_path / "f"
    with path.open("wb") as f:
        f.truncate((64 << 20) + 1)
    store = open_store()
    kept = store.keep(OnDisk(path), facts(), may_link=True)
    assert not kept.kept and kept.reason == "larger than 64 MiB" and kept.size == (64 << 20) + 1
    assert store.flush()
    v = store.catalogue.get(kept.id)
    assert not v.kept and v.reason == kept.reason and v.size == kept.size and not contents(store_dir)
    with pytest.raises(NotKeptError, match="larger than 64 MiB"):
        store.read(kept.id)


@pytest.mark.parametrize("size", [10, 200_000])
def test_it_grows_while_it_is_being_copied(open_store, store_dir, tmp_path, size):
    class Growing(OnDisk):
        def stat(self) -> os.stat_result:
            st = super().stat()
            with open(self.path, "ab") as f:
                f.write(b"x" * 400_000)
            return st

    path = tmp_path / "f"
    path.write_bytes(b"y" * size)
    store = open_store(limits=Limits(file_bytes=300_000))
    kept = store.keep(Growing(path), facts(), may_link=False)
    assert not kept.kept and kept.reason == "larger than 293 KiB"
    assert store.flush() and not contents(store_dir) and not list((store_dir / "tmp").iterdir())


def test_what_cannot_be_read(open_store, tmp_path):
    class Forbidden(OnDisk):
        def open(self) -> int:
            raise PermissionError(13, "x")

    path = tmp_path / "f"
    path.write_bytes(b"x")
    store = open_store()
    kept = store.keep(Forbidden(path), facts(), may_link=False)
    assert not kept.kept and kept.reason == "cannot be read: Permission denied"
    path.unlink()
    kept = store.keep(OnDisk(path), facts(), may_link=False)
    assert not kept.kept and kept.reason == "cannot be read: No such file or directory"
    assert store.flush() and store.catalogue.count() == 2


def test_special_files(open_store, tmp_path):
    os.mkfifo(tmp_path / "p")
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(os.fspath(tmp_path / "s"))
        store = open_store()
        for name in ("p", "s"):
            kept = store.keep(OnDisk(tmp_path / name), facts(name.encode()), may_link=True)
            assert not kept.kept and kept.reason == "it is no regular file"
            assert store.flush() and store.catalogue.get(kept.id).kind == "special"


def test_a_mistake_in_the_source_is_no_failure_of_the_write(open_store, tmp_path, caplog):
    class Broken(OnDisk):
        def stat(self) -> os.stat_result:
            raise ZeroDivisionError

    kept = open_store().keep(Broken(tmp_path), facts(), may_link=False)
    assert not kept.kept and kept.reason == "the store failed: ZeroDivisionError"
    assert "could not be kept" in caplog.text


def test_no_attributes_to_be_had(open_store, tmp_path):
    class Without(OnDisk):
        def xattrs(self) -> dict[bytes, bytes]:
            raise OSError(95, "x")

    path = tmp_path / "f"
    path.write_bytes(b"x")
    assert open_store().keep(Without(path), facts(), may_link=False).kept


# ---- changing and reading ----------------------------------------------------


def test_what_is_said_afterwards(open_store, tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"x")
    store = open_store()
    kept = store.keep(OnDisk(path), facts(), may_link=False)
    store.set_conflict(kept.id, base_version=4, sibling="C")
    store.set_warning(kept.id, 99)
    assert store.flush()
    v = store.catalogue.get(kept.id)
    assert (v.conflict, v.resolved, v.base_version, v.sibling, v.warning) == (True, False, 4, "C", 99)
    store.set_resolved([kept.id])
    assert store.flush() and store.catalogue.conflicts() == []
    (v,) = store.catalogue.conflicts(include_resolved=True)
    assert v.resolved
    store.set_resolved([kept.id], False)
    store.set_conflict(kept.id, False)
    assert store.flush() and store.catalogue.conflicts(include_resolved=True) == []
    store.set_resolved([])
    store.withdraw([])
    assert store.flush()


@pytest.mark.parametrize("wait", [False, True])
def test_withdrawn(open_store, store_dir, tmp_path, wait):
    path = tmp_path / "f"
    path.write_bytes(b"x")
    store = open_store()
    first = store.keep(OnDisk(path), facts(), may_link=False)
    second = store.keep(OnDisk(path), facts(version=2), may_link=False)
    if wait:
        assert store.flush()
    store.withdraw([first.id])
    assert store.flush() and store.catalogue.get(first.id) is None
    assert store.read(second.id) == b"x", "others have the same content"
    store.withdraw([second.id])
    assert store.flush() and not contents(store_dir)
    with pytest.raises(NotKeptError, match="no version"):
        store.read(second.id)


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "grown"])
@pytest.mark.parametrize("size", [10, 200_000])
def test_damaged_content_is_reported_and_never_handed_out(open_store, store_dir, tmp_path, damage, size):
    path = tmp_path / "f"
    path.write_bytes(os.urandom(size))
    store = open_store()
    kept = store.keep(OnDisk(path), facts(), may_link=False)
    assert store.flush() and store.read(kept.id)
    (blob,) = contents(store_dir)
    data = blob.read_bytes()
    if damage == "gone":
        blob.unlink()
    else:
        blob.write_bytes(
            {"flip": data[:-1] + bytes([data[-1] ^ 1]), "cut": data[:-1], "grown": data + b"x"}[damage]
        )
    for offset, count in ((0, -1), (0, 4), (size - 1, 1)):
        with pytest.raises(DamagedError):
            store.read(kept.id, offset, count)


def test_a_damaged_link_is_not_used_again(open_store, store_dir, tmp_path):
    """Somebody still had a way to write to the inode that was kept."""
    path = tmp_path / "f"
    path.write_bytes(b"content")
    store = open_store()
    first = store.keep(OnDisk(path), facts(), may_link=True)
    with path.open("r+b") as late:
        path.unlink()
        assert store.flush()
        late.write(b"CONTENT")
    path.write_bytes(b"content")
    second = store.keep(OnDisk(path), facts(), may_link=False)
    assert store.flush()
    assert store.read(second.id) == store.read(first.id) == b"content", "and the first is whole again"


def test_threads_may_query_while_versions_come_in(open_store, tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"x" * 100)
    store = open_store()
    wrong: list[BaseException] = []
    ending = threading.Event()

    def ask() -> None:
        try:
            while not ending.is_set():
                for v in store.catalogue.versions(b"f", 5):
                    assert store.read(v.id) == b"x" * 100
                store.flush(1)
        except BaseException as e:
            wrong.append(e)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for t in threads:
        t.start()
    for i in range(300):
        assert store.keep(OnDisk(path), facts(version=i), may_link=False).kept
    ending.set()
    for t in threads:
        t.join()
    assert not wrong and store.flush() and store.catalogue.count() == 300


# ---- opening and closing -----------------------------------------------------


def test_it_is_all_there_next_time(open_store, tmp_path):
    path = tmp_path / "f"
    store = open_store()
    for i in range(3):
        path.write_bytes(b"%d" % i)
        store.keep(OnDisk(path), facts(version=i, conflict=True), may_link=False)
    store.set_resolved([2])
    store.close()
    store.close()
    store = open_store()
    assert [store.read(v.id) for v in store.catalogue.versions(b"f")] == [b"2", b"1", b"0"]
    assert [v.version for v in store.catalogue.conflicts()] == [2, 0]
    assert store.keep(OnDisk(path), facts(), may_link=False).id > 3, "numbers are never used again"


def test_numbers_are_not_used_again_even_if_the_last_version_was_dropped(open_store, tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"x")
    store = open_store()
    last = store.keep(OnDisk(path), facts(), may_link=False).id
    store.withdraw([last])
    store.close()
    assert open_store().keep(OnDisk(path), facts(), may_link=False).id > last


def test_only_one_at_a_time(open_store, store_dir):
    store = open_store()
    with pytest.raises(BusyError, match="another fsguard"):
        Store.open(store_dir, wait=0.1)
    threading.Timer(0.2, store.close).start()
    open_store(wait=5)


def test_a_child_that_outlives_the_daemon_does_not_hold_it(open_store):
    store = open_store()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"], close_fds=False)
    try:
        store.close()
        open_store(wait=0)
    finally:
        child.kill()
        child.wait()


def test_closed_is_closed(open_store, tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"x")
    store = open_store()
    store.close()
    assert not store.keep(OnDisk(path), facts(), may_link=False).kept


def test_no_descriptor_is_left(store_dir, tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"x" * 100_000)
    before = sorted(os.listdir("/proc/self/fd"))
    store = Store.open(store_dir)
    for may_link in (False, True):
        store.read(store.keep(OnDisk(path), facts(), may_link=may_link).id)
    store.close()
    assert sorted(os.listdir("/proc/self/fd")) == before
