"""Tests of a whole machine: the one of `vagrant/`, which they reboot, and whose units they restart and kill.

They run inside it, as root, with Debian's pytest and nothing else (`make vagrant-test`); anywhere else they
refuse. Emulated without KVM a command takes a second or two: the waits are long, and end as soon as they can.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable

import pytest

PHASE = os.environ.get("FSGUARD_PHASE", "")
UNIT = "fsguard@srv-ws.service"
WS = "/srv/ws"
INSTALLED = "/usr/local/lib/fsguard"
PATIENCE = 120.0


def pytest_collection_modifyitems(items):
    if not (os.path.exists("/etc/fsguard/ci.toml") and os.path.exists("/usr/local/bin/ci-job")):
        pytest.exit("these tests are for the machine of vagrant/ (make vagrant-test)", 3)
    # ssh comes before the last units of a boot.
    subprocess.run(["systemctl", "is-system-running", "--wait"], stdout=subprocess.DEVNULL, check=False)


class Ended:
    """How a command ended."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr
        self.args = done.args

    def ok(self) -> Ended:
        assert self.code == 0, f"{self.args} ended with {self.code}\n{self.out}{self.err}"
        return self

    def json(self):
        return json.loads(self.ok().out)

    def lines(self):
        return [json.loads(line) for line in self.ok().out.splitlines() if line.strip()]


def call(*command: str, **more) -> Ended:
    settings = {"capture_output": True, "text": True, "timeout": PATIENCE, "cwd": "/"}
    settings |= {"stdin": subprocess.DEVNULL, **more}
    return Ended(subprocess.run(command, check=False, **settings))


def job(name: str, script: str, **more) -> Ended:
    """A CI job: a unit of its own, as the user runner, in the workspace."""
    return call("ci-job", name, "sh", "-c", script, **more)


def unit(fact: str, name: str = UNIT) -> str:
    return call("systemctl", "show", "--value", "--property", fact, name).ok().out.strip()


def until(what: Callable[[], bool], why: str, seconds: float = PATIENCE) -> float:
    """Wait for a state of the machine; how many seconds it took."""
    began = time.monotonic()
    while not what():
        assert time.monotonic() - began < seconds, f"not within {seconds:g} s: {why}"
        time.sleep(0.2)
    return time.monotonic() - began


def guarded(path: str = WS) -> bool:
    """Is a living mount of ours there?"""
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        there = any(f" {path} " in line and " fuse.fsguard " in line for line in file)
    if not there:
        return False
    try:
        os.statvfs(path)
    except OSError:
        return False
    return True


@pytest.fixture
def fact(record_property):
    """Says a figure or a fact for the table."""
    return lambda text: record_property("fact", text)
