"""How long a hook takes, whole process, beside `python -c pass`: it runs at every tool call of an agent.

    .venv/bin/python -m bench.hooks [--runs 200] [--json]

Makes a workspace of its own below the temporary directory, mounts it, and runs the
installed `fsguard` as an agent tool does: the event on stdin, the answer on stdout. The
kinds take turns, so that a busy machine slows all of them alike.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from tests.kit.mounting import Workspace

SESSION = "5e1f2a3b-1111-4222-8333-444455556666"


def event(workspace: Workspace, name: str, tool: str, given: dict[str, Any]) -> bytes:
    facts = {"session_id": SESSION, "transcript_path": "/t", "cwd": str(workspace.root)}
    facts |= {"hook_event_name": name, "tool_name": tool, "tool_input": given, "tool_use_id": "toolu_1"}
    return json.dumps(facts).encode()


def kinds(workspace: Workspace, fsguard: str) -> dict[str, tuple[list[str], bytes]]:
    path = str(workspace.root / "f")
    hook = [fsguard, "hook", "claude-code"]
    write, bash = {"file_path": path, "content": "x" * 2000}, {"command": "make test", "description": "test"}
    return {
        "python -c pass": ([sys.executable, "-c", "pass"], b""),
        "python -I -S -c pass": ([sys.executable, "-I", "-S", "-c", "pass"], b""),
        "before Write": (hook, event(workspace, "PreToolUse", "Write", write)),
        "after Write": (hook, event(workspace, "PostToolUse", "Write", write)),
        "before Bash": (hook, event(workspace, "PreToolUse", "Bash", bash)),
        "after Bash": (hook, event(workspace, "PostToolUse", "Bash", bash)),
        "outside of any workspace": (hook, event(workspace, "PreToolUse", "Write", {"file_path": "/etc/x"})),
    }


def measured(workspace: Workspace, fsguard: str, runs: int) -> dict[str, list[float]]:
    """Milliseconds of each run, by kind."""
    commands = kinds(workspace, fsguard)
    found: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(runs + 3):
        for name, (command, text) in commands.items():
            began = time.perf_counter()
            subprocess.run(
                command,
                input=text,
                stdout=subprocess.DEVNULL,
                env=workspace.env,
                cwd=workspace.root,
                check=True,
            )
            if number >= 3:  # the first ones fill caches
                found[name].append((time.perf_counter() - began) * 1000)
    return found


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    fsguard = os.path.join(os.path.dirname(sys.executable), "fsguard")
    workspace = Workspace()
    workspace.env["PATH"] = f"{os.path.dirname(sys.executable)}:{workspace.env['PATH']}"
    workspace.env.pop("PYTHONDONTWRITEBYTECODE", None)  # nobody works without compiled modules
    (workspace.root / "f").write_text("x\n")
    workspace.mount()
    try:
        show(measured(workspace, fsguard, args.runs), args.runs, args.json)
    finally:
        workspace.unmount()
        workspace.remove()
    return 0


def show(found: dict[str, list[float]], runs: int, as_json: bool) -> None:
    rows = [
        {
            "kind": name,
            "runs": len(values),
            "median_ms": round(statistics.median(values), 1),
            "p99_ms": round(percentile(values, 0.99), 1),
        }
        for name, values in found.items()
    ]
    load = os.getloadavg()[0]
    if as_json:
        print(json.dumps({"load": load, "python": sys.version.split()[0], "rows": rows}))
        return
    print(f"{runs} runs each, taking turns; load {load:.1f}, Python {sys.version.split()[0]}")
    print(f"{'':<26}{'median':>10}{'99th':>10}")
    for row in rows:
        print(f"{row['kind']:<26}{row['median_ms']:>7} ms{row['p99_ms']:>7} ms")


if __name__ == "__main__":
    sys.exit(main())
