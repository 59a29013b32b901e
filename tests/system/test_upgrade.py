"""A newer version, installed over the one whose daemon serves the workspace."""

import os
import re
import shutil
import subprocess
import time

import pytest

from tests.system.conftest import INSTALLED, UNIT, WS, call, guarded, job, unit

SOURCE = "/usr/src/fsguard"
DEPS = "/usr/local/lib/fsguard-deps"
NEWER = "99.0"
INSTALL_SECONDS = 900.0  # without the packages of the box they are compiled


def install(source, compiler):
    deps = DEPS if os.path.exists(f"{DEPS}/.lock") else ""
    words = [f"DEPS={deps}", "PYTHON=/usr/bin/python3", f"CC={compiler}", "--no-print-directory"]
    call("make", "-C", str(source), "install", *words, timeout=INSTALL_SECONDS).ok()


@pytest.fixture
def newer(tmp_path):
    """The synced source as a later version; what was installed before comes back."""
    source, before = tmp_path / "source", tmp_path / "before"
    shutil.copytree(SOURCE, source, symlinks=True)
    init = source / "fsguard/__init__.py"
    text, changed = re.subn(r'(?m)^__version__ = ".*"$', f'__version__ = "{NEWER}"', init.read_text())
    assert changed == 1
    init.write_text(text)
    shutil.copytree(INSTALLED, before, symlinks=True)
    yield source
    shutil.rmtree(INSTALLED)
    shutil.move(before, INSTALLED)
    call("systemctl", "restart", UNIT).ok()
    assert guarded() and status()["version"] != NEWER


COUNT = """
n=0
while [ ! -e up.stop ]; do
    n=$((n + 1))
    echo $n >>up.count || exit 9
    mkdir up.dir && rmdir up.dir || exit 8
done
"""


@pytest.fixture
def compiler(tmp_path):
    """Emulated, the optimizer takes minutes."""
    path = tmp_path / "cc"
    path.write_text('#!/bin/sh\nexec cc "$@" -O0\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def holder():
    """Reads a file and writes another through handles that it opened before."""
    process = subprocess.Popen(
        ["sh", "-c", "exec 3<up.txt 4>>up.log; echo in; read x; cat <&3 >&4; echo last >&4"],
        cwd=WS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "in\n"
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate()


@pytest.fixture
def conflict():
    """One that is on record before the upgrade; the version that it destroyed."""
    job("up-tree", "rm -f up.txt up.log new.txt up.stop up.count").ok()
    job("up-a", "fsguard run --task up-a -- sh -c 'echo first >up.txt'").ok()
    job("up-b", "fsguard run --task up-b -- sh -c 'echo second >up.txt'").ok()
    (warning,) = conflicts("up-b")
    assert (warning["path"], warning["sibling"]) == ("up.txt", "up-a")
    return kept()[0]


def status():
    return call("fsguard", "status", "--json", WS).json()


def conflicts(task):
    told = call("fsguard", "warnings", "--all", "--json", "--task", task, "--workspace", WS).lines()
    return [w for w in told if w["severity"] == "conflict"]


def kept():
    return call("fsguard", "versions", "--json", f"{WS}/up.txt").lines()


def test_a_newer_version_is_installed_over_a_serving_one(newer, compiler, conflict, holder, fact):
    before = status()
    began = time.monotonic()
    install(newer, compiler)
    took = time.monotonic() - began
    assert call("fsguard", "--version").ok().out == f"fsguard {NEWER}\n"

    # The daemon of before goes on, undisturbed, and new commands speak with it.
    now = status()
    assert (now["version"], now["pid"]) == (before["version"], before["pid"])
    assert unit("ActiveState") == "active" and int(unit("MainPID")) == before["pid"]
    for words in (["who", "up.txt"], ["log", "--json"], ["task", "list", "--json"], ["policy", "--json"],
                  ["lease", "list", "--json"], ["conflicts", "--json"]):  # fmt: skip
        call("fsguard", *words, cwd=WS).ok()
    job("up-c", "fsguard run --task up-c -- sh -c 'echo third >up.txt; cat up.txt >new.txt'").ok()
    assert [(w["path"], w["sibling"]) for w in conflicts("up-c")] == [("up.txt", "up-b")]

    # It goes on as the newer one, in place: nothing fails, nothing is forgotten.
    writer = subprocess.Popen(["sh", "-c", COUNT], cwd=WS)
    began = time.monotonic()
    call("systemctl", "reload", UNIT, timeout=300).ok()
    reloaded = time.monotonic() - began
    now = status()
    assert (now["version"], now["pid"], now["restarts"]) == (NEWER, before["pid"], 1)
    assert unit("ActiveState") == "active" and int(unit("MainPID")) == before["pid"]
    assert [(w["path"], w["sibling"]) for w in conflicts("up-c")] == [("up.txt", "up-b")]
    job("up-stop", "touch up.stop").ok()
    assert writer.wait(300) == 0, "a call failed"
    with open(f"{WS}/up.count", encoding="ascii") as file:
        counted = file.read().split()
    assert counted and counted == [str(n) for n in range(1, len(counted) + 1)]
    job("up-d", "fsguard run --task up-d -- sh -c 'echo fourth >up.txt'").ok()
    assert [(w["path"], w["sibling"]) for w in conflicts("up-d")] == [("up.txt", "up-c")], (
        "looks of before count"
    )
    # By handles that were open all the time.
    holder.communicate("x\n", timeout=60)
    with open(f"{WS}/up.log", encoding="ascii") as file:
        assert file.read() == "fourth\nlast\n"

    call("systemctl", "restart", UNIT).ok()
    after = status()
    assert guarded() and after["version"] == NEWER and after["pid"] == int(unit("MainPID")) != before["pid"]
    with open(f"{WS}/new.txt", encoding="ascii") as file:
        assert file.read() == "third\n"
    # What was kept and recorded by the version before is read by the new one.
    assert conflict["version"] in [v["version"] for v in kept()]
    shown = call("fsguard", "show", f"up.txt@{conflict['version']}", cwd=WS).ok().out
    assert shown == "first\n"
    open_ones = call("fsguard", "conflicts", "--json", cwd=WS).lines()
    assert {"up-b", "up-c"} <= {c["task"] for c in open_ones if c["path"] == "up.txt"}
    fact(f"{before['version']} -> {NEWER}, installed in {took:.0f} s, gone on with in {reloaded:.1f} s")
