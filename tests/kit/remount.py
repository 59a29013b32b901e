"""A mount whose server can be made to die at a certain point, and is followed by another.

    python -m tests.kit.remount WORKSPACE MOUNTPOINT

Reads lines: ``arm SERIAL POINT NTH TIMES`` (see `engine.die_at`; so many servers die there, one after the
other; answered by ``armed SERIAL``) and ``end``. Says ``ready``, and ``served`` whenever there is a next one.
"""

from __future__ import annotations

import fcntl
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


def _open_now() -> set[int]:
    return {fd for fd in map(int, os.listdir("/proc/self/fd")) if _is_open(fd)}  # not that of the listing


def _is_open(fd: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_GETFD)
    except OSError:
        return False
    return True


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


class Keeper:
    """Holds what must outlive a server: descriptors, memory, what was agreed on."""

    def __init__(self, workspace: str, mountpoint: str) -> None:
        self.memory = os.memfd_create("lane")
        self.log = os.open(f"{mountpoint}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.orders = f"{mountpoint}.orders"
        self.mounted = connections.mount(workspace, mountpoint)
        self.past: connections.Past | None = None
        self.hear, self.tell = os.pipe()
        self.pid = self.device = 0
        self.ending = False
        self.before: set[int] = set()
        self.order: tuple[int, int] | None = None
        self.more = 0  # servers that are to die there

    def start(self) -> None:
        if self.past is not None:  # the server moves its own, and may die over that
            self.past = self.past._replace(fuse_fd=os.dup(self.device))
        self.before = _open_now()  # of the dead, too
        self.pid = clone()
        if self.pid == 0:
            self._work()
        if self.past is not None:
            # Nothing is opened here until the server has closed what the dead had: it might take it for that.
            gone = None
            while not select.select([self.hear], [], [], 0.01)[0] and gone is None:
                gone = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if select.select([self.hear], [], [], 0)[0]:
                os.read(self.hear, 1)
            return
        with open(self.hear, "rb", closefd=False, buffering=0) as pipe:
            size = struct.unpack("=I", pipe.read(4))[0]
            data = b""
            while len(data) < size:
                data += pipe.read(size - len(data))
        self.past = pickle.loads(data)
        self.device = os.dup(self.past.fuse_fd)

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
            known = {0, 1, 2, self.memory, self.log, self.hear, self.tell, self.device}
            for fd in self.before - known - set(found["fds"]) - set(past.descriptors()):
                os.close(fd)
            os.write(self.tell, b"1")
            if self.order is not None:
                engine.die_at(*self.order)

        def arm(number: int, frame: object) -> None:
            with open(self.orders, encoding="ascii") as file:
                serial, point, nth = map(int, file.read().split())
            engine.die_at(point, nth)
            _say(f"armed {serial}")

        signal.signal(signal.SIGUSR1, arm)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
        async with trio.open_nursery() as nursery:
            await nursery.start(connection.run, operations)
            if past is None:
                data = pickle.dumps(connection.handed_on())
                os.write(self.tell, struct.pack("=I", len(data)) + data)
            await connection.over.wait()

    def run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])  # until a server listens
        self.start()
        _say("ready")
        while True:
            pidfd = os.pidfd_open(self.pid)
            ready = select.select([pidfd, *([] if self.ending else [0])], [], [])[0]
            os.close(pidfd)
            if 0 in ready:
                for line in os.read(0, 4096).decode().splitlines() or ["end"]:
                    self._obey(line.split())
                continue
            status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            if status == 0 or self.ending:
                return
            print(f"died {status}", file=sys.stderr, flush=True)
            self.more -= 1
            if self.more <= 0:
                self.order = None
            self.start()
            _say("served")

    def _obey(self, words: list[str]) -> None:
        if words[0] == "end":
            self.ending = True
            with suppress(OSError):
                self.mounted.unmount()
            return
        serial, point, nth, self.more = map(int, words[1:])
        self.order = (point, nth)
        with open(f"{self.orders}.new", "w", encoding="ascii") as file:
            file.write(f"{serial} {point} {nth}")
        os.replace(f"{self.orders}.new", self.orders)  # one that was told before may be reading
        os.kill(self.pid, signal.SIGUSR1)


if __name__ == "__main__":
    Keeper(sys.argv[1], sys.argv[2]).run()
