"""A daemon of canned answers behind the real control server, for tests of the commands.

It serves no filesystem: its workspace is a plain directory.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import trio

from fsguard.control import registry, server
from fsguard.control.registry import Mount

__all__ = ["ROOT", "FakeDaemon", "environment"]

ROOT = Path(__file__).resolve().parents[2]


def environment(top: Path, **more: str) -> dict[str, str]:
    """An environment in which the commands under test see no mounts but the test's."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("FSGUARD_")}
    env |= {
        "PYTHONPATH": str(ROOT),
        "FSGUARD_RUNTIME_DIR": str(top / "run"),
        "XDG_STATE_HOME": str(top / "state"),
    }
    return env | {"LC_ALL": "C.UTF-8", "HOME": str(top)} | more


class FakeDaemon:
    """Context manager. `answers` maps a method to a value, or to a function of its
    params that may raise FsguardError; `calls` are the requests that came."""

    def __init__(self, top: Path, answers: Mapping[str, Any] | None = None) -> None:
        self.top = top
        self.workspace = top / "ws"
        self.workspace.mkdir(exist_ok=True)
        self.answers: dict[str, Any] = {
            "run.begin": lambda params: {"task": params["task"], "parent": None},
            "run.end": {"warnings": [], "footprint": None, "waited_ms": 0},
            **(answers or {}),
        }
        self.handlers: dict[str, server.Handler] = {}  # these go before the answers
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.env = environment(top)
        self._running = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=[self._serve])

    def __enter__(self) -> FakeDaemon:
        os.environ["FSGUARD_RUNTIME_DIR"] = self.env["FSGUARD_RUNTIME_DIR"]
        try:
            self.file, self.socket = registry.slot(str(self.workspace))
        finally:
            del os.environ["FSGUARD_RUNTIME_DIR"]
        self._thread.start()
        assert self._running.wait(10)
        started = registry.start_time(os.getpid()) or 0
        ws = str(self.workspace)
        registry.register(self.file, Mount(ws, ws, self.socket, os.getpid(), os.geteuid(), started))
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the server; connections break, as at the death of a daemon."""
        try:
            self._token.run_sync_soon(self._scope.cancel)
        except trio.RunFinishedError:
            pass
        self._thread.join()

    def params(self, method: str) -> dict[str, Any]:
        """The parameters of the only call of `method`."""
        (found,) = [params for name, params in self.calls if name == method]
        return found

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-P", "-m", "fsguard.cli", *words]

    def fsguard(
        self, *words: str, cwd: Path | None = None, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run one command in the workspace, to its end."""
        options = {"capture_output": True, "text": True, "timeout": 30, "errors": "surrogateescape"} | options
        options.setdefault("env", self.env)
        return subprocess.run(self.command(*words), cwd=cwd or self.workspace, check=False, **options)

    def popen(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
        options.setdefault("env", self.env)
        return subprocess.Popen(self.command(*words), cwd=self.workspace, **options)

    async def _serve(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with trio.CancelScope() as self._scope:
            async with trio.open_nursery() as nursery:
                handlers = {method: self._handler(method) for method in self.answers}
                uids = [os.geteuid()]
                await nursery.start(
                    lambda task_status: server.serve(self.socket, handlers, uids, task_status=task_status)
                )
                self._running.set()

    def _handler(self, method: str) -> Callable[..., Any]:
        async def answer(peer: server.Peer, params: dict[str, Any]) -> Any:
            self.calls.append((method, params))
            if method in self.handlers:
                return self.handlers[method](peer, params)
            value = self.answers[method]
            # In a thread: a test's function may wait for something.
            return (
                await trio.to_thread.run_sync(value, params, abandon_on_cancel=True)
                if callable(value)
                else value
            )

        return answer
