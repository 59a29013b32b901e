"""Somebody who works on the backing directory, past the mount: in a namespace with a bind mount of it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["Behind", "behind"]

_SCRIPT = """
import json, mmap, os, sys
os.chdir(sys.argv[1])
def write(path, text, mode="w"):
    with open(path, mode) as f:
        f.write(text)
def store(path, text):
    with open(path, "r+b") as f, mmap.mmap(f.fileno(), 0) as mapped:
        mapped[: len(text)] = text.encode()
acts = {
    "write": write, "append": lambda p, t: write(p, t, "a"), "chmod": os.chmod, "rename": os.rename,
    "unlink": os.unlink, "mkdir": os.mkdir, "rmdir": os.rmdir, "symlink": os.symlink, "link": os.link,
    "truncate": os.truncate, "utime": os.utime, "store": store,
    "many": lambda stem, count: [write(f"{stem}{i}", "") for i in range(count)],
}
print(os.getpid(), flush=True)
for line in sys.stdin:
    act, *arguments = json.loads(line)
    acts[act](*arguments)
    print("done", flush=True)
"""


class Behind:
    """Does what it is told; `pid` is its process. To be made before the mount."""

    def __init__(self, directory: Path) -> None:
        """Works in `directory`, by a bind mount of what it lies in (needs root)."""
        place = directory.parent / "bind"
        place.mkdir(exist_ok=True)
        self.cwd = place / directory.name
        # It shall not keep copies of other guards' mounts alive.
        start = 'umount --lazy --all --types fuse.fsguard; mount --bind "$1" "$2" && exec "$3" -c "$4" "$5"'
        sh = ["unshare", "--mount", "sh", "-c", start, "sh", str(directory.parent), str(place)]
        self._process = subprocess.Popen(
            [*sh, sys.executable, _SCRIPT, str(self.cwd)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.pid = int(self._process.stdout.readline())

    def __call__(self, *order: Any) -> None:
        """When this returns it has been done."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n", order

    def end(self) -> None:
        self._process.communicate(timeout=10)


@contextlib.contextmanager
def behind(directory: Path) -> Iterator[Behind]:
    worker = Behind(directory)
    try:
        yield worker
    finally:
        worker.end()
