"""The lane in processes that are killed, one after another, over the same memory; the test plays the kernel.

    this process: memory, descriptors, the kernel's end of the socket pair; one thread
      └─ worker: clone(CLONE_FILES), so what it has open outlives it; killed at any moment

What was sent and not answered is sent once more, as the kernel does: what had been read by the dead
with the bit that says so. Run as a program: ``python -m tests.kit.mortal SEED KILLS DIRECTORY``;
or with a fourth word: ``damage`` (of memory, so many times), ``listen`` (for changes from behind).
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from errno import EIO
from typing import Any, NoReturn

from fsguard.lane import engine
from tests.kit import kernel as k
from tests.kit.kernel import attr_of, entry_of

__all__ = ["AGAIN", "Sent", "Worker", "clone"]

AGAIN = 1 << 63
_BUFFER = (1 << 20) + 8192
_CLONE_FILES, _SYS_CLONE = 0x400, {"x86_64": 56, "aarch64": 220}
_HEADER, _OUT = struct.Struct("=IIQQIIIHH"), struct.Struct("=IiQ")
_libc = ctypes.PyDLL(None, use_errno=True)  # does not give up the GIL: the child has to have it


def clone() -> int:
    """fork(2), but with the same table of descriptors. This process must have one thread."""
    number = _SYS_CLONE[os.uname().machine]
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = int(_libc.syscall(number, _CLONE_FILES | signal.SIGCHLD, 0, 0, 0, 0))
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(ctypes.get_errno(), "clone")
    return pid


class Sent:
    """A request that waits for its answer."""

    def __init__(
        self, opcode: int, node: int, body: bytes, pid: int, then: Callable[[k.Reply], None]
    ) -> None:
        self.opcode, self.node, self.body, self.pid, self.then = opcode, node, body, pid, then
        self.again = False

    def packet(self, unique: int) -> bytes:
        return (
            _HEADER.pack(_HEADER.size + len(self.body), self.opcode, unique, self.node, 0, 0, self.pid, 0, 0)
            + self.body
        )


class Worker:
    """Workers, of which one is alive at a time, and what the kernel would know."""

    def __init__(self, root: str, threads: int = 4) -> None:
        self.root, self.threads = root, threads
        self.root_fd = os.open(root, os.O_PATH | os.O_DIRECTORY)
        self.memory = os.memfd_create("lane")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
            end.setblocking(False)
        self.ours, self.theirs = ours, theirs
        self.hear, self.tell = os.pipe()
        self.tid = k.ME()
        self.pid = 0
        self.born = 0
        self.unique = 0
        self.waiting: dict[int, Sent] = {}
        self.left: dict[str, Any] = {}
        self.fds: dict[int, int] = {}  # the worker's: Python's handles that are not the lane's
        self.notices: list[tuple[int, bytes]] = []  # (FUSE_NOTIFY_*, body)
        self._heard = b""
        self.again = False  # whether what was answered last had come again

    # ---- the worker ----

    def start(self, options: dict[str, Any] | None = None, serve: bool = True) -> None:
        """The next worker; `left` is what it has found (empty: nothing was there)."""
        self.born += 1
        self.pid = clone()
        if self.pid == 0:
            self._work(self.born == 1, options or {}, serve)
        self.left = self.said()

    def said(self) -> dict[str, Any]:
        """One line of the worker's."""
        while b"\n" not in self._heard:
            assert select.select([self.hear], [], [], 20.0)[0], "the worker says nothing"
            self._heard += os.read(self.hear, 65536)
        said, _, self._heard = self._heard.partition(b"\n")
        found: dict[str, Any] = json.loads(said)
        assert "error" not in found, found["error"]
        return found

    def _say(self, what: object) -> None:
        data = json.dumps(what).encode() + b"\n"
        while data:
            data = data[os.write(self.tell, data) :]

    def _work(self, first: bool, options: dict[str, Any], serve: bool) -> NoReturn:
        try:
            found: dict[str, Any] = {}
            if first:
                engine.share(self.memory)
            engine.start(root_fd=self.root_fd, entry_ns=10**9, attr_ns=10**9, open_flags=0, opendir_flags=0)
            if not first:
                found = dict(engine.take_over(self.memory))
                # What is nobody's any more.
                ours = {0, 1, 2, self.root_fd, self.memory, self.ours.fileno(), self.theirs.fileno()}
                ours |= {self.hear, self.tell, engine.eventfd(), *engine_fds(), *found["fds"]}
                for name in os.listdir("/proc/self/fd"):
                    if int(name) not in ours:
                        with suppress(OSError):
                            os.close(int(name))
                engine.misses_known()
                self.fds = {fh: fd for fh, _, fd, *_ in found["handles"] if not fh >> 62}
            elif options.get("watch"):
                engine.watch()
            known = {id_: engine.state(id_)[0] for id_ in options.get("nodes", ())}
            paths = {id_: [os.fsdecode(p) for p in engine.paths(id_)] for id_ in known}
            engine.know(self.tid, 7, 1, 3600.0)
            engine.let_make(True)
            if options.get("records"):
                found["records"] = [[r[0], [os.fsdecode(p) for p in r[2]]] for r in engine.take_records()]
            if options.get("die"):
                engine.die_at(*options["die"])
            self._say({**found, "lookups": known, "paths": paths, "load": engine.load()})
            if serve:
                engine.serve(self.theirs.fileno(), self.threads, _BUFFER)
            if options.get("listen"):
                self._say(self._hear_of(options["listen"].encode()))
            while True:
                select.select([engine.eventfd()], [], [])
                while (request := engine.next_request()) is not None:
                    self._python(request)
        except BaseException:
            self._say({"error": traceback.format_exc()})
        os._exit(1)

    def _hear_of(self, path: bytes) -> dict[str, Any]:
        """Changes from behind, until one concerns the path: (FAN_* bits, path)."""
        heard: list[tuple[int, bytes | None]] = []
        while not any(one == path for _, one in heard):
            assert select.select([engine.eventfd()], [], [], 10)[0], heard
            heard += [change[:2] for change in engine.take_changes()]
            while engine.next_request() is not None:
                pass  # that also lowers the event
        load = engine.watch_load()
        return {"heard": [[mask, os.fsdecode(one or b"")] for mask, one in heard], "load": load}

    def _python(self, request: bytes) -> None:
        """What Python would do with a request, as far as the test needs it."""
        _, opcode, unique, node, _, _, pid, _, _ = _HEADER.unpack_from(request)
        body = request[_HEADER.size :]
        error, out = 0, b""
        if opcode == k.OPEN:
            (flags,) = struct.unpack_from("=I", body)
            path = os.path.join(self.root, os.fsdecode(engine.paths(node)[0]))
            fh, fd = unique & ~AGAIN, os.open(path, flags & os.O_ACCMODE)
            assert engine.note_handle(fh, node, fd, flags, True, pid)
            self.fds[fh] = fd
            out = struct.pack("=QIi", fh, 0, 0)
        elif opcode == k.RELEASE:
            (fh,) = struct.unpack_from("=Q", body)
            self._close(fh)
        elif opcode == k.WRITE:
            fh, offset, size = struct.unpack_from("=QQI", body)
            done = os.pwrite(self._fd(fh), body[40 : 40 + size], offset)
            out = struct.pack("=II", done, 0)
        elif opcode in (k.CREATE, k.UNLINK, k.RMDIR, k.LINK) and engine.past(unique):
            error, out = self._once_more(opcode, unique, node, body)
        else:
            error = EIO
        os.write(self.theirs.fileno(), _OUT.pack(_OUT.size + len(out), -error, unique) + out)

    def _once_more(self, opcode: int, unique: int, parent: int, body: bytes) -> tuple[int, bytes]:
        """A process before may have done it; (errno, body)."""
        name = body[{k.CREATE: 16, k.LINK: 8}.get(opcode, 0) :].rstrip(b"\0")
        path = os.path.join(os.fsencode(self.root), engine.paths(parent)[0], name)
        known = engine.child(parent, name)
        if opcode in (k.UNLINK, k.RMDIR):
            if os.path.lexists(path):
                (os.unlink if opcode == k.UNLINK else os.rmdir)(path)
            if known:
                engine.remove_name(known, parent, name)
                if not engine.names(known):
                    engine.detach(known)
                engine.release(known)
            return 0, b""
        if opcode == k.LINK:
            (node,) = struct.unpack_from("=Q", body)
            if not os.path.lexists(path):
                os.link(os.path.join(os.fsencode(self.root), engine.paths(node)[0]), path)
            engine.add_name(node, parent, name)
            engine.hand_out(node)
        else:
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            st = os.fstat(fd)
            node = engine.enter(parent, name, st.st_dev, st.st_ino, st.st_mode, st.st_nlink, 0)
            engine.hand_out(node)
            fh = unique & ~AGAIN
            engine.note_handle(fh, node, fd, os.O_RDWR, True, 0)
            engine.release(node)
            self.fds[fh] = fd
        if known:
            engine.release(known)
        st = os.stat(path)
        entry = struct.pack("=QQQQII", node, 0, 0, 0, 0, 0) + struct.pack(
            "=QQQQQQIIIIIIIIII", st.st_ino, st.st_size, 0, 0, 0, 0, 0, 0, 0, st.st_mode, st.st_nlink, *[0] * 5
        )
        return 0, entry + (struct.pack("=QIi", fh, 0, 0) if opcode == k.CREATE else b"")

    def _fd(self, fh: int) -> int:
        if fh in self.fds:
            return self.fds[fh]
        with suppress(OSError):
            return engine.making(fh)[0]
        raise AssertionError("a write through a handle that nobody has")

    def _close(self, fh: int) -> None:
        fd = self.fds.pop(fh, -1)
        if fh >> 62:
            with suppress(OSError):
                fd = engine.making(fh)[0]
        engine.unnote_handle(fh)
        if fd >= 0:
            os.close(fd)
        engine.close_handle(fh)

    # ---- the kernel ----

    def send(
        self, opcode: int, node: int, body: bytes, then: Callable[[k.Reply], None], pid: int | None = None
    ) -> int:
        self.unique += 2
        sent = Sent(opcode, node, body, self.tid if pid is None else pid, then)
        if opcode not in (k.FORGET, k.BATCH_FORGET):  # those have no answer
            self.waiting[self.unique] = sent
        self._put(sent.packet(self.unique))
        return self.unique

    def _put(self, packet: bytes) -> None:
        while True:
            try:
                self.ours.send(packet)
                return
            except BlockingIOError:
                self.receive()
                select.select([], [self.ours], [], 0.01)

    def receive(self, seconds: float = 0.0) -> int:
        """Take answers; how many there were."""
        count = 0
        while select.select([self.ours], [], [], 0.0 if count else seconds)[0]:
            packet = self.ours.recv(2 << 20)
            _, error, number = _OUT.unpack_from(packet)
            if number == 0:
                self.notices.append((error, packet[_OUT.size :]))
                continue
            count += 1
            sent = self.waiting.pop(number & ~AGAIN)
            self.again = sent.again
            sent.then(k.Reply(-error, packet[_OUT.size :]))
        return count

    def settle(self, seconds: float = 20.0) -> None:
        """Until everything is answered."""
        end = time.monotonic() + seconds
        while self.waiting:
            said = os.read(self.hear, 65536) if select.select([self.hear], [], [], 0)[0] else b""
            assert not said, said.decode()
            assert time.monotonic() < end, [(s.opcode, s.again) for s in self.waiting.values()]
            self.receive(0.05)

    def kill(self) -> None:
        """SIGKILL, and then as the kernel would: what had been read comes again, the rest simply comes."""
        os.kill(self.pid, signal.SIGKILL)
        self.reap()

    def reap(self) -> None:
        os.waitpid(self.pid, 0)
        self.pid = 0
        self.receive()
        unread: list[bytes] = []
        with suppress(BlockingIOError):
            while True:
                unread.append(self.theirs.recv(_BUFFER))
        there = {_HEADER.unpack_from(packet)[2] & ~AGAIN for packet in unread}
        for unique, sent in self.waiting.items():
            if unique not in there:
                sent.again = True
                unread.append(sent.packet(unique | AGAIN))
        self._pending = unread

    def resend(self) -> None:
        for packet in self._pending:
            self._put(packet)


