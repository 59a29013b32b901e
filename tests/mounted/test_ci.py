"""fsguard ci: job scripts as a runner runs them."""

import json
import os
import time
import xml.etree.ElementTree as ElementTree

import pytest


class Checkout:
    """A job's workspace that is not mounted yet; `script(text)` is its job script."""

    def __init__(self, ws):
        self.ws = ws
        (ws.directory / "src").mkdir()
        for name in ("a", "b", "c"):
            (ws.directory / "src" / f"{name}.py").write_text(f"x  =  '{name}'\n")

    def script(self, text, **env):
        env = {"CI_PROJECT_DIR": str(self.ws.directory), "CI_JOB_NAME": "build", "CI_JOB_ID": "7", **env}
        env |= {"TOP": str(self.ws.top)}
        result = self.ws.plain("bash", "-eu", "-c", text, cwd=self.ws.directory, env=env)
        # Left lazily: the mount goes with the shell that stood in it.
        end = time.monotonic() + 20
        while os.path.ismount(self.ws.root) and "keeps" not in text:
            assert time.monotonic() < end, f"still mounted\n{result.out}{result.err}"
            time.sleep(0.02)
        return result

    def finish(self):
        self.ws.mounted = os.path.ismount(self.ws.root)


@pytest.fixture
def checkout(make_workspace):
    checkout = Checkout(make_workspace(mount=False))
    yield checkout
    checkout.finish()


def test_three_parallel_steps_a_formatter_and_an_editor_both_are_named(checkout):
    """The formatter has read the tree when the other step edits it, and then writes it back."""
    done = checkout.script(
        """
        fsguard ci begin
        cd "$PWD"
        mkfifo "$TOP/read" "$TOP/edited"
        fsguard ci run --task format -- python3 -c '
import os, sys
texts = {p: open(p).read() for p in sorted(sys.argv[1:])}
open(os.environ["TOP"] + "/read", "w").close()
open(os.environ["TOP"] + "/edited").close()
for p, t in texts.items():
    open(p, "w").write(t.replace("  ", " "))
' src/a.py src/b.py src/c.py &
        fsguard ci run --task edit -- sh -c 'cat "$TOP/read"; echo "y = 1" >>src/b.py; : >"$TOP/edited"' &
        fsguard ci run --task test -- sh -c 'cat src/a.py >/dev/null; echo tested' &
        wait
        code=0
        fsguard ci end --report "$TOP/r.json" --report "$TOP/r.html" --report "$TOP/r.xml" \\
          --report "$TOP/r.sarif" --fail-on conflict || code=$?
        echo "ended with $code"
        """
    ).ok()
    assert "ended with 1" in done.out and "tested" in done.out
    report = json.loads((checkout.ws.top / "r.json").read_text())
    (conflict,) = [w for w in report["warnings"] if w["severity"] == "conflict"]
    assert (conflict["task"], conflict["sibling"], conflict["path"]) == ("format", "edit", "src/b.py")
    assert '"edit"' in done.out and "build-7 ends: 1 conflicts" in done.out
    for name in ("r.html", "r.sarif"):
        text = (checkout.ws.top / name).read_text()
        assert "format" in text and "edit" in text
    assert ElementTree.parse(checkout.ws.top / "r.xml").getroot() is not None
    # Kept bytes and the tree outlive the job.
    assert (checkout.ws.directory / "src" / "a.py").read_text() == "x = 'a'\n"


def test_steps_that_do_not_meet_end_with_nothing_to_say(checkout):
    done = checkout.script(
        """
        fsguard ci begin
        fsguard ci run --task lint -- sh -c 'echo 1 >src/a.py' &
        fsguard ci run --task test -- sh -c 'echo 2 >src/b.py' &
        wait
        fsguard ci end --fail-on conflict,note
        """
    ).ok()
    assert "build-7 ends: 0 conflicts, 0 notes" in done.out and "task" not in done.err


def test_a_step_ends_with_the_code_of_its_command(checkout):
    done = checkout.script(
        """
        fsguard ci run --task early -- true || echo "without a job: $?"
        fsguard ci begin
        fsguard ci run --task bad -- sh -c 'exit 3' || echo "code $?"
        fsguard ci run --task none -- /nowhere || echo "code $?"
        fsguard ci run --task x || echo "code $?"
        fsguard ci end
        fsguard ci end || echo "again: $?"
        """
    ).ok()
    assert [line for line in done.out.splitlines() if ": " in line or line.startswith("code")] == [
        "without a job: 125",
        f"job build-7 begins: {checkout.ws.directory} is mounted",
        "code 3",
        "code 127",
        "code 125",
        "job build-7 ends: 0 conflicts, 0 notes",
        "again: 3",
    ]


