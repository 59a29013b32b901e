"""Open files: sessions and their events, flags, short writes, appends, set-user-ID."""

import errno
import os
import stat
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from fsguard.fuse import files as files_module
from tests.adapter.fuse_driver import ME, WRITE_CACHE, Driver
from tests.adapter.test_fuse_names import refused

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: acts for other users")
OTHER = SimpleNamespace(pid=4711, uid=12345, gid=23456, umask=0o027)
OPEN_KILL, WRITE_KILL, SETATTR_KILL = 1, 4, 1 << 11


@pytest.fixture
def fs(tmp_path):
    driver = Driver(tmp_path)
    yield driver
    driver.close()


def test_the_life_of_a_read(fs, tmp_path):
    (tmp_path / "f").write_text("hello")
    fh = fs.open("f")
    assert fs.call("read", fh, 0, 100, tid=77) == b"hello"
    assert fs.call("read", fh, 3, 100, tid=78) == b"lo"
    fs.call("release", fh)
    assert fs.observer.events == [
        ("open", (b"f",), os.O_RDONLY),
        ("opened", (b"f",), 5, (b"f",)),
        ("reading", 77, (b"f",)),
        ("reading", 78, (b"f",)),
        ("released", (b"f",)),
    ]


def test_the_life_of_a_write(fs, tmp_path):
    (tmp_path / "f").write_text("hello")
    fh = fs.open("f", os.O_WRONLY)
    assert fs.write(fh, 1, b"EL", tid=9) == 2
    fs.call("release", fh)
    assert fs.observer.events[2:] == [
        ("writing", 9, 1, b"EL", (b"f",)),
        ("wrote", 1, 2, (b"f",)),
        ("released", (b"f",)),
    ]
    assert (tmp_path / "f").read_text() == "hELlo"


def test_a_truncating_open_is_announced_before_and_confirmed_after(fs, tmp_path):
    (tmp_path / "f").write_text("hello")
    sizes = []

    async def look():
        sizes.append((tmp_path / "f").stat().st_size)

    fs.observer.before_open = look
    fs.open("f", os.O_WRONLY | os.O_TRUNC)
    assert sizes == [5]
    assert fs.observer.events[1] == ("opened", (b"f",), 0, (b"f",))


def test_truncating_needs_no_writable_descriptor(fs, tmp_path):
    (tmp_path / "f").write_text("hello")
    fs.open("f", os.O_RDONLY | os.O_TRUNC)
    assert (tmp_path / "f").read_text() == ""


def test_a_refused_open_touches_nothing(fs, tmp_path):
    (tmp_path / "f").write_text("hello")
    fs.observer.refuses["open"] = errno.EBUSY
    with refused(errno.EBUSY):
        fs.open("f", os.O_WRONLY | os.O_TRUNC)
    assert fs.observer.kinds() == ["open"]
    assert (tmp_path / "f").read_text() == "hello"


def test_an_open_that_fails_is_aborted_exactly_once(fs, tmp_path):
    (tmp_path / "f").write_text("hello")
    id_ = fs.id("f")

    async def replace():
        (tmp_path / "f").unlink()
        (tmp_path / "f").mkdir()

    fs.observer.before_open = replace
    with refused(errno.ESTALE):
        fs.call("open", id_, os.O_RDWR, ME)
    assert fs.observer.kinds() == ["open", "aborted"]


def test_a_refused_write_lands_nowhere(fs, tmp_path):
    (tmp_path / "f").write_text("hello")
    fh = fs.open("f", os.O_WRONLY)
    fs.observer.refuses["writing"] = errno.EBUSY
    with refused(errno.EBUSY):
        fs.write(fh, 0, b"XX")
    assert "wrote" not in fs.observer.kinds()
    assert (tmp_path / "f").read_text() == "hello"


def test_a_broken_observer_is_an_io_error_and_is_logged(fs, tmp_path, caplog):
    (tmp_path / "f").write_text("hello")
    fs.observer.breaks.add("open")
    with refused(errno.EIO):
        fs.open("f")
    assert "RuntimeError: broken observer" in caplog.text
    assert fs.call("getattr", fs.id("f"), ME).st_size == 5


def test_an_observer_broken_at_opened_leaks_no_descriptor(fs, tmp_path):
    (tmp_path / "f").write_text("hello")
    fs.observer.breaks.add("opened")
    before = len(os.listdir("/proc/self/fd"))
    with refused(errno.EIO):
        fs.open("f")
    with refused(errno.EIO):
        fs.create("g")
    assert len(os.listdir("/proc/self/fd")) == before


def test_creating_gives_a_writable_handle_whatever_the_mode(fs, tmp_path):
    fh = fs.create("f", os.O_WRONLY | os.O_EXCL, 0o444)
    assert fs.write(fh, 0, b"data") == 4
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o444
    assert fs.observer.events[:2] == [
        ("create", b"f", os.O_CREAT | os.O_EXCL | os.O_WRONLY),
        ("opened", (b"f",), 0, (b"f",)),
    ]


