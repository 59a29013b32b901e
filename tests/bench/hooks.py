"""How long a hook takes, whole process, beside `python -c pass`: it runs at every tool call of an agent.

    .venv/bin/python -m tests.bench.hooks [--runs 200] [--json]

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


def measured(workspace: Workspace, fsguard: str, runs: int) -> dict[str, list[tuple[float, float]]]:
    """(elapsed, processor time) of each run in milliseconds, by kind.

    On a busy machine the second is what to go by: it does not count the waiting for a processor.
    """
    commands = kinds(workspace, fsguard)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    events = workspace.top / "event"
    for number in range(runs + 3):
        for name, (command, text) in commands.items():
            events.write_bytes(text)
            with events.open("rb") as given:
                began = time.perf_counter()
                process = subprocess.Popen(
                    command, stdin=given, stdout=subprocess.DEVNULL, env=workspace.env, cwd=workspace.root
                )
                _, status, used = os.wait4(process.pid, 0)
                elapsed = time.perf_counter() - began
            process.returncode = os.waitstatus_to_exitcode(status)
            assert process.returncode == 0, name
            if number >= 3:  # the first ones fill caches
                found[name].append((elapsed * 1000, (used.ru_utime + used.ru_stime) * 1000))
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


def show(found: dict[str, list[tuple[float, float]]], runs: int, as_json: bool) -> None:
    rows = [
        {
            "kind": name,
            "runs": len(values),
            "median_ms": round(statistics.median(wall for wall, _ in values), 1),
            "p99_ms": round(percentile([wall for wall, _ in values], 0.99), 1),
            "cpu_median_ms": round(statistics.median(cpu for _, cpu in values), 1),
            "cpu_p99_ms": round(percentile([cpu for _, cpu in values], 0.99), 1),
        }
        for name, values in found.items()
    ]
    load = os.getloadavg()[0]
    if as_json:
        print(json.dumps({"load": load, "python": sys.version.split()[0], "rows": rows}))
        return
    print(f"{runs} runs each, taking turns; load {load:.1f}, Python {sys.version.split()[0]}")
    print(f"{'':<26}{'median':>10}{'99th':>10}{'cpu median':>14}{'cpu 99th':>12}")
    for row in rows:
        times = f"{row['median_ms']:>7} ms{row['p99_ms']:>7} ms"
        print(f"{row['kind']:<26}{times}{row['cpu_median_ms']:>11} ms{row['cpu_p99_ms']:>9} ms")


if __name__ == "__main__":
    sys.exit(main())
