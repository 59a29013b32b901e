"""An ordinary user's own mount, by hand and by the user's unit."""

import pwd

from tests.system.conftest import call, guarded, until

HOME = "/home/runner"


def as_runner(*command):
    runtime = f"XDG_RUNTIME_DIR=/run/user/{pwd.getpwnam('runner').pw_uid}"
    become = ["setpriv", "--reuid=runner", "--regid=runner", "--init-groups", "env", runtime, f"HOME={HOME}"]
    return call(*become, *command, cwd=HOME)


def test_an_ordinary_user_mounts_runs_tasks_and_unmounts():
    as_runner("mkdir", "-p", "own").ok()
    as_runner("fsguard", "mount", "own").ok()
    try:
        for task in ("A", "B"):
            run = ["fsguard", "run", "--workspace", "own", "--task", task, "--", "sh", "-c"]
            as_runner(*run, f"echo {task} >own/f").ok()
        told = as_runner("fsguard", "warnings", "--all", "--json", "--task", "B", "own").lines()
        assert [w["sibling"] for w in told if w["severity"] == "conflict"] == ["A"]
    finally:
        as_runner("fsguard", "unmount", "own").ok()


def test_a_user_mounts_by_a_line_of_fstab_with_the_option_user():
    """mount(8) is setuid root, and gives that up before it calls the helper."""
    top = f"{HOME}/tab"
    line = f"{top} {top} fsguard user,noauto,policy=block 0 0\n"
    with open("/etc/fstab", encoding="utf-8") as file:
        before = file.read()
    try:
        with open("/etc/fstab", "w", encoding="utf-8") as file:
            file.write(before + line)
        as_runner("mkdir", "-p", top).ok()
        as_runner("mount", top).ok()
        status = as_runner("fsguard", "status", "--json", top).json()
        assert status["policy"] == "block"
        listed = call("findmnt", "--noheadings", "--output", "FSTYPE,OPTIONS", "--mountpoint", top).ok().out
        assert "fuse.fsguard" in listed and "nosuid" in listed, "`user` implies nosuid,nodev,noexec"
        as_runner("umount", top).ok()
        assert not guarded(top)
    finally:
        with open("/etc/fstab", "w", encoding="utf-8") as file:
            file.write(before)
        as_runner("fsguard", "unmount", "--lazy", top)


def test_the_users_unit():
    as_runner("mkdir", "-p", "unit").ok()
    name = "fsguard@home-runner-unit.service"
    until(lambda: as_runner("systemctl", "--user", "is-system-running").out.strip() != "", "no user manager")
    as_runner("systemctl", "--user", "start", name).ok()
    try:
        # The mount is the user's alone: root may not look inside.
        listed = (
            call("findmnt", "--noheadings", "--output", "FSTYPE", "--mountpoint", f"{HOME}/unit").ok().out
        )
        assert listed.strip() == "fuse.fsguard"
        as_runner("fsguard", "status", "unit").ok()
    finally:
        as_runner("systemctl", "--user", "stop", name).ok()
    assert not guarded(f"{HOME}/unit")
