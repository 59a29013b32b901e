"""Where the store lies: on another filesystem, on one with reflinks, as another user."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fsguard.versions import Store
from tests.kit.abilities import need, need_root
from tests.unit.test_versions_store import OnDisk, contents, facts

ROOT = Path(__file__).parents[2]
SIZES = (0, 4096, 200_000, 20 << 20)


@pytest.mark.parametrize("may_link", [False, True])
def test_on_another_filesystem(tmp_path: Path, may_link: bool) -> None:
    shm = Path("/dev/shm")
    need(shm.is_dir() and shm.stat().st_dev != tmp_path.stat().st_dev, "needs a second filesystem")
    place = Path(tempfile.mkdtemp(dir=shm))
    try:
        store = Store.open(place / "versions")
        for size in SIZES:
            path, data = tmp_path / "f", os.urandom(size)
            path.write_bytes(data)
            kept = store.keep(OnDisk(path), facts(version=size), may_link=may_link)
            assert kept.kept and store.read(kept.id) == data if size < 1 << 20 else store.flush()
            assert store.read(kept.id) == data
        assert store.flush()
        assert {p.parts[-3] for p in contents(place / "versions")} == {"blobs"}
        store.close()
    finally:
        shutil.rmtree(place)


REFLINK = """
import os, subprocess, sys
from pathlib import Path
from fsguard.versions import Store
from fsguard.versions.take import Taker
from tests.unit.test_versions_store import OnDisk, contents, facts

image, disk = sys.argv[1:]
subprocess.run(["mount", "-o", "loop", image, disk], check=True)
try:
    cloned = []
    clone = Taker._clone
    Taker._clone = lambda *a: cloned.append(clone(*a)) or cloned[-1]
    store = Store.open(disk + "/versions")
    kept = {}
    for size in (4096, 200_000, 20 << 20):
        for may_link in (False, True):
            path, data = Path(disk) / "f", os.urandom(size)
            path.write_bytes(data)
            one = store.keep(OnDisk(path), facts(version=size), may_link=may_link)
            assert one.kept
            kept[one.id] = data
            path.write_bytes(b"overwritten") if not may_link else path.unlink()
    assert cloned == [True] * 4, cloned
    assert store.flush(30)
    for id_, data in kept.items():
        assert store.read(id_) == data
    trees = [p.parts[-3] for p in contents(Path(disk) / "versions")]
    assert sorted(trees) == ["blobs"] * 5 + ["linked"], trees
    store.close()
finally:
    subprocess.run(["umount", "-l", disk], check=True)
"""


@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
def test_reflinks(tmp_path: Path, kind: str) -> None:
    need_root()
    if shutil.which(f"mkfs.{kind}", path="/usr/sbin:/sbin:/usr/bin:/bin") is None:
        pytest.skip(f"mkfs.{kind} is not installed")
    image, disk = tmp_path / "image", tmp_path / "disk"
    image.touch()
    os.truncate(image, 400 << 20)
    disk.mkdir()
    apart = ["unshare", "--mount", "--propagation", "private"]
    # mkfs.btrfs refuses to work at all while any mount of its namespace is dead, whoever left it.
    alone = 'umount --all --lazy --types fuse.fsguard; exec "$0" -q "$1"'
    made = [*apart, "sh", "-c", alone, f"mkfs.{kind}", image]
    subprocess.run(made, check=True, env={"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"})
    command = [*apart, sys.executable, "-c", REFLINK]
    done = subprocess.run(
        [*command, image, disk], cwd=ROOT, check=False, capture_output=True, text=True, timeout=120
    )
    if "unknown filesystem type" in done.stderr:
        pytest.skip(f"this kernel has no {kind}")
    assert done.returncode == 0, done.stdout + done.stderr


USER = """
import os, sys
from pathlib import Path
from fsguard.versions import Store
from tests.unit.test_versions_store import OnDisk, facts

place, uid = Path(sys.argv[1]), int(sys.argv[2])
os.setgroups([]); os.setgid(uid); os.setuid(uid)
os.umask(int(sys.argv[3], 8))
store = Store.open(place / "versions")
for name, expected in [("own", None), ("unreadable", "cannot be read: Permission denied"), ("roots", None)]:
    for may_link in (False, True):
        kept = store.keep(OnDisk(place / name), facts(name.encode()), may_link=may_link)
        assert (kept.reason, kept.kept) == (expected, expected is None), (name, may_link, kept)
assert store.flush()
for v in store.catalogue.versions(b"own") + store.catalogue.versions(b"roots"):
    assert store.read(v.id) == v.path
store.close()
Store.open(place / "versions").close()
for directory, _, files in os.walk(place / "versions"):
    assert os.stat(directory).st_mode & 0o077 == 0, directory
    for name in files:
        st = os.stat(os.path.join(directory, name))
        assert st.st_mode & 0o077 == 0 or "linked" in directory, name
"""


@pytest.mark.parametrize("umask", ["0", "077", "0777"])
def test_as_an_ordinary_user(tmp_path: Path, umask: str) -> None:
    need_root()
    uid = 12345
    place = Path(tempfile.mkdtemp(dir=tmp_path.parent.parent.parent))
    try:
        os.chown(place, uid, uid)
        place.chmod(0o755)
        for name, mode, owner in (("own", 0o644, uid), ("unreadable", 0, 0), ("roots", 0o644, 0)):
            (place / name).write_bytes(name.encode())
            (place / name).chmod(mode)
            os.chown(place / name, owner, owner)
        command = [sys.executable, "-c", USER, place, str(uid), umask]
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=60)
        if "Permission denied" in done.stderr and "import" in done.stderr:
            pytest.skip("another user cannot reach the sources")
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        shutil.rmtree(place)
