"""Many at once: open files, clients of the control socket; and who tries to get out of the tree."""

from __future__ import annotations

import ctypes
import json
import os
import random
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fsguard.cli.machine import capabilities
from tests.kit.mounting import Workspace

__all__ = [
    "OPENER",
    "beneath",
    "crowd",
    "most_files",
    "mount_with_limit",
    "nuisances",
    "open_many",
    "socket_of",
    "swap",
]

# Opens so many files (a fourth of them for writing), looks at each, and closes them.
OPENER = """
import os, resource, sys
count = int(sys.argv[1])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (count + 100, max(count + 100, hard)))
fds = []
for n in range(count):
    if n % 1000 == 0:
        os.mkdir(f"d{n // 1000}")
    path = f"d{n // 1000}/f{n}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.write(fd, b"%d" % n)
    if n % 4:
        os.close(fd)
        fd = os.open(path, os.O_RDONLY)
    fds.append(fd)
for n, fd in enumerate(fds):
    assert os.pread(fd, 20, 0) == b"%d" % n, n
    if n % 4 == 0:
        os.pwrite(fd, b"again", 0)
print("all are open", flush=True)
sys.stdin.readline()
for fd in fds:
    os.close(fd)
"""


def most_files() -> int:
    """How many descriptors a process can be allowed here: any number needs CAP_SYS_RESOURCE, which root
    may lack in a container."""
    if capabilities() & 1 << 24:
        return int(Path("/proc/sys/fs/nr_open").read_text())
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def mount_with_limit(workspace: Workspace, limit: int) -> None:
    """Mount from a shell that may open so many files; it could have raised that itself only where nobody
    can raise the hard limit."""
    hard = limit if capabilities() & 1 << 24 else most_files()
    command = ["prlimit", f"--nofile={limit}:{hard}", "fsguard", "mount", str(workspace.directory)]
    workspace.plain(*command, *workspace.options, cwd=workspace.top).ok()
    workspace.mounted = True


def open_many(workspace: Workspace, count: int, seconds: float) -> int:
    """A task has so many files open at once; the daemon's descriptors meanwhile."""
    process = workspace.start("many", sys.executable, "-c", OPENER, str(count), stdin=subprocess.PIPE)
    assert process.stdout and process.stdin
    ready = threading.Timer(seconds, process.kill)
    ready.start()
    said = process.stdout.readline()
    ready.cancel()
    if said != "all are open\n":
        assert process.stderr
        raise AssertionError(said + process.stderr.read()[-2000:])
    pid = workspace.daemon_pid()
    assert workspace.status()["open_files"] == count
    meanwhile = len(os.listdir(f"/proc/{pid}/fd"))
    # Others get their files as before.
    assert workspace.sh("other", "echo x > other; cat other").ok().out == "x\n"
    _, err = process.communicate("\n", timeout=seconds)
    assert process.returncode == 0, err[-2000:]
    return meanwhile


# ---- the control socket ----------------------------------------------------------------------


def socket_of(workspace: Workspace) -> str:
    for note in (workspace.top / "run" / "fsguard").glob("*.json"):
        facts = json.loads(note.read_text())
        if facts["mountpoint"] == os.path.realpath(workspace.root):
            return str(facts["socket"])
    raise AssertionError("no daemon")


def _connect(path: str) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(10)
    client.connect(path)
    return client


@contextmanager
def crowd(path: str, count: int) -> Iterator[list[socket.socket]]:
    """So many clients that are connected, some of them in the middle of a word."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft > count + 50, soft
    with ExitStack() as stack:
        clients = []
        for number in range(count):
            clients.append(stack.enter_context(_connect(path)))
            if number % 3 == 0:
                clients[-1].send(b'{"id": 1, "method": "sta')
        yield clients


def nuisances(path: str, seed: int) -> Iterator[str]:
    """One piece of nonsense after the other; each is sent, answered or not, and hung up on."""
    rng = random.Random(seed)
    pieces = {
        "64 KB of garbage": rng.randbytes(65536),
        "garbage in lines": b"\n".join(rng.randbytes(200).replace(b"\n", b"") for _ in range(300)) + b"\n",
        "64 KB without an end": b"{" * 65536,
        "deep": b"[" * 50_000 + b"]" * 50_000 + b"\n",
        "a large number": b'{"id": ' + b"9" * 60_000 + b', "method": "status"}\n',
        "many keys": json.dumps({str(n): n for n in range(5000)}).encode() + b"\n",
        "nothing": b"\n" * 65536,
        "zeros": bytes(65536) + b"\n",
        "an unknown method": b'{"id": 1, "method": "\\u001b[31m", "params": {}}\n',
        "half a message": b'{"id": 1, "method": "status", "par',
    }
    for name, piece in pieces.items():
        with _connect(path) as client:
            try:
                client.sendall(piece)
                client.shutdown(socket.SHUT_WR)
                while client.recv(65536):
                    pass
            except (BrokenPipeError, ConnectionResetError):
                pass  # shown the door
        yield name
    with _connect(path) as client:  # a byte at a time
        for byte in b'{"id": 7, "method": "policy.get", "params": {}}\n':
            client.send(bytes([byte]))
        answer = b""
        while not answer.endswith(b"\n"):
            answer += client.recv(4096)
        assert b'"id":7' in answer.replace(b" ", b""), answer
    yield "a byte at a time"


# ---- out of the tree -------------------------------------------------------------------------


class _How(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def beneath(top: int, path: str, flags: int) -> int:
    """openat2(2) that itself follows no symlink and leaves no tree: who gets out was let out by the mount."""
    no_magic, no_symlinks, is_beneath, openat2 = 0x02, 0x04, 0x08, 437
    libc = ctypes.CDLL(None, use_errno=True)
    mode = 0o600 if flags & os.O_CREAT else 0
    how = _How(flags | os.O_CLOEXEC, mode, no_magic | no_symlinks | is_beneath)
    fd = libc.syscall(openat2, top, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how))
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    return int(fd)


def swap(one: Path, other: Path, over: threading.Event) -> None:
    """Exchange two names again and again, until `over`."""
    libc = ctypes.CDLL(None, use_errno=True)
    names, rng = (os.fsencode(one), os.fsencode(other)), random.Random(1)
    while not over.is_set():
        if libc.renameat2(-100, names[0], -100, names[1], 2):
            raise OSError(ctypes.get_errno(), "renameat2")
        time.sleep(rng.random() * 0.002)  # else every way ends halfway
