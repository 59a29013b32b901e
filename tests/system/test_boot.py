"""What systemd mounts at boot, and what a reboot leaves."""

import os
import time

import pytest

from tests.system.conftest import PHASE, UNIT, WS, call, guarded, job, unit

MARK = "/var/tmp/fsguard-first-boot"


def boot_id():
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def test_the_unit_mounts_the_workspace_at_boot(fact):
    assert unit("ActiveState") == "active" and unit("SubState") == "running" and guarded()
    assert unit("Type") == "notify" and int(unit("MainPID")) > 0
    with open(f"/proc/{unit('MainPID')}/cmdline", "rb") as file:
        assert b"fsguard.daemon" in file.read(), "the main process is not the daemon"
    took = (int(unit("ActiveEnterTimestampMonotonic")) - int(unit("InactiveExitTimestampMonotonic"))) / 1e6
    fact(f"ready {took:.1f} s after its start")


def test_a_line_of_fstab_mounts_another_at_boot():
    assert guarded("/srv/tab")
    policy = call("fsguard", "policy", "--workspace", "/srv/tab", "--json").json()
    assert policy["default"] == "block"
    assert call("fsguard", "status", "--json", "/srv/tab").json()["turn_wait"] == 10.0
    assert unit("ActiveState", "srv-tab.mount") == "active"


def test_no_unit_failed():
    failed = call("systemctl", "--failed", "--plain", "--no-legend").ok().out
    assert "fsguard" not in failed and "srv-" not in failed, failed


@pytest.mark.skipif(PHASE == "after-reboot", reason="the first boot writes it")
def test_work_and_kept_bytes_are_left_for_the_next_boot():
    job("before", "echo first >kept.txt").ok()
    job("other", "echo second >kept.txt").ok()
    versions = call("fsguard", "versions", "--json", f"{WS}/kept.txt").lines()
    assert versions, "nothing was kept"
    with open(MARK, "w", encoding="ascii") as file:
        file.write(boot_id())
    os.sync()


@pytest.mark.skipif(PHASE != "after-reboot", reason="needs a reboot before")
def test_after_a_reboot_work_and_kept_bytes_are_there(fact):
    with open(MARK, encoding="ascii") as file:
        assert file.read() != boot_id(), "this is the boot that wrote it"
    with open(f"{WS}/kept.txt", encoding="ascii") as file:
        assert file.read() == "second\n"
    versions = call("fsguard", "versions", "--json", f"{WS}/kept.txt").lines()
    assert versions, "the kept version did not outlive the reboot"
    fact(f"up for {time.clock_gettime(time.CLOCK_BOOTTIME):.0f} s")


def test_the_unit_is_one_that_systemd_accepts(fact):
    call(
        "systemd-analyze", "verify", "--man=no", f"/usr/local/lib/systemd/system/{UNIT.replace('srv-ws', '')}"
    ).ok()
    security = call("systemd-analyze", "security", "--no-pager", UNIT).out.splitlines()[-1]
    fact(
        "systemd-analyze security: " + security.rpartition(":")[2].encode("ascii", "ignore").decode().strip()
    )