@pytest.mark.parametrize(("flags", "answer"), [(0, errno.ESTALE), (os.O_EXCL, errno.EEXIST)])
def test_creating_what_somebody_else_has_created_meanwhile(fs, tmp_path, flags, answer):
    """ESTALE makes the kernel look again and send OPEN, with its checks of permission."""

    async def be_faster():
        (tmp_path / "f").write_text("theirs")

    fs.observer.before_open = be_faster
    with refused(answer):
        fs.create("f", os.O_WRONLY | os.O_TRUNC | flags)
    assert fs.observer.kinds() == ["create", "aborted"]
    assert (tmp_path / "f").read_text() == "theirs"


def test_a_write_only_handle_can_be_read_by_the_guard(fs, tmp_path):
    (tmp_path / "f").write_text("hello")
    fs.open("f", os.O_WRONLY)
    node = fs.node("f")
    (tmp_path / "f").unlink()
    assert node.head(3) == b"hel"


@root_only
def test_a_handle_is_write_only_where_reading_is_not_permitted(fs, tmp_path, monkeypatch):
    (tmp_path / "f").write_text("hello")
    real = fs.ops.backing.open

    def picky(node, flags):
        if flags & os.O_ACCMODE == os.O_RDWR:
            raise PermissionError(errno.EACCES, "no")
        return real(node, flags)

    monkeypatch.setattr(fs.ops.backing, "open", picky)
    fh = fs.open("f", os.O_WRONLY)
    assert fs.write(fh, 0, b"J") == 1
    assert not fs.ops.handles.file(fh).readable


def test_direct_io_is_not_passed_on(fs, tmp_path):
    (tmp_path / "f").write_text("hello")
    fh = fs.open("f", os.O_RDWR | os.O_DIRECT)
    assert fs.call("read", fh, 1, 3) == b"ell"


def test_appends_land_at_the_end_and_are_reported_there(fs, tmp_path):
    (tmp_path / "f").write_text("one")
    fh = fs.open("f", os.O_WRONLY | os.O_APPEND)
    with open(tmp_path / "f", "a") as behind:
        behind.write("two")
    assert fs.write(fh, 3, b"three", os.O_APPEND) == 5  # the kernel believes the end is at 3
    assert (tmp_path / "f").read_text() == "onetwothree"
    assert ("wrote", 6, 5, (b"f",)) in fs.observer.events


def test_mapped_pages_of_an_appending_handle_land_where_they_were_mapped(fs, tmp_path):
    (tmp_path / "f").write_text("aaaaaa")
    fh = fs.open("f", os.O_RDWR | os.O_APPEND)
    fs.call("write", fh, 2, b"MM", flags=WRITE_CACHE, file_flags=os.O_APPEND)
    assert (tmp_path / "f").read_text() == "aaMMaa"
    assert ("writing", 0, 2, b"MM", (b"f",)) in fs.observer.events  # by nobody in particular
    fs.write(fh, 6, b"end", os.O_APPEND)
    assert (tmp_path / "f").read_text() == "aaMMaaend"


def test_o_append_may_be_switched_after_open(fs, tmp_path):
    (tmp_path / "f").write_text("abcdef")
    fh = fs.open("f", os.O_RDWR | os.O_APPEND)
    fs.write(fh, 0, b"X")
    assert (tmp_path / "f").read_text() == "Xbcdef"
    fs.write(fh, 0, b"Y", os.O_APPEND)
    assert (tmp_path / "f").read_text() == "XbcdefY"


def test_without_the_peek_the_kernels_offset_decides(fs, tmp_path):
    (tmp_path / "f").write_text("abcdef")
    fh = fs.open("f", os.O_RDWR | os.O_APPEND)
    fs.ops.peeking = False
    fs.write(fh, 2, b"MM")
    fs.write(fh, 6, b"end")
    assert (tmp_path / "f").read_text() == "abMMefend"


def test_a_short_write_goes_on(fs, tmp_path, monkeypatch):
    real, calls = os.pwrite, []

    def short(fd, data, offset):
        calls.append(len(data))
        return real(fd, bytes(data)[:3], offset)

    monkeypatch.setattr(files_module.os, "pwrite", short)
    fh = fs.create("f")
    assert fs.write(fh, 0, b"12345678") == 8
    assert calls == [8, 5, 2]
    assert (tmp_path / "f").read_text() == "12345678"


def test_what_landed_before_a_write_failed_is_reported(fs, tmp_path, monkeypatch):
    real, calls = os.pwrite, []

    def full(fd, data, offset):
        calls.append(len(data))
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "full")
        return real(fd, bytes(data)[:3], offset)

    monkeypatch.setattr(files_module.os, "pwrite", full)
    fh = fs.create("f")
    assert fs.write(fh, 0, b"12345678") == 3
    assert ("wrote", 0, 3, (b"f",)) in fs.observer.events


def test_flush_is_answered_so_that_it_never_comes_again(fs):
    with refused(errno.ENOSYS):
        fs.call("flush", 1)


