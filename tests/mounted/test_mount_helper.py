"""mount(8) and fstab with mount.fsguard, and a service manager that is told.

mount(8) looks for its helpers in /sbin. Each call here runs in a mount namespace
of its own in which /sbin is a directory with ours: the machine's is left alone.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest

from tests.kit.abilities import need_root, need_tools
from tests.kit.mounting import ROOT


@pytest.fixture
def host(make_workspace):
    """A workspace not yet mounted, and `run(script)`: a shell whose mount(8) knows fsguard."""
    need_root()
    need_tools("unshare", "mount")
    ws = make_workspace(mount=False)
    sbin = ws.top / "sbin"
    sbin.mkdir()
    helper = sbin / "mount.fsguard"
    helper.write_text(
        f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m fsguard.cli.mounthelper "$@"\n'
    )
    helper.chmod(0o755)
    (sbin / "mount.fuse.fsguard").symlink_to("mount.fsguard")

    def run(script, **more):
        # Whatever happens, what was mounted is unmounted: it would live on with its daemon.
        ending = f"trap \"umount '{ws.root}' 2>/dev/null || :\" EXIT\n"
        script = f'mount --bind "{sbin}" /sbin\n{ending}{textwrap.dedent(script)}'
        env = {"W": str(ws.root), "TOP": str(ws.top), "STATE": f"state_dir={ws.top}/state", **more}
        return ws.plain(
            "unshare", "-m", "--propagation", "private", "sh", "-eu", "-c", script, cwd=ws.top, env=env
        )

    ws.shell = run
    return ws


def test_mount_with_options(host):
    (host.directory / "f").write_text("behind\n")
    done = host.shell("""
        mount -t fsguard "$W" "$W" -o "policy=block,wait=10s,operator=nobody,noatime,$STATE"
        cat "$W/f"
        findmnt --noheadings --output FSTYPE,SOURCE --mountpoint "$W"
        fsguard status --json "$W"
        umount "$W"
        """).ok()
    content, fstype, status = done.out.splitlines()
    assert content == "behind" and fstype.split() == ["fuse.fsguard", str(host.root)]
    facts = json.loads(status)
    assert (facts["policy"], facts["turn_wait"], facts["in_place"]) == ("block", 10.0, True)
    # umount(8) does not wait for the daemon.
    end = time.monotonic() + 10
    while host.daemon_pid() is not None:
        assert time.monotonic() < end, "the note of the mount is left behind"
        time.sleep(0.02)


def test_lines_of_fstab(host):
    odd = host.top / "a b"
    odd.mkdir()
    table = host.top / "fstab"
    table.write_text(
        f"{host.root} {host.root} fsguard policy=block,_netdev,x-systemd.requires=x.service,state_dir="
        f"{host.top}/state 0 0\n"
        f"{host.top}/a\\040b {host.top}/a\\040b fsguard defaults,ro,nofail,state_dir={host.top}/state/2 0 0\n"
        f"{host.top}/never {host.top}/never fsguard noauto 0 0\n"
    )
    done = host.shell("""
        trap 'umount "$TOP/a b" 2>/dev/null || :; umount "$W" 2>/dev/null || :' EXIT
        mount -a --fstab "$TOP/fstab"
        mount -a --fstab "$TOP/fstab"
        grep "fuse.fsguard" /proc/self/mountinfo | grep -c " $TOP/"
        fsguard policy --workspace "$W"
        (echo x >"$TOP/a b/f") 2>&1 || :
        mount --fstab "$TOP/fstab" -o remount,rw "$TOP/a b"
        echo x >"$TOP/a b/f"
        mount -o remount,policy=warn,wait=3 "$W"
        fsguard status --json "$W"
        """).ok()
    lines = done.out.splitlines()
    assert lines[0] == "2", "the second mount -a mounted something again"
    assert any(line.startswith("block") for line in lines)
    assert any("Read-only file system" in line for line in lines)
    facts = json.loads(lines[-1])
    assert (facts["policy"], facts["turn_wait"]) == ("warn", 3.0)
    assert (odd / "f").read_text() == "x\n"


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ("polcy=block", 1, "did you mean policy?"),
        ("config=/nowhere.toml", 1, "no such configuration file"),
        ("operator=nosuchuser", 1, "no such user"),
        ("state_dir=/dev/null/x", 2, "choose another place"),
        ("remount,policy=warn", 32, "not in a guarded workspace"),
    ],
)
def test_what_is_wrong_is_said_through_mount(host, options, code, said):
    failed = host.shell(f'mount -t fsguard "$W" "$W" -o "{options}"')
    assert failed.code == code and said in failed.err and "Traceback" not in failed.err
    assert host.daemon_pid() is None


def test_a_second_mount_fails_and_says_why(host):
    failed = host.shell("""
        mount -t fsguard "$W" "$W" -o "$STATE"
        mount -t fsguard "$W" "$W" -o "$STATE" || echo "ended with $?"
        """)
    assert "already mounted" in failed.err and failed.out == "ended with 32\n"


def test_sloppy_fake_and_verbose(host):
    done = host.shell("""
        mount -t fsguard -f -v "$W" "$W"
        /sbin/mount.fsguard "$W" "$W" -s -f -n -v -o "unheard=of,policy=block"
        ! grep "$W" /proc/self/mountinfo
        """).ok()
    assert "could be mounted" in done.out and "passed over" in done.err


# ---- a service manager ------------------------------------------------------------------


class Manager:
    """The other end of NOTIFY_SOCKET."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.heard = []

    def until(self, fact, process, seconds=20.0):
        while not any(fact in facts for facts in self.heard):
            assert select.select([self.socket], [], [], seconds)[0], f"no {fact}; heard {self.heard}"
            self.heard.append(self.socket.recv(4096).decode().splitlines())
        return self


