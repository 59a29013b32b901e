"""The compiled lane by itself: raw requests over a socket pair, the test plays the kernel.

What it answers is compared with what the directory says; what Python may ask and
tell is asked and told; and no request, however mangled, may end it.
"""

from __future__ import annotations

import os
import stat
import struct
import threading
from errno import EINVAL, ENODATA, ENOENT, ENOSYS, ERANGE, ESTALE
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fsguard.lane import engine
from tests.kit import kernel as k
from tests.kit.kernel import Kernel, entry_of

ME = threading.get_native_id


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    return Kernel(str(tmp_path_factory.mktemp("lane")))


@pytest.fixture
def root(kernel: Kernel, request: pytest.FixtureRequest) -> Path:
    """A directory of the test's own; its name is the first component of every path."""
    path = Path(kernel.root, str(abs(hash(request.node.name))))
    path.mkdir()
    return path


def rel(kernel: Kernel, path: Path) -> str:
    return os.path.relpath(path, kernel.root)


def known(actor: int) -> None:
    assert engine.know(ME(), actor, 60.0), "this kernel has no pidfds of threads"


# ---- names and lifetimes ----


def test_a_node_lives_until_as_many_lookups_are_given_back(kernel: Kernel, root: Path) -> None:
    (root / "f").write_text("hello")
    before = engine.load()["nodes"]
    first, second = kernel.lookup(rel(kernel, root / "f")), kernel.lookup(rel(kernel, root / "f"))
    assert first == second and engine.load()["nodes"] == before + 2
    kernel.forget(first)
    assert engine.state(first)[0] == 1
    kernel.forget(first)
    assert kernel.getattr(first).error == ESTALE
    kernel.forget(kernel.lookup(rel(kernel, root)), 3)
    assert engine.load()["nodes"] == before


def test_children_keep_their_directory_alive(kernel: Kernel, root: Path) -> None:
    (root / "a" / "b").mkdir(parents=True)
    node = kernel.lookup(rel(kernel, root / "a" / "b"))
    a = engine.names(node)[0][0]
    kernel.forget(a)
    assert engine.paths(node) == (os.fsencode(rel(kernel, root / "a" / "b")),)
    kernel.forget(node)
    assert engine.hold(a) is None


def test_an_inode_number_that_comes_back_is_another_file(kernel: Kernel, root: Path) -> None:
    parent = kernel.lookup(rel(kernel, root))
    seen = set()
    for i in range(20):
        since = engine.next_id()
        (root / "f").write_text(str(i))
        st = (root / "f").stat()
        node = engine.enter(parent, b"f", st.st_dev, st.st_ino, st.st_mode, st.st_nlink, since)
        assert node not in seen
        seen.add(node)
        engine.hand_out(node)
        engine.release(node)
        (root / "f").unlink()  # behind the lane's back, with the node still known


def test_hard_links_are_one_node_with_all_its_names(kernel: Kernel, root: Path) -> None:
    (root / "a").write_text("x")
    (root / "b").hardlink_to(root / "a")
    (root / "d").mkdir()
    (root / "d" / "c").hardlink_to(root / "a")
    nodes = {kernel.lookup(rel(kernel, root / name)) for name in ("a", "b", "d/c")}
    assert len(nodes) == 1
    names = {os.fsencode(rel(kernel, root / n)) for n in ("a", "b", "d/c")}
    assert set(engine.paths(nodes.pop())) == names


def test_a_name_that_lies_is_dropped_and_the_others_serve(kernel: Kernel, root: Path) -> None:
    (root / "a").write_text("same")
    (root / "b").hardlink_to(root / "a")
    node = kernel.lookup(rel(kernel, root / "a"))
    assert kernel.lookup(rel(kernel, root / "b")) == node
    (root / "a").unlink()
    (root / "a").write_text("another file")
    assert k.attr_of(kernel.getattr(node).body, 16).size == 4
    assert engine.paths(node) == (os.fsencode(rel(kernel, root / "b")),)


def test_a_directory_moved_behind_its_back(kernel: Kernel, root: Path) -> None:
    (root / "a" / "deep").mkdir(parents=True)
    deep = kernel.lookup(rel(kernel, root / "a" / "deep"))
    (root / "a").rename(root / "z")
    assert kernel.getattr(deep).error in (0, ESTALE)  # the descriptor may have been open already
    assert kernel.lookup(rel(kernel, root / "z" / "deep")) == deep
    assert engine.paths(deep) == (os.fsencode(rel(kernel, root / "z" / "deep")),)


