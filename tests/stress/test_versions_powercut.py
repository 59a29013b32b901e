"""A power cut during 1,000 keeps: what was acknowledged is there, whole.

Twice: on a real ext4 that is shut down in the middle without writing anything
more (EXT4_IOC_SHUTDOWN, "no log flush": what is not on the disk by then never
will be), and, without privileges, on a model of the strictest filesystem there
could be, which forgets every byte and every name that was not synced.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import pytest

from fsguard.versions import Limits, Store
from fsguard.versions import store as store_module
from fsguard.versions.catalogue import Catalogue
from fsguard.versions.content import Places
from tests.kit.abilities import need, need_root, need_tools
from tests.unit.test_versions_store import OnDisk, facts

ROOT = Path(__file__).parents[2]


def destroy(rng: random.Random, path: Path, removes: bool) -> None:
    if removes:
        path.unlink()
    elif rng.random() < 0.5:
        os.truncate(path, 0)
    else:
        path.write_bytes(b"overwritten")


# ---- a real ext4 -------------------------------------------------------------

KEEPER = """
import os, random, sys, threading, time
from hashlib import blake2b
from pathlib import Path
from fsguard.versions import Limits, Store
from tests.stress.test_versions_powercut import destroy
from tests.unit.test_versions_store import OnDisk, facts

top, seed, ready, out = Path(sys.argv[1]), *map(int, sys.argv[2:5])
rng = random.Random(seed)
store = Store.open(top / "versions", limits=Limits(digest_bytes=150_000, per_path=10**6, free_bytes=0))
(top / "work").mkdir(exist_ok=True)
digests = {}

def acknowledged():
    told = 0
    while True:
        for v in store.catalogue.destroyed_by("A", after=told, limit=100):
            if v.kept:
                os.write(out, f"{v.id} {digests[v.id]}\\n".encode())
            told = v.id
        time.sleep(0.005)

def keeping():
    for i in range(1000):
        path = top / "work" / f"f{rng.randrange(20)}"
        data = rng.randbytes(rng.choice([0, 10, 4096, 4096, 70_000, 200_000]))
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        removes = rng.random() < 0.5
        kept = store.keep(OnDisk(path), facts(os.fsencode(path.name), i), may_link=removes)
        digests[kept.id] = blake2b(data, digest_size=32).hexdigest()
        destroy(rng, path, removes)



class Known(dict):
    def __missing__(self, key):
        time.sleep(0.01)
        return self[key]
digests = Known({v.id: v.digest.hex() for v in store.catalogue.destroyed_by("A", limit=10**6) if v.kept})
os.write(ready, b"open\\n")
threading.Thread(target=acknowledged, daemon=True).start()
keeping()
time.sleep(60)
"""

EXT4 = """
import array, fcntl, os, random, signal, subprocess, sys, time
from pathlib import Path

place, seed = Path(sys.argv[1]), int(sys.argv[2])
image, top, acks = place / "disk", place / "mnt", place / "acks"
with image.open("wb") as f:
    f.truncate(512 << 20)
subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
top.mkdir()
rng = random.Random(seed)
for cut in range(3):
    subprocess.run(["mount", "-o", "loop", image, top], check=True)
    with acks.open("ab") as out, open(place / "log", "ab") as log:
        reader, writer = os.pipe()
        fds = [writer, out.fileno()]
        command = [sys.executable, "-c", KEEPER, top, str(seed * 10 + cut), *map(str, fds)]
        child = subprocess.Popen(command, pass_fds=fds, stderr=log, stdout=log)
        os.close(writer)
        with open(reader, "rb") as r:
            assert r.readline() == b"open\\n", (place / "log").read_text()
            time.sleep(rng.uniform(0, 2.5))
            fd = os.open(top, os.O_RDONLY)
            fcntl.ioctl(fd, 0x8004587D, array.array("I", [2]))
            os.close(fd)
            child.send_signal(signal.SIGKILL)
            child.wait()
    subprocess.run(["umount", top], check=True)
