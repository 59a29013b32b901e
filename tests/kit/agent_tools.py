"""An agent tool reduced to what counts: a process that runs hooks, does the file tools, and starts shells.

Claude Code, Codex, Gemini CLI, opencode and Cursor are all of this shape; what
their subagents do, the same process does.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from typing import Any

from tests.kit.mounting import ROOT, Workspace

__all__ = ["AgentTool"]

PROCESS = """
import json, os, subprocess, sys
for line in sys.stdin:
    what, given = json.loads(line)
    try:
        if what == "hook":
            event = json.dumps(given[1])
            done = subprocess.run(given[0], input=event, capture_output=True, text=True)
            answer = [done.returncode, done.stdout, done.stderr]
        elif what == "read":
            answer = open(given).read()
        elif what == "write":
            answer = open(given[0], "w").write(given[1])
        elif what == "save":
            # As editors and agents save: another file, renamed over the old one.
            draft = given[0] + ".tmp.4711"
            open(draft, "w").write(given[1])
            answer = os.replace(draft, given[0])
        else:
            done = subprocess.run(["bash", "-c", given], capture_output=True, text=True)
            answer = [done.returncode, done.stdout, done.stderr]
    except OSError as error:
        answer = {"errno": error.errno}
    print(json.dumps(answer), flush=True)
"""


class AgentTool:
    """One running process of an agent tool, which calls `fsguard hook TOOL` as its hooks say."""

    def __init__(self, workspace: Workspace, tool: str) -> None:
        self.workspace, self.tool = workspace, tool
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", PROCESS],
            cwd=workspace.root,
            env={**workspace.env, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        workspace.processes.append(self.process)
        self.ask("bash", "true")  # it has started, and imported what it needs

    def ask(self, what: str, given: Any) -> Any:
        """Let it do one thing: "read", "write", "save", "bash", "hook"."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps([what, given]) + "\n")
        self.process.stdin.flush()
        assert select.select([self.process.stdout], [], [], 30)[0], f"the tool hangs in {what}"
        return json.loads(self.process.stdout.readline())

    def send(self, event: dict[str, Any]) -> dict[str, Any]:
        """Run the hook for an event; what it answers ({}: nothing at all)."""
        # -P: the interpreter does not look for modules where the agent stands, as an installed command.
        command = [sys.executable, "-P", "-m", "fsguard.cli", "hook", self.tool]
        code, out, err = self.ask("hook", [command, event])
        assert (code, err) == (0, ""), (event, code, out, err)
        answer: dict[str, Any] = json.loads(out) if out else {}
        return answer

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(10)