def test_a_directory_that_swallows_its_parent(kernel: Kernel, root: Path) -> None:
    (root / "a" / "b").mkdir(parents=True)
    kernel.lookup(rel(kernel, root / "a" / "b"))
    (root / "a" / "b").rename(root / "b")
    (root / "a").rename(root / "b" / "a")
    inner = kernel.lookup(rel(kernel, root / "b" / "a"))
    assert engine.paths(inner) == (os.fsencode(rel(kernel, root / "b" / "a")),)
    assert not kernel.getattr(inner).error


def test_a_symlink_in_a_directorys_place_is_not_followed(kernel: Kernel, root: Path, tmp_path: Path) -> None:
    (root / "d").mkdir()
    (root / "d" / "f").write_text("inside")
    (tmp_path / "f").write_text("outside!")
    node = kernel.lookup(rel(kernel, root / "d" / "f"))
    for _ in range(600):  # more directories than are kept open
        (root / f"x{_}").mkdir()
        kernel.ask(k.OPENDIR, kernel.lookup(rel(kernel, root / f"x{_}")), struct.pack("=II", 0, 0))
    (root / "d").rename(root / "gone")
    (root / "d").symlink_to(tmp_path)
    reply = kernel.getattr(node)
    assert reply.error == ESTALE or k.attr_of(reply.body, 16).size == len("inside")


def test_what_is_unlinked_and_pinned_is_still_there(kernel: Kernel, root: Path) -> None:
    (root / "f").write_text("still")
    parent, node = kernel.lookup(rel(kernel, root)), kernel.lookup(rel(kernel, root / "f"))
    assert engine.pin(node) == 0
    (root / "f").unlink()
    engine.remove_name(node, parent, b"f")
    engine.detach(node)
    assert engine.paths(node) == ()
    reply = kernel.getattr(node)
    assert not reply.error and k.attr_of(reply.body, 16).nlink == 0
    kernel.forget(node)
    assert engine.hold(node) is None


# ---- attributes and listings ----


def test_attributes_as_the_directory_has_them(kernel: Kernel, root: Path) -> None:
    (root / "f").write_bytes(b"x" * 4321)
    os.chmod(root / "f", 0o640)
    os.utime(root / "f", ns=(10**18, 10**18 + 7))
    reply = kernel.ask(k.LOOKUP, kernel.lookup(rel(kernel, root)), b"f\0")
    assert reply is not None
    _, attr = entry_of(reply.body)
    st = (root / "f").stat()
    assert (attr.ino, attr.size, attr.mode, attr.nlink, attr.uid, attr.gid, attr.mtime) == (
        (st.st_ino, st.st_size, st.st_mode, st.st_nlink, st.st_uid, st.st_gid, 10**9)
    )


def test_chmod_and_times_need_no_decision_but_a_size_does(kernel: Kernel, root: Path) -> None:
    (root / "f").write_text("abc")
    node = kernel.lookup(rel(kernel, root / "f"))

    def setattr_(valid: int, **fields: int) -> k.Reply | None:
        v = {"size": 0, "mtime": 0, "mode": 0, **fields}
        body = struct.pack("=IIQQQQQQ", valid, 0, 0, v["size"], 0, 0, v["mtime"], 0)
        return kernel.ask(k.SETATTR, node, body + struct.pack("=8I", 0, 0, 0, v["mode"], 0, 0, 0, 0))

    assert setattr_(1 | 32, mode=0o600, mtime=12345) is not None
    st = (root / "f").stat()
    assert (st.st_mode & 0o777, int(st.st_mtime)) == (0o600, 12345)
    assert setattr_(8, size=1) is None, "a truncation is Python's"
    assert (root / "f").read_text() == "abc"


