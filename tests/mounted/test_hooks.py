"""Agents' hooks on a real mount: one process for several subagents, Edit against Bash, at the right time."""

from __future__ import annotations

import json
import os
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.agent_tools import AgentTool
from tests.kit.mounting import Result, Workspace

SESSION = "5e1f2a3b-1111-4222-8333-444455556666"
OTHER = "6f2a3b4c-1111-4222-8333-444455556666"
ME = "claude-5e1f2a3b"


class Tool(AgentTool):
    """One running agent tool, with the hooks that `fsguard hooks install` gave it."""

    def __init__(self, workspace: Workspace, tool: str, session: str) -> None:
        super().__init__(workspace, tool)
        self.session = session
        self.calls = 0

    def hook(self, name: str, **fields: Any) -> dict[str, Any]:
        """Run the hook for an event; what it answers ({}: nothing at all)."""
        event = {
            "session_id": self.session,
            "transcript_path": "/nowhere/t.jsonl",
            "cwd": str(self.workspace.root),
            "hook_event_name": name,
            "a_field_of_tomorrow": {"x": [1]},
            **fields,
        }
        return self.send(event)


class Claude(Tool):
    """Claude Code: `agent` is the subagent that acts, None the session itself."""

    def __init__(self, workspace: Workspace, session: str = SESSION) -> None:
        super().__init__(workspace, "claude-code", session)

    def _of(self, agent: str | None) -> dict[str, str]:
        return {"agent_id": agent, "agent_type": "Explore"} if agent else {}

    def start(self, agent: str) -> None:
        assert self.hook("SubagentStart", **self._of(agent)) == {}

    def stop(self, agent: str) -> None:
        assert self.hook("SubagentStop", **self._of(agent), stop_hook_active=False) == {}

    def call(
        self, agent: str | None, tool: str, given: dict[str, Any], act: Callable[[dict[str, Any]], Any]
    ) -> tuple[str, str, Any]:
        """(context before, context after, what the tool gave); the tool does not run when it is denied."""
        self.calls += 1
        about = {"tool_name": tool, "tool_input": given, "tool_use_id": f"toolu_{self.calls}"}
        before = self.hook("PreToolUse", **about, **self._of(agent)).get("hookSpecificOutput", {})
        if before.get("permissionDecision") == "deny":
            return before["permissionDecisionReason"], "", None
        assert "permissionDecision" not in before
        result = act(before.get("updatedInput", given))
        after = self.hook("PostToolUse", **about, **self._of(agent), tool_response={})
        return (
            before.get("additionalContext", ""),
            after.get("hookSpecificOutput", {}).get("additionalContext", ""),
            result,
        )

    def read(self, agent: str | None, name: str, **more: Any) -> tuple[str, str, Any]:
        given = {"file_path": str(self.workspace.root / name), **more}
        return self.call(agent, "Read", given, lambda given: self.ask("read", given["file_path"]))

    def write(self, agent: str | None, name: str, text: str, how: str = "write") -> tuple[str, str, Any]:
        given = {"file_path": str(self.workspace.root / name), "content": text}
        return self.call(
            agent, "Write", given, lambda given: self.ask(how, [given["file_path"], given["content"]])
        )

    def edit(self, agent: str | None, name: str, old: str, new: str) -> tuple[str, str, Any]:
        path = str(self.workspace.root / name)
        given = {"file_path": path, "old_string": old, "new_string": new, "replace_all": False}

        def act(given: dict[str, Any]) -> Any:
            text = self.ask("read", path)
            return self.ask("save", [path, text.replace(given["old_string"], given["new_string"])])

        return self.call(agent, "Edit", given, act)

    def bash(self, agent: str | None, command: str) -> tuple[str, str, Any]:
        """As Claude Code does: the command once more in quotation marks, and the cwd noted after it."""
        given = {"command": command, "description": "try it"}
        note = shlex.quote(f"{self.workspace.top}/cwd")

        def act(given: dict[str, Any]) -> Any:
            return self.ask("bash", f"eval {shlex.quote(given['command'])} < /dev/null && pwd -P >| {note}")

        return self.call(agent, "Bash", given, act)


@pytest.fixture
def claude(workspace: Workspace) -> Iterator[Claude]:
    workspace.plain("sh", "-c", "seq 1 20 > f; seq 1 20 > g").ok()
    tool = Claude(workspace)
    yield tool
    tool.close()


def said_by(result: tuple[str, str, Any]) -> str:
    return result[0] + result[1]


