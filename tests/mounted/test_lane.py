"""The lane on a real mount: what its threads do while Python changes the same files and names."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from tests.kit.mounting import Workspace

MOVES = """
import os, threading
os.mkdir("d")
fd = os.open("d/a", os.O_RDWR | os.O_CREAT)

def move():
    for _ in range(400):
        os.rename("d/a", "d/b")
        os.rename("d/b", "d/a")
        os.rename("d", "e")
        os.rename("e", "d")

thread = threading.Thread(target=move)
thread.start()
asked = 0
while thread.is_alive():
    os.fstat(fd)
    os.fchmod(fd, 0o600 + asked % 2)
    asked += 1
thread.join()
os.write(fd, b"still")
assert open("d/a", "rb").read() == b"still" and asked > 0
print("asked")
"""

APPENDS = """
import os, threading
log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def append():
    for number in range(3000):
        os.write(log, b"%99d\\n" % number)

thread = threading.Thread(target=append)
thread.start()
looks = 0
while thread.is_alive():
    with open("log", "rb", buffering=0) as f:
        f.read(100)
    looks += 1
thread.join()
lines = open("log", "rb").read().split()
assert lines == [b"%d" % n for n in range(3000)], len(lines)
print("looked")
""".replace("\\\\\\\\", "\\\\")


@pytest.fixture
def lane(make_workspace: Callable[..., Workspace]) -> Workspace:
    """With a mountpoint of its own, so that the kernel asks for attributes each time."""
    workspace = make_workspace(separate=True, options=("--io", "lane"))
    assert workspace.status()["io"] == "lane"
    return workspace


def test_an_open_file_has_its_attributes_while_names_move(lane: Workspace) -> None:
    assert lane.plain(sys.executable, "-c", MOVES, timeout=60).ok().out == "asked\n"


def test_writes_without_a_decision_and_looks_at_the_same_file(lane: Workspace) -> None:
    assert lane.plain(sys.executable, "-c", APPENDS, timeout=60).ok().out == "looked\n"


def test_a_write_after_a_look_is_judged_however_many_went_before(lane: Workspace) -> None:
    """The writes of A are granted until B looks; what A writes then is what B has not seen."""
    script = (
        "import os; f = os.open('f', os.O_WRONLY | os.O_CREAT | os.O_APPEND);"
        "[os.write(f, b'x') for _ in range(50)];"
        "os.system('fsguard run --task B -- cat f > /dev/null');"
        "[os.write(f, b'y') for _ in range(50)]"
    )
    lane.python("A", script).ok()
    lane.sh("B", "echo b > f").ok()
    assert [(w["kind"], w["sibling"]) for w in lane.conflicts("B")] == [("stale_write", "A")]
