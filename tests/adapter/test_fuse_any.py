"""Whatever is asked of the handlers, in any order: a reply or an errno, never a fault of ours.

The kernel asks for names that are names and nodes that it was given; all else is open: numbers of files and
nodes that are gone or never were, any flags, sizes and offsets, calls that do not fit together.
"""

from __future__ import annotations

import logging
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator
from errno import EIO
from pathlib import Path
from types import SimpleNamespace

import pyfuse3
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.adapter.fuse_driver import ME, Driver

EXAMPLES = int(os.environ.get("FSGUARD_FUZZ", "60"))


@pytest.fixture
def places() -> Iterator[Path]:
    """A directory beside which nothing may come up."""
    top = Path(tempfile.mkdtemp(prefix="any"))
    yield top
    shutil.rmtree(top)


NAME = st.sampled_from([b"a", b"b", b"d", b"link", b"\xff\n", b"n" * 255, b"n" * 256])
NUMBER = st.one_of(
    st.integers(0, 3), st.integers(-(2**31), 2**40), st.sampled_from([2**63 - 1, 4096, 2**62 + 1])
)
SMALL = st.integers(0, 9)
FLAGS = st.one_of(
    st.sampled_from([os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_APPEND, os.O_WRONLY | os.O_TRUNC]),
    st.integers(0, 2**31 - 1),
)
MODE = st.integers(0, 0o7777) | st.integers(0, 2**32 - 1)
XATTR = st.sampled_from(
    [b"user.a", b"user.fsguard.writer", b"system.posix_acl_access", b"trusted.x", b"?", b"user." + b"x" * 300]
)

CALLS = {
    "lookup": (SMALL, NAME), "getattr": (SMALL,), "readlink": (SMALL,),
    "open": (SMALL, FLAGS), "create": (SMALL, NAME, MODE, FLAGS),
    "read": (SMALL, NUMBER, st.integers(0, 2**17)),
    "write": (SMALL, NUMBER, st.binary(max_size=200)), "flush": (SMALL,), "fsync": (SMALL, st.booleans()),
    "release": (SMALL,), "mkdir": (SMALL, NAME, MODE), "mknod": (SMALL, NAME, MODE, st.integers(0, 300)),
    "symlink": (SMALL, NAME, st.binary(min_size=1, max_size=50).map(lambda b: b.replace(b"\0", b"/"))),
    "link": (SMALL, SMALL, NAME), "unlink": (SMALL, NAME), "rmdir": (SMALL, NAME),
    "rename": (SMALL, NAME, SMALL, NAME, st.sampled_from([0, 0, 1, 2, 3, 4, 99])),
    "setattr": (SMALL, st.sets(st.sampled_from(["size", "mode", "uid", "atime", "mtime"])), NUMBER, SMALL),
    "getxattr": (SMALL, XATTR), "setxattr": (SMALL, XATTR, st.binary(max_size=60)),
    "removexattr": (SMALL, XATTR), "listxattr": (SMALL,), "statfs": (), "opendir": (SMALL,),
    "lseek": (SMALL, NUMBER, st.integers(0, 9)), "fallocate": (SMALL, NUMBER, NUMBER, st.integers(0, 80)),
}  # fmt: skip
CALL = st.sampled_from(sorted(CALLS)).flatmap(lambda name: st.tuples(st.just(name), *CALLS[name]))


class Kernel:
    """Small numbers stand for nodes and files that there are, in turn; others for none."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.nodes = [pyfuse3.ROOT_INODE]
        self.files: list[int] = []

    def node(self, number: int) -> int:
        return self.nodes[number % len(self.nodes)] if number < 8 else 123_456

    def file(self, number: int) -> int:
        return self.files[number % len(self.files)] if self.files and number < 8 else 987_654

    def entered(self, entry: pyfuse3.EntryAttributes) -> None:
        self.nodes.append(self.driver.entry(entry))

    def do(self, name: str, *args: object) -> None:
        """One call; OSError is an answer."""
        ask = self.driver.call
        match name, args:
            case "lookup", (at, text):
                entry = ask(name, self.node(at), text, ME)
                if entry.st_ino:
                    self.entered(entry)
            case "open", (at, flags):
                self.files.append(ask(name, self.node(at), flags & ~(os.O_CREAT | os.O_EXCL), ME).fh)
            case "create", (at, text, mode, flags):
                info, entry = ask(name, self.node(at), text, mode, flags | os.O_CREAT, ME)
                self.entered(entry)
                self.files.append(info.fh)
            case "release", (fh,):
                number = self.file(fh)
                ask(name, number)
                self.files.remove(number)
            case (("read" | "write" | "flush" | "fsync"), (fh, *rest)):
                ask(name, self.file(fh), *rest)
            case (("mkdir" | "mknod" | "symlink"), (at, *rest)):
                self.entered(ask(name, self.node(at), *rest, ME))
            case "link", (node, at, text):
                self.entered(ask(name, self.node(node), self.node(at), text, ME))
            case "rename", (old, text, new, to, flags):
                ask(name, self.node(old), text, self.node(new), to, flags, ME)
            case "setattr", (node, fields, number, fh):
                names = ("size", "mode", "uid", "gid", "atime", "mtime", "ctime")
                which = SimpleNamespace(**{f"update_{field}": field in fields for field in names})
                attr = SimpleNamespace(
                    st_size=number,
                    st_mode=number & 0xFFFFFFFF,
                    st_uid=ME.uid,
                    st_gid=ME.gid,
                    st_atime_ns=number,
                    st_mtime_ns=number,
                )
                ask(name, self.node(node), attr, which, self.file(fh) if number % 2 else None, ME)
            case "lseek", (fh, offset, whence):
                body = struct.pack("=QqII", self.file(fh), offset, whence, 0)
                self.extra(46, body)
            case "fallocate", (fh, offset, length, mode):
                # What the kernel lets through; not so much that the disk is filled.
                where = struct.pack("=QQQII", self.file(fh), offset % 2**20, 1 + length % 2**20, mode, 0)
                self.extra(43, where)
            case _, (node, *rest):
                ask(name, self.node(node), *rest, ME)
            case _:
                ask(name, ME)

    def extra(self, opcode: int, body: bytes) -> None:
        reply = self.driver.ops.answer(opcode, self.node(1), body)
        assert isinstance(reply, bytes) or 0 < reply < 200


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(calls=st.lists(CALL, max_size=40))
def test_any_calls(places: Path, caplog: pytest.LogCaptureFixture, calls: list[tuple]) -> None:
    top = Path(tempfile.mkdtemp(dir=places))
    beside = sorted(os.listdir(places))
    (top / "a").write_text("content")
    (top / "d").mkdir()
    (top / "link").symlink_to("../..")
    driver = Driver(top)
    kernel, answered = Kernel(driver), 0
    for name, *args in [("lookup", 0, b"a"), ("lookup", 0, b"d"), ("open", 1, os.O_RDWR), *calls]:
        try:
            kernel.do(name, *args)
            answered += 1
        except OSError as error:
            assert error.errno != EIO, (name, args, caplog.text)
    assert answered >= 3
    driver.close()  # nothing is left over
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR], caplog.text
    assert sorted(os.listdir(places)) == beside, "something came up beside the workspace"