def test_of_two_subagents_in_one_process_the_right_one_is_warned(claude: Claude) -> None:
    for agent in ("a1", "b2"):
        claude.start(agent)
    assert said_by(claude.read("a1", "f")) == ""
    assert said_by(claude.read("b2", "f")) == ""
    assert said_by(claude.write("b2", "f", "by b2\n")) == "", "b2 saw what is there"
    before, after, _ = claude.write("a1", "f", "by a1\n")
    for words in (before, after):
        assert f'"{ME}.b2"' in words and "Explore" in words and "f" in words
    (warning,) = claude.workspace.conflicts(f"{ME}.a1")
    assert warning["sibling"] == f"{ME}.b2" and warning["kind"] in ("stale_write", "lost_update")
    assert claude.workspace.conflicts(ME) == []
    # It is told to a1 once, and b2 hears of its own loss only.
    assert said_by(claude.read("a1", "g")) == ""
    assert "stale" not in said_by(claude.read("b2", "g"))


def test_a_subagent_against_its_session_is_its_own_work(claude: Claude) -> None:
    claude.start("a1")
    assert said_by(claude.read(None, "f")) == ""
    assert said_by(claude.read("a1", "f")) == ""
    assert said_by(claude.edit("a1", "f", "2\n", "two\n")) == ""
    claude.stop("a1")
    _, after, _ = claude.bash(None, "true")
    assert f'"{ME}.a1"' in after and "f" in after, "the parent is told what its child changed"
    state = {task["task"]: task for task in claude.workspace.status()["tasks"]}
    assert state[f"{ME}.a1"]["state"] == "ended" and state[f"{ME}.a1"]["parent"] == ME
    assert state[f"{ME}.a1"]["name"] == "Explore"


def test_an_edit_against_bash_of_another_session(claude: Claude) -> None:
    other = Claude(claude.workspace, OTHER)
    claude.read(None, "f")
    assert said_by(other.bash(None, "sed -i 's/^7$/seven/' f")) == ""
    before, after, _ = claude.write(None, "f", "mine\n", how="save")
    assert '"claude-6f2a3b4c"' in before and "sed -i" in before and "try it" in before
    assert '"claude-6f2a3b4c"' in after
    assert (claude.workspace.root / "f").read_text() == "mine\n", "a warning warns"
    (warning,) = claude.workspace.conflicts(ME)
    assert warning["sibling"] == "claude-6f2a3b4c"
    assert other.process.stdin
    other.process.stdin.close()


def test_bash_of_one_subagent_against_an_edit_of_another(claude: Claude) -> None:
    claude.start("a1")
    claude.start("b2")
    claude.bash("a1", "cat f")
    assert said_by(claude.read("b2", "f")) == ""
    assert said_by(claude.edit("b2", "f", "2\n", "two\n")) == ""
    before, after, result = claude.bash("a1", "echo lost > f; exit 0")
    assert before == "" and result[0] == 0
    assert f'"{ME}.b2"' in after and "f" in after
    (warning,) = claude.workspace.conflicts(f"{ME}.a1")
    assert warning["command"] and warning["sibling"] == f"{ME}.b2"


def test_an_edit_that_reads_the_file_anew_is_a_note_at_most(claude: Claude) -> None:
    claude.start("a1")
    claude.start("b2")
    claude.read("a1", "f")
    claude.read("b2", "f")
    claude.edit("b2", "f", "2\n", "two\n")
    before, after, _ = claude.edit("a1", "f", "19\n", "nineteen\n")
    assert f'"{ME}.b2"' in before + after
    text = (claude.workspace.root / "f").read_text()
    assert "nineteen" in text and "two" in text
    assert [w["kind"] for w in claude.workspace.conflicts(f"{ME}.a1")] == []


def test_under_block_the_write_is_refused_with_a_way_out_and_the_same_words(claude: Claude) -> None:
    workspace = claude.workspace
    claude.start("a1")
    claude.start("b2")
    claude.read("a1", "f")
    claude.read("b2", "f")
    claude.write("b2", "f", "by b2\n")
    workspace.fsguard("policy", "block", cwd=workspace.root).ok()
    first, _, result = claude.write("a1", "f", "by a1\n")
    assert result is None and f'"{ME}.b2"' in first and "Read f" in first
    assert "-20\n" in first and "+by b2" in first, "what it read against what is there now"
    assert claude.write("a1", "f", "by a1\n")[0] == first, "the same words on a retry"
    assert (workspace.root / "f").read_text() == "by b2\n"
    lease = workspace.fsguard("lease", "acquire", "f", "--task", "other", "--wait", "0")
    assert lease.code == 0, "a refused call is not in progress: " + lease.err
    workspace.fsguard("lease", "release", "--task", "other").ok()
    assert said_by(claude.read("a1", "f")) == ""
    assert claude.write("a1", "f", "both\n")[0] == ""
    assert (workspace.root / "f").read_text() == "both\n"


