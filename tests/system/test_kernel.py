"""What this kernel offers, and what is made of it."""

import os
import re

from tests.system.conftest import WS, call


def test_doctor_and_status_say_what_this_kernel_has(fact):
    findings = {f["name"]: f for f in call("fsguard", "doctor", "--json").json()}
    numbers = tuple(map(int, re.match(r"(\d+)\.(\d+)", os.uname().release).groups()))
    new = numbers >= (6, 9)
    assert (findings["kernel"]["state"] == "ok") is new
    assert ("with FUSE passthrough" in findings["kernel"]["detail"]) is new
    status = call("fsguard", "status", "--json", WS).json()
    fact(
        f"Linux {os.uname().release}, FUSE {status['features']['protocol']}, passthrough"
        f" {'offered' if new else 'not offered'} by the kernel, io={status['io']};"
        f" {findings['libfuse3']['detail']}"
    )
    assert status["io"] != "passthrough" or new
    assert not [f for f in findings.values() if f["state"] == "missing"]


def test_data_goes_through_the_mount_whole(fact):
    data = os.urandom(8 << 20)
    path = f"{WS}/data.bin"
    with open(path, "wb") as file:
        file.write(data)
    with open(path, "rb") as file:
        assert file.read() == data
    os.unlink(path)
