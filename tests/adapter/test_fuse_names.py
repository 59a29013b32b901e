"""Names that come, move and go: what the node table knows, and what the observer hears."""

import errno
import os

import pytest

from fsguard.fuse import syscalls
from fsguard.fuse.operations import Settings
from tests.adapter.fuse_driver import ME, Driver

EXCHANGE, NOREPLACE = 2, 1


@pytest.fixture
def fs(tmp_path):
    driver = Driver(tmp_path)
    yield driver
    driver.close()


def refused(code):
    return pytest.raises(OSError, check=lambda error: error.errno == code)


def test_a_lookup_that_finds_nothing_is_told(fs):
    with refused(errno.ENOENT):
        fs.id("nothing")
    assert fs.observer.events == [("missed", b"nothing")]


def test_the_inode_number_is_the_backing_files_and_the_node_id_another(fs, tmp_path):
    (tmp_path / "f").write_text("x")
    reply = fs.call("lookup", 1, b"f", ME)
    fs.entry(reply)
    assert reply.st_ino == (tmp_path / "f").stat().st_ino
    assert reply.generation == 2


def test_node_ids_are_never_used_twice_though_inode_numbers_are(fs, tmp_path):
    ids = set()
    for _ in range(5):
        (tmp_path / "f").write_text("x")
        ids.add(fs.id("f"))
        fs.remove("f")
    assert len(ids) == 5


def test_hard_links_are_one_node_with_all_its_names(fs, tmp_path):
    (tmp_path / "a").write_text("x")
    (tmp_path / "d").mkdir()
    fs.link("a", "d/b")
    node = fs.node("a")
    assert sorted(node.paths()) == [b"a", b"d/b"]
    fs.remove("a")
    assert node.paths() == (b"d/b",)
    assert fs.id("d/b") == node.id


def test_an_unlinked_node_can_still_be_reached_until_it_is_forgotten(fs, tmp_path):
    (tmp_path / "f").write_text("content")
    node = fs.node("f")
    fs.remove("f")
    assert node.paths() == ()
    assert fs.call("getattr", node.id, ME).st_nlink == 0
    assert node.head(100) == b"content"
    fd = node.fd
    fs.call("forget", [(node.id, fs.lookups.pop(node.id))])
    fs.ops.backing.reaper.finish()
    with pytest.raises(OSError):
        os.fstat(fd)


def test_a_removed_directory_can_still_be_reached(fs, tmp_path):
    (tmp_path / "d").mkdir()
    id_ = fs.id("d")
    fs.remove("d", "rmdir")
    assert fs.call("getattr", id_, ME).st_nlink == 0
    with refused(errno.ENOENT):
        fs.call("mkdir", id_, b"x", 0o755, ME)
    with refused(errno.ENOENT):
        fs.call("create", id_, b"x", 0o644, os.O_CREAT | os.O_RDWR, ME)


def test_a_removed_directory_keeps_one_descriptor(fs, tmp_path):
    (tmp_path / "d").mkdir()
    before = len(os.listdir("/proc/self/fd"))
    id_ = fs.id("d")
    fs.remove("d", "rmdir")
    assert len(os.listdir("/proc/self/fd")) == before + 1
    fs.call("forget", [(id_, fs.lookups.pop(id_))])
    fs.ops.backing.reaper.finish()
    assert len(os.listdir("/proc/self/fd")) == before


def test_paths_below_a_moved_directory_are_right_at_once(fs, tmp_path):
    (tmp_path / "a/b/c").mkdir(parents=True)
    (tmp_path / "a/b/c/f").write_text("x")
    (tmp_path / "z").mkdir()
    file, directory = fs.node("a/b/c/f"), fs.node("a/b/c")
    assert file.paths() == (b"a/b/c/f",)
    fs.rename("a", "z/a2")
    assert file.paths() == (b"z/a2/b/c/f",)
    assert directory.paths() == (b"z/a2/b/c",)
    fs.rename("z/a2/b", "b")
    assert file.paths() == (b"b/c/f",)


def test_a_path_may_be_deeper_than_the_stack(fs, tmp_path):
    depth, id_ = 1200, 1
    for _ in range(depth):
        id_ = fs.entry(fs.call("mkdir", id_, b"d", 0o755, ME))
    fs.rename("d", "e")  # forgets all cached paths
    assert fs.ops.nodes[id_].paths()[0].count(b"/") == depth - 1
    fs.entry(fs.call("symlink", id_, b"s", b"target", ME))
    fs.call("unlink", id_, b"s", ME)
    fd = os.dup(fs.root_fd)
    for name in [b"e"] + [b"d"] * (depth - 1):
        below = os.open(name, os.O_PATH, dir_fd=fd)
        os.close(fd)
        fd = below
    # Clear away: shutil.rmtree would not come that deep.
    for level in range(depth):
        above = os.open(b"..", os.O_PATH, dir_fd=fd)
        os.rmdir(b"d" if level < depth - 1 else b"e", dir_fd=above)
        os.close(fd)
        fd = above
    os.close(fd)


