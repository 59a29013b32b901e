"""SIGKILL at any moment: every version that `keep` has answered for is there, whole."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from hashlib import blake2b
from pathlib import Path

import pytest

from fsguard.versions import Store

WORKER = """
import os, random, sys, time
from hashlib import blake2b
from pathlib import Path
from fsguard.versions import Limits, Store
from tests.unit.test_versions_store import OnDisk, facts

store_dir, work, seed, answers = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
rng = random.Random(seed)
store = Store.open(store_dir, limits=Limits(digest_bytes=150_000, per_path=10**6))
os.write(answers, b"open\\n")
for i in range(1000):
    path = work / f"f{rng.randrange(20)}"
    size = rng.choice([0, 10, 4096, 4096, 4096, 70_000, 200_000])
    data = bytes([rng.randrange(256)]) * size if rng.random() < 0.3 else rng.randbytes(size)
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    removes = rng.random() < 0.5
    kept = store.keep(OnDisk(path), facts(os.fsencode(path.name), i, conflict=i % 3 == 0), may_link=removes)
    assert kept.kept, kept
    digest = blake2b(data, digest_size=32).hexdigest()
    os.write(answers, f"{kept.id} {digest}\\n".encode())
    if removes:
        path.unlink()
    elif rng.random() < 0.5:
        os.truncate(path, 0)
    else:
        with path.open("r+b") as f:
            f.write(b"overwritten")
    if rng.random() < 0.02:
        store.flush(5)
store.flush(60)
os.write(answers, b"done\\n")
time.sleep(60)
"""


def keeps_until_killed(store_dir: Path, work: Path, seed: int, seconds: float) -> tuple[dict[int, str], bool]:
    """The digests that were answered for, by id; and whether it came to its end before it was killed."""
    reader, writer = os.pipe()
    command = [sys.executable, "-c", WORKER, os.fspath(store_dir), os.fspath(work), str(seed), str(writer)]
    child = subprocess.Popen(command, pass_fds=[writer], cwd=Path(__file__).parents[2])
    os.close(writer)
    with open(reader, "rb") as answers:
        try:
            assert answers.readline() == b"open\n"
            time.sleep(seconds)
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()
        lines = answers.read().split(b"\n")[:-1]
    pairs = [line.split() for line in lines if line not in (b"", b"done")]
    return {int(id_): digest.decode() for id_, digest in pairs}, lines[-1:] == [b"done"]


@pytest.mark.parametrize("seed", range(12))
def test_killed(tmp_path: Path, seed: int) -> None:
    store_dir, work = tmp_path / "versions", tmp_path / "work"
    work.mkdir()
    seconds = random.Random(seed).uniform(0, 2.5)
    kept: dict[int, str] = {}
    for again in range(3):  # killed, repaired, killed again
        new, _ = keeps_until_killed(store_dir, work, seed * 10 + again, seconds)
        assert not kept.keys() & new.keys(), "numbers are never used again"
        kept |= new
    store = Store.open(store_dir)
    try:
        for id_, digest in kept.items():
            v = store.catalogue.get(id_)
            assert v is not None and v.kept, f"version {id_} is lost: {v}"
            assert blake2b(store.read(id_), digest_size=32).hexdigest() == digest
        assert not os.listdir(store_dir / "tmp")
        assert not list(store_dir.glob("aside-*")), "SQLite was never damaged"
    finally:
        store.close()
    print(f"seed {seed}: killed 3 times after {seconds:.2f} s, {len(kept)} versions whole")


def test_killed_while_it_repairs(tmp_path: Path) -> None:
    store_dir, work = tmp_path / "versions", tmp_path / "work"
    work.mkdir()
    kept, _ = keeps_until_killed(store_dir, work, 99, 6)
    (store_dir / "catalogue.sqlite3").unlink()
    opening = (
        f"from fsguard.versions import Store; print('x', flush=True); Store.open({os.fspath(store_dir)!r})"
    )
    for i in range(10):
        child = subprocess.Popen([sys.executable, "-c", opening], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(0.03 * i)
        child.kill()
        child.communicate()
    store = Store.open(store_dir)
    try:
        for id_, digest in kept.items():
            assert blake2b(store.read(id_), digest_size=32).hexdigest() == digest
    finally:
        store.close()
