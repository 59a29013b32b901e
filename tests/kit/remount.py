"""A mount whose server can be made to die at a certain point, and is followed by another.

    python -m tests.kit.remount WORKSPACE MOUNTPOINT

Reads lines: ``arm POINT NTH`` (see `engine.die_at`; answered by ``armed``) and ``end``. Says ``ready``,
and ``served`` whenever the next server has taken over.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import struct
import sys
import traceback
from contextlib import suppress
from typing import Any, NoReturn

import trio

from fsguard.fuse import connection as connections
from fsguard.fuse.operations import Operations, Settings
from fsguard.lane import engine
from fsguard.observer import Caller, Change, NullObserver
from tests.kit.mortal import clone


def _line(kind: str, path: bytes) -> bytes:
    return b"%s %s\n" % (kind.encode(), path)


def _first(change: Change) -> bytes:
    for name in ("source", "first", "target"):
        if hasattr(change, name):
            return bytes(getattr(change, name))
    return b""


class Told(NullObserver):
    """Writes down what it is told of, with one write(2) each."""

    def __init__(self, log: int) -> None:
        self._log = log

    def changing(self, caller: Caller, change: Change) -> Any:
        log = self._log

        class Announced:
            def __enter__(self) -> None: ...

            def __exit__(self, kind: object, error: object, tb: object) -> None:
                if kind is None:
                    os.write(
                        log, _line(type(change).__name__, getattr(change, "path", None) or _first(change))
                    )

        return Announced()

    def removed(self, who: object, path: bytes, at: float) -> None:
        os.write(self._log, _line("Removed", path))

    def linked(self, who: object, path: bytes, file: object, at: float) -> None:
        os.write(self._log, _line("Linked", path))


class Keeper:
    """Holds what must outlive a server: descriptors, memory, what was agreed on."""

    def __init__(self, workspace: str, mountpoint: str) -> None:
        self.memory = os.memfd_create("lane")
        self.log = os.open(f"{mountpoint}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.orders = f"{mountpoint}.orders"
        self.mounted = connections.mount(workspace, mountpoint)
        self.past: connections.Past | None = None
        self.hear, self.tell = os.pipe()
        self.pid = 0
        self.ending = False

    def start(self) -> None:
        self.pid = clone()
        if self.pid == 0:
            self._work()
        with open(self.hear, "rb", closefd=False, buffering=0) as pipe:
            size = struct.unpack("=I", pipe.read(4))[0]
            data = b""
            while len(data) < size:
                data += pipe.read(size - len(data))
        self.past = pickle.loads(data)

    def _work(self) -> NoReturn:
        code = 1
        try:
            trio.run(self._serve)
            code = 0
        except BaseException:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)

    async def _serve(self) -> None:
        past = self.past
        found: Any = None
        if past is None:
            connection = self.mounted
            engine.share(self.memory)
        else:
            connection = connections.resume(past)
        settings = Settings(entry_timeout=1.0, attr_timeout=1.0, keep_cache=True, lane=True)
        operations = Operations(connection.workspace_fd, Told(self.log), settings)
        if past is not None:
            found = engine.take_over(self.memory)
            assert operations.lane is not None
            operations.lane.lost_count()
            operations.adopt_handles([h[:5] for h in found["handles"]], {})
            engine.misses_known()

        def arm(number: int, frame: object) -> None:
            with open(self.orders, encoding="ascii") as file:
                point, nth = map(int, file.read().split())
            engine.die_at(point, nth)
            print("armed", flush=True)

        signal.signal(signal.SIGUSR1, arm)
        async with trio.open_nursery() as nursery:
            await nursery.start(connection.run, operations)
            data = pickle.dumps(connection.handed_on())
            os.write(self.tell, struct.pack("=I", len(data)) + data)
            await connection.over.wait()

    def run(self) -> None:
        self.start()
        print("ready", flush=True)
        while True:
            pidfd = os.pidfd_open(self.pid)
            ready = select.select([pidfd, *([] if self.ending else [0])], [], [])[0]
            os.close(pidfd)
            if 0 in ready:
                self._obey(os.read(0, 4096).decode().split())
                continue
            status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            if status == 0 or self.ending:
                return
            print(f"died {status}", file=sys.stderr, flush=True)
            self.start()
            print("served", flush=True)

    def _obey(self, words: list[str]) -> None:
        if not words or words[0] == "end":
            self.ending = True
            with suppress(OSError):
                self.mounted.unmount()
            return
        with open(self.orders, "w", encoding="ascii") as file:
            file.write(" ".join(words[1:]))
        os.kill(self.pid, signal.SIGUSR1)


if __name__ == "__main__":
    Keeper(sys.argv[1], sys.argv[2]).run()