def test_replacing_by_rename_names_both_and_lets_the_old_one_live_on(fs, tmp_path):
    (tmp_path / "new").write_text("new")
    (tmp_path / "old").write_text("old")
    old, _ = fs.node("old"), fs.node("new")
    fs.rename("new", "old")
    (name, change), done = fs.observer.events
    assert (name, done) == ("Renamed", ("confirmed", "Renamed"))
    assert (change.source, change.target, change.directory) == (b"new", b"old", False)
    assert change.replaced is old
    assert change.file.paths() == (b"old",)
    assert old.paths() == ()
    assert old.head(9) == b"old"


def test_renaming_a_directory_says_so(fs, tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "e").mkdir()
    fs.rename("d", "e")
    change = fs.observer.events[0][1]
    assert change.directory and change.file is None and change.replaced is None


def test_renaming_one_name_of_a_file_onto_another_is_nothing(fs, tmp_path):
    (tmp_path / "a").write_text("x")
    fs.link("a", "b")
    fs.observer.events.clear()
    fs.rename("a", "b")
    assert fs.observer.events == []
    assert sorted(fs.node("a").paths()) == [b"a", b"b"]


def test_an_exchange_swaps_names_of_files_and_directories(fs, tmp_path):
    (tmp_path / "f").write_text("x")
    (tmp_path / "d").mkdir()
    (tmp_path / "d/in").write_text("y")
    file, inside = fs.node("f"), fs.node("d/in")
    fs.rename("f", "d", EXCHANGE)
    change = fs.observer.events[0][1]
    assert (change.first_is_dir, change.second_is_dir) == (False, True)
    assert change.first_file is file and change.second_file is None
    assert file.paths() == (b"d",)
    assert inside.paths() == (b"f/in",)


def test_noreplace_refuses_without_a_word(fs, tmp_path):
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    with refused(errno.EEXIST):
        fs.rename("a", "b", NOREPLACE)
    assert fs.observer.events == []
    fs.rename("a", "c", NOREPLACE)
    assert (tmp_path / "c").read_text() == "a"