def test_under_block_a_shell_is_refused_in_the_same_words_on_a_retry(claude: Claude) -> None:
    workspace = claude.workspace
    for agent in ("a1", "b2"):
        claude.start(agent)
        claude.read(agent, "f")
    claude.write("b2", "f", "by b2\n")
    workspace.fsguard("policy", "block", cwd=workspace.root).ok()
    said = []
    for _ in "12":
        before, after, result = claude.bash("a1", "echo mine > f")
        assert before == "" and result[0] != 0 and "busy" in result[2]
        said.append(after)
    assert said[0] == said[1] and f'"{ME}.b2"' in said[0] and "refused" in said[0] and "Read f" in said[0]
    assert "FSGUARD" not in said[0]
    assert said_by(claude.bash("a1", "cat f > /dev/null; echo mine >> f")) == ""


@pytest.mark.parametrize("how", ["denied", "prompt", "end", "killed"])
def test_a_call_that_never_came_to_its_end_keeps_no_lease_off(claude: Claude, how: str) -> None:
    """A user's denial is told to no hook; the next prompt shows that the call is over."""
    given = {"file_path": str(claude.workspace.root / "f"), "content": "x"}
    claude.hook("PreToolUse", tool_name="Write", tool_input=given, tool_use_id="t1")

    def granted() -> bool:
        lease = claude.workspace.fsguard("lease", "acquire", "f", "--task", "other", "--wait", "0")
        assert lease.code in (0, 4), lease.err
        return lease.code == 0

    assert not granted()
    if how == "denied":
        claude.hook("PostToolUseFailure", tool_name="Write", tool_input=given, tool_use_id="t1", error="no")
    elif how == "prompt":
        claude.hook("UserPromptSubmit", prompt="then leave it")
    elif how == "end":
        claude.hook("SessionEnd", reason="exit")
    else:
        claude.process.kill()
        claude.process.wait(10)
    assert granted()


def test_an_announced_write_is_in_progress_for_leases(claude: Claude) -> None:
    about = {
        "tool_name": "Write",
        "tool_input": {"file_path": str(claude.workspace.root / "f"), "content": "x"},
        "tool_use_id": "t1",
    }
    claude.hook("PreToolUse", **about)
    lease = claude.workspace.fsguard("lease", "acquire", "f", "--task", "other", "--wait", "0")
    assert lease.code != 0 and ME in lease.err
    claude.hook("PostToolUseFailure", **about, error="the user said no")
    claude.workspace.fsguard("lease", "acquire", "f", "--task", "other", "--wait", "0").ok()


def test_a_partial_read_then_a_whole_write(claude: Claude) -> None:
    claude.read(None, "f", offset=5, limit=3)
    _, after, _ = claude.write(None, "f", "all of it\n")
    assert "only a part" in after
    assert [w["kind"] for w in claude.workspace.warnings(ME)] == ["partial_view"]


def test_paths_and_sessions_outside_are_left_alone(claude: Claude) -> None:
    outside = claude.workspace.top / "outside"
    outside.mkdir()
    (outside / "x").write_text("x")
    about = {"tool_name": "Read", "tool_input": {"file_path": str(outside / "x")}, "tool_use_id": "t1"}
    assert claude.hook("PreToolUse", **about, cwd=str(outside)) == {}
    bash = {"tool_name": "Bash", "tool_input": {"command": "ls"}, "tool_use_id": "t2"}
    assert claude.hook("PreToolUse", **bash, cwd=str(outside)) == {}
    assert claude.workspace.status()["tasks"] == []
    naming = {"tool_name": "Bash", "tool_input": {"command": f"ls {claude.workspace.root}"}}
    assert claude.hook("PreToolUse", **naming, cwd=str(outside)) != {}


def test_a_session_inside_of_a_run_is_a_child_of_it(workspace: Workspace) -> None:
    event = {
        "session_id": SESSION,
        "cwd": str(workspace.root),
        "hook_event_name": "SessionStart",
        "source": "startup",
    }
    shells = workspace.top / "shells.sh"
    command = f"CLAUDE_ENV_FILE={shells} fsguard hook claude-code"
    workspace.sh("A", command, input=json.dumps(event)).ok()
    tasks = {task["task"]: task["parent"] for task in workspace.status()["tasks"]}
    assert tasks == {"A": None, ME: "A"}
    assert shells.read_text() == f"export FSGUARD_TASK={ME} FSGUARD_PARENT=A\n"


