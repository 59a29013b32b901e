"""opencode's plugin in a JavaScript engine, as opencode calls it, down to the daemon."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsguard.hooks import plugin
from tests.adapter.fake_daemon import FakeDaemon
from tests.kit.abilities import need_tools

DRIVER = """
import { Fsguard } from "./fsguard.mjs"
import { readFileSync } from "node:fs"
const hooks = await Fsguard({ directory: process.cwd(), project: {}, client: {} })
const said = []
for (const [name, input, output] of JSON.parse(readFileSync(0, "utf8"))) {
  try {
    const result = output ?? {}
    await hooks[name](input, result)
    said.push(result)
  } catch (error) {
    said.push({ thrown: error.message })
  }
}
console.log(JSON.stringify(said))
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    need_tools("node")
    answers = {
        "tool.begin": {"stale": False, "refused": False, "message": None},
        "tool.end": {"warnings": []},
        "task.start": {},
        "task.end": {"told": []},
        "warnings": [],
    }
    with FakeDaemon(tmp_path, answers) as daemon:
        script = tmp_path / "fsguard"
        script.write_text(f'#!/bin/sh\nexec "{daemon.command()[0]}" -P -m fsguard.cli "$@"\n')
        script.chmod(0o755)
        (tmp_path / "fsguard.mjs").write_text(plugin.source(str(script)))
        (tmp_path / "driver.mjs").write_text(DRIVER)
        (daemon.workspace / "f").write_text("x")
        yield daemon


def play(daemon: FakeDaemon, *steps: list[Any]) -> list[Any]:
    """What each call of the plugin made of its output."""
    daemon.calls.clear()
    done = subprocess.run(
        ["node", str(daemon.top / "driver.mjs")],
        input=json.dumps(steps),
        capture_output=True,
        text=True,
        cwd=daemon.workspace,
        env=daemon.env,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    result: list[Any] = json.loads(done.stdout)
    return result


def tool(name: str, session: str, call: str, **args: Any) -> list[list[Any]]:
    """The two calls around a tool."""
    common = {"tool": name, "sessionID": session, "callID": call}
    result = {"title": name, "output": "done", "metadata": {}}
    return [
        ["tool.execute.before", common, {"args": args}],
        ["tool.execute.after", {**common, "args": args}, result],
    ]


def test_a_session_and_its_subagent(daemon: FakeDaemon) -> None:
    daemon.answers["warnings"] = [{"id": 1, "message": "news"}]
    info = {"id": "child", "parentID": "main", "title": "Look around"}
    before, after = tool("edit", "child", "c1", filePath=str(daemon.workspace / "f"))
    said = play(
        daemon,
        ["event", {"event": {"type": "session.created", "properties": {"info": info}}}],
        before,
        after,
        [
            "shell.env",
            {"cwd": str(daemon.workspace), "sessionID": "child", "callID": "c2"},
            {"env": {"X": "1"}},
        ],
        ["event", {"event": {"type": "session.idle", "properties": {"sessionID": "child"}}}],
        ["event", {"event": {"type": "message.updated", "properties": {"info": {"id": "m"}}}}],
    )
    assert said[2]["output"] == "done\n\nfsguard: news"
    assert said[3]["env"] == {"X": "1", "FSGUARD_TASK": "opencode-child", "FSGUARD_PARENT": "opencode-main"}
    methods = [method for method, _ in daemon.calls]
    assert methods == ["task.start", "tool.begin", "tool.end", "warnings", "task.start", "task.end"]
    begun = daemon.calls[1][1]
    assert (begun["task"], begun["parent"], begun["path"]) == ("opencode-child", "opencode-main", "f")
    assert daemon.params("task.end") == {"task": "opencode-child"}


def test_a_refusal_is_thrown_and_other_tools_go_on(daemon: FakeDaemon) -> None:
    daemon.answers["tool.begin"] = {"stale": True, "refused": True, "message": "B wrote it"}
    (write, _), (glob, after) = tool("write", "s", "c1", filePath="f"), tool("glob", "s", "c2", pattern="*")
    said = play(daemon, write, glob, after)
    assert "B wrote it" in said[0]["thrown"]
    assert said[1] == {"args": {"pattern": "*"}} and said[2]["output"] == "done"


def test_shells_of_older_versions_that_do_not_say_whose_they_are(daemon: FakeDaemon) -> None:
    before, after = tool("bash", "main", "c1", command="ls")
    env = ["shell.env", {"cwd": str(daemon.workspace)}, {"env": {}}]
    said = play(daemon, env, before, env, after, env)
    assert [one.get("env") for one in said] == [{}, None, {"FSGUARD_TASK": "opencode-main"}, None, {}]


@pytest.mark.parametrize("body", [None, "exit 3", "echo nonsense", "echo null", "sleep 30", "exit 0"])
def test_whatever_fsguard_does_opencode_goes_on(daemon: FakeDaemon, body: str | None) -> None:
    script = daemon.top / "fsguard"
    script.unlink()
    if body is not None:
        script.write_text(f"#!/bin/sh\n{body}\n")
        script.chmod(0o755)
    before, after = tool("edit", "s", "c1", filePath="f")
    began = time.monotonic()
    assert play(daemon, before, after) == [
        {"args": {"filePath": "f"}},
        {"title": "edit", "output": "done", "metadata": {}},
    ]
    assert time.monotonic() - began < 25, "it waited for what fsguard left behind, and could not end"
