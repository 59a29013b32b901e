"""Reading /proc/self/mountinfo as text."""

from hypothesis import given, settings
from hypothesis import strategies as st

from fsguard.control import mountinfo

TEXT = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
90 22 0:50 / /home/u/a\\040b\\134c rw,nosuid master:2 unbindable - fuse.fsguard fsguard rw,user_id=1000
91 90 0:51 / /home/u/a\\040b\\134c rw - fuse.fsguard fsguard rw,user_id=0
92 22 8:2 /sub/dir /mnt rw - ext4 /dev/sdb rw
garbage
93 22 0:1
"""


def test_fields_escapes_and_optional_fields():
    entries = mountinfo.parse(TEXT)
    assert [entry.id for entry in entries] == [22, 41, 90, 91, 92]
    assert entries[2].path == "/home/u/a b\\c"
    assert entries[2].fstype == mountinfo.FSTYPE
    assert "user_id=1000" in entries[2].options
    assert entries[4].root == "/sub/dir" and entries[4].device == "8:2"


def test_the_last_mount_at_a_path_covers_the_others():
    top = mountinfo.top_at("/home/u/a b\\c", mountinfo.parse(TEXT))
    assert top is not None and top.id == 91
    assert mountinfo.top_at("/home/u", mountinfo.parse(TEXT)) is None


def test_mounts_inside_a_directory():
    entries = mountinfo.parse(TEXT)
    assert [entry.id for entry in mountinfo.under("/home", entries)] == [90, 91]
    assert mountinfo.under("/mnt", entries) == []
    assert len(mountinfo.under("/", entries)) == 4


def test_inside_is_by_whole_names():
    assert mountinfo.inside("/a/b", "/a/b") and mountinfo.inside("/a/b/c", "/a/b")
    assert not mountinfo.inside("/a/bc", "/a/b") and not mountinfo.inside("/a", "/a/b")
    assert mountinfo.inside("/anything", "/")


def test_this_system_has_a_root():
    assert mountinfo.top_at("/", mountinfo.read()) is not None


@settings(deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_read_without_an_error(text):
    mountinfo.parse(text)