def test_a_stopped_daemon_holds_no_agent_up(claude: Claude) -> None:
    pid = claude.workspace.worker_pid()
    assert pid is not None
    about = {"tool_name": "Bash", "tool_input": {"command": "ls"}, "tool_use_id": "t1"}
    os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        answer = claude.hook("PreToolUse", **about)
        assert answer["hookSpecificOutput"]["updatedInput"]["command"].endswith("; ls"), "it needs no daemon"
        write = {"tool_name": "Write", "tool_input": {"file_path": str(claude.workspace.root / "f")}}
        assert claude.hook("PreToolUse", **write) == {}
        assert time.monotonic() - began < 2 * 3.0
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("tool", ["codex", "gemini", "cursor"])
def test_shells_of_the_other_tools_too(workspace: Workspace, tool: str) -> None:
    workspace.plain("sh", "-c", "echo one > f").ok()
    command = "echo two > f; exit 3"
    events: dict[str, tuple[str, dict[str, Any], Callable[[Any], str]]] = {
        "codex": (
            "PreToolUse",
            {"tool_name": "Bash", "tool_input": {"command": command}, "tool_use_id": "c", "turn_id": "1"},
            lambda said: said["hookSpecificOutput"]["updatedInput"]["command"],
        ),
        "gemini": (
            "BeforeTool",
            {"tool_name": "run_shell_command", "tool_input": {"command": command, "description": "d"}},
            lambda said: said["hookSpecificOutput"]["tool_input"]["command"],
        ),
        "cursor": (
            "preToolUse",
            {"conversation_id": SESSION, "tool_name": "Shell", "tool_input": {"command": command}},
            lambda said: said["updated_input"]["command"],
        ),
    }
    name, fields, pick = events[tool]
    running = Tool(workspace, tool, SESSION)
    rewritten = pick(running.hook(name, **fields))
    assert running.ask("bash", rewritten)[0] == 3
    who = workspace.fsguard("who", "f", "--json").json()
    assert who["writers"][0]["task"] == f"{tool}-5e1f2a3b"


def test_a_commit_that_carries_what_a_sibling_did(workspace: Workspace) -> None:
    workspace.env.update(
        {f"GIT_{who}_{what}": "t@e" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    )
    workspace.plain("sh", "-ec", "git init -q .; echo 1 > f; echo 1 > g; git add .; git commit -qm one").ok()
    workspace.fsguard("hooks", "install", "git").ok()

    def commit(task: str, script: str) -> Result:
        env = {"FSGUARD_TASK": task}
        return workspace.plain("sh", "-c", script, env={**workspace.env, **env})

    workspace.run("B", "sed", "-i", "s/1/2/", "f").ok()
    workspace.plain("git", "add", "-A").ok()
    result = workspace.fsguard("check", "--task", "A", "--staged")
    assert result.code == 1 and result.out.startswith('f: task "B"') and "sed -i" in result.out
    assert workspace.fsguard("check", "--task", "B", "--staged", "--json").lines() == [
        {"path": "f", "stale": False, "message": None}
    ]
    workspace.plain("git", "reset", "-q").ok()
    result = commit("A", "echo 3 > g; git add -A; git commit -qm 'all of it'")
    assert result.code == 0
    assert 'f: task "B" changed it last' in result.err and "g:" not in result.err
    workspace.run("B", "sed", "-i", "s/2/3/", "f").ok()
    assert commit("A", "cat f; git add -A; git commit -qm seen").err == ""
    workspace.run("B", "sed", "-i", "s/3/4/", "f").ok()
    workspace.fsguard("policy", "block").ok()
    result = commit("A", "git add f; git commit -qm unseen")
    assert result.code == 1 and "policy" in result.err
    assert commit("A", "cat f; git commit -qm 'seen now'").code == 0
    assert commit("B", "true").code == 0


def test_setting_up_makes_a_tool_call_us(workspace: Workspace) -> None:
    """What `install` writes is run as Claude Code runs it: by a shell, the event on stdin."""
    home = Path(workspace.env["HOME"])
    workspace.fsguard("hooks", "install", "claude-code").ok()
    settings = json.loads((home / ".claude" / "settings.json").read_text())
    (group,) = settings["hooks"]["PreToolUse"]
    (hook,) = group["hooks"]
    event = {
        "session_id": SESSION,
        "cwd": str(workspace.root),
        "hook_event_name": "PreToolUse",
        "tool_name": "Bash",
        "tool_input": {"command": "ls"},
    }
    result = workspace.plain("sh", "-c", hook["command"], input=json.dumps(event)).ok()
    assert ME in json.loads(result.out)["hookSpecificOutput"]["updatedInput"]["command"]
    bare = {**workspace.env, "PATH": "/usr/bin:/bin"}
    result = workspace.plain("sh", "-c", hook["command"], input=json.dumps(event), env=bare)
    assert (result.code, result.out, result.err) == (0, "", ""), "without fsguard nothing happens"
