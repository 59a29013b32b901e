"""The compiled lane by itself: raw requests over a socket pair, the test plays the kernel.

What it answers is compared with what the directory says; what Python may ask and
tell is asked and told; and no request, however mangled, may end it.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import subprocess
import time
from collections.abc import Callable
from errno import EEXIST, EINVAL, ENODATA, ENOENT, ENOSYS, ERANGE, ESTALE
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fsguard.lane import engine
from tests.kit import kernel as k
from tests.kit.abilities import lacking
from tests.kit.kernel import Kernel, entry_of
from tests.kit.records import told

# ---- names and lifetimes ----


def test_a_node_lives_until_as_many_lookups_are_given_back(kernel: Kernel, root: Path) -> None:
    (root / "f").write_text("hello")
    before = engine.load()["nodes"]
    first, second = kernel.lookup(kernel.rel(root / "f")), kernel.lookup(kernel.rel(root / "f"))
    assert first == second and engine.load()["nodes"] == before + 2
    kernel.forget(first)
    assert engine.state(first)[0] == 1
    kernel.forget(first)
    assert kernel.getattr(first).error == ESTALE
    kernel.forget(kernel.lookup(kernel.rel(root)), 3)
    assert engine.load()["nodes"] == before


def test_children_keep_their_directory_alive(kernel: Kernel, root: Path) -> None:
    (root / "a" / "b").mkdir(parents=True)
    node = kernel.lookup(kernel.rel(root / "a" / "b"))
    a = engine.names(node)[0][0]
    kernel.forget(a)
    assert engine.paths(node) == (os.fsencode(kernel.rel(root / "a" / "b")),)
    kernel.forget(node)
    assert engine.hold(a) is None


def test_an_inode_number_that_comes_back_is_another_file(kernel: Kernel, root: Path) -> None:
    parent = kernel.lookup(kernel.rel(root))
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
    nodes = {kernel.lookup(kernel.rel(root / name)) for name in ("a", "b", "d/c")}
    assert len(nodes) == 1
    names = {os.fsencode(kernel.rel(root / n)) for n in ("a", "b", "d/c")}
    assert set(engine.paths(nodes.pop())) == names


def test_a_name_that_lies_is_dropped_and_the_others_serve(kernel: Kernel, root: Path) -> None:
    (root / "a").write_text("same")
    (root / "b").hardlink_to(root / "a")
    node = kernel.lookup(kernel.rel(root / "a"))
    assert kernel.lookup(kernel.rel(root / "b")) == node
    (root / "a").unlink()
    (root / "a").write_text("another file")
    assert k.attr_of(kernel.getattr(node).body, 16).size == 4
    assert engine.paths(node) == (os.fsencode(kernel.rel(root / "b")),)


def test_a_directory_moved_behind_its_back(kernel: Kernel, root: Path) -> None:
    (root / "a" / "deep").mkdir(parents=True)
    deep = kernel.lookup(kernel.rel(root / "a" / "deep"))
    (root / "a").rename(root / "z")
    assert kernel.getattr(deep).error in (0, ESTALE)  # the descriptor may have been open already
    assert kernel.lookup(kernel.rel(root / "z" / "deep")) == deep
    assert engine.paths(deep) == (os.fsencode(kernel.rel(root / "z" / "deep")),)


def test_a_directory_that_swallows_its_parent(kernel: Kernel, root: Path) -> None:
    (root / "a" / "b").mkdir(parents=True)
    kernel.lookup(kernel.rel(root / "a" / "b"))
    (root / "a" / "b").rename(root / "b")
    (root / "a").rename(root / "b" / "a")
    inner = kernel.lookup(kernel.rel(root / "b" / "a"))
    assert engine.paths(inner) == (os.fsencode(kernel.rel(root / "b" / "a")),)
    assert not kernel.getattr(inner).error


def test_a_symlink_in_a_directorys_place_is_not_followed(kernel: Kernel, root: Path, tmp_path: Path) -> None:
    (root / "d").mkdir()
    (root / "d" / "f").write_text("inside")
    (tmp_path / "f").write_text("outside!")
    node = kernel.lookup(kernel.rel(root / "d" / "f"))
    for _ in range(600):  # more directories than are kept open
        (root / f"x{_}").mkdir()
        kernel.ask(k.OPENDIR, kernel.lookup(kernel.rel(root / f"x{_}")), struct.pack("=II", 0, 0))
    (root / "d").rename(root / "gone")
    (root / "d").symlink_to(tmp_path)
    reply = kernel.getattr(node)
    assert reply.error == ESTALE or k.attr_of(reply.body, 16).size == len("inside")


def test_what_is_unlinked_and_pinned_is_still_there(kernel: Kernel, root: Path) -> None:
    (root / "f").write_text("still")
    parent, node = kernel.lookup(kernel.rel(root)), kernel.lookup(kernel.rel(root / "f"))
    assert engine.pin(node) == 0
    (root / "f").unlink()
    engine.remove_name(node, parent, b"f")
    engine.detach(node)
    assert engine.paths(node) == ()
    reply = kernel.getattr(node)
    assert not reply.error and k.attr_of(reply.body, 16).nlink == 0
    kernel.forget(node)
    assert engine.hold(node) is None


@pytest.mark.parametrize("whose", ["the lane's", "Python's", "nobody's"])
def test_what_is_deleted_behind_and_open_is_still_there(kernel: Kernel, root: Path, whose: str) -> None:
    (root / "f").write_text("still")
    node, fh, fd = kernel.lookup(kernel.rel(root / "f")), None, -1
    if whose == "the lane's":
        k.known(7)
        fh = kernel.open(node, k.ME())
        assert fh is not None
    elif whose == "Python's":
        fd = os.open(root / "f", os.O_RDONLY)
        engine.opened_by(node, fd)
    (root / "new").write_text("another file")
    (root / "new").rename(root / "f")
    reply = kernel.getattr(node)
    if whose == "nobody's":
        assert reply.error == ESTALE
        return
    assert not reply.error and k.attr_of(reply.body, 16).size == 5
    if fh is not None:
        assert kernel.read(node, fh, 10) == b"still"
        kernel.release(node, fh)
        told()
    else:
        engine.opened_by(node, -1)
        os.close(fd)
    assert not kernel.getattr(node).error, "through a descriptor of its own by now"
    kernel.forget(node)
    assert engine.hold(node) is None


# ---- attributes and listings ----


def test_attributes_as_the_directory_has_them(kernel: Kernel, root: Path) -> None:
    (root / "f").write_bytes(b"x" * 4321)
    os.chmod(root / "f", 0o640)
    os.utime(root / "f", ns=(10**18, 10**18 + 7))
    reply = kernel.ask(k.LOOKUP, kernel.lookup(kernel.rel(root)), b"f\0")
    assert reply is not None
    _, attr = entry_of(reply.body)
    st = (root / "f").stat()
    assert (attr.ino, attr.size, attr.mode, attr.nlink, attr.uid, attr.gid, attr.mtime) == (
        (st.st_ino, st.st_size, st.st_mode, st.st_nlink, st.st_uid, st.st_gid, 10**9)
    )


def test_chmod_and_times_need_no_decision_but_a_size_does(kernel: Kernel, root: Path) -> None:
    (root / "f").write_text("abc")
    node = kernel.lookup(kernel.rel(root / "f"))

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
    node = kernel.lookup(kernel.rel(root))
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
    parent = kernel.lookup(kernel.rel(root))
    reply = kernel.ask(k.LOOKUP, parent, b"nothing\0")
    assert reply is not None and not reply.error and entry_of(reply.body + bytes(88))[0] == 0
    engine.watch_miss(parent, b"watched")
    assert kernel.ask(k.LOOKUP, parent, b"watched\0") is None
    (root / "watched").touch()
    assert kernel.lookup(kernel.rel(root / "watched"))


def test_extended_attributes(kernel: Kernel, root: Path) -> None:
    (root / "f").touch()
    os.setxattr(root / "f", "user.a", b"value")
    os.setxattr(root / "f", "user.fsguard.own", b"behind the mount")
    node = kernel.lookup(kernel.rel(root / "f"))

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
    node = kernel.lookup(kernel.rel(root / "f"))
    engine.forget_threads(False)
    assert kernel.open(node, k.ME()) is None
    k.known(7)
    assert kernel.open(node, k.ME(), os.O_RDWR) is None, "may write"
    assert kernel.open(node, k.ME(), os.O_RDONLY | os.O_TRUNC) is None
    fh = kernel.open(node, k.ME())
    assert fh is not None and kernel.read(node, fh, 10) == b"x"
    kernel.release(node, fh)
    told()


def test_looks_are_told_once_until_they_are_taken(kernel: Kernel, root: Path) -> None:
    (root / "f").write_text("x")
    node, path = kernel.lookup(kernel.rel(root / "f")), os.fsencode(kernel.rel(root / "f"))
    told()
    k.known(7)
    for _ in range(5):
        fh = kernel.open(node, k.ME())
        assert fh is not None
        kernel.release(node, fh)
    assert [record[1:3] for record in told()] == [(7, (path,))]
    fh = kernel.open(node, k.ME())
    assert fh is not None
    k.known(8)
    other = kernel.open(node, k.ME())
    assert other is not None
    assert [record[1] for record in told()] == [7, 8]
    for handle in (fh, other):
        kernel.release(node, handle)


def test_who_reads_first_after_a_decision_looks_again(kernel: Kernel, root: Path) -> None:
    (root / "f").write_text("x")
    node = kernel.lookup(kernel.rel(root / "f"))
    k.known(7)
    fh = kernel.open(node, k.ME())
    assert fh is not None
    assert len(told()) == 1
    header_pid = kernel.ask(k.READ, node, struct.pack("=QQIIQII", fh, 0, 10, 0, 0, 0, 0), pid=k.ME())
    assert header_pid and header_pid.body == b"x"
    assert [record[1] for record in told()] == [7]
    kernel.ask(k.READ, node, struct.pack("=QQIIQII", fh, 0, 10, 0, 0, 0, 0), pid=k.ME())
    assert told() == []
    kernel.release(node, fh)


def test_a_look_names_the_file_as_it_is_called_now(kernel: Kernel, root: Path) -> None:
    (root / "f").write_text("x")
    node, parent = kernel.lookup(kernel.rel(root / "f")), kernel.lookup(kernel.rel(root))
    told()
    k.known(7)
    fh = kernel.open(node, k.ME())
    (root / "f").rename(root / "g")
    engine.remove_name(node, parent, b"f")
    engine.add_name(node, parent, b"g")
    kernel.release(node, fh or 0)
    kernel.forget(node, 1)
    looks = told()
    assert [record[2] for record in looks] == [(os.fsencode(kernel.rel(root / "g")),)]


def test_a_thread_that_has_ended_or_executed_something_is_unknown(kernel: Kernel, root: Path) -> None:
    import subprocess
    import sys

    (root / "f").write_text("x")
    node = kernel.lookup(kernel.rel(root / "f"))
    script = "import os; print(1, flush=True); os.read(0, 3); os.execvp('cat', ['cat'])"
    process = subprocess.Popen([sys.executable, "-c", script], stdin=-1, stdout=-1, text=True)
    assert process.stdin and process.stdout
    assert process.stdout.readline() == "1\n"
    assert engine.know(process.pid, 9, 0, 60.0)
    fh = kernel.open(node, process.pid)
    assert fh is not None
    kernel.release(node, fh)
    process.stdin.write("go\nthrough cat\n")
    process.stdin.flush()
    assert process.stdout.readline() == "through cat\n"
    assert kernel.open(node, process.pid) is None, "it is another program now"
    assert engine.know(process.pid, 9, 0, 60.0)
    process.stdin.close()
    process.wait()
    assert kernel.open(node, process.pid) is None, "it has ended"
    told()


def test_more_looks_than_room_go_to_python(kernel: Kernel, root: Path) -> None:
    for i in range(300):
        (root / str(i)).touch()
    nodes = [id_ for name, id_ in kernel.listing(kernel.lookup(kernel.rel(root))) if name.isdigit()]
    told()
    k.known(1)
    asked = 0
    for actor in range(1, 32):
        k.known(actor)
        for node in nodes:
            fh = kernel.open(node, k.ME())
            asked += fh is None
            if fh is not None:
                kernel.release(node, fh)
    assert asked == 31 * 300 - 8192 == 31 * 300 - len(told())


# ---- granted writes ----


def test_a_granted_write_lands_and_anything_else_takes_the_grant_back(kernel: Kernel, root: Path) -> None:
    (root / "f").write_bytes(b"..........")
    node = kernel.lookup(kernel.rel(root / "f"))
    fd = os.open(root / "f", os.O_RDWR)
    try:
        assert kernel.write(node, 5, b"AA", 0, pid=k.ME()) is None
        engine.grant(node, 5, fd, k.ME(), False, 60.0)
        assert kernel.write(node, 6, b"AA", 0, pid=k.ME()) is None, "another handle"
        engine.grant(node, 5, fd, k.ME(), False, 60.0)
        assert kernel.write(node, 5, b"AA", 0, pid=k.ME() + 1) is None, "another thread"
        assert kernel.write(node, 5, b"AA", 0, pid=k.ME()) is None, "which took it back"
        engine.grant(node, 5, fd, k.ME(), False, 60.0)
        reply = kernel.write(node, 5, b"BB", 4, pid=k.ME())
        assert reply and struct.unpack_from("=I", reply.body)[0] == 2
        assert (root / "f").read_bytes() == b"....BB...."
        assert kernel.write(node, 5, b"CC", 0, pid=k.ME(), flags=os.O_WRONLY | os.O_APPEND) is None
        engine.grant(node, 5, fd, k.ME(), False, 60.0)
        k.known(3)
        fh = kernel.open(node, k.ME())
        assert kernel.write(node, 5, b"CC", 0, pid=k.ME()) is None, "somebody has looked"
        engine.grant(node, 5, fd, k.ME(), False, 60.0)
        engine.revoke_all()
        assert kernel.write(node, 5, b"CC", 0, pid=k.ME()) is None
        engine.grant(node, 5, fd, k.ME(), False, 0.0)
        assert kernel.write(node, 5, b"CC", 0, pid=k.ME()) is None, "its time was over"
        assert engine.revoke(node) == 0.0
        kernel.release(node, fh or 0)
        told()
    finally:
        os.close(fd)


# ---- listings ----


def test_who_goes_on_in_a_listing_misses_nothing_and_meets_nothing_twice(kernel: Kernel, root: Path) -> None:
    """Two read one directory, page by page, while names come and go; no handle tells them apart."""
    node = kernel.lookup(kernel.rel(root))
    stay = {f"stay{i}" for i in range(120)}
    for name in stay | {f"go{i}" for i in range(60)}:
        (root / name).touch()
    seen: list[list[str]] = [[], []]
    offsets, over = [0, 0], [False, False]
    turn = 0
    while not all(over):
        for who in (0, 1) if turn % 3 else (1,):  # not in step
            if over[who]:
                continue
            entries, offsets[who] = kernel.page(node, offsets[who], 2000)
            seen[who] += [name for name, _ in entries]
            over[who] = not entries
        (root / f"go{turn % 60}").unlink(missing_ok=True)
        (root / f"come{turn}").touch()
        if turn == 9:
            kernel.page(node, 0)  # a third one begins, and takes a new listing
        turn += 1
    for names in seen:
        assert len(names) == len(set(names))
        assert stay <= set(names)


def test_a_position_in_a_listing_stays_good(kernel: Kernel, root: Path) -> None:
    for i in range(200):
        (root / f"f{i}").touch()
    node = kernel.lookup(kernel.rel(root))
    first, offset = kernel.page(node, 0, 4096)
    rest, _ = kernel.page(node, offset, 1 << 20)
    for i in range(100):  # so many others are read meanwhile that this one is not kept
        other = root / f"d{i}"
        other.mkdir()
        (other / "x").touch()
        kernel.page(kernel.lookup(kernel.rel(other)), 0, 300)
    again, _ = kernel.page(node, offset, 1 << 20)
    names = {n for n, _ in again if n[0] == "f"}
    assert names == {n for n, _ in rest} and not names & {n for n, _ in first}


# ---- changes from behind ----


def child(*command: str) -> None:
    env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}  # the sanitizers' libraries
    subprocess.run(command, check=True, env=env)


def need_watch() -> None:
    if not engine.watch_load()["on"]:
        lacking(f"fanotify cannot watch here: {os.strerror(engine.watch_load()['error'])}")


def noticed(kernel: Kernel, what: Callable[[], bool]) -> None:
    """Answer and listen until it holds."""
    end = time.monotonic() + 5
    while not what():
        assert time.monotonic() < end, kernel.notices
        kernel.getattr(1)


def changes(kernel: Kernel, least: int) -> list[tuple[int, bytes | None, bytes | None, int, float]]:
    found: list[tuple[int, bytes | None, bytes | None, int, float]] = []

    def there() -> bool:
        found.extend(c for c in engine.take_changes() if not c[0] & 1 << 61)
        return len(found) >= least

    noticed(kernel, there)
    return found


def test_what_another_process_does_is_told_to_the_kernel_and_to_python(kernel: Kernel, root: Path) -> None:
    need_watch()
    parent = kernel.lookup(kernel.rel(root))
    assert kernel.ask(k.LOOKUP, parent, b"new\0") is not None
    kernel.notices.clear()
    engine.take_changes()
    child("touch", str(root / "new"))
    entry = (3, struct.pack("=QII", parent, 3, 1) + b"new\0")
    noticed(kernel, lambda: entry in kernel.notices)
    noticed(kernel, lambda: (2, struct.pack("=Qqq", parent, 0, 0)) in kernel.notices)
    mask, path, target, pid, at = changes(kernel, 1)[0]
    assert mask & 0x100 and path == os.fsencode(kernel.rel(root / "new")) and target is None
    assert pid > 0 and pid != os.getpid() and abs(time.time() - at) < 60
    node = kernel.lookup(kernel.rel(root / "new"))
    kernel.notices.clear()
    child("sh", "-c", f"echo more >> {root / 'new'}")
    noticed(kernel, lambda: (2, struct.pack("=Qqq", node, 0, 0)) in kernel.notices)
    child("mv", str(root / "new"), str(root / "newer"))
    noticed(kernel, lambda: not engine.paths(node))
    moved = [c for c in changes(kernel, 2) if c[0] & 0x10000000]
    assert [os.path.basename(p or b"") for c in moved for p in c[1:3]] == [b"new", b"newer"]
    assert kernel.lookup(kernel.rel(root / "newer")) == node


def test_what_we_do_is_no_news(kernel: Kernel, root: Path) -> None:
    need_watch()
    kernel.lookup(kernel.rel(root))
    kernel.getattr(1)
    before = engine.watch_load()
    engine.take_changes()
    (root / "f").write_text("x")
    (root / "f").rename(root / "g")
    (root / "g").unlink()
    noticed(kernel, lambda: engine.watch_load()["own"] > before["own"])
    child("touch", str(root / "theirs"))
    assert all((path or b"").endswith(b"/theirs") for _, path, _, _, _ in changes(kernel, 1))


def test_directories_that_are_forgotten_are_watched_no_more(kernel: Kernel, root: Path) -> None:
    need_watch()
    before = engine.watch_load()["directories"]
    nodes = []
    for i in range(20):
        (root / f"d{i}").mkdir()
        nodes.append(kernel.lookup(kernel.rel(root / f"d{i}")))
    parent = engine.names(nodes[0])[0][0]
    assert engine.watch_load()["directories"] == before + 21
    for node in nodes:
        kernel.forget(node)
    assert engine.watch_load()["directories"] == before + 1
    kernel.forget(parent, 20)
    assert engine.watch_load()["directories"] == before
    node = kernel.lookup(kernel.rel(root / "d3"))  # known again: watched again
    engine.take_changes()
    child("touch", str(root / "d3" / "x"))
    assert changes(kernel, 1)[0][1] == os.fsencode(kernel.rel(root / "d3" / "x"))
    kernel.forget(node)


def test_too_many_changes_to_hear_of(kernel: Kernel, root: Path) -> None:
    """All that the kernel was told is taken back: every name and every node."""
    need_watch()
    (root / "f").touch()
    parent, node = kernel.lookup(kernel.rel(root)), kernel.lookup(kernel.rel(root / "f"))
    kernel.notices.clear()
    engine.take_changes()
    assert engine.watch_events(struct.pack("=IBBHQii", 24, 3, 0, 24, 0x4000, -1, 0))
    for id_ in (parent, node, 1):
        noticed(kernel, lambda id_=id_: (2, struct.pack("=Qqq", id_, 0, 0)) in kernel.notices)  # type: ignore[misc]
    noticed(kernel, lambda: (3, struct.pack("=QII", parent, 1, 1) + b"f\0") in kernel.notices)
    assert changes(kernel, 1)[0][0] & 0x4000


def real_events(directory: Path) -> bytes:
    """What fanotify says of a few changes in a directory, by a group of the test's own."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fanotify_mark.argtypes = [
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.c_uint64,
        ctypes.c_int,
        ctypes.c_char_p,
    ]
    group = libc.fanotify_init(0xC03, os.O_RDONLY)
    if group < 0 or libc.fanotify_mark(group, 1, 0x5800030E | 0x200, -100, os.fsencode(directory)):
        lacking("fanotify cannot watch here")
    try:
        (directory / "e").write_text("x")
        (directory / "e").rename(directory / "e2")
        (directory / "e2").unlink()
        return os.read(group, 65536)
    finally:
        os.close(group)


