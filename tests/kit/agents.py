"""Processes that stop at named points and go on when told: no sleeps in tests.

    with Agent(workspace, "alice", '''
        text = open("f").read()
        stop("has read")
        open("f", "w").write(text + "alice")
    ''') as alice:
        alice.until("has read")
        workspace.sh("bob", "echo bob > f").ok()
        result = alice.finish()

A script is Python, or shell with `shell=True` (there, too, `stop "has read"`).
The points travel through two FIFOs beside the workspace, so they work across
`fsguard run`, forks and exec.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from tests.kit.mounting import Result, Workspace

__all__ = ["Agent", "together", "until"]

PYTHON_PRELUDE = """\
import os, sys
def stop(point):
    with open(os.environ["POINT_OUT"], "w") as out:
        out.write(point + "\\n")
    with open(os.environ["POINT_IN"]) as go:
        go.readline()
"""
SHELL_PRELUDE = 'stop() { echo "$1" >"$POINT_OUT"; read -r _ <"$POINT_IN"; }\n'


class Agent:
    """A script run as a task (None: as no task), stopping where it calls `stop(name)`."""

    count = 0

    def __init__(
        self,
        workspace: Workspace,
        task: str | None,
        script: str,
        *args: str,
        shell: bool = False,
        patience: float = 15.0,
        **more: Any,
    ) -> None:
        Agent.count += 1
        self.patience = patience
        base = workspace.top / f"point-{Agent.count}"
        self.paths = [f"{base}.out", f"{base}.in"]
        for path in self.paths:
            os.mkfifo(path)
        # Open for reading and writing, so that neither side ever waits in open(2).
        self.out, self.go_on = (os.open(path, os.O_RDWR | os.O_CLOEXEC) for path in self.paths)
        self.heard = b""
        env = {**more.pop("env", {}), "POINT_OUT": self.paths[0], "POINT_IN": self.paths[1]}
        script = textwrap.dedent(script)
        command = (
            ["sh", "-c", SHELL_PRELUDE + script] if shell else [sys.executable, "-c", PYTHON_PRELUDE + script]
        )
        self.process = workspace.start(task, *command, *args, env=env, **more)

    def until(self, point: str) -> Agent:
        """Wait until the script stops at `point`."""
        end = time.monotonic() + self.patience
        while b"\n" not in self.heard:
            ready, _, _ = select.select([self.out], [], [], 0.05)
            if ready:
                self.heard += os.read(self.out, 4096)
            elif self.process.poll() is not None:
                raise AssertionError(f"the script ended before {point!r}: {self._output()}")
            elif time.monotonic() > end:
                raise AssertionError(f"the script did not come to {point!r} within {self.patience} s")
        line, _, self.heard = self.heard.partition(b"\n")
        assert line.decode() == point, f"the script stopped at {line.decode()!r}, not at {point!r}"
        return self

    def go(self) -> Agent:
        """Let it go on from where it stopped."""
        os.write(self.go_on, b"\n")
        return self

    def finish(self, *, go: bool = True) -> Result:
        """Let it go on and wait for its end."""
        if go:
            self.go()
        try:
            out, err = self.process.communicate(timeout=self.patience)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the script did not end within {self.patience} s") from None
        return Result(tuple(map(str, self.process.args)), self.process.returncode, out or "", err or "")

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.killpg(self.process.pid, number)

    def _output(self) -> str:
        out, err = self.process.communicate(timeout=5)
        return f"exit {self.process.returncode}\n{out}{err}"

    def close(self) -> None:
        for fd in (self.out, self.go_on):
            os.close(fd)
        for path in self.paths:
            os.unlink(path)

    def __enter__(self) -> Agent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None and kind is not None:
            self.kill()
        self.close()


def until(true: Callable[[], Any], what: str = "it", seconds: float = 15.0) -> Any:
    """Poll something that can only be observed from outside, bounded; its first true value."""
    end = time.monotonic() + seconds
    while not (result := true()):
        assert time.monotonic() < end, f"{what} did not come about within {seconds} s"
        time.sleep(0.02)
    return result


def together(*processes: subprocess.Popen[str], seconds: float = 60.0) -> list[Result]:
    """Wait for all of them; their results in the same order."""
    end = time.monotonic() + seconds
    results = []
    for process in processes:
        try:
            out, err = process.communicate(timeout=max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{process.args} did not end within {seconds} s") from None
        results.append(Result(tuple(map(str, process.args)), process.returncode, out or "", err or ""))  # type: ignore[arg-type]
    return results
