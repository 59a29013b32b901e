"""The main job: whoever is about to destroy a sibling's unseen work is told by name, before it is gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.kit.abilities import lacking
from tests.kit.agents import Agent, together
from tests.kit.inotify import Watch
from tests.kit.mounting import Workspace

GIT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "t",
    "GIT_AUTHOR_EMAIL": "t@e",
    "GIT_COMMITTER_NAME": "t",
    "GIT_COMMITTER_EMAIL": "t@e",
}

MMAP = """
import mmap, os
fd = os.open("f", os.O_RDWR)
with mmap.mmap(fd, 0) as m:
    os.close(fd)
    m[0:4] = b"MMAP"
"""

#: how A destroys what B wrote, and the kinds that say so truly
WAYS = {
    "cp": ("cp old f", {"stale_write"}),
    "redirect": ("echo mine > f", {"stale_write"}),
    "tee": ("echo mine | tee f > /dev/null", {"stale_write"}),
    "mv": ("mv old f", {"stale_write"}),
    "truncate": ("truncate -s 3 f", {"stale_write"}),
    "rm": ("rm f", {"stale_write"}),
    "dd": ("printf XXXX | dd of=f conv=notrunc status=none", {"stale_write"}),
    "append": ("echo more >> f", {"stale_view"}),
    "patch": ("patch -s f fix.diff", {"stale_view"}),
    "formatter": ("sed -i 's/B/b/' f", {"stale_view"}),
    "checkout": ("git checkout -q -- f", {"stale_write"}),
    "stash": ("git stash -q", {"stale_write", "stale_view"}),
    "reset": ("git reset -q --hard", {"stale_write"}),
    "restore": ("git restore f", {"stale_write"}),
    "install": ("install -m 644 old f", {"stale_write"}),
    "ln": ("ln -sf old f", {"stale_write"}),
}


@pytest.fixture
def tree(workspace: Workspace) -> Workspace:
    """A repository with one committed file, which both tasks work on."""
    workspace.env.update(GIT)
    workspace.plain(
        "sh",
        "-ec",
        "git init -q .; seq 1 20 > f; echo old > old; git add f; git commit -qm one;"
        " sed 's/^20$/twenty/' f > new; diff -u f new > fix.diff || true; rm new",
    ).ok()
    return workspace


@pytest.mark.parametrize("way", WAYS)
def test_each_destructive_way_is_told_with_sibling_command_and_both_times(tree: Workspace, way: str) -> None:
    script, kinds = WAYS[way]
    tree.run("A", "cat", "f").ok()
    tree.run("B", "sed", "-i", "2s/.*/by B/", "f").ok()
    result = tree.sh("A", script).ok()
    told = [w for w in tree.warnings("A") if "f" in w["paths"] and w["kind"] in kinds]
    assert len(told) == 1, (tree.warnings(), result.err)
    (warning,) = told
    assert warning["sibling"] == "B" and "sed -i" in warning["sibling_command"]
    assert warning["read_time"] < warning["sibling_time"] < warning["time"]
    assert '"B"' in result.err and "sed -i" in result.err
    assert not tree.conflicts("B") or {w["kind"] for w in tree.conflicts("B")} == {"reverted"}


def test_a_script_that_holds_its_read_while_the_sibling_writes(workspace: Workspace) -> None:
    workspace.plain("sh", "-c", "echo base > f").ok()
    script = 'text = open("f").read(); stop("has read"); open("f", "w").write(text + "mine\\n")'
    with Agent(workspace, "A", script) as agent:
        agent.until("has read")
        workspace.sh("B", "echo theirs > f").ok()
        result = agent.finish()
    assert result.code == 0 and '"B"' in result.err
    (warning,) = workspace.conflicts("A")
    assert warning["kind"] == "lost_update" and warning["sibling"] == "B"


def test_a_store_through_a_shared_mapping_counts_as_a_write(tree: Workspace) -> None:
    tree.run("A", "cat", "f").ok()
    tree.run("B", "sed", "-i", "2s/.*/by B/", "f").ok()
    tree.python("A", MMAP).ok()
    told = [(w["sibling"], w["kind"]) for w in tree.warnings("A")]
    assert told == [("B", "stale_view")], "the mapping was read before it was written"
    tree.run("B", "sh", "-c", "echo again > f").ok()
    assert "A" in [w["sibling"] for w in tree.conflicts("B")]


def test_the_warning_is_on_record_before_a_byte_is_gone(workspace: Workspace) -> None:
    """A sibling that follows the warnings still finds its bytes when it hears of A's open."""
    workspace.plain("sh", "-c", "echo base > f").ok()
    workspace.run("A", "cat", "f").ok()
    workspace.sh("B", "echo theirs > f").ok()
    script = """
        import os
        fd = os.open("f", os.O_WRONLY)
        stop("open")
        os.write(fd, b"mine")
        stop("written")
    """
    with Agent(workspace, "A", script) as agent:
        agent.until("open")
        assert not workspace.conflicts("A"), "an open for writing is not yet a write"
        agent.go().until("written")
        (warning,) = workspace.conflicts("A")
        agent.finish()
    entry = next(e for e in workspace.fsguard("log", "f", "--json").lines() if e["op"] == "write")
    assert warning["time"] <= entry["time"]


