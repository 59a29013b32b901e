"""`fsguard top` on a real mount: in a real terminal (tmux), once as text, and as JSON."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from tests.kit.abilities import need_tools
from tests.kit.agents import Agent
from tests.kit.mounting import Workspace


class Terminal:
    """A terminal of 120 by 34 in a tmux server of its own."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.base = ["tmux", "-f", "/dev/null", "-S", str(workspace.top / "tmux")]
        env = {**workspace.env, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        line = f"(cd {shlex.quote(str(workspace.root))} && exec fsguard top --interval 0.2)"
        # What it ended with stays to be seen.
        line += f"; echo ended with $?; exec {shlex.quote(os.path.realpath('/bin/sleep'))} 600"
        command = ["new-session", "-d", "-x", "120", "-y", "34", "-s", "t", line]
        subprocess.run([*self.base, *command], env=env, cwd=workspace.top, check=True, timeout=20)

    def keys(self, *keys: str) -> None:
        subprocess.run([*self.base, "send-keys", "-t", "t", *keys], check=True, timeout=20)

    def screen(self) -> str:
        command = [*self.base, "capture-pane", "-p", "-t", "t"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout

    def until(self, done: Callable[[str], bool], seconds: float = 20.0) -> str:
        end = time.monotonic() + seconds
        while not done(shown := self.screen()):
            assert time.monotonic() < end, f"the screen did not come to that:\n{shown}"
            time.sleep(0.05)
        return shown

    def close(self) -> None:
        subprocess.run([*self.base, "kill-server"], check=False, timeout=20, capture_output=True)


@pytest.fixture
def terminal(workspace: Workspace) -> Iterator[Terminal]:
    need_tools("tmux")
    workspace.plain("sh", "-c", "echo one > f").ok()
    workspace.run("A", "cat", "f").ok()
    workspace.run("B", "sh", "-c", "echo two > f").ok()
    workspace.run("A", "sh", "-c", "echo three > f").ok()
    made = Terminal(workspace)
    yield made
    made.close()


def test_a_person_looks_inspects_ends_a_task_and_loses_the_daemon(terminal: Terminal) -> None:
    workspace = terminal.workspace
    shown = terminal.until(lambda s: "stale_write" in s and "Contended paths (1)" in s and "inspect" in s)
    assert "policy warn" in shown and "Tasks (" in shown
    with Agent(workspace, "C", 'f = open("g", "w"); f.write("x"); f.flush(); stop("wrote")') as agent:
        agent.until("wrote")
        terminal.until(
            lambda s: any("C " in row and "running" in row and " g" in row for row in s.splitlines())
        )
        agent.finish()
    terminal.keys("Tab")
    terminal.keys("Enter")
    terminal.until(lambda s: "who f" in s and "written by:" in s)
    terminal.keys("Escape")
    terminal.until(lambda s: "written by:" not in s)
    terminal.keys("d")
    terminal.until(lambda s: "-two" in s and "+three" in s)
    terminal.keys("Escape")
    terminal.until(lambda s: "+three" not in s)
    terminal.keys("BTab")
    terminal.keys("e")
    terminal.until(lambda s: "y yes" in s)
    terminal.keys("y")
    terminal.until(lambda s: "has ended" in s)
    assert [t["task"] for t in workspace.status()["tasks"] if t["state"] == "ended"] == ["B"]
    terminal.keys("Escape")
    # It does not stand in the workspace, which can be unmounted; then it looks for the daemon.
    workspace.unmount()
    terminal.until(lambda s: "daemon lost, looking for it" in s)
    workspace.mount()
    terminal.until(lambda s: "policy warn" in s and "0 tasks" in s)
    terminal.keys("q")
    terminal.until(lambda s: "ended with 0" in s)


def test_once_and_json_need_no_terminal_and_no_library(workspace: Workspace) -> None:
    workspace.plain("sh", "-c", "echo one > f").ok()
    workspace.run("A", "cat", "f").ok()
    workspace.run("B", "sh", "-c", "echo two > f").ok()
    (workspace.top / "no").mkdir()
    for name in ("textual", "rich"):  # as if they were not installed
        (workspace.top / "no" / f"{name}.py").write_text(f"raise ModuleNotFoundError('no', name={name!r})\n")
    env = {"PYTHONPATH": str(workspace.top / "no")}
    text = workspace.fsguard("top", env=env).ok().out
    assert "Tasks" in text and "B, (no task)" in text
    facts = workspace.fsguard("top", "--json", "--once", env=env).json()
    assert {t["task"]: (t["reading"], t["writing"]) for t in facts["tasks"]} == {
        "A": (["f"], []),
        "B": ([], ["f"]),
    }
    (contended,) = facts["contended"]
    assert (contended["path"], contended["tasks"], contended["writers"]) == ("f", ["B", "A"], ["B"])


def test_what_is_open_and_who_waits_is_seen(workspace: Workspace) -> None:
    with Agent(workspace, "A", 'f = open("f", "w"); f.write("x"); f.flush(); stop("writes")') as agent:
        agent.until("writes")
        facts = workspace.fsguard("top", "--json", "--once").json()
        (held,) = [o for o in facts["open"] if o["path"] == "f"]
        assert (held["task"], held["mode"]) == ("A", "w") and facts["tasks"][0]["writing"] == ["f"]
        agent.finish()


def test_json_goes_on_until_it_is_ended(workspace: Workspace) -> None:
    process = workspace.start(None, "fsguard", "top", "--json", "--interval", "0.1")
    assert process.stdout is not None
    times = [json.loads(process.stdout.readline())["time"] for _ in range(3)]
    assert times == sorted(set(times))
    workspace.unmount()
    assert process.wait(20) in (3, 7)


def test_a_wrong_interval_is_refused(workspace: Workspace) -> None:
    for interval in ("0", "-1", "nan", "x", "1e9"):
        assert workspace.fsguard("top", "--interval", interval).code == 2