subprocess.run(["mount", "-o", "loop", image, top], check=True)
try:
    subprocess.run([sys.executable, "-c", CHECK, top, acks], check=True)
finally:
    subprocess.run(["umount", top], check=True)
"""

CHECK = """
import os, sys
from hashlib import blake2b
from fsguard.versions import Store
store = Store.open(os.path.join(sys.argv[1], "versions"))
acks = dict(line.split() for line in open(sys.argv[2]).read().splitlines() if " " in line)
for id_, digest in acks.items():
    v = store.catalogue.get(int(id_))
    assert v is not None and v.kept, (id_, v)
    assert blake2b(store.read(v.id), digest_size=32).hexdigest() == digest, id_
more = [v for v in store.catalogue.destroyed_by("A", limit=10**6) if str(v.id) not in acks]
lost = [v for v in more if not v.kept]
for v in more:
    if v.kept:
        store.read(v.id)
print(f"{len(acks)} acknowledged and whole; {len(more)} more on record, of which {len(lost)} without content")
store.close()
"""


@pytest.mark.parametrize("seed", range(6))
def test_ext4_loses_its_power(tmp_path: Path, seed: int) -> None:
    need_root()
    need_tools("mkfs.ext4", "unshare", "losetup")
    need(os.path.exists("/dev/loop-control"), "no loop devices")
    script = f"KEEPER = {KEEPER!r}\nCHECK = {CHECK!r}\n" + EXT4
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", script, tmp_path, str(seed)],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    log = (tmp_path / "log").read_text() if (tmp_path / "log").exists() else ""
    assert done.returncode == 0, done.stdout + done.stderr + log[-3000:]
    print(f"seed {seed}: {done.stdout.strip()}")


# ---- the strictest filesystem there could be ----------------------------------


class Strict(Places):
    """Notes what was synced, and when; `cut` makes a directory of nothing but that.

    A file's bytes last as of its own fsync, a name as of its directory's.
    """

    current: Strict

    def __init__(self, directory: bytes) -> None:
        self.mutex = threading.RLock()
        self.bytes: dict[int, bytes] = {}
        self.names: dict[bytes, dict[bytes, int]] = {}
        self.catalogue = (b"", b"")
        super().__init__(directory)
        Strict.current = self

    def sync_file(self, name: bytes) -> None:
        with self.mutex:
            self._file(name)
            super().sync_file(name)

    def sync_dir(self, name: bytes) -> None:
        with self.mutex:
            self._dir(name)
            super().sync_dir(name)

    def sync_all(self) -> None:
        with self.mutex:
            for directory, _, files in os.walk(self.directory):
                inside = os.path.relpath(directory, self.directory)
                inside = b"" if inside == b"." else inside
                self._dir(inside)
                for file in files:
                    if not file.startswith(b"catalogue"):
                        self._file(os.path.join(inside, file))

    def _file(self, name: bytes) -> None:
        with open(os.path.join(self.directory, name), "rb") as f:
            self.bytes[os.fstat(f.fileno()).st_ino] = f.read()

    def _dir(self, name: bytes) -> None:
        with os.scandir(os.path.join(self.directory, name)) as entries:
            self.names[name] = {e.name: -1 if e.is_dir() else e.inode() for e in entries}

    def committed(self) -> None:
        with self.mutex:
            base = os.path.join(self.directory, b"catalogue.sqlite3")
            self.catalogue = _bytes(base), _bytes(base + b"-wal")

    def cut(self, target: Path, rng: random.Random) -> None:
        """What is left after a power cut now; of what was not synced, some happens to be there in part."""
        with self.mutex:
            names, contents = {d: dict(n) for d, n in self.names.items()}, dict(self.bytes)
            catalogue = self.catalogue
            torn = self._unsynced(names, rng)
        target.mkdir()
        for suffix, data in zip(("", "-wal"), catalogue, strict=True):
            (target / f"catalogue.sqlite3{suffix}").write_bytes(
                data + rng.randbytes(rng.randrange(5000)) * (suffix != "")
            )
        directories = [b""]
        for directory in directories:
            for name, ino in names.get(directory, {}).items():
                path = os.path.join(directory, name)
                there = os.path.join(os.fsencode(target), path)
                if ino < 0:
                    os.makedirs(there, exist_ok=True)
                    directories.append(path)
                elif not name.startswith(b"catalogue"):
                    with open(there, "wb") as f:
                        f.write(contents.get(ino, b""))
        for path, data in torn.items():
            there = os.path.join(os.fsencode(target), path)
            os.makedirs(os.path.dirname(there), exist_ok=True)
            with open(there, "wb") as f:
                f.write(data)

    def _unsynced(self, names: dict[bytes, dict[bytes, int]], rng: random.Random) -> dict[bytes, bytes]:
        found = {}
        for directory, _, files in os.walk(self.directory):
            inside = os.path.relpath(directory, self.directory)
            for file in files:
                if file not in names.get(inside, {}) and not file.startswith(b"cata") and rng.random() < 0.5:
                    try:
                        with open(os.path.join(directory, file), "rb") as f:
                            data = f.read()
                    except FileNotFoundError:
                        continue
                    found[os.path.join(inside, file)] = data[: rng.randrange(len(data) + 1)]
        return found


def _bytes(path: bytes) -> bytes:
    return Path(os.fsdecode(path)).read_bytes() if os.path.exists(path) else b""


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    transaction = Catalogue.transaction

    def noted(self: Catalogue):  # type: ignore[no-untyped-def]
        inner = transaction(self)

        class Noted:
            def __enter__(self) -> None:
                inner.__enter__()

            def __exit__(self, *error: object) -> bool | None:
                done = inner.__exit__(*error)  # type: ignore[arg-type]
                Strict.current.committed()
                return done

        return Noted()

    monkeypatch.setattr(Catalogue, "transaction", noted)
    monkeypatch.setattr(store_module, "Places", Strict)
    yield


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.usefixtures("strict")
def test_only_what_was_synced_is_left(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    limits = Limits(digest_bytes=150_000, per_path=10**6)
    store = Store.open(tmp_path / "versions", limits=limits)
    strict = Strict.current
    digests: dict[int, str] = {}
    withdrawn: set[int] = set()
    cuts = acknowledged = 0
    for i in range(1000):
        path = tmp_path / f"f{rng.randrange(20)}"
        path.unlink(missing_ok=True)
        path.write_bytes(data := rng.randbytes(rng.choice([0, 10, 4096, 4096, 70_000, 200_000])))
        removes = rng.random() < 0.5
        kept = store.keep(OnDisk(path), facts(os.fsencode(path.name), i), may_link=removes)
        digests[kept.id] = blake2b(data, digest_size=32).hexdigest()
        destroy(rng, path, removes)
        if i % 97 == 96:
            withdrawn.add(rng.choice(list(digests)))
            store.withdraw(withdrawn)
        if rng.random() < 0.015:
            time.sleep(rng.random() * 0.03)
            there = {v.id for v in store.catalogue.destroyed_by("A", limit=10**6) if v.kept}
            strict.cut(tmp_path / "cut", rng)
            check(tmp_path / "cut", {i: digests[i] for i in there - withdrawn}, monkeypatch, limits)
            shutil.rmtree(tmp_path / "cut")
            cuts, acknowledged = cuts + 1, acknowledged + len(there)
    assert store.flush(60)
    store.close()
    assert cuts and acknowledged
    print(f"seed {seed}: {cuts} cuts, {acknowledged} acknowledged versions whole after them")


def check(place: Path, there: dict[int, str], monkeypatch: pytest.MonkeyPatch, limits: Limits) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "Places", Places)
        patch.setattr(Strict, "committed", lambda self: None)
        store = Store.open(place, limits=limits)
        try:
            for id_, digest in there.items():
                v = store.catalogue.get(id_)
                assert v is not None and v.kept, (id_, v)
                assert blake2b(store.read(id_), digest_size=32).hexdigest() == digest
            for v in store.catalogue.destroyed_by("A", limit=10**6):
                if v.kept:
                    store.read(v.id)
        finally:
            store.close()
