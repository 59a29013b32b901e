"""`fsguard hook TOOL`: an event on stdin, the tool's answer on stdout, exit code 0.

Whatever happens, the agent's turn goes on: nonsense, a missing or hanging
workspace or an error of ours end with exit code 0 and no words. A second thread
sees to the time, since a process that hangs in a file system call can do
nothing else any more.
"""

from __future__ import annotations

import _thread
import json
import os
import time

from fsguard.hooks.call import Event, Outcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any, NoReturn

    from fsguard.hooks.call import Call

__all__ = ["SECONDS", "run", "translate"]

SECONDS = 1.5
"""After so long the agent goes on without us."""

_MAX_EVENT = 64 << 20


def run(tool: str) -> NoReturn:
    """Answer the event on stdin and end this process. The exit code is always 0."""
    answer = _Answer()
    try:
        _thread.start_new_thread(_end, (answer,))
        if not os.environ.get("FSGUARD_DISABLE", "").strip("0"):
            answer.set(translate(tool, _stdin(), answer.set))
        answer.give()
    except BaseException as error:
        if os.environ.get("FSGUARD_DEBUG"):
            import traceback

            traceback.print_exception(error)
    # All is said; taking the interpreter apart would be a tenth of the hook's time.
    os._exit(0)


def translate(tool: str, raw: bytes, soon: Callable[[Any], None] = lambda answer: None) -> Any:
    """The tool's answer (JSON values) to its event, or None: nothing to say.

    `soon` is told an answer that is good already, while there may come a better one.
    """
    try:
        event = Event(json.loads(raw))
    except (ValueError, RecursionError):
        return None
    module = _module(tool)
    call: Call | None = module.understand(event, os.environ)
    if call is None:
        return None
    from fsguard.hooks import engine

    def sure(outcome: Outcome) -> None:
        soon(module.answer(event, call, outcome))

    return module.answer(event, call, engine.perform(call, os.getppid(), sure))


def _module(tool: str) -> ModuleType:
    name = "fsguard.hooks." + tool.replace("-", "_")
    return __import__(name, fromlist=["understand"])


def _stdin() -> bytes:
    parts = []
    size = 0
    while size <= _MAX_EVENT and (data := os.read(0, 1 << 18)):
        parts.append(data)
        size += len(data)
    return b"".join(parts)


class _Answer:
    """What is going to be printed, once, by whichever thread comes first."""

    def __init__(self) -> None:
        self._line = b""
        self._lock = _thread.allocate_lock()

    def set(self, value: Any) -> None:
        self._line = json.dumps(value).encode("ascii") + b"\n" if value else b""

    def give(self) -> None:
        self._lock.acquire()  # never released: there is one answer
        line = self._line
        while line:
            line = line[os.write(1, line) :]


def _end(answer: _Answer) -> None:
    time.sleep(SECONDS)
    try:
        answer.give()
    finally:
        # Not sys.exit(): the other thread may hang where only the end of the process helps.
        os._exit(0)
