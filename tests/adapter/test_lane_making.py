"""What the lane makes and removes by itself: raw requests, and what Python is told of them afterwards."""

from __future__ import annotations

import contextlib
import os
import resource
import stat
import struct
import threading
from errno import EEXIST, EINVAL, ENOENT, ENOTEMPTY, ESTALE
from pathlib import Path

import pytest

from fsguard.lane import engine
from tests.kit import kernel as k
from tests.kit.kernel import Kernel, entry_of
from tests.kit.records import told as take

A, B = 1, 2  # groups


@pytest.fixture
def there(kernel: Kernel, root: Path) -> int:
    """The node of `root`, where files may be made; this thread is known as the first of group A."""
    node = kernel.lookup(kernel.rel(root))
    take()
    engine.let_make(True)
    k.known(7, A)
    return node


def told() -> list[tuple[str, int, str, bool]]:
    """(kind, actor, the name within the test's directory, written to)."""
    return [(r[0], r[1], os.fsdecode(r[2][0]).partition("/")[2], r[6]) for r in take()]


def test_a_file_is_told_of_when_it_is_whole(kernel: Kernel, root: Path, there: int) -> None:
    node, fh = kernel.made(there, b"f", mode=0o666, umask=0o027)
    assert stat.S_IMODE((root / "f").stat().st_mode) == 0o640
    assert kernel.write(node, fh, b"hello", pid=k.ME()) is not None
    assert kernel.write(node, fh, b" you", 5, pid=k.ME()) is not None
    assert take() == []
    assert kernel.release(node, fh) is not None
    assert (root / "f").read_bytes() == b"hello you"
    assert told() == [("made", 7, "f", True)]
    node, fh = kernel.made(there, b"empty")
    kernel.release(node, fh)
    assert told() == [("made", 7, "empty", False)]
    assert kernel.lookup(kernel.rel(root / "f")) != node


@pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user")
def test_it_belongs_to_whoever_makes_it(kernel: Kernel, root: Path, there: int) -> None:
    root.chmod(0o2700)  # not even searchable for them: the kernel has checked that, we do not again
    os.chown(root, 0, 4242)
    reply = kernel.create(there, b"f", pid=k.ME(), uid=1234, gid=4321)
    assert reply is not None and not reply.error
    made = kernel.mkdir(there, b"d", uid=1234, gid=4321)
    assert made is not None and not made.error
    for name in ("f", "d"):
        st = (root / name).stat()
        assert (st.st_uid, st.st_gid) == (1234, 4242), "of a set-group-ID directory"
    assert (root / "d").stat().st_mode & stat.S_ISGID
    kernel.made(there, b"g")
    assert (root / "g").stat().st_uid == 0, "and the next one is its own again"


def test_a_name_that_is_taken(kernel: Kernel, root: Path, there: int) -> None:
    (root / "f").write_text("theirs")
    for flags, error in ((os.O_EXCL, EEXIST), (0, ESTALE)):
        reply = kernel.create(there, b"f", flags=os.O_WRONLY | os.O_CREAT | flags, pid=k.ME())
        assert reply is not None and reply.error == error
    made = kernel.mkdir(there, b"f")
    assert made is not None and made.error == EEXIST
    assert (root / "f").read_text() == "theirs" and told() == []


def test_python_decides_where_there_is_something_to_decide(kernel: Kernel, root: Path, there: int) -> None:
    assert kernel.create(there, b"a", flags=os.O_RDONLY | os.O_CREAT, pid=k.ME()) is None, "it is to be read"
    assert kernel.create(there, b"a", pid=1) is None, "by whom?"
    engine.let_make(False)
    assert kernel.create(there, b"a", pid=k.ME()) is None
    assert list(root.iterdir()) == []


WAYS = {
    "a look": lambda kernel, node, fh: kernel.open(node, k.ME()),
    "a read through it": lambda kernel, node, fh: kernel.ask(
        k.READ, node, struct.pack("=QQIIQII", fh, 0, 9, 0, 0, 0, 0)
    ),
    "an open for writing": lambda kernel, node, fh: kernel.open(node, k.ME(), os.O_WRONLY),
    "a write by another thread": lambda kernel, node, fh: kernel.write(node, fh, b"x", pid=1),
    "a mapping": lambda kernel, node, fh: kernel.ask(
        k.WRITE, node, struct.pack("=QQIIQII", fh, 0, 1, 1, 0, 0, 0) + b"x", pid=k.ME()
    ),
    "a new size": lambda kernel, node, fh: kernel.ask(
        k.SETATTR, node, struct.pack("=IIQQQQQQ", 8, 0, 0, 3, 0, 0, 0, 0) + bytes(32)
    ),
    "what Python does": lambda kernel, node, fh: engine.revoke(node),
    "a question": lambda kernel, node, fh: engine.let_make(False),
}


