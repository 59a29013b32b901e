"""`fsguard mcp` end to end: the official SDK's own client, over stdio, on a real mount."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters, stdio_client

from tests.kit.mounting import Workspace


class Agent:
    """The client's end: an agent tool that has started the server."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def ask(self, tool: str, **given: Any) -> Any:
        answer = await self.client.call_tool(tool, given)
        assert not answer.is_error, answer
        assert answer.structured_content is not None
        return answer.structured_content.get("result", answer.structured_content)

    async def refused(self, tool: str, **given: Any) -> str:
        answer = await self.client.call_tool(tool, given)
        assert answer.is_error, answer
        return str(answer.content[0].text)  # type: ignore[union-attr]


def serving(
    workspace: Workspace,
    talk: Callable[[Agent], Awaitable[None]],
    *command: str,
    cwd: Path | None = None,
    **more: str,
) -> None:
    """Start `command` as a server and talk to it; its stderr must stay empty."""
    log = workspace.top / "server.err"

    async def main() -> None:
        server = StdioServerParameters(
            command=command[0],
            args=list(command[1:]),
            env={**workspace.env, **more},
            cwd=cwd or workspace.root,
        )
        with log.open("w") as errors:
            async with Client(stdio_client(server, errlog=errors)) as client:
                await talk(Agent(client))

    asyncio.run(asyncio.wait_for(main(), 60))
    assert log.read_text() == ""


def test_an_agent_without_hooks(workspace: Workspace) -> None:
    """check, warnings, versions, diff, restore and who, for an agent that runs as a task."""
    workspace.plain("sh", "-c", "mkdir src; seq 1 5 > src/f").ok()
    workspace.run("A", "cat", "src/f").ok()

    async def talk(agent: Agent) -> None:
        tools = {tool.name: tool for tool in (await agent.client.list_tools()).tools}
        assert set(tools) == {"check", "who", "warnings", "versions", "diff", "restore", "lease"}
        assert tools["check"].annotations and tools["check"].annotations.read_only_hint
        assert tools["restore"].annotations and not tools["restore"].annotations.read_only_hint
        assert tools["check"].input_schema["required"] == ["paths"] and tools["check"].description
        assert agent.client.instructions and "siblin" in agent.client.instructions
        assert [x["stale"] for x in await agent.ask("check", paths=["src/f"])] == [False]
        assert await agent.ask("warnings") == []
        workspace.run("B", "sed", "-i", "s/3/three/", "src/f").ok()
        (stale,) = await agent.ask("check", paths=[str(workspace.root / "src/f")])
        assert stale["stale"] and stale["sibling"] == "B" and '"B"' in stale["message"]
        env = {**workspace.env, "FSGUARD_TASK": "A"}
        workspace.plain("sh", "-c", "echo mine > src/f", env=env).ok()
        (warning,) = await agent.ask("warnings")
        assert warning["kind"] == "stale_write" and warning["task"] == "A"
        assert await agent.ask("warnings") == [], "it was told"
        assert [w["id"] for w in await agent.ask("warnings", all=True)] == [warning["id"]]
        (version,) = [v for v in await agent.ask("versions", path="src/f") if v["conflict"]]
        diff = await agent.ask("diff", path="src/f", version=version["version"])
        assert "-three" in diff["diff"] and "+mine" in diff["diff"]
        back = await agent.ask("restore", path="src/f", version=version["version"])
        assert back["changed"] and back["resolved"] and "fsguard restore" in back["undo"]
        assert (workspace.root / "src/f").read_text() == "1\n2\nthree\n4\n5\n"
        who = await agent.ask("who", path="src/f")
        assert who["writers"][0]["task"] == "A", "what the server puts back is the agent's own work"
        copy = await agent.ask("restore", path="src/f", version=version["version"], to="copy")
        assert copy["restored_to"].endswith("copy") and (workspace.root / "copy").exists()

    serving(workspace, talk, "fsguard", "run", "--task", "A", "--", "fsguard", "mcp")