def engine_fds() -> set[int]:
    """Descriptors that the lane has opened by itself: event descriptors."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if "eventfd" in os.readlink(f"/proc/self/fd/{name}"):
                found.add(int(name))
    return found


class Story:
    """Random traffic, and what must be true of it."""

    def __init__(self, seed: int, root: str) -> None:
        self.random = random.Random(seed)
        self.worker = Worker(root)
        self.root = root
        self.lookups: dict[int, int] = {}  # as the kernel counts them
        self.names: dict[int, set[str]] = {}
        self.files: dict[str, int] = {}  # not being changed by a request under way
        self.dirs: dict[str, int] = {"": 1}
        self.open: dict[int, tuple[int, str]] = {}  # for reading: node, path
        self.pythons: dict[int, int] = {}
        self.written: dict[str, bytes] = {}
        self.made: list[str] = []
        self.removed: list[str] = []
        self.busy: set[int] = set()  # the kernel holds an inode's lock while a name of it comes or goes
        self.serial = 0
        self.faults: list[str] = []
        for i in range(20):
            with open(os.path.join(root, f"old{i}"), "w", encoding="ascii") as file:
                file.write(f"old{i}")

    def entry(self, path: str, body: bytes) -> int:
        id_, _ = entry_of(body)
        self.lookups[id_] = self.lookups.get(id_, 0) + 1
        self.names.setdefault(id_, set()).add(path)
        return id_

    def fail(self, what: str, reply: k.Reply) -> None:
        self.faults.append(f"{what}: {os.strerror(reply.error)}")

    def step(self) -> None:
        choices = [
            self.look,
            self.look,
            self.create,
            self.mkdir,
            self.forget,
            self.open_file,
            self.open_python,
            self.release,
            self.unlink,
            self.link,
            self.getattr,
        ]
        self.random.choice(choices)()

    def fresh(self) -> tuple[str, str, int]:
        above = self.random.choice(list(self.dirs))
        self.serial += 1
        name = f"n{self.serial}" + "x" * self.random.choice((0, 20, 60, 120, 230))
        return (f"{above}/{name}" if above else name), name, self.dirs[above]

    def look(self) -> None:
        name = f"old{self.random.randrange(20)}"

        def then(reply: k.Reply) -> None:
            if reply.error:
                self.fail("lookup", reply)
                return
            self.files[name] = self.entry(name, reply.body)

        self.worker.send(k.LOOKUP, 1, name.encode() + b"\0", then)

    def getattr(self) -> None:
        if not self.files:
            return
        path, id_ = self.random.choice(list(self.files.items()))

        def then(reply: k.Reply) -> None:
            if reply.error:
                self.fail(f"getattr {path}", reply)
            elif (
                path in self.files
                and attr_of(reply.body, 16).ino != os.stat(os.path.join(self.root, path)).st_ino
            ):
                self.faults.append(f"getattr {path}: another file")

        if self.lookups.get(id_, 0) > 0:
            self.worker.send(k.GETATTR, id_, struct.pack("=IIQ", 0, 0, 0), then)
            self.worker.receive()

    def mkdir(self) -> None:
        path, name, above = self.fresh()
        if len(self.dirs) > 30 or path.count("/") > 8:
            return

        def then(reply: k.Reply) -> None:
            if reply.error:
                self.fail(f"mkdir {path}", reply)
                return
            self.dirs[path] = self.entry(path, reply.body)

        self.worker.send(k.MKDIR, above, struct.pack("=II", 0o755, 0) + name.encode() + b"\0", then)

    def create(self) -> None:
        path, name, above = self.fresh()
        body = struct.pack("=IIII", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, 0o022, 0)

        def then(reply: k.Reply) -> None:
            if reply.error:
                self.fail(f"create {path}", reply)
                return
            id_ = self.entry(path, reply.body)
            (fh,) = struct.unpack_from("=Q", reply.body, 128)
            self.write(path, id_, fh)

        self.worker.send(k.CREATE, above, body + name.encode() + b"\0", then)

    def write(self, path: str, id_: int, fh: int) -> None:
        data = path.encode()

        def then(reply: k.Reply) -> None:
            if reply.error:
                self.fail(f"write {path}", reply)
                return
            self.written[path] = data
            self.worker.send(k.RELEASE, id_, struct.pack("=QIIQ", fh, 0, 0, 0), released)

        def released(reply: k.Reply) -> None:
            if reply.error:
                self.fail(f"release {path}", reply)
                return
            self.files[path] = id_
            if fh >> 62:  # else Python made it, and knows
                self.made.append(path)

        body = struct.pack("=QQIIQII", fh, 0, len(data), 0, 0, os.O_WRONLY, 0)
        self.worker.send(k.WRITE, id_, body + data, then)

    def forget(self) -> None:
        known = [p for p, i in self.files.items() if p.startswith("old") and self.lookups.get(i, 0) > 0]
        if not known:
            return
        path = self.random.choice(known)
        id_ = self.files.pop(path)
        if any(sent.node == id_ for sent in self.worker.waiting.values()):
            self.files[path] = id_
            return
        if any(node == id_ for node, _ in self.open.values()) or id_ in self.pythons.values():
            self.files[path] = id_
            return
        count = self.lookups.pop(id_)
        self.worker.send(k.FORGET, id_, struct.pack("=Q", count), lambda reply: None)

    def _opened(self, flags: int, table: dict[int, Any]) -> None:
        if not self.files:
            return
        path, id_ = self.random.choice(list(self.files.items()))
        if self.lookups.get(id_, 0) == 0 or id_ in self.busy:
            return

        def then(reply: k.Reply) -> None:
            if reply.error:
                self.fail(f"open {path}", reply)
                return
            (fh,) = struct.unpack_from("=Q", reply.body)
            if fh in self.open or fh in self.pythons:
                self.faults.append(f"handle {fh} twice")
            if table is self.open:
                self.open[fh] = (id_, path)
            else:
                self.pythons[fh] = id_

        self.worker.send(k.OPEN, id_, struct.pack("=II", flags, 0), then)

    def open_file(self) -> None:
        self._opened(os.O_RDONLY, self.open)

    def open_python(self) -> None:
        if not [p for p in self.files if p.startswith("old")]:
            return
        self._opened(os.O_RDWR, self.pythons)

    def release(self) -> None:
        if len(self.open) < 10:
            return
        fh = self.random.choice(list(self.open))
        id_, _ = self.open.pop(fh)

        def then(reply: k.Reply) -> None:
            if reply.error:
                self.fail("release", reply)

        self.worker.send(k.RELEASE, id_, struct.pack("=QIIQ", fh, 0, 0, 0), then)

    def _own(self) -> str | None:
        used = {sent.node for sent in self.worker.waiting.values()} | self.busy
        opened = {i for i, _ in self.open.values()} | set(self.pythons.values())
        own = [p for p, i in self.files.items() if p in self.written and i not in used | opened]
        return self.random.choice(own) if own else None

    def unlink(self) -> None:
        path = self._own()
        if path is None:
            return
        id_ = self.files.pop(path)
        self.busy.add(id_)
        above, _, name = path.rpartition("/")

        def then(reply: k.Reply) -> None:
            self.busy.discard(id_)
            if reply.error == EIO:  # Python's
                self.names[id_].add(path)
                self.files[path] = id_
                return
            if reply.error:
                self.fail(f"unlink {path}", reply)
                return
            if not self.worker.again:
                self.removed.append(path)

        self.names[id_].discard(path)
        self.worker.send(k.UNLINK, self.dirs[above], name.encode() + b"\0", then)

    def link(self) -> None:
        path = self._own()
        if path is None:
            return
        id_ = self.files[path]
        self.busy.add(id_)
        new, name, above = self.fresh()

        def then(reply: k.Reply) -> None:
            self.busy.discard(id_)
            if reply.error and reply.error != EIO:
                self.fail(f"link {new}", reply)
            elif not reply.error:
                if self.entry(new, reply.body) != id_:
                    self.faults.append(f"link {new}: another node")
                self.files[new] = id_
                self.written[new] = self.written[path]

        self.worker.send(k.LINK, above, struct.pack("=Q", id_) + name.encode() + b"\0", then)

    # ---- what must be true ----

    def check_left(self) -> None:
        """No id missing, none counted too low, every handle of Python's there."""
        w = self.worker
        counts = {int(i): n for i, n in w.left["lookups"].items()}
        for id_, count in self.lookups.items():
            if counts.get(id_, 0) < count:
                self.faults.append(f"node {id_}: {counts.get(id_, 0)} lookups, not {count}")
        handles = {h[0]: h[1] for h in w.left["handles"]}
        for fh, id_ in self.pythons.items():
            if handles.get(fh) != id_:
                self.faults.append(f"Python's handle {fh} of node {id_} is not there")
        for id_, paths in w.left["paths"].items():
            gone = {p for p in self.names.get(int(id_), ()) if p in self.files} - set(paths)
            if gone and int(id_) in self.lookups:
                self.faults.append(f"node {id_} has lost {gone}")

    def read_all(self) -> None:
        """Every handle that was given still reads."""
        for fh, (id_, path) in list(self.open.items()):
            wanted = self.written.get(path, path.encode())

            def then(reply: k.Reply, path: str = path, wanted: bytes = wanted) -> None:
                if reply.error:
                    self.fail(f"read {path}", reply)
                elif reply.body != wanted:
                    self.faults.append(f"read {path}: {reply.body!r}")

            self.worker.send(k.READ, id_, struct.pack("=QQIIQII", fh, 0, 4096, 0, 0, 0, 0), then)
        self.worker.settle()

    def run(self, kills: int) -> None:
        w = self.worker
        w.start()
        die: tuple[int, int] | None = None
        for _ in range(kills):
            for _ in range(self.random.randrange(1, 60)):
                self.step()
            for _ in range(self.random.randrange(300)):
                w.receive()
            w.receive(0.002 if die else 0.0)
            w.kill()
            # At once, or where a change stands at a certain point.
            die = self.random.choice((None, (self.random.randrange(1, 5), self.random.randrange(1, 8))))
            w.start({"nodes": list(self.lookups), "die": die})
            self.check_left()
            w.resend()
            assert not self.faults, self.faults[:5]
            if die is None and self.random.random() < 0.1:
                w.settle()
                self.read_all()
        w.kill()
        w.start()
        w.resend()
        w.settle()
        self.read_all()
        w.kill()
        w.start({"nodes": list(self.lookups), "records": True})
        self.check_left()
        told: dict[str, set[str]] = {}
        for kind, paths in w.left["records"]:
            told.setdefault(kind, set()).update(paths)
        for path in self.removed:
            if path not in told.get("removed", ()):
                self.faults.append(f"nobody was told that {path} was removed")
        for path in self.made:
            if path in self.files and path not in told.get("made", set()) | told.get("opened", set()):
                self.faults.append(f"nobody was told that {path} was made")
        w.kill()
        assert not self.faults, self.faults[:5]


