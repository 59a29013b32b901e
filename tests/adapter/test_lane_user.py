"""An ordinary user's lane hears of changes from behind as well; the kernel keeps back whose they were."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.kit.abilities import need_root

SCRIPT = """
import os, subprocess, sys, time
from tests.kit import kernel as k
from fsguard.lane import engine
place = sys.argv[1]
os.setgroups([]); os.setgid(4005); os.setuid(4005)
kernel = k.Kernel(place)
assert engine.watch_load()["on"], engine.watch_load()
node = kernel.lookup("d")
assert node and kernel.lookup("d/new") == 0
with open(place + "/d/own", "w") as f:
    f.write("ours")
subprocess.run(["touch", place + "/d/new"], check=True)
found, end = [], time.monotonic() + 10
while not found or not any(code == 3 for code, _ in kernel.notices):
    assert time.monotonic() < end, (engine.watch_load(), kernel.notices)
    kernel.getattr(1)
    found += engine.take_changes()
assert {path for _, path, *_ in found} == {b"d/new"}, found
assert {pid for *_, pid, _ in found} == {0}, found
assert engine.watch_load()["own"] >= 1, engine.watch_load()
print("heard")
"""


def test_an_ordinary_users_lane_hears_of_changes(tmp_path: Path) -> None:
    need_root()
    place = tmp_path / "w"
    (place / "d").mkdir(parents=True)
    for path in (place, place / "d"):
        os.chown(path, 4005, 4005)
    above = place
    while above != above.parent:  # so that it is reached at all
        above = above.parent
        if above.stat().st_mode & 0o001 == 0:
            above.chmod(above.stat().st_mode | 0o001)
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(place)],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0 and done.stdout == "heard\n", done.stdout + done.stderr