def test_a_listing_is_complete_and_counts_lookups(kernel: Kernel, root: Path) -> None:
    names = {f"name-{i}-{'x' * (i % 90)}" for i in range(300)} | {"nl\nname", "\udcff"}
    for name in names:
        (root / name).touch()
    node = kernel.lookup(rel(kernel, root))
    found = kernel.listing(node)
    assert {n for n, _ in found} == names | {".", ".."} and len(found) == len(names) + 2
    assert all(engine.state(id_)[0] == 1 for n, id_ in found if n not in (".", ".."))
    for n, id_ in found:
        if n not in (".", ".."):
            kernel.send(k.FORGET, id_, struct.pack("=Q", 1))
    kernel.getattr(1)


def test_what_is_missing_is_said_to_be_missing_and_watched_names_go_to_python(
    kernel: Kernel, root: Path
) -> None:
    parent = kernel.lookup(rel(kernel, root))
    reply = kernel.ask(k.LOOKUP, parent, b"nothing\0")
    assert reply is not None and not reply.error and entry_of(reply.body + bytes(88))[0] == 0
    engine.watch_miss(parent, b"watched")
    assert kernel.ask(k.LOOKUP, parent, b"watched\0") is None
    (root / "watched").touch()
    assert kernel.lookup(rel(kernel, root / "watched"))


def test_extended_attributes(kernel: Kernel, root: Path) -> None:
    (root / "f").touch()
    os.setxattr(root / "f", "user.a", b"value")
    os.setxattr(root / "f", "user.fsguard.own", b"behind the mount")
    node = kernel.lookup(rel(kernel, root / "f"))

    def get(name: bytes, size: int) -> k.Reply | None:
        return kernel.ask(k.GETXATTR, node, struct.pack("=II", size, 0) + name + b"\0")

    sized, whole, small, none = get(b"user.a", 0), get(b"user.a", 100), get(b"user.a", 2), get(b"user.b", 100)
    assert sized and struct.unpack_from("=I", sized.body)[0] == 5
    assert whole and whole.body == b"value"
    assert small and small.error == ERANGE
    assert none and none.error == ENODATA
    assert get(b"user.fsguard.writer", 100) is None, "those are Python's"
    names = kernel.ask(k.LISTXATTR, node, struct.pack("=II", 1000, 0))
    assert names and b"user.a\0" in names.body and b"fsguard" not in names.body


def test_flush_is_answered_for_good(kernel: Kernel, root: Path) -> None:
    reply = kernel.ask(k.FLUSH, 1, bytes(24))
    assert reply and reply.error == ENOSYS


# ---- reading, and who it was ----


def test_an_unknown_thread_is_pythons(kernel: Kernel, root: Path) -> None:
    (root / "f").write_text("x")
    node = kernel.lookup(rel(kernel, root / "f"))
    engine.forget_threads(False)
    assert kernel.open(node, ME()) is None
    known(7)
    assert kernel.open(node, ME(), os.O_RDWR) is None, "may write"
    assert kernel.open(node, ME(), os.O_RDONLY | os.O_TRUNC) is None
    fh = kernel.open(node, ME())
    assert fh is not None and kernel.read(node, fh, 10) == b"x"
    kernel.release(node, fh)
    engine.take_looks()


def test_looks_are_told_once_until_they_are_taken(kernel: Kernel, root: Path) -> None:
    (root / "f").write_text("x")
    node, path = kernel.lookup(rel(kernel, root / "f")), os.fsencode(rel(kernel, root / "f"))
    engine.take_looks()
    known(7)
    for _ in range(5):
        fh = kernel.open(node, ME())
        assert fh is not None
        kernel.release(node, fh)
    assert [(actor, paths) for actor, paths, _ in engine.take_looks()] == [(7, (path,))]
    fh = kernel.open(node, ME())
    assert fh is not None
    known(8)
    other = kernel.open(node, ME())
    assert other is not None
    assert [actor for actor, _, _ in engine.take_looks()] == [7, 8]
    for handle in (fh, other):
        kernel.release(node, handle)


def test_who_reads_first_after_a_decision_looks_again(kernel: Kernel, root: Path) -> None:
    (root / "f").write_text("x")
    node = kernel.lookup(rel(kernel, root / "f"))
    known(7)
    fh = kernel.open(node, ME())
    assert fh is not None
    assert len(engine.take_looks()) == 1
    header_pid = kernel.ask(k.READ, node, struct.pack("=QQIIQII", fh, 0, 10, 0, 0, 0, 0), pid=ME())
    assert header_pid and header_pid.body == b"x"
    assert [actor for actor, _, _ in engine.take_looks()] == [7]
    kernel.ask(k.READ, node, struct.pack("=QQIIQII", fh, 0, 10, 0, 0, 0, 0), pid=ME())
    assert engine.take_looks() == []
    kernel.release(node, fh)


