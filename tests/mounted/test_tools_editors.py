"""Editors' saves, and programs that watch for them."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.kit.abilities import lacking
from tests.kit.inotify import Watch
from tests.kit.mounting import Workspace

VIM = shutil.which("vim") or shutil.which("vim.tiny")


def vim(workspace: Workspace, *commands: str) -> None:
    if VIM is None:
        lacking("vim is not installed")
    options = [word for command in commands for word in ("-c", command)]
    workspace.run("alice", str(VIM), "-u", "NONE", "-i", "NONE", "-n", "-es", *options, "f").ok()


@pytest.mark.parametrize("backup", ["nobackup nowritebackup", "writebackup", "backup"])
@pytest.mark.parametrize("how", ["yes", "no", "auto"])
def test_vim_saves(workspace: Workspace, how: str, backup: str) -> None:
    workspace.sh("alice", "echo one >f && chmod 750 f && ln f other").ok()
    vim(workspace, f"set {backup} backupcopy={how} backupskip=", "s/one/two/", "wq")
    assert (workspace.root / "f").read_text() == "two\n"
    assert oct((workspace.root / "f").stat().st_mode)[-3:] == "750"
    kept = {"f", "other"} | ({"f~"} if backup == "backup" else set())
    assert set(os.listdir(workspace.root)) == kept
    assert workspace.conflicts() == []


def test_vim_with_a_swap_file_and_undo_file(workspace: Workspace) -> None:
    if VIM is None:
        lacking("vim is not installed")
    workspace.sh("alice", "echo one >f").ok()
    options = ["-c", "set swapfile", "-c", "s/one/two/", "-c", "w", "-c", "s/two/three/", "-c", "wq"]
    workspace.run("alice", str(VIM), "-u", "NONE", "-i", "NONE", "-es", *options, "f").ok()
    assert (workspace.root / "f").read_text() == "three\n"
    assert os.listdir(workspace.root) == ["f"]
    assert workspace.conflicts() == []


SAVES = {
    "in place, as nano": "open('f', 'w').write(new)",
    "backup by rename, as emacs": "os.rename('f', 'f~'); open('f', 'w').write(new); os.unlink('f~')",
    "temporary file and rename, as most": """
with open('.f.tmp', 'w') as out:
    out.write(new); out.flush(); os.fsync(out.fileno())
os.chmod('.f.tmp', os.stat('f').st_mode & 0o7777)
os.rename('.f.tmp', 'f')
""",
    "backup by link": "os.link('f', 'f~'); open('.n', 'w').write(new); os.rename('.n', 'f'); os.unlink('f~')",
    "truncate and write": """
with open('f', 'r+') as out:
    out.truncate(0); out.write(new); out.flush(); os.fsync(out.fileno())
""",
}


@pytest.mark.parametrize("way", SAVES)
def test_ways_to_save(workspace: Workspace, way: str) -> None:
    script = "import os\nfor n in range(5):\n    old = open('f').read(); new = old + f'line {n}\\n'\n"
    script += "".join(f"    {line}\n" for line in SAVES[way].strip().splitlines())
    workspace.sh("alice", "echo begin >f").ok()
    workspace.python("alice", script).ok()
    assert (workspace.root / "f").read_text().split() == [
        "begin",
        "line",
        "0",
        "line",
        "1",
        "line",
        "2",
        "line",
        "3",
        "line",
        "4",
    ]
    assert os.listdir(workspace.root) == ["f"]
    assert workspace.conflicts() == []


# ---- watchers --------------------------------------------------------------------------------


def test_a_watcher_sees_every_siblings_write(workspace: Workspace) -> None:
    """What `tsc --watch` and pytest-watch rely on: inotify on directories of the mount."""
    workspace.sh("alice", "mkdir src && echo 1 >src/a.ts && echo 1 >src/b.ts").ok()
    watch = Watch(str(workspace.root / "src"), mask=0x2 | 0x8 | 0x40 | 0x80 | 0x100 | 0x200)
    workspace.sh("bob", "echo 2 >src/a.ts").ok()
    workspace.sh("carol", "sed -i s/1/3/ src/b.ts").ok()
    workspace.sh("bob", "echo new >src/c.ts && mv src/c.ts src/d.ts && rm src/d.ts").ok()
    events = watch.events(0.2)
    watch.close()
    assert ("MODIFY", "a.ts") in events and ("CLOSE_WRITE", "a.ts") in events
    assert ("MOVED_TO", "b.ts") in events
    assert [event for event in events if event[1] in ("c.ts", "d.ts")] == [
        ("CREATE", "c.ts"),
        ("MODIFY", "c.ts"),
        ("CLOSE_WRITE", "c.ts"),
        ("MOVED_FROM", "c.ts"),
        ("MOVED_TO", "d.ts"),
        ("DELETE", "d.ts"),
    ]


def test_a_watcher_of_one_file_sees_it_replaced(workspace: Workspace) -> None:
    workspace.sh("alice", "echo 1 >f").ok()
    watch = Watch(str(workspace.root / "f"))
    workspace.sh("bob", "echo 2 >.new && mv .new f").ok()
    kinds = {kind for kind, _ in watch.events(0.2)}
    watch.close()
    assert kinds & {"ATTRIB", "DELETE_SELF"}


def test_a_poller_sees_a_siblings_write_at_once(workspace: Workspace) -> None:
    """stat(2) is never staler than the write: no attribute cache in the way."""
    path = workspace.root / "f"
    path.write_text("")
    for number in range(10):
        before = path.stat()
        workspace.sh("bob", f"echo {number} >>f").ok()
        after = path.stat()
        assert after.st_size == before.st_size + 2
        assert after.st_mtime_ns > before.st_mtime_ns
