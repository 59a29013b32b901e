"""What turns add to an uncontended open for writing: daemon time, with and without, side by side.

    python -m tests.bench.turns [ROUNDS]

The dispatcher is driven as the filesystem drives it, on real files (the
questions to /proc/locks and to the file's head are real), without a kernel in
between. Short rounds with and without turns alternate, and of each side's rounds
the fastest fiftieth is compared: on a busy machine most are disturbed.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from fsguard.core.guard import Guard
from fsguard.core.model import Actor, Command, Process
from fsguard.core.turns import Turns
from fsguard.dispatch import Dispatch, OpenFile, observer
from fsguard.dispatch.waiting import Waiting
from fsguard.observer import Caller
from fsguard.probe import Facts

LIMIT = 5e-6
REPEAT = 20


class RealFile:
    """A file behind the mount, by path (`fsguard.observer.FileView`)."""

    def __init__(self, root: int, path: bytes) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT, dir_fd=root)
        self.ino = os.fstat(self.fd).st_ino

    def paths(self) -> tuple[bytes, ...]:
        return (self.path,)

    def is_regular(self) -> bool:
        return True

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def digest(self, limit: int) -> bytes | None:
        return None

    def head(self, size: int) -> bytes:
        return os.pread(self.fd, size, 0)

    def pread(self, size: int, offset: int) -> bytes:
        return os.pread(self.fd, size, offset)


class OneProcess:
    """`fsguard.dispatch.Processes` of a machine with one process."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    def actor(self, tid: int, paths: Sequence[bytes] = ()) -> Actor:
        return self._actor

    def author(self, pid: int, texts: Mapping[str, bytes], paths: Sequence[bytes] = ()) -> Actor:
        return self.actor(pid, paths)

    def opens_for_reading(self, tid: int) -> bool:
        return True

    def reads_link(self, tid: int) -> bool:
        return True

    def wants_out(self, tid: int) -> bool:
        return False

    def gone(self, actor: Actor) -> bool:
        return False


class NoTurns(Waiting):
    """As if there were no turns."""

    def begin(self, *_: Any, **more: Any) -> None: ...

    def leave(self, *_: Any) -> None: ...


class TurnlessFile(OpenFile):
    def turn_of(self, *_: Any) -> bool:
        return False


SIDES = {True: OpenFile, False: TurnlessFile}


def dispatcher(root: int, turns: bool) -> Dispatch:
    guard = Guard(Facts(root))
    task = guard.tasks.get("A", 0.0, 0)
    process = Process(4711, 1, "sh")
    actor = Actor(task, process, Command("run1", "a command", task))
    dispatch = Dispatch(guard, OneProcess(actor))
    if not turns:
        dispatch.waiting = NoTurns(guard, Turns(), dispatch.processes, 5.0, time.time, {})
    return dispatch


def run(coroutine: Coroutine[Any, Any, Any]) -> OpenFile:
    try:
        coroutine.send(None)
    except StopIteration as done:
        session: OpenFile = done.value
        return session
    raise AssertionError("an uncontended open waited")


CALLER = Caller(4711, 0, 0)
DATA = b"x" * 100


def write_open(flags: int) -> Callable[[Dispatch, RealFile], None]:
    def once(dispatch: Dispatch, file: RealFile) -> None:
        session = run(dispatch.open(CALLER, file, flags))
        session.opened(file)
        session.writing(4711, 0, DATA)
        session.wrote(0, len(DATA))
        session.released()

    return once


def create(dispatch: Dispatch, file: RealFile) -> None:
    session = run(dispatch.create(CALLER, file.path, os.O_WRONLY | os.O_CREAT))
    session.opened(file)
    session.writing(4711, 0, DATA)
    session.wrote(0, len(DATA))
    session.released()


CASES: dict[str, Callable[[Dispatch, RealFile], None]] = {
    "> file": write_open(os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ">> file": write_open(os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    "in place": write_open(os.O_WRONLY),
    "create": create,
}


def measure(rounds: int = 1001) -> dict[str, tuple[float, float]]:
    """By case: seconds of one open, write and close with turns, and without."""
    result = {}
    with tempfile.TemporaryDirectory() as directory:
        root = os.open(directory, os.O_RDONLY)
        try:
            for name, once in CASES.items():
                file = RealFile(root, name.encode())
                sides = {turns: dispatcher(root, turns) for turns in (True, False)}
                times: dict[bool, list[float]] = {True: [], False: []}
                gc.collect()
                for number in range(2 * rounds):
                    turns = bool(number % 2)
                    observer.OpenFile = SIDES[turns]  # type: ignore[misc]
                    began = time.thread_time()
                    for _ in range(REPEAT):
                        once(sides[turns], file)
                    times[turns].append((time.thread_time() - began) / REPEAT)
                on, off = (statistics.quantiles(times[turns], n=50)[0] for turns in (True, False))
                result[name] = (on, off)
                os.close(file.fd)
        finally:
            observer.OpenFile = OpenFile  # type: ignore[misc]
            os.close(root)
    return result


def main() -> int:
    worst = 0.0
    for name, (on, off) in measure(int(sys.argv[1]) if len(sys.argv) > 1 else 1001).items():
        worst = max(worst, on - off)
        added = f"{name:10} with turns {on * 1e6:6.1f} µs, without {off * 1e6:6.1f} µs"
        print(f"{added}: they add {(on - off) * 1e6:5.2f} µs")
    print("below the limit" if worst < LIMIT else f"above the limit of {LIMIT * 1e6:g} µs")
    return int(worst >= LIMIT)


if __name__ == "__main__":
    sys.exit(main())
