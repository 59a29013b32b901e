"""The unit's life: restart, reload, a killed daemon, one that hangs, a stop while somebody works in there."""

import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from tests.system.conftest import INSTALLED, UNIT, WS, call, guarded, unit, until


@pytest.fixture(autouse=True)
def _served_afterwards():
    yield
    call("systemctl", "reset-failed", UNIT)
    call("systemctl", "start", UNIT).ok()
    assert guarded()


@pytest.fixture
def holder():
    """A process that stands in the workspace with a file open for writing."""
    process = subprocess.Popen(
        ["sh", "-c", "exec 3>>held; echo in; read x; echo last >&3"],
        cwd=WS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "in\n"
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate()


def main_pid():
    return int(unit("MainPID"))


def held():
    with open(f"{WS}/held", encoding="ascii") as file:
        return file.read()


def status():
    return call("fsguard", "status", "--json", WS).json()


def test_a_restart_of_the_unit(fact):
    before = main_pid()
    began = time.monotonic()
    call("systemctl", "restart", UNIT).ok()
    fact(f"{time.monotonic() - began:.1f} s")
    assert guarded() and main_pid() != before


def test_a_killed_daemon_comes_back(fact):
    before = main_pid()
    os.kill(before, signal.SIGKILL)
    took = until(lambda: guarded() and main_pid() not in (0, before), "the unit did not come back")
    fact(f"served again after {took:.1f} s")
    assert int(unit("NRestarts")) >= 1
    call("fsguard", "status", WS).ok()


def test_a_killed_daemon_comes_back_although_somebody_stood_in_there(holder, fact):
    before = main_pid()
    os.kill(before, signal.SIGKILL)
    took = until(lambda: guarded() and main_pid() not in (0, before), "the unit did not come back")
    fact(f"served again after {took:.1f} s; who stood in there gets ENOTCONN")


def test_a_killed_worker_is_replaced_and_nobody_notices(holder, fact):
    before = status()
    if before["keeper_pid"] is None:
        fact(f"no keeper: {before['keeper_reason']}")
        return
    os.kill(before["worker_pid"], signal.SIGKILL)
    took = until(lambda: status()["takeovers"] == before["takeovers"] + 1, "nobody took over")
    assert main_pid() == before["pid"] and guarded() and unit("ActiveState") == "active"
    holder.communicate("x\n", timeout=30)
    assert holder.returncode == 0 and held().endswith("last\n")
    fact(f"{took:.1f} s, with the commands that saw it")


def test_a_daemon_that_hangs_is_ended_by_the_watchdog(fact):
    drop_in = f"/run/systemd/system/{UNIT}.d"
    os.makedirs(drop_in, exist_ok=True)
    try:
        with open(f"{drop_in}/watchdog.conf", "w", encoding="ascii") as file:
            file.write("[Service]\nWatchdogSec=15\n")
        call("systemctl", "daemon-reload").ok()
        call("systemctl", "restart", UNIT).ok()
        # Without a keeper the main process does the work; with one, systemd is quicker here, too.
        before, pid = main_pid(), status()["worker_pid"]
        os.kill(pid, signal.SIGSTOP)
        took = until(lambda: main_pid() not in (0, before) and guarded(), "nobody ended it")
        fact(f"served again {took:.1f} s after it stopped (WatchdogSec=15)")
    finally:
        os.unlink(f"{drop_in}/watchdog.conf")
        os.rmdir(drop_in)
        call("systemctl", "daemon-reload").ok()
        call("systemctl", "restart", UNIT).ok()


def test_a_stop_while_somebody_works_in_there_lets_him_finish(holder, fact):
    text = held()
    began = time.monotonic()
    stop = subprocess.Popen(["systemctl", "stop", UNIT])
    until(lambda: not os.path.ismount(WS), "it is still in the tree")
    holder.communicate("x\n", timeout=30)
    assert stop.wait(60) == 0
    fact(f"{time.monotonic() - began:.1f} s")
    assert unit("ActiveState") == "inactive"
    assert held() == text + "last\n"


def test_a_reload_goes_on_in_the_same_process_with_what_is_open(holder, fact):
    before, pid, text = status(), main_pid(), held()
    began = time.monotonic()
    call("systemctl", "reload", UNIT).ok()
    fact(f"{time.monotonic() - began:.1f} s")
    after = status()
    assert (after["pid"], after["restarts"]) == (pid, before["restarts"] + 1)
    assert unit("ActiveState") == "active" and main_pid() == pid and guarded()
    holder.communicate("x\n", timeout=60)
    assert held() == text + "last\n"

    # systemd still hears from it, and would end it when it hangs.
    heard = int(unit("WatchdogTimestampMonotonic"))
    until(lambda: int(unit("WatchdogTimestampMonotonic")) > heard, "it no longer tells systemd that it lives")


@pytest.fixture
def incompatible(tmp_path):
    """Installed is a version that does not understand what the daemon has on record."""
    path, before = f"{INSTALLED}/fsguard/restart.py", tmp_path / "restart.py"
    shutil.copy2(path, before)
    text, changed = re.subn(r"(?m)^FORMAT = \d+$", "FORMAT = 999", before.read_text())
    assert changed == 1
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    yield
    shutil.copy2(before, path)


def test_a_reload_with_a_version_that_cannot_go_on_changes_nothing(incompatible, holder, fact):
    before, pid, text = status(), main_pid(), held()
    since = f"@{int(time.time())}"
    assert call("systemctl", "reload", UNIT).code != 0
    after = status()
    assert unit("ActiveState") == "active" and main_pid() == pid and guarded()
    assert (after["pid"], after["restarts"]) == (pid, before["restarts"])
    holder.communicate("x\n", timeout=60)
    assert held() == text + "last\n"
    told = call("journalctl", "--unit", UNIT, "--output=cat", "--since", since).ok().out
    why = [line for line in told.splitlines() if "cannot go on" in line]
    assert why, told
    fact(why[0])
