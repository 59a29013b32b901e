"""Attributes, times, truncation and extended attributes."""

import errno
import os
import stat
import time
from types import SimpleNamespace

import pytest

from tests.adapter.fuse_driver import ME, Driver
from tests.adapter.test_fuse_files import OTHER, only, root_only
from tests.adapter.test_fuse_names import refused

ATIME_NOW, MTIME_NOW = 1 << 7, 1 << 8


@pytest.fixture
def fs(tmp_path):
    (tmp_path / "f").write_text("hello")
    driver = Driver(tmp_path)
    yield driver
    driver.close()


def setattr_(fs, path, fields, fh=None, ctx=ME, flags=0, **values):
    attr = SimpleNamespace(**{"st_atime_ns": 0, "st_mtime_ns": 0, **values})
    return fs.call("setattr", fs.id(path), attr, only(*fields), fh, ctx, flags=flags)


def test_attributes_are_the_backing_files(fs, tmp_path):
    os.utime(tmp_path / "f", ns=(-1, 2**33 * 10**9 + 7))
    reply, st = fs.stat("f"), (tmp_path / "f").stat()
    kinds = ("ino", "mode", "nlink", "uid", "gid", "rdev", "size", "blksize", "blocks")
    for name in (*kinds, "atime_ns", "mtime_ns", "ctime_ns"):
        assert getattr(reply, f"st_{name}") == getattr(st, f"st_{name}"), name


def test_times_are_set_to_the_nanosecond_and_only_those_asked_for(fs, tmp_path):
    setattr_(fs, "f", ["update_atime", "update_mtime"], st_atime_ns=123456789123, st_mtime_ns=-1)
    st = (tmp_path / "f").stat()
    assert (st.st_atime_ns, st.st_mtime_ns) == (123456789123, -1)
    setattr_(fs, "f", ["update_mtime"], st_mtime_ns=5)
    st = (tmp_path / "f").stat()
    assert (st.st_atime_ns, st.st_mtime_ns) == (123456789123, 5)
    setattr_(fs, "f", ["update_atime"], st_atime_ns=99, flags=ATIME_NOW)  # the kernel's clock, not 99
    st = (tmp_path / "f").stat()
    assert abs(st.st_atime - time.time()) < 10 and st.st_mtime_ns == 5


def test_times_of_a_symlink_are_its_own(fs, tmp_path):
    (tmp_path / "s").symlink_to("f")
    setattr_(fs, "s", ["update_mtime"], st_mtime_ns=7)
    assert (tmp_path / "s").lstat().st_mtime_ns == 7
    assert (tmp_path / "f").stat().st_mtime_ns != 7


def test_a_mode_change_is_no_change_of_content(fs, tmp_path):
    reply = setattr_(fs, "f", ["update_mode"], st_mode=stat.S_IFREG | 0o4711)
    assert reply.st_mode == stat.S_IFREG | 0o4711
    assert fs.observer.events == []


def test_truncation_is_announced_with_the_handle_if_there_is_one(fs, tmp_path):
    setattr_(fs, "f", ["update_size"], st_size=2)
    (_, by_path), done = fs.observer.events
    assert (by_path.file.paths(), by_path.size, by_path.session) == ((b"f",), 2, None)
    assert done == ("confirmed", "Truncated")
    fh = fs.open("f", os.O_RDWR)
    fs.observer.events.clear()
    setattr_(fs, "f", ["update_size"], fh=fh, st_size=10)
    assert fs.observer.events[0][1].session is fs.ops.handles.file(fh).session
    assert (tmp_path / "f").read_bytes() == b"he" + bytes(8)


def test_truncating_by_descriptor_moves_mtime_and_by_path_does_so_too(fs, tmp_path):
    fh = fs.open("f", os.O_RDWR)
    for handle in (fh, None):
        os.utime(tmp_path / "f", (1, 1))
        setattr_(fs, "f", ["update_size"], fh=handle, st_size=5)
        by_hand = (tmp_path / "f").stat().st_mtime
        os.utime(tmp_path / "f", (1, 1))
        if handle is None:
            os.truncate(tmp_path / "f", 5)
        else:
            os.ftruncate(fs.ops.handles.file(fh).fd, 5)
        assert (by_hand == 1) == ((tmp_path / "f").stat().st_mtime == 1)


def test_a_refused_truncation_leaves_the_size(fs, tmp_path):
    fs.observer.refuses["Truncated"] = errno.EBUSY
    with refused(errno.EBUSY):
        setattr_(fs, "f", ["update_size"], st_size=0)
    assert (tmp_path / "f").read_text() == "hello"


@root_only
def test_ownership_changes_only_where_asked(fs, tmp_path):
    setattr_(fs, "f", ["update_gid"], st_gid=77)
    assert ((tmp_path / "f").stat().st_uid, (tmp_path / "f").stat().st_gid) == (0, 77)
    setattr_(fs, "f", ["update_uid"], st_uid=66)
    assert ((tmp_path / "f").stat().st_uid, (tmp_path / "f").stat().st_gid) == (66, 77)


# ---- extended attributes -----------------------------------------------------------------


def test_extended_attributes_and_their_errors(fs):
    id_ = fs.id("f")
    fs.call("setxattr", id_, b"user.a", b"1", ME)
    fs.call("setxattr", id_, b"user.empty", b"", ME)
    assert fs.call("getxattr", id_, b"user.a", ME) == b"1"
    assert sorted(fs.call("listxattr", id_, ME)) == [b"user.a", b"user.empty"]
    with refused(errno.EEXIST):
        fs.call("setxattr", id_, b"user.a", b"2", ME, flags=os.XATTR_CREATE)
    with refused(errno.ENODATA):
        fs.call("setxattr", id_, b"user.b", b"2", ME, flags=os.XATTR_REPLACE)
    fs.call("removexattr", id_, b"user.a", ME)
    with refused(errno.ENODATA):
        fs.call("getxattr", id_, b"user.a", ME)
    with refused(errno.EOPNOTSUPP):
        fs.call("setxattr", id_, b"strange.a", b"2", ME)


