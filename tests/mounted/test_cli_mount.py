"""fsguard mount and unmount on real mounts: what is refused, who is listed, what is left."""

import json
import os
import select
import signal
import subprocess

import pytest

from fsguard.control import registry
from tests.kit.abilities import need_root


def entered(directory, **options):
    """A process that stands in `directory`, until its stdin closes."""
    process = subprocess.Popen(
        ["sh", "-c", "echo in; read x"],
        cwd=directory,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )
    assert process.stdout.readline() == "in\n"
    return process


def leave(process):
    process.communicate("x\n", timeout=10)


def test_mount_answers_when_ready_and_says_what_it_did(make_workspace):
    ws = make_workspace(mount=False)
    (ws.directory / "f").write_text("x")
    said = ws.mount("--json").json()
    assert said["workspace"] == said["mountpoint"] == str(ws.directory)
    assert said["pid"] == ws.daemon_pid() and said["recovered"] is False and said["standing"] == []
    assert isinstance(said["features"], dict)
    assert (ws.root / "f").read_text() == "x"


def test_a_second_mount_and_one_inside_are_refused(workspace):
    (workspace.root / "sub").mkdir()
    again = workspace.fsguard("mount", str(workspace.root))
    assert again.code == 4 and "already mounted" in again.err
    inside = workspace.fsguard("mount", str(workspace.root / "sub"))
    assert inside.code == 2 and "inside the guarded workspace" in inside.err
    around = workspace.fsguard("mount", str(workspace.top), "--state-dir", "/tmp/fsguard-test-elsewhere")
    assert around.code == 2 and "is guarded already" in around.err
    assert not os.path.exists("/tmp/fsguard-test-elsewhere")


def test_whoever_stood_in_the_directory_is_listed(make_workspace):
    ws = make_workspace(mount=False)
    (ws.directory / "sub").mkdir()
    inside = entered(ws.directory / "sub")
    said = ws.mount("--json")
    (holder,) = said.json()["standing"]
    assert (holder["pid"], holder["how"], holder["path"]) == (inside.pid, "cwd", str(ws.directory / "sub"))
    ws.unmount()
    said = ws.mount()
    assert "go around the mount" in said.err and f"(pid {inside.pid}) stands in" in said.err
    leave(inside)


