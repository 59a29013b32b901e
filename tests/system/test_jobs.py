"""CI jobs as the user runner: in units of their own, on one tree."""

import json
import os

import pytest

from tests.system.conftest import WS, call, job

ARTEFACTS = "/srv/ws.artefacts"


def told(task):
    return call("fsguard", "warnings", "--all", "--json", "--task", task, "--workspace", WS).lines()


@pytest.fixture
def tree():
    job("tree", "rm -rf src && mkdir src && printf 'one\\ntwo\\n' >src/a.py").ok()
    return f"{WS}/src"


def test_two_jobs_with_a_conflict_without_a_word_to_fsguard(tree):
    """The control group of each job's unit names its task, by a pattern of the configuration."""
    job("fmt", "cat src/a.py >/tmp/mine").ok()
    job("edit", "echo three >>src/a.py").ok()
    job("fmt", "cat /tmp/mine >src/a.py").ok()
    (warning,) = [w for w in told("ci-fmt") if w["severity"] == "conflict"]
    assert (warning["path"], warning["sibling"], warning["kind"]) == ("src/a.py", "ci-edit", "stale_write")


def test_tasks_of_a_job_are_attributed_by_delegated_cgroups(tree, fact):
    before = call("fsguard", "status", "--json", WS).json()["attribution"]
    job("cg", "fsguard run --task cg-1 -- setsid -w sh -c 'echo x >src/b.py'").ok()
    after = call("fsguard", "status", "--json", WS).json()["attribution"]
    assert after.get("cgroup", 0) > before.get("cgroup", 0), f"{before} -> {after}"
    entries = call("fsguard", "log", "--json", "--task", "cg-1", "--workspace", WS).lines()
    assert [e["path"] for e in entries if e["op"] == "write"] == ["src/b.py"]
    fact("below the unit's own group, made by an ordinary user")


def test_the_machine_has_control_groups_of_version_2_alone(fact):
    with open("/proc/self/mountinfo", encoding="ascii") as file:
        kinds = {line.split(" - ")[1].split()[0] for line in file if "/sys/fs/cgroup" in line.split()[4]}
    assert kinds == {"cgroup2"}
    fact(call("systemctl", "--version").out.splitlines()[0])


def test_the_report_is_the_jobs_artefact(tree, fact):
    os.makedirs(ARTEFACTS, exist_ok=True)
    os.chmod(ARTEFACTS, 0o777)
    if call("fsguard", "report", "--help").code != 0:
        pytest.skip("fsguard report is not there yet")
    job("one", "fsguard run --task one -- cat src/a.py").ok()
    job("two", "fsguard run --task two -- sh -c 'echo 2 >>src/a.py'").ok()
    job("one", "fsguard run --task one -- sh -c 'echo 1 >src/a.py'")
    job("report", f"fsguard report --format json >{ARTEFACTS}/report.json").ok()
    with open(f"{ARTEFACTS}/report.json", encoding="ascii") as file:
        text = file.read()
    json.loads(text)
    assert '"one"' in text and '"two"' in text
    fact(f"{len(text)} bytes")