def test_leases(workspace: Workspace) -> None:
    async def talk(agent: Agent) -> None:
        lease = await agent.ask("lease", action="acquire", patterns=["src/"], reason="renaming", task="A")
        assert lease["task"] == "A" and lease["reason"] == "renaming"
        said = await agent.refused("lease", action="acquire", patterns=["src/x"], task="B", wait=0)
        assert "'A'" in said
        told = await agent.ask("lease", action="request", patterns=["src/x"], task="B")
        assert [x["id"] for x in told["told"]] == [lease["id"]]
        assert [x["id"] for x in (await agent.ask("lease", action="list"))["leases"]] == [lease["id"]]
        assert await agent.ask("lease", action="release", task="A") == {"released": [lease["id"]]}
        assert "patterns" in await agent.refused("lease", action="acquire", task="A")
        said = await agent.refused("lease", action="acquire", patterns=["x"], wait=1000, task="A")
        assert "at most 120" in said

    # By a sibling's name, too: only a server that is no task's may do that.
    serving(
        workspace,
        talk,
        "fsguard",
        "mcp",
        "--workspace",
        str(workspace.root),
        cwd=workspace.top,
        **{"FSGUARD_TASK": ""},
    )


def test_what_a_model_is_told_when_it_cannot_be_answered(workspace: Workspace, tmp_path: Path) -> None:
    async def talk(agent: Agent) -> None:
        assert "task" in await agent.refused("warnings")
        assert "not in a guarded workspace" in await agent.refused("who", path="/etc/passwd")
        assert "no version 99" in await agent.refused("restore", path="f", version=99)
        assert await agent.refused("who", path=5)
        assert "looks like a secret" in await agent.refused("diff", path=".env")
        assert await agent.ask("check", paths=[], task="A") == []
        assert (await agent.ask("who", path="f"))["path"] == "f"

    workspace.plain("sh", "-c", "echo 1 > f; echo 1 > .env").ok()
    workspace.sh("A", "cat .env f > /dev/null").ok()
    workspace.sh("B", "echo 2 > .env").ok()
    workspace.sh("A", "echo 3 > .env").ok()
    serving(workspace, talk, "fsguard", "mcp")

    async def outside(agent: Agent) -> None:
        assert "not in a guarded workspace" in await agent.refused("who", path="f")

    serving(workspace, outside, "fsguard", "mcp", "--task", "A", cwd=tmp_path)


def test_a_running_server_holds_no_workspace_busy(workspace: Workspace) -> None:
    async def talk(agent: Agent) -> None:
        await agent.ask("who", path="f")
        workspace.unmount()
        assert "guarded" in await agent.refused("who", path="f")
        workspace.mount()
        assert (await agent.ask("who", path="f"))["path"] == "f"
        workspace.run("B", "sh", "-c", "echo x > f").ok()
        assert [x["stale"] for x in await agent.ask("check", paths=["f"])] == [True]

    (workspace.root / "f").write_text("x")
    serving(workspace, talk, "fsguard", "mcp", "--task", "A")


def test_names_that_are_not_utf_8_and_hostile_ones(workspace: Workspace) -> None:
    name = "caf\udce9\n\x1b[31m"
    (workspace.root / name).write_text("1")
    workspace.run("B", "sh", "-c", 'echo 2 > "$1"', "sh", name).ok()

    async def talk(agent: Agent) -> None:
        workspace.plain(
            "sh", "-c", 'echo 3 > "$1"', "sh", name, env={**workspace.env, "FSGUARD_TASK": "A"}
        ).ok()
        (warning,) = await agent.ask("warnings")
        assert warning["path"] == "caf\\udce9\n\x1b[31m" and "\x1b" not in warning["message"]

    serving(workspace, talk, "fsguard", "mcp", "--task", "A")


def test_without_the_sdk_the_message_says_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "mcp.py").write_text("raise ImportError(\"No module named 'mcp'\")\n")
    script = "import sys; sys.path.insert(0, sys.argv.pop(1)); from fsguard.cli import main; sys.exit(main())"
    result = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), "mcp"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 5 and result.stdout == ""
    assert "fsguard[mcp]" in result.stderr and "pip install" in result.stderr
    assert "Traceback" not in result.stderr
    with pytest.raises(json.JSONDecodeError):
        json.loads(result.stderr)