@pytest.mark.parametrize("way", WAYS)
def test_python_goes_on_with_what_something_else_concerns(
    kernel: Kernel, root: Path, there: int, way: str
) -> None:
    before = engine.load()["handles"]
    node, fh = kernel.made(there, b"f", flags=os.O_RDWR | os.O_CREAT)
    assert kernel.write(node, fh, b"first", pid=k.ME()) is not None
    WAYS[way](kernel, node, fh)
    records = take()
    assert next((r[0], r[1], r[5], r[6]) for r in records) == ("opened", 7, fh, True)
    assert [r[0] for r in records[1:]] == (["looked"] if way == "a look" else [])
    assert engine.load()["handles"] == before + len(records) - 1, "Python counts it"
    fd, flags, tid = engine.making(fh)
    assert (os.pread(fd, 10, 0), flags, tid) == (b"first", os.O_RDWR | os.O_CREAT, k.ME())
    os.close(fd)
    engine.let_make(True)
    assert kernel.write(node, fh, b"second", pid=k.ME()) is None
    assert kernel.release(node, fh) is None, "Python's to release"
    engine.close_handle(fh)
    assert take() == []
    with pytest.raises(OSError):
        engine.making(fh)
    assert kernel.unlink(there, b"f") is None, "nobody is alone with it"


def test_a_file_is_either_told_of_or_handed_over(kernel: Kernel, root: Path, there: int) -> None:
    """... while its last descriptor is closed and Python asks for it at the same moment."""
    want = threading.Barrier(2)

    def ask() -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            while True:
                want.wait()
                engine.let_make(False)
                engine.let_make(True)
                want.wait()

    asking = threading.Thread(target=ask)
    asking.start()
    released: dict[int, bool] = {}  # by handle: by the lane
    told: dict[int, str] = {}
    try:
        for i in range(600):
            node, fh = kernel.made(there, b"%d" % i)
            unique = kernel.send(k.RELEASE, node, struct.pack("=QIIQ", fh, 0, 0, 0))
            want.wait()
            released[fh] = kernel.reply(unique) is not None
            want.wait()
            for record in take():
                told[fh] = record[0]
            if not released[fh]:
                os.close(engine.making(fh)[0])
                engine.close_handle(fh)
    finally:
        want.abort()
        asking.join()
    assert told == {fh: "made" if by_lane else "opened" for fh, by_lane in released.items()}


def test_python_goes_on_without_a_free_descriptor(kernel: Kernel, root: Path, there: int) -> None:
    node, fh = kernel.made(there, b"f")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        engine.revoke(node)
        fd = engine.making(fh)[0]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert os.write(fd, b"not lost") == 8 and (root / "f").read_bytes() == b"not lost"
    os.close(fd)
    assert kernel.release(node, fh) is None
    engine.close_handle(fh)


def test_files_can_be_removed_without_a_free_descriptor(kernel: Kernel, root: Path, there: int) -> None:
    node, fh = kernel.made(there, b"f")
    kernel.release(node, fh)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        gone = kernel.unlink(there, b"f")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert gone is not None and not gone.error and not (root / "f").exists()
    assert kernel.getattr(node).error == ESTALE


def test_a_task_removes_and_links_what_it_is_alone_with(kernel: Kernel, root: Path, there: int) -> None:
    node, fh = kernel.made(there, b"tmp")
    assert kernel.unlink(there, b"tmp") is None, "it is open"
    kernel.release(node, fh)
    assert told() == [("made", 7, "tmp", False)]

    node, fh = kernel.made(there, b"f")
    kernel.release(node, fh)
    k.known(8, A)  # another process of the task
    linked = kernel.link(node, there, b"g")
    assert linked is not None and entry_of(linked.body)[0] == node and entry_of(linked.body)[1].nlink == 2
    gone = kernel.unlink(there, b"f")
    assert gone is not None and not gone.error
    assert set(engine.paths(node)) == {os.fsencode(kernel.rel(root / "g"))}
    assert not kernel.getattr(node).error
    gone = kernel.unlink(there, b"g")
    assert gone is not None and not gone.error and list(root.iterdir()) == [root / "tmp"]
    assert told() == [("made", 7, "f", False), ("linked", 8, "g", False)] + [
        ("removed", 8, name, False) for name in "fg"
    ]
    reply = kernel.getattr(node)
    assert not reply.error and k.attr_of(reply.body, 16).nlink == 0, "the kernel may still know it"
    kernel.forget(node, engine.state(node)[0])
    assert engine.hold(node) is None


