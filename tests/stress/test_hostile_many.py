"""Crowds: open files, processes of one task, and long attempts to get out of the tree."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit import tally
from tests.kit.abilities import need_root, need_tools
from tests.kit.agents import until
from tests.kit.crowds import most_files, mount_with_limit, open_many
from tests.kit.mounting import Workspace
from tests.mounted.test_hostile_callers import escape

PROCESSES = int(os.environ.get("FSGUARD_PROCESSES", "10000"))


@pytest.fixture(params=["lane", "daemon"])
def io(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def unmounted(make_workspace: Callable[..., Workspace], io: str) -> Workspace:
    workspace = make_workspace(mount=False)
    workspace.options = ("--io", io)
    return workspace


def test_a_hundred_thousand_open_files(unmounted: Workspace, io: str) -> None:
    """Or as many as this machine lets any process have."""
    need_root()
    need_tools("prlimit")
    count = min(100_000, most_files() - 1000)
    mount_with_limit(unmounted, 1024)
    before = len(unmounted.daemon_fds())
    assert open_many(unmounted, count, 900) > count
    assert len(unmounted.settled_fds(before, 120)) <= before
    tally.note("files open at once", io, count, 0)


CROWD = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char **argv) {
    int count = atoi(argv[1]), ready[2], go[2], failed = 0, status;
    char byte, name[64];
    if (argc < 2 || pipe(ready) || pipe(go)) return 2;
    for (int n = 0; n < count; n++) {
        pid_t pid = fork();
        if (pid < 0) { perror("fork"); return 3; }
        if (pid == 0) {
            close(go[1]);
            snprintf(name, sizeof name, "d%d/p%d", n % 100, n);
            int fd = open(name, O_RDWR | O_CREAT, 0600);
            int log = open("log", O_WRONLY | O_APPEND | O_CREAT, 0600);
            int bad = fd < 0 || log < 0 || write(fd, name, 10) != 10 || write(log, "x", 1) != 1;
            if (write(ready[1], "r", 1) != 1 || read(go[0], &byte, 1) != 0) bad = 1;
            if (pwrite(fd, "again", 5, 0) != 5) bad = 1;
            _exit(bad);
        }
    }
    for (int n = 0; n < count; n++)
        if (read(ready[0], &byte, 1) != 1) return 4;
    printf("all are there\n");
    fflush(stdout);
    if (getchar() == EOF) return 5;
    close(go[1]);
    for (int n = 0; n < count; n++)
        if (wait(&status) < 0 || status) failed++;
    printf("%d failed\n", failed);
    return failed != 0;
}
"""


def test_a_task_of_ten_thousand_processes(unmounted: Workspace, io: str) -> None:
    """Each has a file and a log open; all are the task's, a command of another one is answered meanwhile."""
    need_tools("cc")
    # Two descriptors of the daemon's for each.
    count = min(PROCESSES, most_files() // 2 - 500)
    program = unmounted.top / "crowd"
    (unmounted.top / "crowd.c").write_text(CROWD)
    subprocess.run(["cc", "-O1", "-o", str(program), str(unmounted.top / "crowd.c")], check=True)
    for n in range(100):
        (unmounted.directory / f"d{n}").mkdir()
    unmounted.mount()
    before = len(unmounted.daemon_fds())
    process = unmounted.start("crowd", str(program), str(count), stdin=subprocess.PIPE)
    assert process.stdout and process.stderr
    assert process.stdout.readline() == "all are there\n", process.stderr.read()
    assert unmounted.sh("other", "cat d7/p7; echo x > mine; cat mine").ok().out.endswith("x\n")
    out, err = process.communicate("\n", timeout=600)
    assert process.returncode == 0 and out == "0 failed\n", out + err[-2000:]
    assert (unmounted.root / "log").stat().st_size == count
    until(lambda: unmounted.status()["open_files"] == 0, "closing all files", 60)
    assert len(unmounted.settled_fds(before, 60)) <= before
    (crowd,) = [t for t in unmounted.fsguard("task", "list", "--json").lines() if t["task"] == "crowd"]
    assert crowd
    assert unmounted.fsguard("who", f"d{(count - 1) % 100}/p{count - 1}", "--json").json()["writers"]
    tally.note("processes of one task at once", io, count, 0)


@pytest.mark.parametrize("side", ["mount", "behind"])
def test_no_race_leads_out_of_the_tree(
    make_workspace: Callable[..., Workspace], tmp_path: Path, io: str, side: str
) -> None:
    workspace = make_workspace(mount=False, separate=True)
    workspace.options = ("--io", io)
    workspace.mount()
    reached = escape(workspace, tmp_path, side, 60.0)
    tally.note(f"ways out of the tree, names exchanged on the side of the {side}", io, reached, 0)