def test_background_processes_of_the_job_are_named_and_end_can_be_called_again(checkout):
    done = checkout.script(
        """
        fsguard ci begin
        fsguard ci run --task server -- sh -c 'sleep 60 >/dev/null 2>&1 & echo $! >"$TOP/pid"'
        fsguard ci end || echo "code $?"
        fsguard ci status
        kill "$(cat "$TOP/pid")"
        fsguard ci end
        """
    ).ok()
    assert "code 4" in done.out and "sleep 60" in done.err and "fsguard ci end" in done.err
    assert "job build-7 in" in done.out and "ends: 0 conflicts" in done.out


def test_a_job_that_was_killed_is_ended_by_the_next(checkout):
    checkout.script("fsguard ci begin; echo this keeps its mount").ok()
    assert os.path.ismount(checkout.ws.root)
    done = checkout.script("fsguard ci begin; fsguard ci end", CI_JOB_ID="8").ok()
    assert "did not end; its mount is ended now" in done.err and "build-8 ends" in done.out


def test_what_a_runner_uses_to_find_leftovers_does_not_reach_the_daemon(checkout):
    cookies = {"RUNNER_TRACKING_ID": "github_x", "JENKINS_NODE_COOKIE": "y", "BUILD_ID": "7"}
    checkout.script("fsguard ci begin; echo this keeps its mount", **cookies).ok()
    with open(f"/proc/{checkout.ws.daemon_pid()}/environ", "rb") as file:
        environ = file.read()
    assert b"HOME=" in environ and not any(name.encode() in environ for name in cookies)
    checkout.script("fsguard ci end").ok()


def test_in_a_mount_that_others_use_steps_are_named_after_their_job_and_it_stays(workspace):
    script = """
        fsguard ci begin --job "$0"
        fsguard ci run --task edit -- sh -c "cat f; echo $0 >f"
        fsguard ci end --report "$TOP/$0.json"
        """
    (workspace.root / "f").write_text("0\n")
    env = {"TOP": str(workspace.top)}
    for job in ("one", "two"):
        workspace.plain("bash", "-euc", script, job, env=env).ok()
    assert os.path.ismount(workspace.root)
    entries = workspace.fsguard("log", "--json", "f").lines()
    assert {e["task"] for e in entries if e["op"] == "write" and e["task"]} == {"one/edit", "two/edit"}
    second = json.loads((workspace.top / "two.json").read_text())
    assert all(w["task"] == "two/edit" for w in second["warnings"]), "told of the time before it began"


def test_where_nothing_can_be_mounted_a_job_can_run_unguarded(checkout):
    place = {"FSGUARD_RUNTIME_DIR": str(checkout.ws.top / "run" / "fsguard")}
    script = """
        fsguard ci begin --state-dir /dev/null/x || echo "code $?"
        fsguard ci begin --state-dir /dev/null/x --or-unguarded
        fsguard ci run --task t -- sh -c 'echo "as $FSGUARD_TASK"'
        fsguard ci end --fail-on conflict
        """
    done = checkout.script(script, **place).ok()
    assert "code 5" in done.out and "as t" in done.out and done.err.count("unguarded") >= 3


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("end --report r.txt", 2, "its name ends in"),
        ("end --fail-on conflct", 2, "did you mean conflict"),
        ("begin /nowhere/at/all", 2, "no such directory"),
        ("run --tsak a -- true", 125, "--t"),
        ("", 2, "begin, run, end or status"),
        ("bgein", 2, "begin"),
        ("status", 3, "no job has begun here"),
    ],
)
def test_mistakes_are_told(checkout, words, code, said):
    begin = "fsguard ci begin >/dev/null\n" if words.startswith("end") else ""
    end = "\nfsguard ci end >/dev/null" if begin else ""
    done = checkout.script(f'{begin}fsguard ci {words} || echo "code $?"{end}').ok()
    assert f"code {code}" in done.out and said in done.err and "Traceback" not in done.err
