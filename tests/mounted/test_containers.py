"""Agents in other pid, mount, user and control group namespaces, with the mounted workspace bound in."""

import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from fsguard.cli import cgroup
from fsguard.control import mountinfo
from tests.kit.abilities import need, need_root, need_tools

CONFIG = r"""
[[attribution.cgroup]]
pattern = "(?:/docker/|/docker-|/libpod-)(?P<id>[0-9a-f]{12})[0-9a-f]{52}"
task = "container-{id}"

[[attribution.cgroup]]
pattern = "/kubepods[^/]*/.*pod(?P<pod>[0-9a-f_-]{36})"
task = "pod-{pod}"
"""

ID = "3f1a" * 16
POD = "8d2c4f6e-0b1a-4c3d-9e8f-7a6b5c4d3e2f"
PATHS = {
    f"docker/{ID}": f"container-{ID[:12]}",
    f"system.slice/docker-{ID}.scope": f"container-{ID[:12]}",
    f"machine.slice/libpod-{ID}.scope/container": f"container-{ID[:12]}",
    f"kubepods/burstable/pod{POD}/{ID}": f"pod-{POD}",
    f"kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/cri-containerd-{ID}.scope": (
        f"pod-{POD.replace('-', '_')}"
    ),
}


class Group:
    """A control group tree of a container engine, below our own group."""

    def __init__(self):
        self.made = []
        with open("/proc/self/cgroup", "rb") as file:
            parents = cgroup.candidates(os.fsdecode(file.read()), mountinfo.read())
        self.top = next((p for p in parents if os.access(p, os.W_OK)), None)
        need(self.top is not None, "control groups cannot be made here")
        self.top = f"{self.top}/t-{os.getpid()}"

    def __call__(self, path):
        directory = self.top
        for part in ["", *path.split("/")]:
            directory = f"{directory}/{part}".rstrip("/")
            if not os.path.isdir(directory):
                os.mkdir(directory)
                self.made.append(directory)
        return directory

    def remove(self):
        for directory in reversed(self.made):
            end = time.monotonic() + 5
            while True:  # a process that has just ended is counted for a moment
                try:
                    os.rmdir(directory)
                    break
                except OSError:
                    assert time.monotonic() < end, f"{directory} is still in use"
                    time.sleep(0.01)


@pytest.fixture
def group():
    need_root()
    group = Group()
    yield group
    group.remove()


@pytest.fixture
def shared(make_workspace):
    ws = make_workspace(mount=False)
    (ws.directory / "fsguard.toml").write_text(CONFIG)
    ws.mount()
    return ws


def unshared(ws, script):
    """A root of its own user, pid, mount, ipc and uts namespaces, which sees the workspace at /mnt."""
    inside = f"mount --bind {shlex.quote(str(ws.root))} /mnt; cd /mnt; {script}"
    flags = ["--user", "--map-root-user", "--pid", "--mount", "--ipc", "--uts", "--fork", "--mount-proc"]
    return ["unshare", *flags, "sh", "-euc", inside]


def bubblewrapped(ws, script):
    return [
        *("bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--tmpfs", "/tmp"),
        *("--bind", str(ws.root), "/mnt", "--proc", "/proc", "--dev", "/dev", "--chdir", "/mnt"),
        *("sh", "-euc", script),
    ]


SANDBOXES = {"unshare": unshared, "bwrap": bubblewrapped}


def inside(ws, directory, command, **env):
    """Run a command that starts in a control group, as a container engine starts one."""
    join = 'echo $$ >"$GROUP/cgroup.procs"; unset FSGUARD_RUNTIME_DIR; exec "$@"'
    return ws.plain("sh", "-c", join, "sh", *command, cwd="/", env={"GROUP": directory, **env})


def writers(ws, path):
    return {e["task"] for e in ws.fsguard("log", "--json", path).lines() if e["op"] == "write"}


@pytest.mark.parametrize("path", PATHS)
def test_the_engines_control_group_names_the_task(shared, group, path):
    need_tools("unshare")
    inside(shared, group(path), unshared(shared, "echo x >f; cat f")).ok()
    assert writers(shared, "f") == {PATHS[path]}


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_two_containers_are_siblings(shared, group, sandbox):
    need_tools(sandbox)
    make = SANDBOXES[sandbox]
    one, two = group(f"docker/{'a' * 64}"), group(f"docker/{'b' * 64}")
    inside(shared, one, make(shared, "echo one >f; setsid -w sh -c 'echo 1 >g'")).ok()
    inside(shared, two, make(shared, "cat f; echo two >f")).ok()
    inside(shared, one, make(shared, "echo again >f")).ok()
    (warning,) = shared.conflicts()
    assert (warning["task"], warning["sibling"]) == (f"container-{'a' * 12}", f"container-{'b' * 12}")
    assert writers(shared, "g") == {f"container-{'a' * 12}"}


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_a_sandbox_that_an_agent_starts_works_for_its_task(shared, sandbox):
    need_root()
    need_tools(sandbox)
    shared.run("agent", *SANDBOXES[sandbox](shared, "echo x >f"), cwd="/").ok()
    assert writers(shared, "f") == {"agent"}


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_an_exported_task_counts_in_there_too(shared, group, sandbox):
    need_tools(sandbox)
    command = SANDBOXES[sandbox](shared, "echo x >f")
    inside(shared, group(f"docker/{ID}"), command, FSGUARD_TASK="leg-1").ok()
    assert writers(shared, "f") == {"leg-1"}


