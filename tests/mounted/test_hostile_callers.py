"""Callers who want too much, say nonsense, or try to get out of the tree."""

from __future__ import annotations

import errno
import os
import pty
import resource
import subprocess
import sys
import threading
import time
import tty
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.abilities import need, need_root, need_tools
from tests.kit.crowds import beneath, crowd, mount_with_limit, nuisances, open_many, socket_of, swap
from tests.kit.mounting import Workspace


def test_more_open_files_than_the_mounting_shell_may_have(make_workspace: Callable[..., Workspace]) -> None:
    need_root()
    need_tools("prlimit")
    workspace = make_workspace(mount=False)
    mount_with_limit(workspace, 1024)
    before = len(workspace.daemon_fds())
    assert open_many(workspace, 3000, 60) > 3000
    assert len(workspace.settled_fds(before, 15)) <= before


def test_when_descriptors_run_out_callers_are_told_and_the_rest_goes_on(workspace: Workspace) -> None:
    """Also to those who only wait for a file that is open already."""
    pid = workspace.worker_pid()
    assert pid is not None
    (workspace.root / "kept").write_text("kept")
    for n in range(400):
        (workspace.root / f"f{n}").write_text(str(n))
    kept = os.open(workspace.root / "kept", os.O_RDWR)
    try:
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    except PermissionError:
        need(False, "needs to set the daemon's limit")
    workspace.announce("Too many open files")
    limit = max(map(int, os.listdir(f"/proc/{pid}/fd"))) + 60
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, hard))
    fds, refused = [], set()
    try:
        for n in range(400):
            try:
                fds.append(os.open(workspace.root / f"f{n}", os.O_RDWR if n % 2 else os.O_RDONLY))
            except OSError as error:
                refused.add(error.errno)
        assert refused and refused <= {errno.EMFILE, errno.ENFILE}
        assert 10 < len(fds) < 400
        assert os.pread(kept, 10, 0) == b"kept" and os.pwrite(kept, b"KEPT", 0) == 4
        for fd in fds[:20]:
            os.pread(fd, 10, 0)
    finally:
        for fd in fds:
            os.close(fd)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
    os.close(kept)
    assert (workspace.root / "f399").read_text() == "399"
    assert workspace.sh("A", "echo x > new; cat new kept").ok().out == "x\nKEPT"


def test_nonsense_and_a_thousand_clients_on_the_control_socket(workspace: Workspace) -> None:
    """Files stay quick, and who has something to ask gets an answer."""
    path, slowest, over = socket_of(workspace), [0.0], threading.Event()

    def work() -> None:
        while not over.is_set():
            begin = time.monotonic()
            (workspace.root / "f").write_text("x")
            assert (workspace.root / "f").read_text() == "x"
            os.unlink(workspace.root / "f")
            slowest.append(time.monotonic() - begin)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for _ in nuisances(path, 1):
            pass
        with crowd(path, 1000):
            assert workspace.fsguard("status", "--json").json()["policy"] == "warn"
            for _ in nuisances(path, 2):
                pass
            assert workspace.sh("A", "echo x > g; cat g").ok().out == "x\n"
    finally:
        over.set()
        worker.join()
    assert len(slowest) > 20 and max(slowest) < 5, max(slowest)


@pytest.mark.parametrize("side", ["mount", "behind"])
def test_no_race_leads_out_of_the_tree(split_workspace: Workspace, tmp_path: Path, side: str) -> None:
    """A directory and a symlink to a place outside change places all the time; nobody gets there."""
    escape(split_workspace, tmp_path, side, 2.0)


def escape(workspace: Workspace, outside: Path, side: str, seconds: float) -> int:
    """How often a file was reached while names were exchanged on one `side`."""
    assert workspace.backing is not None
    (outside / "f").write_text("secret")
    (outside / "sub").mkdir()
    before = sorted(os.listdir(outside))
    top = workspace.root if side == "mount" else workspace.backing
    for name in ("d", "d/sub"):
        (workspace.backing / name).mkdir()
    (workspace.backing / "d" / "f").write_text("inside")
    (workspace.backing / "link").symlink_to(outside)
    over = threading.Event()
    swapper = threading.Thread(target=swap, args=(top / "d", top / "link", over))
    root, reached = os.open(workspace.root, os.O_RDONLY), 0
    wants: list[Callable[[], object]] = [
        lambda: _look(root, "d/f", os.O_RDONLY),
        lambda: _look(root, "d/f", os.O_RDWR),
        lambda: _look(root, "d/f", os.O_WRONLY | os.O_TRUNC),
        lambda: _look(root, f"d/new{reached}", os.O_RDWR | os.O_CREAT),
        lambda: _look(root, f"d/sub/new{reached}", os.O_RDWR | os.O_CREAT),
    ]
    swapper.start()
    try:
        end, turn = time.monotonic() + seconds, 0
        while time.monotonic() < end or (reached < 20 and time.monotonic() < end + 30):
            turn += 1
            try:
                wants[turn % len(wants)]()
                reached += 1
            except OSError as error:
                assert error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENOENT, errno.ESTALE), error
    finally:
        over.set()
        swapper.join()
        os.close(root)
    assert reached >= 20, "nobody came anywhere: nothing was tried"
    assert sorted(os.listdir(outside)) == before and (outside / "f").read_text() == "secret"
    assert not os.listdir(outside / "sub")
    return reached


