"""sd_notify: what is read from the variables, and what is sent."""

import os
import socket

import pytest

from fsguard.notify import Notifier


@pytest.fixture
def manager(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(5)
        yield sock


def test_facts_are_sent_as_lines_and_the_variables_are_taken_out(manager):
    environ = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "3000000", "OTHER": "x"}
    environ["WATCHDOG_PID"] = str(os.getpid())
    notifier = Notifier.take(environ)
    assert environ == {"OTHER": "x"} and notifier.watchdog == 3.0
    notifier.say(READY="1", STATUS="a\nREADY=0")
    assert manager.recv(1000) == b"READY=1\nSTATUS=a READY=0\n"


def test_a_watchdog_for_another_process_is_not_ours(manager):
    environ = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}
    assert Notifier.take(environ).watchdog is None


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"NOTIFY_SOCKET": ""},
        {"NOTIFY_SOCKET": "/"},
        {"NOTIFY_SOCKET": "vsock:2:1"},
        {"NOTIFY_SOCKET": "/nowhere/at/all"},
        {"NOTIFY_SOCKET": "/" + "x" * 300},
        {"NOTIFY_SOCKET": "@nobody-listens-here", "WATCHDOG_USEC": "soon"},
    ],
)
def test_without_a_manager_nothing_is_said_and_nothing_fails(environ):
    notifier = Notifier.take(environ)
    notifier.say(READY="1")
    assert notifier.watchdog is None


def test_an_abstract_address(tmp_path):
    name = f"fsguard-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0{name}")
        sock.settimeout(5)
        Notifier.take({"NOTIFY_SOCKET": f"@{name}"}).say(WATCHDOG="1")
        assert sock.recv(100) == b"WATCHDOG=1\n"
