"""Listings: every entry once, whatever happens meanwhile; lookups counted exactly."""

import os
from collections import Counter
from types import SimpleNamespace

import pyfuse3
import pytest

from fsguard.fuse.operations import Settings
from tests.adapter.fuse_driver import ME, Driver


class Listing:
    """One opendir, read in pieces of `room` entries as the kernel's buffer allows."""

    def __init__(self, fs, monkeypatch, path=""):
        self.fs = fs
        self.fh = fs.call("opendir", fs.id(path), ME)
        self.room = 0
        self.got = []
        monkeypatch.setattr(pyfuse3, "readdir_reply", self.reply)

    def reply(self, token, name, attr, next_id):
        assert token == "token"
        if self.room == 0:
            return False
        self.room -= 1
        # The same reply object may come again with other values.
        seen = SimpleNamespace(st_ino=attr.st_ino, st_mode=attr.st_mode, generation=attr.generation)
        self.got.append((name, seen, next_id))
        if attr.generation:
            self.fs.lookups[attr.generation] += 1
        return True

    def read(self, start, room=10**6):
        self.room, self.got = room, []
        self.fs.call("readdir", self.fh, start, "token")
        return [name for name, _, _ in self.got]

    def close(self):
        self.fs.call("releasedir", self.fh)


@pytest.fixture(params=[0.0, 1.0], ids=["names", "attributes"])
def fs(request, tmp_path):
    driver = Driver(tmp_path, Settings(entry_timeout=request.param))
    yield driver
    driver.close()


def fill(tmp_path, count=20):
    names = [b"f%02d" % i for i in range(count)]
    for name in names:
        (tmp_path / os.fsdecode(name)).touch()
    return names


def test_a_listing_in_pieces_has_every_entry_once(fs, tmp_path, monkeypatch):
    names = fill(tmp_path)
    listing = Listing(fs, monkeypatch)
    seen, at = [], 0
    while piece := listing.read(at, 3):
        seen += piece
        at = listing.got[-1][2]
    assert Counter(seen) == Counter([b".", b"..", *names])
    listing.close()


def test_deleting_while_listing_skips_and_repeats_nothing(fs, tmp_path, monkeypatch):
    names = fill(tmp_path)
    listing = Listing(fs, monkeypatch)
    seen, at = [], 0
    while piece := listing.read(at, 4):
        at = listing.got[-1][2]
        for name in piece:
            if name not in (b".", b".."):
                fs.remove(os.fsdecode(name))
                seen.append(name)
    assert sorted(seen) == names
    assert os.listdir(tmp_path) == []
    listing.close()


def test_what_vanished_is_left_out(fs, tmp_path, monkeypatch):
    fill(tmp_path)
    listing = Listing(fs, monkeypatch)
    listing.read(0, 2)
    at = listing.got[-1][2]
    fs.remove("f07")
    (tmp_path / "f08").unlink()  # behind the mount
    assert not {b"f07", b"f08"} & set(listing.read(at))
    listing.close()


def test_positions_stay_good(fs, tmp_path, monkeypatch):
    fill(tmp_path)
    listing = Listing(fs, monkeypatch)
    everything = listing.read(0)
    positions = [next_id for _, _, next_id in listing.got]
    for at in (17, 3, 9):
        assert listing.read(positions[at], 2) == everything[at + 1 : at + 3]
    listing.close()


def test_rewinding_looks_afresh(fs, tmp_path, monkeypatch):
    listing = Listing(fs, monkeypatch)
    assert listing.read(0) == [b".", b".."]
    (tmp_path / "new").touch()
    assert listing.read(0) == [b".", b"..", b"new"]
    listing.close()


def test_a_removed_directory_lists_as_empty(fs, tmp_path, monkeypatch):
    (tmp_path / "d").mkdir()
    listing = Listing(fs, monkeypatch, "d")
    fs.remove("d", "rmdir")
    assert set(listing.read(0)) <= {b".", b".."}
    listing.close()


def test_types_and_inode_numbers_are_told(fs, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    (tmp_path / "dir").mkdir()
    (tmp_path / "link").symlink_to("x")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / os.fsdecode(bytes(range(128, 256)))).touch()
    listing = Listing(fs, monkeypatch)
    listing.read(0)
    for name, attr, _ in listing.got:
        if name != b"..":
            st = os.lstat(os.path.join(os.fsencode(tmp_path), name))
            assert (attr.st_ino, attr.st_mode >> 12) == (st.st_ino, st.st_mode >> 12), name
    listing.close()


def test_dot_and_dotdot_are_handed_out_without_a_lookup(fs, tmp_path, monkeypatch):
    (tmp_path / "d").mkdir()
    listing = Listing(fs, monkeypatch, "d")
    listing.read(0)
    assert [attr.generation for name, attr, _ in listing.got] == [0, 0]
    listing.close()


def test_an_entry_that_found_no_room_counts_for_nothing(tmp_path, monkeypatch):
    """The fixture of the driver checks at its end that no node is left over."""
    fill(tmp_path, 5)
    fs = Driver(tmp_path, Settings(entry_timeout=1.0))
    listing = Listing(fs, monkeypatch)
    listing.read(0, 4)
    assert len(fs.ops.nodes) == 1 + 2
    listing.close()
    fs.close()


def test_without_lifetimes_no_node_is_made(tmp_path, monkeypatch):
    fill(tmp_path)
    fs = Driver(tmp_path, Settings(entry_timeout=0.0))
    listing = Listing(fs, monkeypatch)
    listing.read(0)
    assert len(fs.ops.nodes) == 1
    listing.close()
    fs.close()