def test_what_it_is_not_alone_with_is_python_s(kernel: Kernel, root: Path, there: int) -> None:
    def made(name: bytes) -> int:
        node, fh = kernel.made(there, name)
        kernel.release(node, fh)
        return node

    def refused(name: bytes) -> bool:
        return kernel.unlink(there, name) is None and (root / os.fsdecode(name)).exists()

    (root / "theirs").touch()
    kernel.lookup(kernel.rel(root / "theirs"))
    assert refused(b"theirs")
    looked = made(b"looked")
    k.known(9, B)
    fh = kernel.open(looked, k.ME())
    assert fh is not None
    kernel.release(looked, fh)
    k.known(7, A)
    assert refused(b"looked"), "another task has seen it"
    made(b"other")
    k.known(9, B)
    assert refused(b"other"), "another task's"
    k.known(7, A)
    made(b"linked")
    os.link(root / "linked", root / "behind")
    assert refused(b"linked"), "it has a name that we do not know"
    made(b"asked")
    engine.disown_all()
    assert refused(b"asked")
    node = made(b"written")
    assert kernel.open(node, k.ME(), os.O_WRONLY) is None
    assert refused(b"written"), "Python has to do with it"
    k.known(5, 0)
    made(b"nobody's")
    assert refused(b"nobody's")
    engine.let_make(False)


def test_an_own_look_leaves_it_alone_with_the_task(kernel: Kernel, root: Path, there: int) -> None:
    node, fh = kernel.made(there, b"f")
    kernel.release(node, fh)
    look = kernel.open(node, k.ME())
    assert look is not None
    assert kernel.unlink(there, b"f") is None, "it is open"
    kernel.release(node, look)
    take()


def test_directories(kernel: Kernel, root: Path, there: int) -> None:
    made = kernel.mkdir(there, b"d", mode=0o777, umask=0o022)
    assert made is not None and stat.S_IMODE((root / "d").stat().st_mode) == 0o755
    d = entry_of(made.body)[0]
    assert kernel.lookup(kernel.rel(root / "d")) == d
    (root / "d" / "f").touch()
    full = kernel.rmdir(there, b"d")
    assert full is not None and full.error == ENOTEMPTY and not kernel.getattr(d).error
    (root / "d" / "f").unlink()
    gone = kernel.rmdir(there, b"d")
    assert gone is not None and not gone.error and not (root / "d").exists()
    assert not kernel.getattr(d).error, "somebody may stand in it"
    inside = kernel.create(d, b"f", pid=k.ME())
    assert inside is not None and inside.error == ENOENT
    kernel.forget(d, engine.state(d)[0])
    assert engine.hold(d) is None


@pytest.mark.parametrize("name", [b"", b".", b"..", b"a/b", b"../x", b"/etc"])
def test_only_names_are_names(kernel: Kernel, root: Path, there: int, name: bytes) -> None:
    for reply in (
        kernel.create(there, name, pid=k.ME()),
        kernel.mkdir(there, name),
        kernel.unlink(there, name),
        kernel.rmdir(there, name),
        kernel.link(there, there, name),
        kernel.ask(k.LOOKUP, there, name + b"\0"),
    ):
        assert reply is not None and reply.error == EINVAL


def test_when_there_is_no_room_to_tell_python_decides(kernel: Kernel, root: Path, there: int) -> None:
    names, handles = 0, []
    while (reply := kernel.create(there, b"%d" % names, pid=k.ME())) is not None:
        assert not reply.error
        node, fh = entry_of(reply.body)[0], struct.unpack_from("=Q", reply.body, 128)[0]
        if names % 100:
            kernel.release(node, fh)
        else:
            handles.append((node, fh))  # what is open has its place, too
        names += 1
    for node, fh in handles:
        assert kernel.release(node, fh) is not None
    records = take()
    assert names == len(records) == 8192 and {r[0] for r in records} == {"made"}
