"""What it costs that the guard's work is noted on a tape, for whoever takes over after a kill.

    python -m tests.bench.tape [ROUNDS]

Each operation is announced and confirmed as the filesystem does it, with and without a tape, in
turns; files are in memory and processes known, so that little but the guard is measured, in processor
time. The whole of such a request takes 100-250 µs (`make bench`). Of each round's means the fastest tenth
is shown.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from fsguard import taping
from fsguard.attribution.resolver import Resolver
from fsguard.core.guard import Guard
from fsguard.core.model import Actor, Command, Process
from fsguard.dispatch import Dispatch, Shield
from fsguard.observer import Caller, Removed, Renamed
from fsguard.tape import Tape
from tests.bench.decision import Nothing

LIMIT = 30e-6
REPEAT = 500


class File:
    """Always the same size, and never the same bytes."""

    numbers = iter(range(1, 1 << 60))

    def __init__(self, path: bytes) -> None:
        self.id = next(self.numbers)
        self.names = (path,)

    def paths(self) -> tuple[bytes, ...]:
        return self.names

    def is_regular(self) -> bool:
        return True

    def size(self) -> int:
        return 100

    def digest(self, limit: int) -> bytes | None:
        return b"%032d" % self.id

    def head(self, size: int) -> bytes:
        return b"x" * min(size, 100)

    def pread(self, size: int, offset: int) -> bytes:
        return b"x" * size

    def stat(self) -> os.stat_result:
        return os.stat_result((0o100644, self.id, 1, 1, 0, 0, 100, 0, 0, 0))


class Side:
    """One guard; `noted`: on a tape."""

    def __init__(self, noted: bool) -> None:
        self.tape = Tape() if noted else None
        self.guard = Guard(taping.probe(self.tape, Nothing()))
        self.resolver = Resolver(self.guard, proc=taping.proc(self.tape))
        task, other = (self.guard.tasks.get(name, 0.0, 0) for name in ("A", "B"))
        actors = {
            7: Actor(task, Process(7, 1, "python"), Command("run1", "a command", task)),
            8: Actor(other, Process(8, 1, "sed"), Command("run2", "another", other)),
        }
        self.resolver.recall = actors.get  # type: ignore[assignment]
        dispatch = Dispatch(self.guard, self.resolver)
        self.unique = 0
        inner: Any = dispatch
        self.kind: Any = File
        if self.tape is not None:
            inner = taping.record(self.tape, dispatch, self.resolver, self.request)
            self.kind = self.tape.view(File)
            for actor in actors.values():
                inner.name(actor)
        self.shield = Shield(inner)
        self.files = [self.kind(b"src/package/module%d.py" % i) for i in range(REPEAT)]

    def request(self) -> int:
        return self.unique

    def caller(self, tid: int = 7) -> Caller:
        self.unique += 2
        return Caller(tid, 0, 0, 0o22, self.unique)

    def cut(self) -> None:
        if self.tape is not None:
            self.tape.forget(self.tape.cut())

    def write(self, session: Any) -> None:
        self.unique += 2
        session.writing(7, 0, b"y" * 100)
        session.wrote(0, 100)
        session.goes_on(7)
        self.unique += 2
        session.released()

    def create(self) -> None:
        for file in self.files:
            session = finish(self.shield.create(self.caller(), file.names[0], os.O_WRONLY))
            session.opened(file)
            self.write(session)

    def rewrite(self) -> None:
        for file in self.files:
            session = finish(self.shield.open(self.caller(), file, os.O_WRONLY | os.O_TRUNC))
            session.opened(file)
            self.write(session)

    def rename(self) -> None:
        for file in self.files:
            old, new = file.names[0], file.names[0] + b"~"
            for source, target in ((old, new), (new, old)):
                with self.shield.changing(self.caller(), Renamed(source, target, file, None, False)):
                    file.names = (target,)

    def unlink(self) -> None:
        for file in self.files:
            with self.shield.changing(self.caller(), Removed(file.names[0], file)):
                pass

    def look(self) -> None:
        for file in self.files:
            self.shield.looked(self.caller(8), file)


def finish(coroutine: Any) -> Any:
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits")


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    sides = {"without": Side(False), "with": Side(True)}
    requests = {"create": 3, "look": 1, "rewrite": 3, "rename": 2, "unlink": 1}  # of the kernel's, in each
    took: dict[tuple[str, str], list[float]] = {(case, name): [] for case in requests for name in sides}
    gc.disable()
    for _ in range(rounds):
        for case in requests:
            for name, side in sides.items():
                act: Callable[[], None] = getattr(side, case)
                began = time.process_time()
                act()
                took[case, name].append((time.process_time() - began) / REPEAT)
                side.cut()
        gc.collect()
    fastest = {k: statistics.mean(sorted(times)[: max(1, rounds // 10)]) for k, times in took.items()}
    worst = 0.0
    for case, count in requests.items():
        before, after = fastest[case, "without"], fastest[case, "with"]
        each = (after - before) / count
        worst = max(worst, each)
        whole = f"{case:8} {before * 1e6:6.1f} µs, on a tape {after * 1e6:6.1f} µs"
        print(f"{whole}: {each * 1e6:4.1f} µs a request")
    print(f"at most {LIMIT * 1e6:.0f} µs a request: {'yes' if worst <= LIMIT else 'NO'}")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
