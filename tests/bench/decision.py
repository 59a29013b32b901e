"""What one decision of the guard costs: who it is, what they have seen, what the rules say.

    python -m tests.bench.decision [ROUNDS]

The caller's process is known already (attribution cached, as it is for all but
the first request of a process), the file has been written by another task and
read by ours. Of each round's means the fastest tenth is shown: on a busy
machine most are disturbed.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from collections.abc import Callable

from fsguard.attribution.resolver import Resolver
from fsguard.core.guard import Change, Guard
from fsguard.core.model import Act, Actor, Command, Process

LIMIT = 15e-6
REPEAT = 2000


class Nothing:
    """No file is locked, none is ignored by git."""

    def self_locking(self, path: bytes, file: object, act: Act) -> bool:
        return False

    def git_ignored(self, path: bytes) -> bool:
        return False


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    guard = Guard(Nothing())
    resolver = Resolver(guard)
    task, other = (guard.tasks.get(name, 0.0, 0) for name in ("A", "B"))
    me = Actor(task, Process(os.getpid(), 1, "python"), Command("run1", "a command", task))
    them = Actor(other, Process(4711, 1, "sed"), Command("run2", "another", other))
    resolver.recall = lambda tid: me  # what the lane remembers
    paths = [b"src/package/module%d.py" % i for i in range(REPEAT)]
    for path in paths:
        guard.done(Change(them), path, Act.WRITE, 1.0)
        guard.looked(me, (path,), 2.0)

    def attribution() -> None:
        for path in paths:
            resolver.actor(4711, (path,))

    def stamp() -> None:
        for path in paths:
            guard.looked(me, (path,), 3.0)

    def rules() -> None:
        for path in paths:
            guard.intend(Change(me), path, Act.TRUNCATE, 4.0)

    def whole() -> None:
        for path in paths:
            actor = resolver.actor(4711, (path,))
            guard.looked(actor, (path,), 3.0)
            guard.intend(Change(actor), path, Act.TRUNCATE, 4.0)

    def recorded() -> None:
        for path in paths:
            guard.done(Change(me), path, Act.TRUNCATE, 5.0)

    cases: dict[str, Callable[[], None]] = {
        "attribution": attribution,
        "stamp": stamp,
        "rules": rules,
        "a full decision": whole,
        "a finished change": recorded,
    }
    took: dict[str, list[float]] = {name: [] for name in cases}
    gc.disable()
    for _ in range(rounds):
        for name, case in cases.items():
            began = time.perf_counter()
            case()
            took[name].append((time.perf_counter() - began) / REPEAT)
        gc.collect()
    assert not list(guard.outbox), "nothing was to be said"
    fastest = {name: statistics.mean(sorted(times)[: max(1, rounds // 10)]) for name, times in took.items()}
    for name, seconds in fastest.items():
        print(f"{name:18} {seconds * 1e6:6.2f} µs")
    good = fastest["a full decision"] <= LIMIT
    print(f"a full decision: at most {LIMIT * 1e6:.0f} µs: {'yes' if good else 'NO'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