@pytest.mark.parametrize(
    ("change", "act"),
    [
        ("Removed", lambda fs: fs.remove("f")),
        ("Renamed", lambda fs: fs.rename("f", "g")),
        ("Renamed", lambda fs: fs.rename("g", "f")),
        ("Exchange", lambda fs: fs.rename("f", "g", EXCHANGE)),
        ("Linked", lambda fs: fs.link("f", "new")),
        ("Made", lambda fs: fs.make("symlink", "new", b"target")),
        ("Made", lambda fs: fs.make("mknod", "new", 0o10644, 0)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_refused_change_changes_nothing(fs, tmp_path, change, act):
    (tmp_path / "f").write_text("f")
    (tmp_path / "g").write_text("g")
    nodes = fs.node("f"), fs.node("g")
    fs.observer.refuses[change] = errno.EBUSY
    with refused(errno.EBUSY):
        act(fs)
    assert fs.observer.kinds() == [change]
    assert [node.paths() for node in nodes] == [(b"f",), (b"g",)]
    assert sorted(os.listdir(tmp_path)) == ["f", "g"]
    assert all(not node.pinned for node in nodes)


def test_a_change_that_fails_is_abandoned(fs, tmp_path):
    (tmp_path / "f").write_text("f")
    (tmp_path / "d").mkdir()
    (tmp_path / "d/x").write_text("")
    with refused(errno.EISDIR):
        fs.rename("f", "d")
    (tmp_path / "e").mkdir()
    (tmp_path / "e/y").touch()
    with refused(errno.ENOTEMPTY):
        fs.rename("d", "e")
    with refused(errno.EEXIST):
        fs.make("symlink", "f", b"t")
    assert fs.observer.kinds() == ["Renamed", "abandoned", "Renamed", "abandoned", "Made", "abandoned"]
    with refused(errno.ENOTEMPTY):
        fs.remove("d", "rmdir")
    assert not fs.node("d").pinned


def test_new_nodes_of_every_kind_are_announced_except_directories(fs, tmp_path):
    fs.make("symlink", "s", b"target")
    fs.make("mknod", "p", 0o10600, 0)
    fs.make("mknod", "r", 0o100640, 0)
    fs.make("mkdir", "d", 0o755)
    made = [event[1] for event in fs.observer.events if event[0] == "Made"]
    assert [(m.path, m.kind) for m in made] == [(b"s", "symlink"), (b"p", "fifo"), (b"r", "file")]
    assert os.readlink(tmp_path / "s") == "target"
    assert (tmp_path / "r").stat().st_mode == 0o100640


def test_the_callers_umask_is_applied_and_the_daemons_restored(fs, tmp_path):
    before = os.umask(0o077)
    try:
        fs.make("mkdir", "d", 0o777)
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(before)
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o755


def test_readlink_is_told(fs, tmp_path):
    (tmp_path / "s").symlink_to("somewhere")
    assert fs.call("readlink", fs.id("s"), ME) == b"somewhere"
    assert fs.observer.events == [("readlink", (b"s",))]


# ---- changes behind the mount -----------------------------------------------------------


def test_a_file_replaced_behind_the_mount_is_another_node(fs, tmp_path):
    (tmp_path / "f").write_text("one")
    old = fs.node("f")
    (tmp_path / "g").write_text("two")
    (tmp_path / "g").rename(tmp_path / "f")
    with refused(errno.ESTALE):  # the kernel then looks the name up afresh
        fs.call("getattr", old.id, ME)
    assert old.paths() == ()
    new = fs.node("f")
    assert new.id != old.id and new.head(9) == b"two"


def test_a_file_renamed_behind_the_mount_loses_its_old_name(fs, tmp_path):
    (tmp_path / "f").write_text("x")
    node = fs.node("f")
    (tmp_path / "f").rename(tmp_path / "g")
    assert fs.id("g") == node.id
    assert node.paths() == (b"g",)


def test_a_directory_moved_behind_the_mount_takes_its_paths_along(fs, tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/f").write_text("x")
    file = fs.node("a/b/f")
    (tmp_path / "a").rename(tmp_path / "z")
    fs.id("z")
    assert file.paths() == (b"z/b/f",)


def test_directories_turned_inside_out_behind_the_mount_make_no_circle(fs, tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    outer, inner = fs.node("a"), fs.node("a/b")
    fs.ops.backing.dir(inner)
    (tmp_path / "a/b").rename(tmp_path / "b")
    (tmp_path / "a").rename(tmp_path / "b/a")
    # A working directory in b still looks below it by its node.
    assert fs.entry(fs.call("lookup", inner.id, b"a", ME)) == outer.id
    assert inner.paths() == () and outer.paths() == ()
    fs.id("b")
    assert outer.paths() == (b"b/a",)


def test_an_inode_number_reused_by_another_kind_of_file_is_another_node(fs, tmp_path):
    for _ in range(50):
        (tmp_path / "f").write_text("x")
        node = fs.node("f")
        (tmp_path / "f").unlink()
        (tmp_path / "f").symlink_to("t")
        if (tmp_path / "f").lstat().st_ino == node.ino:
            break
        (tmp_path / "f").unlink()
    assert fs.id("f") != node.id
    assert fs.call("readlink", fs.id("f"), ME) == b"t"


def test_a_symlink_put_in_the_way_is_not_followed(fs, tmp_path):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/f").write_text("secret")
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_text("harmless")
    directory, file = fs.node("d"), fs.node("d/f")
    fs.ops.backing.close_all()
    (tmp_path / "d").rename(tmp_path / "d2")
    (tmp_path / "d").symlink_to("secret")
    with refused(errno.ESTALE):
        fs.call("open", file.id, os.O_RDONLY, ME)
    with refused(errno.ESTALE):
        fs.call("lookup", directory.id, b"f", ME)


def test_a_fifo_put_in_the_way_does_not_hang_the_daemon(fs, tmp_path):
    (tmp_path / "f").write_text("x")
    node = fs.node("f")
    (tmp_path / "f").unlink()
    os.mkfifo(tmp_path / "f")
    with refused(errno.ESTALE):
        fs.call("open", node.id, os.O_RDONLY, ME)
    with refused(errno.ESTALE):
        fs.call("open", node.id, os.O_WRONLY, ME)


def test_the_directory_cache_is_bounded(tmp_path):
    fs = Driver(tmp_path, Settings(directories=8))
    for i in range(40):
        fs.make("mkdir", f"d{i}", 0o755)
        fs.make("symlink", f"d{i}/s", b"t")
    open_dirs = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if exists(fd)]
    assert sum(path.startswith(f"{tmp_path}/d") for path in open_dirs) <= 8
    for i in range(39):
        fs.rename(f"d{i}/s", f"d{i + 1}/t{i}")
    fs.close()


def exists(fd):
    return os.path.lexists(f"/proc/self/fd/{fd}")


def test_renameat2_errors_come_through(tmp_path):
    fd = os.open(tmp_path, os.O_PATH)
    with refused(errno.ENOENT):
        syscalls.renameat2(fd, b"a", fd, b"b", EXCHANGE)
    os.close(fd)