def test_a_busy_mount_names_who_holds_it_and_stays(workspace):
    (workspace.root / "f").write_text("x")
    inside, reader = entered(workspace.root), subprocess.Popen(
        ["sh", "-c", "exec 3<f; cd /; echo in; read x"], cwd=workspace.root, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert reader.stdout.readline() == "in\n"
    busy = workspace.fsguard("unmount", str(workspace.root), cwd="/")
    assert busy.code == 4 and os.path.ismount(workspace.root)
    assert f"(pid {inside.pid}) stands in {workspace.root}" in busy.err
    assert f"(pid {reader.pid}) has open {workspace.root}/f" in busy.err
    said = workspace.fsguard("unmount", "--json", str(workspace.root), cwd="/")
    assert said.code == 4
    assert {h["pid"]: h["how"] for h in json.loads(said.out)["holders"]} == {
        inside.pid: "cwd",
        reader.pid: "fd",
    }
    leave(inside)
    leave(reader)


def test_a_mapped_file_keeps_a_mount_busy_and_is_named(workspace):
    program = "import mmap, os, sys; f = open('f', 'rb'); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\n"
    program += "f.close(); os.chdir('/'); print('in', flush=True); sys.stdin.readline()"
    (workspace.root / "f").write_text("x")
    holder = subprocess.Popen(
        ["python3", "-S", "-c", program],
        cwd=workspace.root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout.readline() == "in\n"
    busy = workspace.fsguard("unmount", str(workspace.root), cwd="/")
    assert busy.code == 4 and f"(pid {holder.pid})" in busy.err
    leave(holder)


def test_who_is_on_the_covered_directory_does_not_keep_the_mount_busy(make_workspace):
    ws = make_workspace(mount=False)
    below = entered(ws.directory)
    ws.mount()
    inside = entered(ws.root)
    busy = ws.fsguard("unmount", "--json", str(ws.root), cwd="/")
    assert [holder["pid"] for holder in json.loads(busy.out)["holders"]] == [inside.pid]
    leave(inside)
    ws.unmount()
    leave(below)


def test_a_copy_in_another_namespace_is_named_and_can_be_given_up(workspace):
    need_root()
    (workspace.root / "f").write_text("x")
    copy = "echo there; exec sleep 1000"
    held = workspace.start(None, "unshare", "--mount", "--propagation", "private", "sh", "-c", copy, cwd="/")
    assert held.stdout.readline() == "there\n"
    daemon = workspace.daemon_pid()
    result = workspace.fsguard("unmount", str(workspace.root), cwd=workspace.top)
    workspace.mounted = False
    assert result.code == 7 and f"pid {held.pid}" in result.err and "ENOTCONN" in result.err, result
    pidfd = os.pidfd_open(daemon)
    for _ in range(2):
        os.kill(daemon, signal.SIGTERM)
        select.select([pidfd], [], [], 3)  # the first one only asks
    assert select.select([pidfd], [], [], 10)[0], "the daemon goes on"
    os.close(pidfd)
    seen = workspace.plain(
        "nsenter", "--mount", f"--target={held.pid}", "stat", str(workspace.root / "f"), cwd="/"
    )
    assert "not connected" in seen.err
    held.kill()
    held.wait()


def test_unmount_leaves_nothing_behind(workspace):
    pid = workspace.daemon_pid()
    run = workspace.top / "run" / "fsguard"
    assert len(list(run.iterdir())) == 2
    done = workspace.fsguard("unmount", str(workspace.root / "any" / "path"), cwd="/")
    assert (done.code, done.out) == (0, f"unmounted {workspace.root}\n")
    workspace.mounted = False
    # None for a zombie too: reaping it is for whoever adopted it.
    assert registry.start_time(pid) is None and list(run.iterdir()) == []
    again = workspace.fsguard("unmount", str(workspace.root), cwd="/")
    assert again.code == 3 and "not in a guarded workspace" in again.err


def test_a_workspace_is_named_by_its_backing_directory_too(split_workspace):
    ws = split_workspace
    assert ws.fsguard("status", "--json", str(ws.backing), cwd="/").json()["mountpoint"] == str(ws.root)
    assert ws.fsguard("unmount", str(ws.backing), cwd="/").code == 0
    ws.mounted = False


def test_a_dead_mount_is_named_and_unmounted(workspace):
    workspace.kill_daemon()
    status = workspace.fsguard("status", str(workspace.root), cwd="/")
    assert status.code == 3 and "no living daemon" in status.err and "fsguard unmount" in status.err
    done = workspace.fsguard("unmount", str(workspace.root), cwd="/")
    assert done.code == 0 and not os.path.ismount(workspace.root)
    workspace.mounted = False
    assert list((workspace.top / "run" / "fsguard").iterdir()) == []


def test_a_dead_mount_is_taken_away_by_the_next_mount(workspace):
    (workspace.root / "f").write_text("kept")
    workspace.kill_daemon()
    again = workspace.fsguard("mount", str(workspace.directory), "--json", cwd="/")
    assert again.code == 0, again.err
    assert json.loads(again.out)["recovered"] is True and "took away a dead mount" in again.err
    assert (workspace.root / "f").read_text() == "kept"


def test_a_mistake_in_the_configuration_is_told_at_the_mount(make_workspace):
    ws = make_workspace(mount=False)
    (ws.directory / "fsguard.toml").write_text("polcy = 'warn'\n")
    failed = ws.mount(check=False)
    assert failed.code == 2 and "fsguard.toml:1" in failed.err and "Traceback" not in failed.err
    assert not os.path.ismount(ws.root) and ws.daemon_pid() is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_in_the_foreground_a_signal_unmounts(make_workspace, number):
    ws = make_workspace(mount=False)
    process = ws.start(None, "fsguard", "mount", "--foreground", str(ws.directory), cwd=ws.top)
    assert process.stdout.readline() == f"mounted {ws.directory} in place\n"
    assert os.path.ismount(ws.root) and process.poll() is None
    inside = entered(ws.root)
    process.send_signal(number)
    seen = ""
    while "once more" not in seen:
        assert select.select([process.stderr], [], [], 10)[0], seen
        seen += os.read(process.stderr.fileno(), 4096).decode()
    assert f"(pid {inside.pid}) stands in" in seen and os.path.ismount(ws.root)
    leave(inside)
    process.send_signal(number)
    process.wait(10)
    assert process.returncode == 0 and not os.path.ismount(ws.root)


def test_in_the_foreground_an_unmount_from_elsewhere_ends_it(make_workspace):
    ws = make_workspace(mount=False)
    process = ws.start(None, "fsguard", "mount", "--foreground", str(ws.directory), cwd=ws.top)
    process.stdout.readline()
    assert ws.fsguard("unmount", str(ws.directory), cwd="/").code == 0
    assert process.wait(10) == 0


def test_a_run_enters_the_mount_although_its_shell_is_older(make_workspace):
    ws = make_workspace(mount=False)
    shell = subprocess.Popen(
        ["sh"],
        cwd=ws.directory,
        env=ws.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    ws.mount()
    out, err = shell.communicate("fsguard run --task A -- sh -c 'echo a > f'\n", timeout=20)
    assert (shell.returncode, out, err) == (0, "", "")
    (entry,) = [e for e in ws.fsguard("log", "--json", cwd=ws.root).lines() if e["op"] == "write"]
    assert (entry["task"], entry["path"]) == ("A", "f")
