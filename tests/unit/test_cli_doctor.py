"""fsguard doctor: every fact alone, and what to install where."""

import json
import os
import stat
import subprocess
import sys

import pytest

from fsguard import cli
from fsguard.cli import machine, packages

RELEASES = {
    'ID=debian\nVERSION_ID="13"\n': "apt-get install",
    "ID=ubuntu\nID_LIKE=debian\n": "apt-get install",
    'ID="rocky"\nID_LIKE="rhel centos fedora"\n': "dnf install",
    "ID=opensuse-leap\nID_LIKE='suse opensuse'\n".replace("'", '"'): "zypper install",
    "ID=arch\n": "pacman -S",
    "ID=alpine\n": "apk add",
}


@pytest.mark.parametrize(("release", "command"), RELEASES.items())
def test_each_distribution_has_its_own_command(release, command, monkeypatch):
    assert packages.manager(release) == command
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    line = packages.install_command(["cc", "fuse", "fuse"], release)
    assert line.startswith(f"sudo {command} fuse3 gcc")


def test_nothing_needed_or_nothing_known_is_no_command():
    assert packages.install_command([], "ID=debian") == ""
    assert packages.install_command(["fuse"], "ID=plan9") == ""
    assert packages.manager("") is None


def test_whether_changes_behind_a_mount_are_heard_of(monkeypatch, tmp_path):
    found = machine.behind(str(tmp_path))
    assert (found.name, str(tmp_path) in found.detail) == ("behind", True)
    monkeypatch.setattr("fsguard.fuse.fanotify.is_shared", lambda fd: True)
    found = machine.behind(str(tmp_path))
    assert found.state == "note" and "other machines" in found.detail and "--cache trust" in found.hint


def test_root_needs_no_sudo(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert packages.install_command(["headers"], "ID=debian") == "apt-get install libfuse3-dev"


@pytest.mark.parametrize(
    ("release", "state"),
    [("6.9.0", "ok"), ("6.18.44-fc", "ok"), ("6.8.0-45-generic", "note"), ("4.9.1", "note"), ("?", "note")],
)
def test_kernels(release, state):
    found = machine.kernel(release)
    assert found.state == state and (state == "ok" or found.hint)


def test_the_device_explains_itself(tmp_path, monkeypatch):
    found = machine.device(str(tmp_path / "absent"))
    assert found.state == "missing" and "modprobe fuse" in (found.hint or "")
    closed = tmp_path / "fuse"
    closed.touch(mode=0o600)

    def refuse(path, flags):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    found = machine.device(str(closed))
    assert "mode 0600" in found.detail and "chmod 666" in (found.hint or "")


def test_fusermount_must_be_setuid_for_users(tmp_path, monkeypatch):
    program = tmp_path / "fusermount3"
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for uid, state in ((1000, "missing"), (0, "note")):
        monkeypatch.setattr(os, "geteuid", lambda uid=uid: uid)
        found = machine.fusermount()
        assert found.state == state and "setuid" in found.detail
    if os.getuid() == 0:
        os.chmod(program, stat.S_ISUID | 0o755)
        assert machine.fusermount().state == "ok"


def test_root_without_the_capability_cannot_mount(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(machine, "capabilities", lambda: 0)
    found = machine.mount_right()
    assert found.state == "missing" and "--cap-add SYS_ADMIN" in (found.hint or "")


def test_it_works_where_pyfuse3_is_not_installed():
    program = "import sys; sys.path.insert(0, sys.argv[1]); from fsguard import cli; "
    program += "sys.exit(cli.main(['doctor', '--json']))"
    root = os.path.dirname(os.path.dirname(cli.__file__))
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, os.path.dirname(root)],
        capture_output=True,
        text=True,
        check=False,
    )
    findings = {finding["name"]: finding for finding in json.loads(done.stdout)}
    assert findings["Python"]["state"] == "ok"
    assert done.returncode in (0, 5) and done.stderr == ""


def test_modules_that_are_missing_are_named(tmp_path):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    found = machine.python_modules(str(bare))
    assert found.state == "missing" and "pyfuse3: ModuleNotFoundError" in found.detail
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nkill -SEGV $$\n")
    broken.chmod(0o755)
    assert "ends the interpreter" in machine.python_modules(str(broken)).detail


def test_what_is_missing_decides_the_exit_code(monkeypatch, capsys):
    good = machine.Finding("kernel", "ok", "fine")
    poor = machine.Finding("cgroups", "note", "none", "a hint")
    bad = machine.Finding("libfuse3", "missing", "not \x1b[2J installed", packages=["fuse", "headers"])
    monkeypatch.setattr(machine, "examine", lambda: [good, poor])
    assert cli.main(["doctor"]) == 0
    assert "Everything needed is here" in capsys.readouterr().out
    monkeypatch.setattr(machine, "examine", lambda: [good, poor, bad])
    assert cli.main(["doctor"]) == 5
    out = capsys.readouterr().out
    assert "Missing: libfuse3." in out and "\x1b" not in out
    assert cli.main(["doctor", "--json"]) == 5
    assert [finding["state"] for finding in json.loads(capsys.readouterr().out)] == ["ok", "note", "missing"]