def test_block_refuses_in_there_and_a_look_clears_it(shared, group):
    shared.fsguard("policy", "block").ok()
    one, two = group(f"docker/{'a' * 64}"), group(f"docker/{'b' * 64}")
    inside(shared, one, unshared(shared, "echo one >f")).ok()
    refused = inside(shared, two, unshared(shared, "echo two >f"))
    assert refused.code != 0 and "busy" in refused.err.lower()
    inside(shared, two, unshared(shared, "cat f; echo two >f")).ok()
    assert (shared.root / "f").read_text() == "two\n"


def test_without_the_control_socket_commands_say_so(shared, group):
    """Only the tree is bound in: writes are attributed, but there is nobody to talk to."""
    need_tools("bwrap")
    hidden = str(shared.top / "run")
    script = f"mount -t tmpfs none {hidden}; fsguard status /mnt || echo code $?"
    done = inside(
        shared, group(f"docker/{ID}"), unshared(shared, script), FSGUARD_RUNTIME_DIR=f"{hidden}/fsguard"
    )
    assert "code 3" in done.out and "no living daemon" in done.err and "Traceback" not in done.err


def test_a_ci_job_whose_unit_is_a_task_already(shared, group):
    """Its steps are below that task: a process speaks for its own and those below, for no other."""
    script = """
        fsguard ci begin --job build
        fsguard ci run --task one -- sh -c 'cat f; echo 1 >f'
        fsguard ci run --task two -- sh -c 'echo 2 >f'
        fsguard ci end --fail-on conflict || echo "ended with $?"
        """
    (shared.root / "f").write_text("0\n")
    join = 'echo $$ >"$GROUP/cgroup.procs"; exec "$@"'
    env = {"GROUP": group(f"docker/{ID}")}
    done = shared.plain("sh", "-c", join, "sh", "sh", "-euc", script, env=env).ok()
    assert "ended with 1" in done.out, done.out + done.err
    (warning,) = shared.conflicts()
    assert (warning["task"], warning["sibling"]) == ("build/two", "build/one")
    tree = {task["task"]: task["parent"] for task in shared.fsguard("task", "list", "--json").lines()}
    assert tree["build/one"] == "build" and tree["build"] == f"container-{ID[:12]}"


# ---- the daemon in a container ------------------------------------------------------------


class Boxed:
    """A daemon in namespaces of its own that mounts where the host sees it (`-v /srv:/srv:rshared`)."""

    def __init__(self, ws, *flags):
        self.ws = ws
        self.top = Path(ws.directory).parent / "shared"
        self.tree = self.top / "w"
        self.tree.mkdir(parents=True)
        subprocess.run(["mount", "--bind", self.top, self.top], check=True)
        subprocess.run(["mount", "--make-shared", self.top], check=True)
        (self.tree / "fsguard.toml").write_text(CONFIG)
        command = ["unshare", "--mount", "--propagation", "unchanged", "--fork", *flags]
        self.process = ws.start(
            None,
            *command,
            "fsguard",
            "mount",
            "--foreground",
            str(self.tree),
            cwd="/",
            stderr=subprocess.STDOUT,
        )
        self.heard = []
        while not any(line.startswith("mounted ") for line in self.heard):
            self.heard.append(self.process.stdout.readline())
            assert self.heard[-1], "".join(self.heard)

    def end(self):
        for pid in self._fsguard():
            os.kill(pid, signal.SIGTERM)
        try:
            self.process.wait(10)
        finally:
            subprocess.run(["umount", "--recursive", self.top], check=True)

    def _fsguard(self):
        """`fsguard mount`, the child of unshare."""
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]


@pytest.fixture
def boxed(make_workspace):
    need_root()
    need_tools("unshare", "mount")
    boxes = []

    def make(*flags):
        boxes.append(Boxed(make_workspace(mount=False), *flags))
        return boxes[-1]

    yield make
    for box in boxes:
        box.end()


def test_a_daemon_in_a_mount_namespace_of_its_own_guards_for_the_host(boxed, group):
    box = boxed()
    assert os.path.ismount(box.tree), "the mount did not come out of the container"
    script = 'echo $$ >"$0/cgroup.procs"; echo x >"$1/f"'
    subprocess.run(["sh", "-c", script, group(f"docker/{ID}"), box.tree], check=True)
    log = box.ws.fsguard("log", "--json", "--workspace", str(box.tree), "f", cwd=box.tree).lines()
    assert {e["task"] for e in log if e["op"] == "write"} == {f"container-{ID[:12]}"}


def test_a_daemon_that_cannot_see_who_writes_calls_it_external(boxed):
    """Without the host's process namespace (--pid=host) nobody outside can be told apart."""
    box = boxed("--pid", "--mount-proc")
    (box.tree / "f").write_text("x\n")
    log = box.ws.fsguard("log", "--json", "--workspace", str(box.tree), "f", cwd=box.tree).lines()
    (write,) = [e for e in log if e["op"] == "write"]
    assert write["task"] is None and write["command"] == "a process that cannot be seen from here"
    assert (box.tree / "f").read_text() == "x\n"