def listen(story: Story) -> dict[str, Any]:
    """Changes from behind are heard of by the next, in the directories that the one before has watched."""
    w = story.worker
    os.mkdir(os.path.join(story.root, "d"))
    nodes: dict[str, int] = {}

    def look(name: str) -> None:
        w.send(k.LOOKUP, 1, name.encode() + b"\0", lambda r: nodes.update({name: story.entry(name, r.body)}))
        w.settle()

    w.start({"watch": True})
    look("d")
    look("old1")
    watched = w.left["load"]
    w.kill()
    w.notices.clear()
    w.start({"listen": "d/new"})
    w.resend()
    with open(os.path.join(story.root, "d", "new"), "w", encoding="ascii"):
        pass
    found = w.said()
    w.receive(0.2)
    told = {struct.unpack_from("=Q", body)[0] for code, body in w.notices if code == 2}
    w.kill()
    return {**found, "told": [n for n, id_ in nodes.items() if id_ in told], "before": watched}


def damage(story: Story, rounds: int) -> dict[str, int]:
    """Take over memory that was written over at random: an error or not, and never a crash."""
    w, rnd = story.worker, story.random
    story.run(5)
    whole = os.pread(w.memory, os.fstat(w.memory).st_size, 0)
    used = [i for i in range(0, len(whole), 8) if whole[i : i + 8] != bytes(8)]
    outcomes = {"refused": 0, "taken": 0}
    for number in range(rounds):
        data = bytearray(whole)
        for _ in range(rnd.choice((1, 1, 3, 50))):
            at = rnd.choice(used) + rnd.randrange(8)
            size = rnd.choice((1, 4, 8, 64))
            data[at : at + size] = rnd.choice((rnd.randbytes(size), bytes(size), b"\xff" * size))
        if number % 20 == 0:
            del data[rnd.randrange(len(data)) :]
        memory = os.memfd_create("damaged")
        os.write(memory, data)
        pid = clone()
        if pid == 0:
            try:
                engine.start(root_fd=w.root_fd, entry_ns=0, attr_ns=0, open_flags=0, opendir_flags=0)
                before = engine.load()
                try:
                    found = engine.take_over(memory)
                except ValueError:
                    os._exit(10 if engine.load() == before else 12)
                _use(found)
                os._exit(11)
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
                os._exit(13)
        status = os.waitpid(pid, 0)[1]
        os.close(memory)
        code = os.waitstatus_to_exitcode(status)
        assert code in (10, 11), f"round {number}: {code}"
        outcomes["refused" if code == 10 else "taken"] += 1
    return outcomes