def test_a_file_unlinked_while_open_stays_usable_in_every_way(fs, tmp_path):
    fh = fs.create("f", os.O_RDWR)
    node = fs.node("f")
    fs.remove("f")
    fs.write(fh, 0, b"still")
    assert fs.call("getattr", node.id, ME).st_size == 5
    again = fs.call("open", node.id, os.O_RDONLY, ME).fh
    assert fs.call("read", again, 0, 9) == b"still"
    fs.call("setxattr", node.id, b"user.x", b"1", ME)
    assert fs.call("getxattr", node.id, b"user.x", ME) == b"1"
    fs.call("release", fh)
    fs.call("release", again)
    assert fs.call("getattr", node.id, ME).st_nlink == 0  # by a descriptor kept for that


def test_unlinked_open_files_take_one_descriptor_each(fs, tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    for i in range(20):
        fs.create(f"f{i}")
        fs.remove(f"f{i}")
    assert len(os.listdir("/proc/self/fd")) == before + 20


def test_sync_waits_in_a_thread_while_others_are_served(fs, tmp_path, monkeypatch):
    here, went_on = threading.Event(), threading.Event()

    def slow(fd):
        here.set()
        assert went_on.wait(5)

    monkeypatch.setattr(files_module.os, "fsync", slow)
    fh = fs.create("f")

    async def both():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fs.ops.fsync, fh, False)
            await trio.to_thread.run_sync(here.wait)
            assert await fs.ops.write(fh, 0, b"meanwhile") == 9
            went_on.set()

    trio.run(both)


@root_only
class TestAsRoot:
    def test_new_files_belong_to_the_caller(self, fs, tmp_path):
        tmp_path.chmod(0o700)  # only the caller's groups, which the kernel has asked, may allow it
        fs.create("f", mode=0o666, ctx=OTHER)
        fs.entry(fs.call("mkdir", 1, b"d", 0o777, OTHER))
        fs.entry(fs.call("symlink", 1, b"s", b"t", OTHER))
        for name, mode in (("f", 0o640), ("d", 0o750), ("s", 0o777)):
            st = (tmp_path / name).lstat()
            assert (st.st_uid, st.st_gid, stat.S_IMODE(st.st_mode)) == (12345, 23456, mode), name

    def test_the_daemon_is_itself_again_afterwards(self, fs, tmp_path):
        fs.create("f", ctx=OTHER)
        with refused(errno.EEXIST):
            fs.create("f", os.O_EXCL, ctx=OTHER)
        status = Path("/proc/thread-self/status").read_text()
        fields = dict(line.split(":\t") for line in status.splitlines())
        assert fields["Uid"].split() == ["0"] * 4 and fields["Gid"].split()[3] == "0"
        (tmp_path / "g").touch()
        assert (tmp_path / "g").stat().st_uid == 0
        os.chown(tmp_path / "g", 5, 5)  # CAP_CHOWN is back

    def test_a_setgid_directory_gives_its_group(self, fs, tmp_path):
        os.chown(tmp_path, 0, 777)
        tmp_path.chmod(0o2777)
        fs.create("f", ctx=OTHER)
        fs.entry(fs.call("mkdir", 1, b"d", 0o755, OTHER))
        assert (tmp_path / "f").stat().st_gid == 777
        assert (tmp_path / "d").stat().st_mode & stat.S_ISGID

    @pytest.mark.parametrize(
        ("mode", "gid", "left"),
        [
            (0o4755, 23456, 0o755),
            (0o6755, 23456, 0o755),
            (0o2745, 23456, 0o2745),
            (0o2745, 1, 0o745),
            (0o755, 23456, 0o755),
        ],
    )
    def test_set_user_id_falls_when_the_kernel_says_so(self, fs, tmp_path, mode, gid, left):
        def fresh():
            (tmp_path / "f").write_text("x")
            os.chown(tmp_path / "f", 12345, gid)
            (tmp_path / "f").chmod(mode)

        def now():
            return stat.S_IMODE((tmp_path / "f").stat().st_mode)

        fresh()
        fh = fs.open("f", os.O_WRONLY)
        fs.write(fh, 0, b"y")
        assert now() == mode  # by root: no flag
        fs.call("open", fs.id("f"), os.O_WRONLY | os.O_TRUNC, OTHER, flags=OPEN_KILL)
        assert now() == left
        fresh()
        attr, fields = SimpleNamespace(st_size=0), only("update_size")
        fs.call("setattr", fs.id("f"), attr, fields, None, OTHER, flags=SETATTR_KILL)
        assert now() == left
        if gid != 23456 or mode != 0o2745:  # a WRITE carries no groups, only the thread
            fresh()
            fs.call("write", fh, 0, b"z", flags=WRITE_KILL)
            assert now() == left


def only(*names):
    every = ("update_size", "update_uid", "update_gid", "update_mode", "update_atime", "update_mtime")
    return SimpleNamespace(**{name: name in names for name in every})