# ---- the table of earlier systems -----------------------------------------------------------


def test_parallel_writes_to_different_paths_stay_parallel_and_silent(workspace: Workspace) -> None:
    agents = [
        Agent(workspace, t, f'f = open("{t}", "w"); f.write("1"); f.flush(); stop("open"); f.write("2")')
        for t in ("A", "B", "C")
    ]
    for agent in agents:
        agent.until("open")  # all three are in the middle of a write at once
    for agent in agents:
        agent.finish()
        agent.close()
    assert workspace.warnings() == []


def test_a_parent_is_told_what_its_child_changed(workspace: Workspace) -> None:
    workspace.plain("sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10; do echo $i > f$i; done").ok()
    run = f"fsguard run --task P.1 --workspace {workspace.root} --"
    result = workspace.sh(
        "P", f"cat f* > /dev/null; {run} sh -c 'for f in f*; do echo child > $f; done'"
    ).ok()
    (note,) = [w for w in workspace.warnings("P") if w["kind"] == "stale_read"]
    assert note["count"] == 10 and note["sibling"] == "P.1" and "+2 more" in note["message"]
    assert "P.1" in result.err
    tasks = {t["task"]: t for t in workspace.status()["tasks"]}
    assert tasks["P.1"]["parent"] == "P" and tasks["P.1"]["state"] == "ended"


def test_consecutive_writes_of_one_task_are_clean(workspace: Workspace) -> None:
    workspace.plain("sh", "-c", "echo 0 > f").ok()
    workspace.run("A", "cat", "f").ok()
    for i in range(3):
        workspace.sh("A", f"echo {i} > f").ok()
    workspace.run("A", "sed", "-i", "s/2/3/", "f").ok()
    workspace.sh("A", "cp f g; mv g f; echo 4 >> f").ok()
    assert workspace.warnings() == []


def test_switched_off_every_check_is_a_no_op(make_workspace) -> None:  # type: ignore[no-untyped-def]
    workspace = make_workspace(mount=False)
    workspace.mount(env={"FSGUARD_DISABLE": "1"})
    workspace.plain("sh", "-c", "echo 0 > f").ok()
    workspace.run("A", "cat", "f").ok()
    workspace.sh("B", "echo 1 > f").ok()
    workspace.sh("A", "echo 2 > f").ok()
    assert workspace.warnings() == [] and workspace.status()["disabled"] is True


def test_policy_off_is_silent_and_can_be_changed_live(workspace: Workspace) -> None:
    workspace.fsguard("policy", "off").ok()
    for task in ("A", "B", "A"):
        workspace.sh(task, f"cat f 2>/dev/null; echo {task} > f").ok()
    workspace.sh("B", "echo again > f").ok()
    assert workspace.warnings() == []
    workspace.fsguard("policy", "warn").ok()
    workspace.sh("A", "echo once more > f").ok()
    assert [w["sibling"] for w in workspace.conflicts("A")] == ["B"]


def test_read_only_commands_of_unknown_footprint_run_in_parallel(workspace: Workspace) -> None:
    workspace.plain("sh", "-c", "mkdir d; for i in $(seq 50); do echo $i > d/f$i; done").ok()
    agents = [Agent(workspace, t, "grep -r 4 d > /dev/null; stop here; ls -lR d", shell=True) for t in "ABC"]
    for agent in agents:
        agent.until("here")  # nobody waits for anybody: all are in the middle
    workspace.run("D", "cat", "d/f1").ok()
    assert all(agent.finish().code == 0 for agent in agents)
    for agent in agents:
        agent.close()
    assert workspace.warnings() == []


# ---- who is it ---------------------------------------------------------------------------------


def test_an_exported_task_is_enough(workspace: Workspace) -> None:
    env = {"FSGUARD_TASK": "exported", "FSGUARD_PARENT": "boss"}
    workspace.plain("sh", "-c", "echo x > f", env=env).ok()
    who = workspace.fsguard("who", "f", "--json").json()
    assert who["writers"][0]["task"] == "exported"
    tasks = {t["task"]: t["parent"] for t in workspace.status()["tasks"]}
    assert tasks["exported"] == "boss"