def _use(found: Any) -> None:
    """Walk through what was taken over, and add to it."""
    engine.take_records()
    known = {1, *(h[1] for h in found["handles"])}
    for id_ in range(1, engine.next_id()) if engine.next_id() < 100_000 else known:
        if engine.hold(id_) is not None:
            engine.names(id_)
            engine.paths(id_)
            engine.state(id_)
            engine.release(id_)
    for fh, *_ in found["handles"]:
        engine.unnote_handle(fh)
    for i in range(3000):
        made = engine.enter(1, b"made%d" % i, 1, 10**9 + i, 0o100644, 1, 0)
        if made:
            engine.note_handle(i + 1, made, 0, 0, True, 0)
            engine.add_handle(made, -1, 0, 0)
            engine.release(made)


def main() -> None:
    seed, kills, root = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    story = Story(seed, root)
    began = time.monotonic()
    try:
        if sys.argv[4:] == ["listen"]:
            print(json.dumps(listen(story)))
            return
        if len(sys.argv) > 4:
            print(json.dumps(damage(story, kills)))
            return
        story.run(kills)
    finally:
        if story.worker.pid:
            with suppress(OSError):
                os.kill(story.worker.pid, signal.SIGKILL)
    w = story.worker
    print(json.dumps({"kills": w.born - 1, "requests": w.unique // 2, "seconds": time.monotonic() - began}))


if __name__ == "__main__":
    main()