def test_a_look_names_the_file_as_it_is_called_now(kernel: Kernel, root: Path) -> None:
    (root / "f").write_text("x")
    node, parent = kernel.lookup(rel(kernel, root / "f")), kernel.lookup(rel(kernel, root))
    engine.take_looks()
    known(7)
    fh = kernel.open(node, ME())
    (root / "f").rename(root / "g")
    engine.remove_name(node, parent, b"f")
    engine.add_name(node, parent, b"g")
    kernel.release(node, fh or 0)
    kernel.forget(node, 1)
    looks = engine.take_looks()
    assert [paths for _, paths, _ in looks] == [(os.fsencode(rel(kernel, root / "g")),)]


def test_a_thread_that_has_ended_or_executed_something_is_unknown(kernel: Kernel, root: Path) -> None:
    import subprocess
    import sys

    (root / "f").write_text("x")
    node = kernel.lookup(rel(kernel, root / "f"))
    script = "import os; print(1, flush=True); os.read(0, 3); os.execvp('cat', ['cat'])"
    process = subprocess.Popen([sys.executable, "-c", script], stdin=-1, stdout=-1, text=True)
    assert process.stdin and process.stdout
    assert process.stdout.readline() == "1\n"
    assert engine.know(process.pid, 9, 60.0)
    fh = kernel.open(node, process.pid)
    assert fh is not None
    kernel.release(node, fh)
    process.stdin.write("go\nthrough cat\n")
    process.stdin.flush()
    assert process.stdout.readline() == "through cat\n"
    assert kernel.open(node, process.pid) is None, "it is another program now"
    assert engine.know(process.pid, 9, 60.0)
    process.stdin.close()
    process.wait()
    assert kernel.open(node, process.pid) is None, "it has ended"
    engine.take_looks()


def test_more_looks_than_room_go_to_python(kernel: Kernel, root: Path) -> None:
    for i in range(300):
        (root / str(i)).touch()
    nodes = [id_ for name, id_ in kernel.listing(kernel.lookup(rel(kernel, root))) if name.isdigit()]
    engine.take_looks()
    known(1)
    asked = 0
    for actor in range(1, 32):
        known(actor)
        for node in nodes:
            fh = kernel.open(node, ME())
            asked += fh is None
            if fh is not None:
                kernel.release(node, fh)
    assert asked == 31 * 300 - 8192 == 31 * 300 - len(engine.take_looks())


# ---- granted writes ----


def test_a_granted_write_lands_and_anything_else_takes_the_grant_back(kernel: Kernel, root: Path) -> None:
    (root / "f").write_bytes(b"..........")
    node = kernel.lookup(rel(kernel, root / "f"))
    fd = os.open(root / "f", os.O_RDWR)
    try:
        assert kernel.write(node, 5, b"AA", 0, pid=ME()) is None
        engine.grant(node, 5, fd, ME(), False, 60.0)
        assert kernel.write(node, 6, b"AA", 0, pid=ME()) is None, "another handle"
        engine.grant(node, 5, fd, ME(), False, 60.0)
        assert kernel.write(node, 5, b"AA", 0, pid=ME() + 1) is None, "another thread"
        assert kernel.write(node, 5, b"AA", 0, pid=ME()) is None, "which took it back"
        engine.grant(node, 5, fd, ME(), False, 60.0)
        reply = kernel.write(node, 5, b"BB", 4, pid=ME())
        assert reply and struct.unpack_from("=I", reply.body)[0] == 2
        assert (root / "f").read_bytes() == b"....BB...."
        assert kernel.write(node, 5, b"CC", 0, pid=ME(), flags=os.O_WRONLY | os.O_APPEND) is None
        engine.grant(node, 5, fd, ME(), False, 60.0)
        known(3)
        fh = kernel.open(node, ME())
        assert kernel.write(node, 5, b"CC", 0, pid=ME()) is None, "somebody has looked"
        engine.grant(node, 5, fd, ME(), False, 60.0)
        engine.revoke_all()
        assert kernel.write(node, 5, b"CC", 0, pid=ME()) is None
        engine.grant(node, 5, fd, ME(), False, 0.0)
        assert kernel.write(node, 5, b"CC", 0, pid=ME()) is None, "its time was over"
        assert engine.revoke(node) == 0.0
        kernel.release(node, fh or 0)
        engine.take_looks()
    finally:
        os.close(fd)


