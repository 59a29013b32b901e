"""Finding the caller's own cgroup from what /proc says: v2, v1, hybrid, namespaces."""

import pytest

from fsguard.cli import cgroup
from fsguard.control import mountinfo

V2 = "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "31 1 0:27 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n"
    "32 31 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "33 31 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
)
HYBRID = V1 + "34 31 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
INSIDE = "33 31 0:29 /docker/abc /sys/fs/cgroup/systemd ro - cgroup cgroup rw,name=systemd\n"


@pytest.mark.parametrize(
    ("own", "mounts", "expected"),
    [
        ("0::/user.slice/a.scope\n", V2, ["/sys/fs/cgroup/user.slice/a.scope"]),
        ("0::/\n", V2, ["/sys/fs/cgroup"]),
        ("4:memory:/m\n1:name=systemd:/s/x\n", V1, ["/sys/fs/cgroup/systemd/s/x"]),
        (
            "4:memory:/m\n1:name=systemd:/s\n0::/u\n",
            HYBRID,
            ["/sys/fs/cgroup/unified/u", "/sys/fs/cgroup/systemd/s"],
        ),
        ("1:name=systemd:/docker/abc/x\n", INSIDE, ["/sys/fs/cgroup/systemd/x"]),
        ("1:name=systemd:/docker/abc\n", INSIDE, ["/sys/fs/cgroup/systemd"]),
        ("1:name=systemd:/docker/abcd\n", INSIDE, []),
        ("0::/../outside\n", V2, []),
        ("0::/a:b\n", V2, ["/sys/fs/cgroup/a:b"]),
        ("0::/a\n", V1, []),
        ("", V2, []),
        ("nonsense\n\n7\n", HYBRID, []),
    ],
)
def test_the_callers_own_cgroup(own, mounts, expected):
    assert cgroup.candidates(own, mountinfo.parse(mounts)) == expected


def test_what_cannot_be_done_is_no_error(tmp_path):
    cgroup.remove(str(tmp_path / "absent"))
    (tmp_path / "full" / "inner").mkdir(parents=True)
    cgroup.remove(str(tmp_path / "full"))
    assert (tmp_path / "full").exists()
    assert cgroup.join(str(tmp_path / "absent"), 1) is False
