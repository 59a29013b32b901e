"""`fsguard report` of a real mount: while it lives, after it has ended, and as a CI job uses it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

from tests.kit.mounting import Workspace

HOSTILE = "a<b>&\"'\n\udcff"


def collide(w: Workspace, path: str = "f") -> None:
    """A overwrites what B wrote after A had read it."""
    w.plain("sh", "-c", 'printf "one\\ntwo\\n" > "$1"', "-", path).ok()
    w.run("A", "cat", path).ok()
    w.run("B", "sh", "-c", 'echo "three by B" >> "$1"', "-", path).ok()
    w.run("A", "sh", "-c", 'echo mine > "$1"', "-", path).ok()


def test_a_report_tells_tasks_files_conflicts_and_differences_and_changes_nothing(
    workspace: Workspace,
) -> None:
    collide(workspace)
    before = workspace.warnings()
    looks = workspace.fsguard("who", "f", "--json").json()["readers"]
    whole = workspace.fsguard("report", "--format", "json").json()
    assert whole["live"] is True and {t["task"] for t in whole["tasks"]} == {"A", "B"}
    (told,) = whole["warnings"]
    assert (told["kind"], told["task"], told["sibling"], told["path"]) == ("stale_write", "A", "B", "f")
    (kept,) = told["kept"]
    assert kept["kept"] and "-three by B" in kept["diff"] and "+mine" in kept["diff"]
    assert [f["path"] for f in whole["contended"]] == ["f"]
    ops = [(e["task"], e["op"]) for e in whole["log"] if e["task"]]
    assert ops == [("A", "read"), ("B", "write"), ("A", "write")]
    assert workspace.warnings() == before
    assert workspace.fsguard("who", "f", "--json").json()["readers"] == looks


def test_a_ci_job_fails_on_what_it_asks_for_until_that_is_resolved(workspace: Workspace) -> None:
    def report(*options: str) -> int:
        return workspace.fsguard("report", "--format", "github", *options).code

    assert report("--fail-on", "conflict") == 0
    collide(workspace)
    assert report() == 0
    assert report("--fail-on", "conflict") == 1
    assert report("--fail-on", "waited,stale_write") == 1
    assert report("--fail-on", "waited", "--fail-on", "note") == 0
    shown = workspace.fsguard("report", "--format", "github", "--fail-on", "conflict")
    assert shown.out.startswith("::error file=f,") and "1 of what --fail-on asks for" in shown.err
    (conflict,) = workspace.fsguard("conflicts", "--json").lines()
    workspace.fsguard("restore", f"f@{conflict['version']}").ok()
    assert report("--fail-on", "conflict") == 0


def test_the_records_outlive_the_mount_and_the_next_one_begins_anew(
    make_workspace: Callable[..., Workspace], tmp_path: Path
) -> None:
    w = make_workspace()
    collide(w)
    collide(w, HOSTILE)
    alive = w.fsguard("report", "--format", "json").json()
    w.unmount()
    after = w.fsguard("report", str(w.directory), "--format", "json", "--fail-on", "conflict", cwd=w.top)
    assert after.code == 1
    dead = json.loads(after.out)
    assert dead["live"] is False and len(dead["warnings"]) == 2
    for name in ("tasks", "warnings", "contended", "log"):
        assert dead[name] == alive[name]
    page = tmp_path / "report.html"
    w.fsguard("report", str(w.directory), "--output", str(page), cwd=w.top).ok()
    assert "2</b>conflicts" in page.read_text() and [p.name for p in tmp_path.iterdir()] == ["report.html"]
    records = next(w.top.glob("state/**/records.jsonl"))
    assert records.stat().st_mode & 0o777 == 0o600
    # Warnings are numbered anew: those of the first mount are not taken for these.
    w.mount()
    assert w.fsguard("report", "--format", "json").json()["warnings"] == []
    w.sh("C", "cat g 2>/dev/null; true").ok()
    w.run("D", "sh", "-c", "echo d > g").ok()
    w.run("C", "sh", "-c", "echo c > g").ok()
    assert [x["path"] for x in w.warnings("C")] == ["g"]
    old = [row for row in w.fsguard("conflicts", "--json").lines() if row["path"] == "f"]
    assert [(row["message"], row["warning"]) for row in old] == [(None, None)]


def test_a_killed_mount_is_not_reported_by_the_records_of_an_earlier_one(
    make_workspace: Callable[..., Workspace],
) -> None:
    w = make_workspace()
    collide(w)
    w.unmount()
    assert w.fsguard("report", str(w.directory), "--fail-on", "conflict", cwd=w.top).code == 1
    w.mount()
    w.kill_daemon()
    w.unmount()
    result = w.fsguard("report", str(w.directory), "--fail-on", "conflict", cwd=w.top)
    assert result.code == 3 and "a daemon that was killed leaves no records" in result.err


def test_a_secret_is_named_and_not_shown(workspace: Workspace) -> None:
    collide(workspace, ".env")
    for form in ("json", "html", "github", "sarif", "junit"):
        out = workspace.fsguard("report", "--format", form).ok().out
        assert ".env" in out and not re.search(r"-three by B|\+mine", out)


def test_since_leaves_out_what_is_older(workspace: Workspace) -> None:
    collide(workspace)
    time = workspace.warnings()[0]["time"]
    assert len(workspace.fsguard("report", "--format", "json", "--since", time).json()["warnings"]) == 1
    workspace.sh("A", "cat f").ok()
    later = workspace.fsguard("log", "--limit", "1", "--json").json()["time"]
    part = workspace.fsguard("report", "--format", "json", "--since", later).json()
    assert part["warnings"] == [] and len(part["log"]) == 1


def test_a_page_is_not_poured_into_a_terminal(workspace: Workspace) -> None:
    leader, follower = os.openpty()
    process = workspace.start(None, "fsguard", "report", stdout=follower)
    os.close(follower)
    assert process.wait(20) == 2
    assert process.stderr is not None and "--output report.html" in process.stderr.read()
    os.close(leader)


def test_a_file_that_cannot_be_written_is_an_error_and_leaves_the_old_one(workspace: Workspace) -> None:
    result = workspace.fsguard("report", "--output", "/proc/report.html")
    assert result.code == 1 and "cannot write /proc/report.html" in result.err
