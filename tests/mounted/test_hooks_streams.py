"""The event streams of every tool, in several versions, on a real mount.

The events are made by hand from the tools' contracts (`Dialect` and its kinds), with
fields in them that nobody has thought of yet. In every one of them two agents work on
one tree: Edit against Bash and Bash against Edit; the right one is warned, the
other is not.
"""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from tests.kit.agent_tools import AgentTool
from tests.kit.mounting import Workspace

ONE, TWO = "5e1f2a3b-1111-4222-8333-444455556666", "7c2d3e4f-1111-4222-8333-444455556666"
BOSS = "9a8b7c6d-1111-4222-8333-444455556666"
TOMORROW = {"x_new": {"y": [1, None, {"z": "…"}]}, "": 0, "enabled": True}


class Dialect:
    """How one version of a tool tells what its agents do. Agents are "x" and "y"."""

    tool = ""
    role = ""
    intent = ""

    def __init__(self, workspace: Workspace, version: str) -> None:
        self.workspace, self.version = workspace, version
        self.top = str(workspace.root)
        self.calls = 0
        self.processes = {"x": AgentTool(workspace, self.tool)}
        self.processes["y"] = self.processes["x"] if self.one_process() else AgentTool(workspace, self.tool)

    def one_process(self) -> bool:
        return True

    @property
    def new(self) -> bool:
        return self.version == "new"

    # ---- what each tool says in its own way ----

    def task(self, agent: str) -> str:
        raise NotImplementedError

    def around(self, agent: str, what: str, path: str, text: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """The events before and after a call that does `what` (read, write, bash)."""
        raise NotImplementedError

    def starts(self, agent: str) -> dict[str, Any] | None:
        return None

    def ends(self, agent: str) -> dict[str, Any]:
        raise NotImplementedError

    def said(self, answer: dict[str, Any]) -> str:
        return str(answer.get("hookSpecificOutput", {}).get("additionalContext", ""))

    def rewritten(self, answer: dict[str, Any], command: str) -> str:
        raise NotImplementedError

    # ---- the same for all ----

    def send(self, agent: str, event: dict[str, Any]) -> dict[str, Any]:
        return self.processes[agent].send({**event, **TOMORROW})

    def does(self, agent: str, what: str, path: str, text: str = "") -> str:
        """One call with its hooks; all that the agent is told."""
        self.calls += 1
        process = self.processes[agent]
        before, after = self.around(agent, what, path, text)
        answer = self.send(agent, before)
        if what == "read":
            process.ask("read", path)
        elif what == "write":
            process.ask("save", [path, text])
        else:
            code, _, err = process.ask("bash", self.rewritten(answer, text))
            assert code == 0, err
        return self.said(answer) + self.said(self.send(agent, after))


class Claude(Dialect):
    tool = "claude-code"
    role = "Explore"
    intent = "the other way"

    def _event(self, agent: str, name: str, **more: Any) -> dict[str, Any]:
        event = {"session_id": BOSS, "transcript_path": "/t.jsonl", "cwd": self.top, "hook_event_name": name}
        event |= {"agent_id": f"a{agent}7", "agent_type": "Explore"}
        if self.new:
            event |= {"prompt_id": "p1", "permission_mode": "acceptEdits", "effort": {"level": "high"}}
        return {**event, **more}

    def task(self, agent: str) -> str:
        return f"claude-9a8b7c6d.a{agent}7"

    def around(self, agent: str, what: str, path: str, text: str) -> tuple[dict[str, Any], dict[str, Any]]:
        given: dict[str, Any] = {"file_path": path}
        if what == "write":
            given["content"] = text
        if what == "bash":
            given = {"command": text, "description": "the other way"}
            given |= {"run_in_background": False, "timeout": 1000} if self.new else {}
        name = {"read": "Read", "write": "Write", "bash": "Bash"}[what]
        about = {"tool_name": name, "tool_input": given, "tool_use_id": f"toolu_{self.calls}"}
        done = {"tool_response": {"ok": True}, **({"duration_ms": 5} if self.new else {})}
        return self._event(agent, "PreToolUse", **about), self._event(agent, "PostToolUse", **about, **done)

    def starts(self, agent: str) -> dict[str, Any]:
        return self._event(agent, "SubagentStart")

    def ends(self, agent: str) -> dict[str, Any]:
        more = {"last_assistant_message": "done", "agent_transcript_path": "/a"} if self.new else {}
        return self._event(agent, "SubagentStop", stop_hook_active=False, **more)

    def rewritten(self, answer: dict[str, Any], command: str) -> str:
        given = answer["hookSpecificOutput"]["updatedInput"]
        assert given["description"] == "the other way" and len(given) == (4 if self.new else 2)
        script = shlex.quote(given["command"])
        return f"shopt -u extglob 2>/dev/null || true; eval {script} < /dev/null && pwd -P > /dev/null"


class Codex(Dialect):
    """Old: no agent ids, so two sessions; `shell` with a list, the patch as input."""

    tool = "codex"

    def __init__(self, workspace: Workspace, version: str) -> None:
        super().__init__(workspace, version)
        self.role = "worker" if self.new else "Codex"

    def one_process(self) -> bool:
        return self.new

    def task(self, agent: str) -> str:
        return (
            f"codex-9a8b7c6d.w{agent}" if self.new else {"x": "codex-5e1f2a3b", "y": "codex-7c2d3e4f"}[agent]
        )

    def _event(self, agent: str, name: str, **more: Any) -> dict[str, Any]:
        event = {
            "turn_id": "3",
            "transcript_path": None,
            "cwd": self.top,
            "hook_event_name": name,
            "model": "m",
        }
        event["session_id"] = BOSS if self.new else {"x": ONE, "y": TWO}[agent]
        event |= {"agent_id": f"w{agent}", "agent_type": "worker"} if self.new else {}
        return {**event, "permission_mode": "default", **more}

    def around(self, agent: str, what: str, path: str, text: str) -> tuple[dict[str, Any], dict[str, Any]]:
        relative = path.removeprefix(self.top + "/")
        name, given = "Bash" if self.new else "shell", {}
        if what == "bash":
            given = {"command": text if self.new else ["bash", "-lc", text], "workdir": self.top}
        elif what == "write":
            patch = f"*** Begin Patch\n*** Update File: {relative}\n@@\n-old\n+new\n*** End Patch"
            name, given = "apply_patch", {"command" if self.new else "input": patch}
        else:
            name, given = "view_image", {"path": path}
        about = {"tool_name": name, "tool_input": given, "tool_use_id": f"call_{self.calls}"}
        after = self._event(agent, "PostToolUse", **about, tool_response="Done")
        return self._event(agent, "PreToolUse", **about), after

    def starts(self, agent: str) -> dict[str, Any]:
        return self._event(agent, "SubagentStart" if self.new else "SessionStart", source="startup")

    def ends(self, agent: str) -> dict[str, Any]:
        return self._event(agent, "SubagentStop" if self.new else "SessionEnd")

    def rewritten(self, answer: dict[str, Any], command: str) -> str:
        said = answer["hookSpecificOutput"]
        assert said["permissionDecision"] == "allow"
        words = said["updatedInput"]["command"]
        return str(words) if self.new else shlex.join(words)


class Gemini(Dialect):
    tool = "gemini"
    role = "Gemini CLI"
    intent = "Tidy up"

    def one_process(self) -> bool:
        return False

    def task(self, agent: str) -> str:
        return {"x": "gemini-5e1f2a3b", "y": "gemini-7c2d3e4f"}[agent]

    def _event(self, agent: str, name: str, **more: Any) -> dict[str, Any]:
        event = {"session_id": {"x": ONE, "y": TWO}[agent], "cwd": self.top, "hook_event_name": name}
        if self.new:
            event |= {"timestamp": "2026-01-31T00:00:00Z", "transcript_path": "/t", "mcp_context": None}
        return {**event, **more}

    def around(self, agent: str, what: str, path: str, text: str) -> tuple[dict[str, Any], dict[str, Any]]:
        name, given = {
            "read": ("read_file", {"file_path" if self.new else "absolute_path": path}),
            "write": ("write_file", {"file_path": path, "content": text}),
            "bash": ("run_shell_command", {"command": text, "description": "the other way"}),
        }[what]
        about = {"tool_name": name, "tool_input": given}
        response = {"llmContent": "ok", "returnDisplay": "", "error": None}
        after = self._event(agent, "AfterTool", **about, tool_response=response)
        return self._event(agent, "BeforeTool", **about), after

    def starts(self, agent: str) -> dict[str, Any]:
        return self._event(agent, "BeforeAgent", prompt="Tidy up\nplease")

    def ends(self, agent: str) -> dict[str, Any]:
        return self._event(agent, "SessionEnd", reason="exit")

    def rewritten(self, answer: dict[str, Any], command: str) -> str:
        given = answer["hookSpecificOutput"]["tool_input"]["command"]
        return f"shopt -u promptvars nullglob; {{ {given}; }}; __code=$?; exit $__code"


class Cursor(Dialect):
    tool = "cursor"
    role = "generalPurpose"
    intent = "Tidy up"

    def task(self, agent: str) -> str:
        return {"x": "cursor-5e1f2a3b", "y": "cursor-7c2d3e4f"}[agent]

    def _event(self, agent: str, name: str, **more: Any) -> dict[str, Any]:
        own = {"x": ONE, "y": TWO}[agent]
        event = {"conversation_id": own, "generation_id": "g", "hook_event_name": name, "model": "m"}
        event["workspace_roots"] = [self.top]
        event |= {"cursor_version": "3.1", "user_email": None, "transcript_path": "/t"} if self.new else {}
        return {**event, **more}

    def around(self, agent: str, what: str, path: str, text: str) -> tuple[dict[str, Any], dict[str, Any]]:
        where = "file_path" if self.new else "path"
        name, given = {
            "read": ("Read", {where: path}),
            "write": ("StrReplace" if self.new else "Write", {where: path, "contents": text}),
            "bash": ("Shell", {"command": text, "working_directory": "", "description": "the other way"}),
        }[what]
        about = {"tool_name": name, "tool_input": given, "tool_use_id": f"u{self.calls}", "cwd": self.top}
        if not self.new:
            del about["cwd"]
        return self._event(agent, "preToolUse", **about), self._event(
            agent, "postToolUse", **about, tool_output="{}"
        )

    def _subagent(self, agent: str, name: str, **more: Any) -> dict[str, Any]:
        event = self._event(agent, name, conversation_id=BOSS, subagent_id={"x": ONE, "y": TWO}[agent])
        event |= {"subagent_type": "generalPurpose", "parent_conversation_id": BOSS}
        return {**event, **more}

    def starts(self, agent: str) -> dict[str, Any]:
        return self._subagent(agent, "subagentStart", task="Tidy up", is_parallel_worker=True)

    def ends(self, agent: str) -> dict[str, Any]:
        return self._subagent(agent, "subagentStop", status="completed", modified_files=[])

    def said(self, answer: dict[str, Any]) -> str:
        return str(answer.get("agent_message", "")) + str(answer.get("additional_context", ""))

    def rewritten(self, answer: dict[str, Any], command: str) -> str:
        assert answer["permission"] == "allow"
        return str(answer["updated_input"]["command"])


class Opencode(Dialect):
    """What the plugin sends; its JavaScript has tests of its own."""

    tool = "opencode"
    role = "subagent"
    intent = "Tidy up"

    def session(self, agent: str) -> str:
        return {"x": "ses_000000000001aaaaaaaaaaaaaaXX", "y": "ses_000000000001aaaaaaaaaaaaaaYY"}[agent]

    def task(self, agent: str) -> str:
        return f"opencode-{self.session(agent)[-8:]}"

    def _event(self, agent: str, hook: str, given: dict[str, Any], output: Any) -> dict[str, Any]:
        event = {"hook": hook, "directory": self.top, "input": given, "output": output}
        return {**event, "parentID": "ses_000000000001aaaaaaaaaaaaaaBB"}

    def around(self, agent: str, what: str, path: str, text: str) -> tuple[dict[str, Any], dict[str, Any]]:
        about = {"sessionID": self.session(agent), "callID": f"call_{self.calls}"}
        name, args = {
            "read": ("read", {"filePath": path}),
            "write": ("write", {"filePath": path, "content": text}),
            "bash": ("bash", {"command": text, "description": "the other way"}),
        }[what]
        before = self._event(agent, "tool.execute.before", {"tool": name, **about}, {"args": args})
        if what == "bash":
            before = self._event(agent, "shell.env", {"cwd": self.top, **about}, {})
        shown = {"title": "", "output": "…", "metadata": {}}
        after = {"tool": name, **about, "args": args}
        return before, self._event(agent, "tool.execute.after", after, shown)

    def _session(self, agent: str, kind: str) -> dict[str, Any]:
        info = {"id": self.session(agent), "title": "Tidy up", "directory": self.top}
        info |= {"parentID": "ses_000000000001aaaaaaaaaaaaaaBB"}
        facts = {"info": info} if self.new or kind != "session.idle" else {"sessionID": info["id"]}
        return self._event(agent, "event", {"event": {"type": kind, "properties": facts}}, None)

    def starts(self, agent: str) -> dict[str, Any]:
        return self._session(agent, "session.created")

    def ends(self, agent: str) -> dict[str, Any]:
        return self._session(agent, "session.deleted" if self.new else "session.idle")

    def said(self, answer: dict[str, Any]) -> str:
        return str(answer.get("context", ""))

    def rewritten(self, answer: dict[str, Any], command: str) -> str:
        words = [f"{name}={value}" for name, value in answer["env"].items()]
        return shlex.join(["env", *words, "bash", "-c", command])


@pytest.mark.parametrize("version", ["old", "new"])
@pytest.mark.parametrize("dialect", [Claude, Codex, Gemini, Cursor, Opencode])
def test_edit_against_bash_the_right_one_is_warned(
    workspace: Workspace, dialect: type[Dialect], version: str
) -> None:
    workspace.plain("sh", "-c", "for f in f g mine; do seq 1 20 > $f; done").ok()
    f, g, mine = (str(workspace.root / name) for name in ("f", "g", "mine"))
    tool = dialect(workspace, version)
    x, y = tool.task("x"), tool.task("y")
    for agent in ("x", "y"):
        event = tool.starts(agent)
        assert event is None or tool.said(tool.send(agent, event)) == ""

    # y's Bash, then x's Edit of what it read before.
    assert tool.does("x", "read", f) == tool.does("y", "read", f) == ""
    assert tool.does("y", "bash", "", "sed -i 's/^7$/seven/' f") == "", "y saw what is there"
    told = tool.does("x", "write", f, "by x\n")
    assert f'"{y}"' in told and "sed -i" in told and "f" in told
    assert f'("{tool.role}"' in told, "who the sibling is"
    assert f'working on "{tool.intent}"' in told or not tool.intent, "and what it is about"
    assert "`fsguard who f`" in told and "`fsguard restore f@" in told, "the next command"
    assert "--- what you read" in told and "+seven" in told, "and the diff"
    assert "FSGUARD_TASK" not in told, "our own words are not part of anybody's command"

    # y's Edit, then x's Bash over it, by a redirection of the shell itself.
    assert tool.does("x", "bash", "", "cat g > /dev/null") == ""
    assert tool.does("y", "read", g) == tool.does("y", "write", g, "by y\n") == ""
    told = tool.does("x", "bash", "", "echo lost > g")
    assert f'"{y}"' in told and "g" in told

    # What is its own, and what only the other touched, is nobody's business.
    for agent in ("x", "y"):
        assert tool.does(agent, "bash", "", f"echo {agent} >> log; ls > /dev/null") == ""
    assert tool.does("x", "write", mine, "1\n") == tool.does("x", "bash", "", "echo 2 > mine") == ""
    assert {(w["task"], w["sibling"], w["path"]) for w in workspace.conflicts()} == {(x, y, "f"), (x, y, "g")}

    for agent in ("x", "y"):
        tool.send(agent, tool.ends(agent))
    tasks = {task["task"]: task for task in workspace.status()["tasks"]}
    assert tasks[x]["state"] == tasks[y]["state"] == "ended"
    if tool.one_process():
        assert tasks[x]["parent"] == tasks[y]["parent"] in tasks
    writers = workspace.fsguard("who", "g", "--json").json()["writers"]
    assert [w["task"] for w in writers][:2] == [x, y]
    for process in set(tool.processes.values()):
        process.close()
