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