# ---- whatever comes ----

OPCODES = st.one_of(st.integers(0, 60), st.integers(0, 2**32 - 1))
# The tables of the protocol, the rights of the process, and sizes are what a mangled request could reach.
SAFE = st.binary(max_size=200)


@settings(
    max_examples=int(os.environ.get("FSGUARD_FUZZ", "300")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    requests=st.lists(
        st.tuples(
            OPCODES, st.one_of(st.integers(0, 40), st.integers(0, 2**64 - 1)), SAFE, st.integers(0, 2**32 - 1)
        ),
        max_size=12,
    ),
    mangled=st.lists(st.binary(max_size=120), max_size=3),
)
def test_no_request_ends_it(kernel: Kernel, requests: list, mangled: list) -> None:
    for opcode, node, body, pid in requests:
        kernel.send(opcode, node, body, pid=pid)
    for packet in mangled:
        if len(packet) > 0:
            kernel.raw(packet)
    reply = kernel.ask(k.GETATTR, 1, struct.pack("=IIQ", 0, 0, 0))
    assert reply is not None and not reply.error
    while engine.next_request() is not None:
        pass


@pytest.mark.parametrize(
    "opcode", sorted({k.GETATTR, k.SETATTR, k.OPEN, k.READ, k.RELEASE, k.FSYNC, k.GETXATTR, k.LSEEK})
)
def test_a_cut_off_request_is_invalid(kernel: Kernel, root: Path, opcode: int) -> None:
    (root / "f").touch()
    node = kernel.lookup(rel(kernel, root / "f"))
    reply = kernel.ask(opcode, node, b"\0\0")
    assert reply is not None and reply.error == EINVAL
    name = kernel.ask(k.LOOKUP, 1, b"no end")
    assert name is not None and name.error == EINVAL


def test_names_of_any_length(kernel: Kernel, root: Path) -> None:
    parent = kernel.lookup(rel(kernel, root))
    for length in (255, 256, 4000):
        reply = kernel.ask(k.LOOKUP, parent, b"n" * length + b"\0")
        assert reply is not None and (reply.error != ENOENT)


def test_a_name_longer_than_this_filesystem_allows(kernel: Kernel, root: Path) -> None:
    """Others allow it: 255 characters of UTF-16 are up to 765 bytes."""
    parent, st = kernel.lookup(rel(kernel, root)), root.stat()
    mode = stat.S_IFREG | 0o644
    node = engine.enter(parent, b"x" * 765, st.st_dev, 2**40, mode, 1, engine.next_id())
    assert node and engine.paths(node)[0].endswith(b"x" * 765)
    assert engine.pin(node) < 0
    assert kernel.getattr(node).error
    engine.release(node)


def test_many_threads_at_once(kernel: Kernel, root: Path) -> None:
    """Lookups, listings and forgets from several sides while Python moves names."""
    for i in range(50):
        (root / f"d{i}").mkdir()
        (root / f"d{i}" / "f").write_text(str(i))
    parent = kernel.lookup(rel(kernel, root))
    for i in range(50):
        assert kernel.lookup(rel(kernel, root / f"d{i}"))
    uniques = []
    for round_ in range(40):
        for i in range(50):
            uniques.append(kernel.send(k.LOOKUP, parent, b"d%d\0" % i))
        name = b"d%d" % round_
        node = engine.child(parent, name)
        os.rename(root / name.decode(), root / f"moved{round_}")
        engine.remove_name(node, parent, name)
        engine.add_name(node, parent, b"moved%d" % round_)
        engine.release(node)
    for unique in uniques:
        kernel.reply(unique)
    for i in range(40):
        assert engine.child(parent, b"d%d" % i) == 0
        node = kernel.lookup(rel(kernel, root / f"moved{i}"))
        assert engine.paths(node) == (os.fsencode(rel(kernel, root / f"moved{i}")),)