@settings(
    max_examples=int(os.environ.get("FSGUARD_FUZZ", "300")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_no_event_ends_it(kernel: Kernel, data: st.DataObject) -> None:
    need_watch()
    real = bytearray(real_events(Path(kernel.root)))
    real[20:24] = struct.pack("=i", 1)
    for at, byte in data.draw(
        st.lists(st.tuples(st.integers(0, len(real) - 1), st.integers(0, 255)), max_size=12)
    ):
        real[at] = byte
    cut = data.draw(st.integers(0, len(real)))
    engine.watch_events(bytes(real[:cut]) + data.draw(st.binary(max_size=80)))
    engine.take_changes()
    assert not kernel.getattr(1).error


def test_attributes_are_set_and_removed_as_on_the_directory(kernel: Kernel, root: Path) -> None:
    (root / "f").touch()
    node = kernel.lookup(kernel.rel(root / "f"))

    def set_(name: bytes, value: bytes, flags: int = 0) -> int | None:
        body = struct.pack("=II", len(value), flags) + name + b"\0" + value
        reply = kernel.ask(k.SETXATTR, node, body)
        return None if reply is None else reply.error

    assert set_(b"user.a", b"one\0two") == 0
    assert os.getxattr(root / "f", "user.a") == b"one\0two"
    assert set_(b"user.a", b"x", os.XATTR_CREATE) == EEXIST
    assert set_(b"user.b", b"x", os.XATTR_REPLACE) == ENODATA
    assert set_(b"user.fsguard.x", b"x") is None
    gone = kernel.ask(k.REMOVEXATTR, node, b"user.a\0")
    assert gone is not None and not gone.error and os.listxattr(root / "f") == []
    lies = kernel.ask(k.SETXATTR, node, struct.pack("=II", 1000, 0) + b"user.a\0x")
    assert lies is not None and lies.error == EINVAL
    acl = kernel.ask(k.SETXATTR, node, struct.pack("=II", 1, 0) + b"system.posix_acl_access\0x", uid=1)
    assert acl is None, "whether that costs the set-group-ID bit is Python's to find out"


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
    "opcode", sorted({k.GETATTR, k.SETATTR, k.OPEN, k.READ, k.RELEASE, k.FSYNC, k.GETXATTR})
)
def test_a_cut_off_request_is_invalid(kernel: Kernel, root: Path, opcode: int) -> None:
    (root / "f").touch()
    node = kernel.lookup(kernel.rel(root / "f"))
    reply = kernel.ask(opcode, node, b"\0\0")
    assert reply is not None and reply.error == EINVAL
    name = kernel.ask(k.LOOKUP, 1, b"no end")
    assert name is not None and name.error == EINVAL


def test_names_of_any_length(kernel: Kernel, root: Path) -> None:
    parent = kernel.lookup(kernel.rel(root))
    for length in (255, 256, 4000):
        reply = kernel.ask(k.LOOKUP, parent, b"n" * length + b"\0")
        assert reply is not None and (reply.error != ENOENT)


def test_a_name_longer_than_this_filesystem_allows(kernel: Kernel, root: Path) -> None:
    """Others allow it: 255 characters of UTF-16 are up to 765 bytes."""
    parent, st = kernel.lookup(kernel.rel(root)), root.stat()
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
    parent = kernel.lookup(kernel.rel(root))
    for i in range(50):
        assert kernel.lookup(kernel.rel(root / f"d{i}"))
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
        node = kernel.lookup(kernel.rel(root / f"moved{i}"))
        assert engine.paths(node) == (os.fsencode(kernel.rel(root / f"moved{i}")),)
