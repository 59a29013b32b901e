"""CI jobs as the user runner: in units of their own, on one tree."""

import json
import os
import shutil

import pytest

from tests.system.conftest import WS, call, job

ARTEFACTS = "/srv/artefacts"


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


JOB_SCRIPT = """
fsguard ci begin --job "$JOB"
fsguard ci run --task format -- python3 -c '
import time, pathlib
text = {p: p.read_text() for p in sorted(pathlib.Path("src").glob("*.py"))}
pathlib.Path("/srv/artefacts/read").touch()
while not pathlib.Path("/srv/artefacts/edited").exists(): time.sleep(0.1)
for p, t in text.items(): p.write_text(t.replace("two", "2"))
' &
fsguard ci run --task edit -- sh -c '
while [ ! -e /srv/artefacts/read ]; do sleep 0.1; done
echo three >>src/a.py; touch /srv/artefacts/edited' &
fsguard ci run --task test -- python3 -m compileall -q /dev/null &
wait
fsguard ci end --report /srv/artefacts/report.json --report /srv/artefacts/report.html --fail-on conflict
"""


def test_a_job_of_three_parallel_steps_and_its_report_as_artefact(tree, fact):
    """One step formats the tree from what it had read, while another edits it."""
    shutil.rmtree(ARTEFACTS, ignore_errors=True)
    os.mkdir(ARTEFACTS)
    os.chmod(ARTEFACTS, 0o777)
    ended = job("build", JOB_SCRIPT)
    assert ended.code == 1, f"--fail-on conflict did not fail the job: {ended.out}{ended.err}"
    with open(f"{ARTEFACTS}/report.json", encoding="ascii") as file:
        told = [w for w in json.load(file)["warnings"] if w["severity"] == "conflict"]
    # In a mount that goes on, others may be told as well: that an earlier content of theirs came back.
    assert ("build/format", "build/edit", "src/a.py") in [(w["task"], w["sibling"], w["path"]) for w in told]
    with open(f"{ARTEFACTS}/report.html", encoding="utf-8") as file:
        page = file.read()
    assert "build/format" in page and "build/edit" in page
    fact(f"report.html: {len(page)} bytes")