@pytest.fixture
def managed(make_workspace):
    ws = make_workspace(mount=False)
    manager = Manager(ws.top / "notify")
    ws.manager = manager

    def start(*more, **env):
        env = {"NOTIFY_SOCKET": str(ws.top / "notify"), **env}
        return ws.start(
            None, "fsguard", "mount", "--foreground", str(ws.directory), *more, cwd=ws.top, env=env
        )

    ws.begin = start
    yield ws
    manager.socket.close()


def test_a_service_manager_is_told_of_readiness_life_and_end(managed):
    process = managed.begin(WATCHDOG_USEC="200000")
    managed.manager.until("READY=1", process)
    assert managed.daemon_pid() == process.pid, "the main process is not the daemon"
    assert os.path.ismount(managed.root)
    managed.manager.heard.clear()
    managed.manager.until("WATCHDOG=1", process)
    with open(f"/proc/{process.pid}/environ", "rb") as file:
        assert b"FSGUARD_SPEC_FD" in file.read()
    process.send_signal(signal.SIGTERM)
    managed.manager.until("STOPPING=1", process)
    assert process.wait(10) == 0 and not os.path.ismount(managed.root)


def test_whoever_ends_it_as_soon_as_it_is_mounted_finds_no_dead_mount(managed):
    """Also before it is ready: a service may be stopped while it starts."""
    for _ in range(5):
        process = managed.begin()
        while not os.path.ismount(managed.root):
            assert process.poll() is None, process.communicate()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0 and not os.path.ismount(managed.root)


def test_a_failed_start_is_said_on_stderr_with_its_hint(managed):
    (managed.directory / "fsguard.toml").write_text("[policy]\ndefalt = 'warn'\n")
    process = managed.begin()
    _, err = process.communicate(timeout=20)
    assert process.returncode == 2 and "fsguard.toml:2" in err and "default" in err and "Traceback" not in err
    assert managed.daemon_pid() is None


def test_taken_out_lazily_it_serves_its_last_user_and_then_ends(managed):
    process = managed.begin()
    managed.manager.until("READY=1", process)
    holder = subprocess.Popen(
        ["sh", "-c", "exec 3>held; echo in; read x; echo last >&3"],
        cwd=managed.root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout.readline() == "in\n"
    assert managed.fsguard("unmount", str(managed.root), cwd="/").code == 4
    lazily = managed.fsguard("unmount", "--lazy", str(managed.root), cwd="/").ok()
    assert f"(pid {holder.pid})" in lazily.err and lazily.out.endswith("still in use\n")
    assert not os.path.ismount(managed.root) and process.poll() is None
    # What stands there now is another's; what a service manager does next must leave it alone.
    need_root()
    managed.plain("mount", "-t", "tmpfs", "another", str(managed.root), cwd="/").ok()
    try:
        process.send_signal(signal.SIGTERM)
        while "still in use" not in process.stderr.readline():
            assert process.poll() is None
        assert os.path.ismount(managed.root)
    finally:
        managed.plain("umount", str(managed.root), cwd="/").ok()
    holder.communicate("x\n", timeout=10)
    assert process.wait(10) == 0 and (managed.root / "held").read_text() == "last\n"


def test_only_a_dead_mount_is_taken_away_with_dead(workspace):
    workspace.fsguard("unmount", "--dead", str(workspace.root), cwd="/").ok()
    assert os.path.ismount(workspace.root), "a living mount was taken away"
    inside = subprocess.Popen(["sleep", "60"], cwd=workspace.root)
    try:
        workspace.kill_daemon()
        workspace.fsguard("unmount", "--dead", str(workspace.root), cwd="/").ok()
        assert not os.path.ismount(workspace.root)
        workspace.mounted = False
        workspace.fsguard("unmount", "--dead", str(workspace.root), cwd="/").ok()
    finally:
        inside.kill()
        inside.wait()
