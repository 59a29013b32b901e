"""Requests answered past pyfuse3, tracebacks without sources, the reaper, log noise."""

import errno
import linecache
import logging
import os
import struct
import subprocess
import sys

import pytest

from fsguard.fuse import connection, tracebacks
from fsguard.fuse.reaper import Reaper
from tests.adapter.fuse_driver import Driver

FALLOCATE, LSEEK = 43, 46
KEEP_SIZE, PUNCH_HOLE = 1, 2


@pytest.fixture
def fs(tmp_path):
    driver = Driver(tmp_path)
    yield driver
    driver.close()


def lseek(fs, fh, offset, whence):
    """The node is asked for only with handles that the lane has given."""
    reply = fs.ops.answer(LSEEK, 0, struct.pack("=QQII", fh, offset, whence, 0))
    return struct.unpack("=q", reply)[0] if isinstance(reply, bytes) else reply


def fallocate(fs, fh, offset, length, mode=0):
    return fs.ops.answer(FALLOCATE, 0, struct.pack("=QQQII", fh, offset, length, mode, 0))


def test_holes_are_where_the_backing_file_has_them(fs, tmp_path):
    with open(tmp_path / "f", "wb") as f:
        f.truncate(1 << 20)
        f.seek(1 << 19)
        f.write(b"data")
    fh, fd = fs.open("f"), os.open(tmp_path / "f", os.O_RDONLY)
    for offset in (0, 1 << 19):
        for whence in (os.SEEK_DATA, os.SEEK_HOLE):
            assert lseek(fs, fh, offset, whence) == os.lseek(fd, offset, whence)
    os.close(fd)
    assert lseek(fs, fh, 2 << 20, os.SEEK_DATA) == errno.ENXIO
    assert lseek(fs, 999, 0, os.SEEK_DATA) == errno.EBADF


def test_a_file_that_may_be_mapped_for_writing_shows_no_holes(fs, tmp_path):
    with open(tmp_path / "f", "wb") as f:
        f.truncate(1 << 20)
    reader, writer = fs.open("f"), fs.open("f", os.O_WRONLY)
    assert lseek(fs, reader, 0, os.SEEK_DATA) == errno.ENXIO
    both = fs.open("f", os.O_RDWR)
    for fh in (reader, writer, both):
        assert lseek(fs, fh, 5000, os.SEEK_DATA) == 5000
        assert lseek(fs, fh, 5000, os.SEEK_HOLE) == 1 << 20
        assert lseek(fs, fh, 1 << 20, os.SEEK_HOLE) == errno.ENXIO
    fs.call("release", both)
    assert lseek(fs, reader, 0, os.SEEK_DATA) == errno.ENXIO


def test_reserving_space_that_makes_a_file_longer_is_a_change(fs, tmp_path):
    fh = fs.create("f")
    fs.observer.events.clear()
    assert fallocate(fs, fh, 0, 10_000) == b""
    (_, change), done = fs.observer.events
    assert (change.size, change.session is fs.ops.handles.file(fh).session) == (10_000, True)
    assert done == ("confirmed", "Truncated")
    fs.observer.events.clear()
    assert fallocate(fs, fh, 0, 5_000) == b""
    assert fallocate(fs, fh, 0, 1 << 20, KEEP_SIZE) == b""
    assert fs.observer.events == []
    st = (tmp_path / "f").stat()
    assert st.st_size == 10_000 and st.st_blocks * 512 >= 1 << 20


def test_reserving_may_be_refused(fs, tmp_path):
    fh = fs.create("f")
    fs.observer.refuses["Truncated"] = errno.EBUSY
    assert fallocate(fs, fh, 0, 10_000) == errno.EBUSY
    assert (tmp_path / "f").stat().st_size == 0
    assert fallocate(fs, fh, 0, 100, PUNCH_HOLE | KEEP_SIZE) == errno.EOPNOTSUPP


def test_a_broken_answer_is_an_io_error_and_is_logged(fs, caplog):
    assert fs.ops.answer(LSEEK, 0, b"short") == errno.EIO
    assert "lseek failed: error: unpack_from" in caplog.text


def test_a_description_has_causes_and_groups_and_no_source():
    def fail():
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ExceptionGroup("several", [ValueError("one")]) from error

    try:
        fail()
    except ExceptionGroup as error:
        text = tracebacks.describe(error)
    assert "ExceptionGroup: several" in text and "ValueError: one" in text and "KeyError: 'inner'" in text
    assert ".fail" in text and "raise KeyError" not in text


def test_after_install_no_traceback_reads_a_source_file(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import logging, threading, sys\n"
        "from fsguard.fuse import tracebacks\n"
        "tracebacks.install()\n"
        "opened = []\n"
        "sys.addaudithook(lambda e, a: opened.append(a[0]) if e == 'open' else None)\n"
        "try: 1 / 0\n"
        "except ZeroDivisionError: logging.exception('said')\n"
        "def broken(): raise RuntimeError('in a thread')\n"
        "t = threading.Thread(target=broken); t.start(); t.join()\n"
        "assert not [p for p in opened if str(p).endswith('.py')], opened\n"
        "raise ValueError('last words')\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    for words in ("ZeroDivisionError", "RuntimeError: in a thread", "ValueError: last words"):
        assert words in done.stderr
    assert "opened" not in done.stderr
    assert linecache.getlines(__file__), "this process is not touched"


def test_the_reaper_closes_what_it_was_given():
    reaper, (read, write) = Reaper(), os.pipe()
    reaper.close(write)
    assert os.read(read, 1) == b""  # returns once the other end is closed
    reaper.close(read)
    reaper.finish()
    with pytest.raises(OSError):
        os.fstat(read)
    reaper.finish()


def test_a_reply_that_nobody_waits_for_is_no_error():
    def passes(*args, level=logging.ERROR):
        record = logging.LogRecord("pyfuse3", level, "", 0, "%s", args, None)
        return connection._nobody_waited(record)

    assert not passes(os.strerror(errno.ENOENT))
    assert passes(os.strerror(errno.EINVAL))
