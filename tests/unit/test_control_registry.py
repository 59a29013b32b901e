"""Noting mounts, and finding the mount of any path."""

import json
import os
import socket
import subprocess
import sys

import pytest

from fsguard.control import mountinfo, places, registry
from fsguard.control.registry import Mount
from fsguard.errors import MissingError, RefusedError


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    directory = tmp_path / "run"
    monkeypatch.setenv("FSGUARD_RUNTIME_DIR", str(directory))
    return directory


def note(mountpoint, workspace=None, *, pid=None, started=None, uid=None, owners=()):
    """Register a mount whose daemon is this test's own process, unless said otherwise."""
    file, sock = registry.slot(str(mountpoint))
    mount = Mount(
        str(mountpoint),
        str(workspace or mountpoint),
        sock,
        pid or os.getpid(),
        os.geteuid() if uid is None else uid,
        started or registry.start_time(os.getpid()),
        owners,
    )
    registry.register(file, mount)
    return file, mount


def dead_pid():
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


def where(mount):
    return mount.mountpoint if mount else None


def test_a_mount_is_found_by_every_spelling(runtime, tmp_path, monkeypatch):
    top = tmp_path / "work"
    (top / "src" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(top)
    note(top)
    for path in (top, top / "src/deep", top / "not/there/yet", tmp_path / "link/src", f"{top}/src/../src"):
        assert where(registry.find(str(path))) == str(top), path
    monkeypatch.chdir(top / "src")
    assert where(registry.find(".")) == str(top)
    assert registry.find(str(tmp_path)) is None
    assert registry.find(f"{top}-other") is None


def test_a_mount_elsewhere_is_found_by_its_workspace_too(runtime, tmp_path):
    for name in ("ws", "mp"):
        (tmp_path / name).mkdir()
    note(tmp_path / "mp", tmp_path / "ws")
    assert where(registry.find(str(tmp_path / "ws/a"))) == str(tmp_path / "mp")
    assert where(registry.find(str(tmp_path / "mp"))) == str(tmp_path / "mp")


def test_the_innermost_mount_counts(runtime, tmp_path):
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    note(tmp_path / "a")
    note(inner)
    assert where(registry.find(str(inner / "f"))) == str(inner)
    assert where(registry.find(str(tmp_path / "a/c"))) == str(tmp_path / "a")


def test_a_dead_daemon_is_no_mount_and_its_note_is_cleaned(runtime, tmp_path):
    file, _ = note(tmp_path / "gone", pid=dead_pid(), started=5)
    assert registry.find(str(tmp_path / "gone")) is None
    assert registry.live() == []
    assert not os.path.exists(file)


def test_a_reused_pid_is_not_taken_for_the_daemon(runtime, tmp_path):
    note(tmp_path / "gone", started=1)
    assert registry.find(str(tmp_path / "gone")) is None


def test_the_note_of_a_dead_mount_stays_while_the_mount_stands(runtime, tmp_path, monkeypatch):
    file, mount = note(tmp_path / "gone", pid=dead_pid(), started=5)
    standing = mountinfo.MountEntry(1, "0:9", "/", mount.mountpoint, mountinfo.FSTYPE, "x", "")
    monkeypatch.setattr(mountinfo, "read", lambda: [standing])
    assert registry.live() == []
    assert os.path.exists(file)


def test_a_daemon_in_another_pid_namespace_lives_as_long_as_its_socket_answers(runtime, tmp_path):
    _, mount = note(tmp_path / "far", pid=dead_pid(), started=5)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(mount.socket)
        listener.listen()
        assert where(registry.find(str(tmp_path / "far"))) == str(tmp_path / "far")


def test_a_note_is_replaced_and_removed(runtime, tmp_path):
    file, _ = note(tmp_path / "w")
    note(tmp_path / "w")
    assert os.listdir(runtime) == [os.path.basename(file)]
    assert os.stat(file).st_mode & 0o777 == 0o600
    registry.remove(file)
    registry.remove(file)
    assert registry.live() == []


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", "null", '{"mountpoint": 1}', "[" * 60_000, "\ud800", '{"pid": 1, "owners": 3}'],
)
def test_a_broken_note_is_ignored(runtime, tmp_path, content):
    file, _ = note(tmp_path / "w")
    with open(file, "w", errors="surrogatepass") as out:
        out.write(content)
    assert registry.find(str(tmp_path / "w")) is None


def test_a_note_with_more_in_it_is_understood(runtime, tmp_path):
    file, mount = note(tmp_path / "w")
    with open(file, "w") as out:
        json.dump({**mount.as_dict(), "newer": True}, out)
    assert where(registry.find(str(tmp_path / "w"))) == mount.mountpoint


def test_a_note_that_names_another_uid_or_a_socket_elsewhere_is_not_believed(runtime, tmp_path):
    note(tmp_path / "w", uid=os.geteuid() + 1)
    assert registry.entries() == []
    file, mount = note(tmp_path / "w")
    mount.socket = "/run/other.sock"
    registry.register(file, mount)
    assert registry.entries() == []


def test_names_that_are_not_utf_8_survive(runtime, tmp_path):
    top = os.fsdecode(os.fsencode(tmp_path) + b"/\xe9")
    note(top)
    assert where(registry.find(top + "/x")) == top


def test_a_directory_that_others_can_write_is_refused_and_not_read(runtime, tmp_path):
    note(tmp_path / "w")
    runtime.chmod(0o777)
    assert registry.entries() == []
    with pytest.raises(RefusedError):
        places.runtime_dir()


def test_a_symlink_in_the_place_of_the_directory_is_refused(runtime, tmp_path):
    (tmp_path / "other").mkdir()
    runtime.symlink_to(tmp_path / "other")
    with pytest.raises(RefusedError):
        places.runtime_dir()


def test_a_place_that_cannot_be_made_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("FSGUARD_RUNTIME_DIR", str(tmp_path / "no/such"))
    with pytest.raises(MissingError, match="no/such"):
        places.runtime_dir()


def test_a_user_looks_in_all_usual_places(monkeypatch):
    monkeypatch.delenv("FSGUARD_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/mine")
    expected = ["/run/mine/fsguard", "/run/user/4711/fsguard", "/tmp/fsguard-4711", "/run/fsguard"]
    assert list(places.places()) == expected
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert list(places.places()) == expected[1:]


def test_who_may_use_a_mount(monkeypatch):
    mount = Mount("/w", "/w", "/s", 1, 1000, 1, [1001])
    for uid, may in ((0, True), (1000, True), (1001, True), (1002, False)):
        monkeypatch.setattr(os, "geteuid", lambda uid=uid: uid)
        assert mount.usable() is may


def test_paths_become_relative_to_the_workspace():
    mount = Mount("/mp", "/ws", "/s", 1, 0, 1)
    assert mount.relative("/mp/a/b") == "a/b"
    assert mount.relative("/ws/a") == "a"
    assert mount.relative("/mp") == ""
    assert mount.relative("/mpx") is None


def test_start_times():
    assert registry.start_time(os.getpid()) == registry.start_time(os.getpid())
    assert registry.start_time(dead_pid()) is None
    zombie = subprocess.Popen([sys.executable, "-S", "-c", ""])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    assert registry.start_time(zombie.pid) is None
    zombie.wait()