def _look(root: int, path: str, flags: int) -> None:
    fd = beneath(root, path, flags)
    try:
        if flags & os.O_ACCMODE != os.O_WRONLY:
            assert b"secret" not in os.pread(fd, 100, 0)
        if flags & os.O_ACCMODE != os.O_RDONLY:
            os.pwrite(fd, b"inside", 0)
    finally:
        os.close(fd)


def test_a_config_that_is_no_file_hangs_nobody(make_workspace: Callable[..., Workspace]) -> None:
    for kind in ("fifo", "directory", "device"):
        workspace = make_workspace(mount=False)
        config = workspace.root / "fsguard.toml"
        if kind == "fifo":
            os.mkfifo(config)
        elif kind == "directory":
            config.mkdir()
        else:
            config.symlink_to("/dev/zero")
        result = workspace.mount(check=False)
        assert result.code == 2 and "is not a regular file" in result.err, result
        named = workspace.root.parent / f"named-{kind}"
        config.rename(named)
        assert workspace.mount("--config", str(named), check=False).code == 2


def test_names_commands_and_words_cannot_drive_a_terminal(workspace: Workspace) -> None:
    """Whatever a file, a command, a task's role or intent is called: no command lets it through."""
    evil = "e\x1b]0;title\x07\x1b[31m\n\r\x9b2J\u202e\u2066"
    script = (
        "import sys, os\n"
        "name = sys.argv[1].encode('utf-8', 'surrogateescape')\n"
        "os.makedirs(b'd' + name, exist_ok=True)\n"
        "for path in (name, b'd' + name + b'/' + name):\n"
        "    if os.path.exists(path): open(path, 'rb').read()\n"
        "    open(path, 'w').write(sys.argv[2])\n"
    )
    words = ("--name", evil, "--intent", evil)
    said = []
    for task in ("A", "B", "A", "B"):
        said.append(workspace.run(task, sys.executable, "-c", script, evil, f"{task}\n", options=words))
    blind = "import sys; open(sys.argv[1], 'w').write(sys.argv[2])"
    said.append(workspace.run("A", sys.executable, "-c", blind, evil, evil, options=words))
    lease = ("lease", "acquire", evil.replace("\n", "") + "/", "--task", "A", "--reason", evil)
    said.append(workspace.fsguard(*lease).ok())
    held = workspace.start("A", sys.executable, "-c", "f = open('held', 'w'); input()", evil, stdin=-1)
    assert workspace.conflicts("A")
    commands = [
        ["status"], ["warnings", "--all"], ["log"], ["log", evil], ["who", evil], ["task", "list"],
        ["task", "show", "A"], ["check", "--task", "A", evil], ["versions", evil], ["conflicts"],
        ["diff", evil], ["lease", "list"], ["top", "--once"], ["metrics"], ["policy"],
        ["undo", "--task", "A"],
        ["undo", "--task", "A", "--dry-run"], ["resolve", evil], ["report", "--format", "github"],
        ["report", "--format", "json"], ["report", "--format", "junit"], ["report", "--format", "sarif"],
        ["report", "--format", "html"], ["unmount"], ["restore", f"{evil}@1"], ["show", f"{evil}@9999"],
        ["log", "--task", evil], ["task", "show", evil], ["mount", evil], ["status", evil],
        ["run", "--task", evil],
        ["policy", "block", "--path", evil], ["note", "read", "--task", evil, evil], [evil],
    ]  # fmt: skip
    texts = [(result.args, result.out + result.err) for result in said]
    for command in commands:
        texts.append((tuple(command), on_a_terminal(workspace, *command)))
    held.communicate("\n", timeout=20)
    for args, text in texts:
        loose = {c for c in text if not c.isprintable() and c not in "\n\t"}
        assert not loose and "Traceback" not in text, (args, loose, text[:2000])
    assert sum("\\x1b" in text for _, text in texts) > 15, "hardly anything was said"


def on_a_terminal(workspace: Workspace, *args: str) -> str:
    """What a command without colours writes to a terminal, which leaves it as it is."""
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    env = {**workspace.env, "NO_COLOR": "1"}
    with subprocess.Popen(
        ["fsguard", *args],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        cwd=workspace.root,
        env=env,
        start_new_session=True,
    ) as process:
        os.close(theirs)
        said = b""
        try:
            while part := os.read(ours, 65536):
                said += part
        except OSError as error:
            assert error.errno == errno.EIO  # the other side is closed
        os.close(ours)
        process.wait(30)
    return said.decode("utf-8", "surrogateescape")