@pytest.mark.parametrize("shell", ["sh", "bash", "python"])
def test_a_task_exported_for_one_command_counts_from_its_first_call(workspace: Workspace, shell: str) -> None:
    """What a child opens before it executes the command (it may share its parent's memory then) is the
    shell's; what the command opens is the task's, however soon after."""
    (workspace.root / "in.txt").write_text("x\n")
    for i in range(10):
        if shell == "python":
            script = f"""if True:
                import os
                env = {{**os.environ, "FSGUARD_TASK": "agent-B"}}
                first = (os.POSIX_SPAWN_OPEN, 0, "in.txt", os.O_RDONLY, 0)
                os.posix_spawn("/bin/cp", ["cp", "in.txt", "out{i}"], env, file_actions=[first])
                os.wait()
            """
            workspace.plain(sys.executable, "-c", script).ok()
        else:
            line = f"FSGUARD_TASK=agent-B cp in.txt out{i} < in.txt > log{i}; cat in.txt > /dev/null"
            workspace.plain(shell, "-c", line).ok()
        who = workspace.fsguard("who", f"out{i}", "--json").json()
        assert who["writers"][0]["task"] == "agent-B", who


def test_a_daemon_that_left_its_parents_keeps_its_task(workspace: Workspace) -> None:
    script = """
        import os, sys
        if os.fork(): os._exit(0)
        os.setsid()
        if os.fork(): os._exit(0)
        os.environ.clear()
        stop("orphan")
        open("f", "w").write("x")
        stop("done")
    """
    script = script.replace("os.environ.clear()", "")
    with Agent(workspace, "A", script, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as agent:
        agent.until("orphan").go().until("done")
        assert workspace.fsguard("who", "f", "--json").json()["writers"][0]["task"] == "A"
        agent.go()


def test_the_writer_counts_not_the_opener(workspace: Workspace) -> None:
    run = f"fsguard run --task A --workspace {workspace.root} --"
    workspace.plain("sh", "-c", f"{run} echo hello > f").ok()
    assert workspace.fsguard("who", "f", "--json").json()["writers"][0]["task"] == "A"
    workspace.sh("B", "echo b > f").ok()
    assert [w["sibling"] for w in workspace.conflicts("B")] == ["A"]


def test_an_outsider_is_named_by_command_and_pid(workspace: Workspace) -> None:
    workspace.plain("sh", "-c", "echo 0 > f").ok()
    workspace.run("A", "cat", "f").ok()
    workspace.plain("sh", "-c", "echo outside > f").ok()
    workspace.sh("A", "echo mine > f").ok()
    (warning,) = workspace.conflicts("A")
    assert warning["kind"] == "external_write" and warning["sibling"] is None
    assert "outside" in warning["sibling_command"] and "pid" in warning["message"]


def test_a_cgroup_pattern_names_the_task(make_workspace) -> None:  # type: ignore[no-untyped-def]
    workspace = make_workspace(mount=False)
    (workspace.directory / "fsguard.toml").write_text(
        "[[attribution.cgroup]]\npattern = 'fsgtest-(?P<job>[a-z]+)'\ntask = 'ci-{job}'\n"
    )
    workspace.mount()
    line = next((x for x in Path("/proc/self/cgroup").read_text().splitlines() if x.startswith("0::")), None)
    mounts = [x.split() for x in Path("/proc/self/mountinfo").read_text().splitlines() if " - cgroup2 " in x]
    if line is None or not mounts or os.getuid() != 0:
        lacking("a writable cgroup v2 tree")
    group = os.path.join(mounts[0][4], line.strip()[3:].lstrip("/"), "fsgtest-lint")
    os.mkdir(group)
    try:
        workspace.plain("sh", "-c", f"echo $$ > {group}/cgroup.procs; echo x > f").ok()
        assert workspace.fsguard("who", "f", "--json").json()["writers"][0]["task"] == "ci-lint"
    finally:
        os.rmdir(group)


# ---- reports -------------------------------------------------------------------------------------


def test_the_report_has_the_exact_footprint(workspace: Workspace) -> None:
    workspace.plain("sh", "-c", "echo a > a; echo b > b; echo c > c").ok()
    report = workspace.top / "report.json"
    script = "cat a > new; mv b moved; rm c"
    workspace.run("A", "sh", "-c", script, options=("--report", str(report))).ok()
    facts = json.loads(report.read_text())
    assert facts["task"] == "A" and facts["exit_code"] == 0 and facts["warnings"] == []
    footprint = {k: sorted(v) for k, v in facts["footprint"].items()}
    assert footprint == {
        "read": ["a"],
        "written": ["moved", "new"],
        "created": ["new"],
        "deleted": ["c"],
        "renamed": [["b", "moved"]],
    }


def test_one_command_over_many_files_gives_one_warning(tree: Workspace) -> None:
    tree.plain("sh", "-c", "for i in $(seq 40); do echo $i > g$i; done; git add g*; git commit -qm g").ok()
    tree.sh("A", "cat g* > /dev/null").ok()
    tree.sh("B", "for i in $(seq 40); do echo b$i > g$i; done").ok()
    tree.run("A", "git", "checkout", "-q", ".").ok()
    (warning,) = tree.conflicts("A")
    assert warning["count"] == 40 and len(warning["paths"]) == 40 and "39 more" in warning["message"]
    (victim,) = [w for w in tree.conflicts("B") if w["kind"] == "reverted"]
    assert victim["count"] == 40 and victim["sibling"] == "A"


def test_hostile_names_survive_json_and_cannot_drive_a_terminal(workspace: Workspace) -> None:
    name = b"x\n\x1b[31m\xff'\"\xe2\x80\xae.py"
    script = "import sys; open(sys.argv[1].encode('utf-8', 'surrogateescape'), 'w').write(sys.argv[2])"
    text = os.fsdecode(name)
    for task in ("A", "B", "A"):
        result = workspace.python(task, script, text, task).ok()
    (warning,) = workspace.conflicts("A")
    assert os.fsencode(warning["path"]) == name
    assert "\x1b" not in result.err and "\u202e" not in result.err


def test_a_session_of_ordinary_work_by_one_task_is_silent(tree: Workspace) -> None:
    script = """
        set -e
        git clone -q . clone
        cd clone
        mkdir -p src/pkg tests
        printf 'def f():\\n    return 1\\n' > src/pkg/m.py
        printf 'from pkg.m import f\\nassert f() == 1\\n' > tests/t.py
        PYTHONPATH=src python3 tests/t.py
        git add -A; git commit -qm work
        sed -i 's/1/1  /' src/pkg/m.py
        python3 - <<'P'
p = "src/pkg/m.py"
s = open(p).read()
open(p, "w").write("\\n".join(x.rstrip() for x in s.splitlines()) + "\\n")
P
        git commit -qam format || true
        git checkout -q -b side HEAD~1; echo x > side.txt; git add side.txt; git commit -qm side
        git rebase -q - ; git stash -q -u 2>/dev/null || true; git gc -q; git status --porcelain
        cp -r src src2; rm -rf src2; tar cf all.tar src tests; tar xf all.tar; rm all.tar
    """
    tree.run("A", "sh", "-c", script, timeout=120).ok()
    assert tree.warnings() == []


def test_watchers_see_siblings_writes(workspace: Workspace) -> None:
    watch = Watch(str(workspace.root))
    workspace.sh("B", "echo 1 > f").ok()
    kinds = "+".join(kinds for kinds, name in watch.events() if name == "f")
    watch.close()
    assert "CREATE" in kinds and "MODIFY" in kinds and "CLOSE_WRITE" in kinds


def test_three_sleepers_take_as_long_as_one(workspace: Workspace) -> None:
    """What a workspace lock made slow: 3 × 400 ms one after the other."""
    workspace.plain("sh", "-c", "echo x > f").ok()
    begun = time.monotonic()
    results = together(*[workspace.start(t, "sh", "-c", "cat f; sleep 0.4") for t in "ABC"])
    assert all(r.code == 0 for r in results)
    assert time.monotonic() - begun < 3 * 0.4 + 1.0  # generous: machines are shared


MAPPED = """
import ctypes, mmap, os, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
INT, LONG = ctypes.c_int, ctypes.c_long
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, INT, INT, INT, LONG]
SIZE, ANONYMOUS_FIXED = 1 << 16, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10
done = threading.Event()

def maps():
    fd = os.open("mapped", os.O_RDWR)
    for i in range(150):
        at = libc.mmap(None, SIZE, 3, mmap.MAP_SHARED, fd, 0)
        ctypes.memset(at, i % 256, SIZE)
        libc.mmap(at, SIZE, 3, ANONYMOUS_FIXED, -1, 0)  # written back with the address space's lock held
        libc.munmap(at, SIZE)
    done.set()

thread = threading.Thread(target=maps)
thread.start()
n = 0
while not done.is_set():
    fd = os.open("other%d" % (n % 3), os.O_WRONLY | os.O_CREAT)
    os.write(fd, b"x")
    os.close(fd)
    n += 1
thread.join()
print("went on")
"""


def test_a_process_that_waits_for_us_with_its_memory_locked_is_not_waited_for(workspace: Workspace) -> None:
    """mmap over a dirty mapping waits for a WRITE with mmap_lock held. /proc/PID/environ, cmdline and
    mem take that lock, too: whoever reads them in between would wait for himself."""
    (workspace.root / "mapped").write_bytes(bytes(1 << 16))
    result = workspace.plain(sys.executable, "-c", MAPPED, timeout=60)
    assert result.ok().out == "went on\n"
    assert (workspace.root / "mapped").read_bytes() == bytes([149]) * (1 << 16)