def test_attributes_of_a_symlink_are_not_its_targets(fs, tmp_path):
    fs.call("setxattr", fs.id("f"), b"user.a", b"1", ME)
    (tmp_path / "s").symlink_to("f")
    with refused(errno.ENODATA):
        fs.call("getxattr", fs.id("s"), b"user.a", ME)


def test_virtual_attributes_are_the_guards_and_no_files(fs, tmp_path):
    os.setxattr(tmp_path / "f", "user.fsguard.known", b"a file's own")
    os.setxattr(tmp_path / "f", "user.other", b"1")
    id_ = fs.id("f")
    assert fs.call("getxattr", id_, b"user.fsguard.known", ME) == b"the guard's"
    assert fs.call("listxattr", id_, ME) == [b"user.other"]
    with refused(errno.ENODATA):
        fs.call("getxattr", id_, b"user.fsguard.unknown\xff", ME)
    for call, *more in (("setxattr", b"2"), ("removexattr",)):
        with refused(errno.EOPNOTSUPP):
            fs.call(call, id_, b"user.fsguard.known", *more, ME)
    assert os.getxattr(tmp_path / "f", "user.fsguard.known") == b"a file's own"
    before = len(fs.observer.events)
    fs.call("getxattr", id_, b"user.other", ME)
    assert len(fs.observer.events) == before, "of other attributes the guard is not asked"


@root_only
def test_trusted_attributes_are_listed_for_root_only(fs):
    id_ = fs.id("f")
    fs.call("setxattr", id_, b"trusted.t", b"1", ME)
    assert fs.call("listxattr", id_, ME) == [b"trusted.t"]
    assert fs.call("listxattr", id_, OTHER) == []


def acl(*entries):
    return (2).to_bytes(4, "little") + b"".join(
        tag.to_bytes(2, "little") + perm.to_bytes(2, "little") + who.to_bytes(4, "little", signed=False)
        for tag, perm, who in entries
    )


NOBODY = 0xFFFFFFFF
ACL = acl((1, 6, NOBODY), (2, 6, 12345), (4, 4, NOBODY), (16, 6, NOBODY), (32, 0, NOBODY))


@root_only
def test_an_acl_and_the_mode_are_one(fs, tmp_path):
    id_ = fs.id("f")
    fs.call("setxattr", id_, b"system.posix_acl_access", ACL, ME)
    assert stat.S_IMODE(fs.stat("f").st_mode) == 0o660
    setattr_(fs, "f", ["update_mode"], st_mode=0o640)
    changed = fs.call("getxattr", id_, b"system.posix_acl_access", ME)
    assert changed == acl((1, 6, NOBODY), (2, 6, 12345), (4, 4, NOBODY), (16, 4, NOBODY), (32, 0, NOBODY))


@root_only
def test_a_default_acl_takes_the_place_of_the_umask(fs, tmp_path):
    fs.entry(fs.call("mkdir", 1, b"d", 0o755, ME))
    everybody = acl((1, 7, NOBODY), (4, 7, NOBODY), (32, 7, NOBODY))
    fs.call("setxattr", fs.id("d"), b"system.posix_acl_default", everybody, ME)
    narrow = SimpleNamespace(pid=1, uid=0, gid=0, umask=0o077)
    fs.create("d/f", mode=0o666, ctx=narrow)
    assert stat.S_IMODE((tmp_path / "d/f").stat().st_mode) == 0o666


@root_only
def test_an_acl_set_by_a_stranger_to_the_group_costs_the_setgid_bit(fs, tmp_path):
    os.chown(tmp_path / "f", 12345, 1)
    for ctx, left in ((ME, 0o2660), (OTHER, 0o660)):
        (tmp_path / "f").chmod(0o2755)
        fs.call("setxattr", fs.id("f"), b"system.posix_acl_access", ACL, ctx)
        assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == left


def test_the_filesystem_has_the_backing_ones_numbers(fs, tmp_path):
    reply, st = fs.call("statfs", ME), os.statvfs(tmp_path)
    assert (reply.f_bsize, reply.f_blocks, reply.f_namemax) == (st.f_bsize, st.f_blocks, st.f_namemax)


# ---- what the guard may ask --------------------------------------------------------------


def test_digests_say_whether_contents_are_equal(fs, tmp_path):
    (tmp_path / "g").write_text("hello")
    (tmp_path / "h").write_text("hellO")
    (tmp_path / "s").symlink_to("hello")
    digests = [fs.node(name).digest(100) for name in "fghs"]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3
    assert fs.node("f").digest(4) is None
    assert fs.node("f").digest(5) == digests[0]
    os.mkfifo(tmp_path / "p")
    assert fs.node("p").digest(100) is None and fs.node("p").head(9) == b""


@pytest.mark.parametrize("flags", [None, os.O_RDWR, os.O_WRONLY])
def test_the_guards_reading_leaves_the_access_time(fs, tmp_path, flags):
    if flags is not None:
        fs.open("f", flags)
    os.utime(tmp_path / "f", (1, 2))
    node = fs.node("f")
    assert node.head(2) == b"he" and node.pread(2, 3) == b"lo" and node.digest(99)
    assert (tmp_path / "f").stat().st_atime == 1
