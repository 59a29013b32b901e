"""Facts about a path that are looked up only when a warning is due.

Reads go below the directory descriptor of the backing directory, so that they
can never meet the daemon's own mount.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from pathspec import GitIgnoreSpec

from fsguard.below import read_below
from fsguard.core.model import Act

__all__ = ["Facts", "locked_inodes"]

SQLITE_MAGIC = b"SQLite format 3\0"
SIDE_FILES = (b"-wal", b"-shm", b"-journal")
MAX_IGNORE_FILE = 1024 * 1024


def locked_inodes(text: bytes) -> set[int]:
    """Inodes on anonymous devices (FUSE is one) that /proc/locks shows a lock on."""
    found: set[int] = set()
    for line in text.splitlines():
        for word in line.split():
            major, _, rest = word.partition(b":")
            minor, sep, ino = rest.partition(b":")
            if sep and major == b"00" and minor and ino.isdigit():
                found.add(int(ino))
    return found


class Facts:
    """Implements `fsguard.core.guard.Probe` on the backing directory.

    :param root: descriptor of the backing directory, opened before the mount.
    """

    def __init__(self, root: int, locks: Callable[[], bytes] | None = None) -> None:
        self._root = root
        self._locks = locks or _proc_locks
        self._ignore: dict[bytes, tuple[tuple[int, int], GitIgnoreSpec | None]] = {}
        self._self_locking: set[int] = set()

    def self_locking(self, path: bytes, file: object, act: Act) -> bool:
        for suffix in SIDE_FILES:
            if path.endswith(suffix):
                head = read_below(self._root, path[: -len(suffix)], 16)
                # SQLite makes the journal of a new database before its first page.
                return head is not None and (head == SQLITE_MAGIC or not head)
        if act not in (Act.WRITE, Act.APPEND):
            return False
        head = file.head(16) if file is not None and hasattr(file, "head") else None
        if head is None:
            head = read_below(self._root, path, 16)
        if head == SQLITE_MAGIC:
            return True
        ino = self._ino(path, file)
        if ino in self._self_locking:
            return True
        if ino is not None and ino in locked_inodes(self._locks()):
            self._self_locking.add(ino)
            return True
        return False

    def _ino(self, path: bytes, file: object) -> int | None:
        if file is not None and hasattr(file, "ino"):
            return int(file.ino)
        try:
            return os.stat(path, dir_fd=self._root, follow_symlinks=False).st_ino
        except OSError:
            return None

    def git_ignored(self, path: bytes) -> bool:
        """By the .gitignore files from the workspace's top down, the deepest word last."""
        verdict = False
        parts = path.split(b"/")
        for depth in range(len(parts)):
            directory = b"/".join(parts[:depth])
            names = [b".gitignore"] if depth else [b".git/info/exclude", b".gitignore"]
            for name in names:
                spec = self._spec(directory + b"/" + name if directory else name)
                if spec is None:
                    continue
                rest = b"/".join(parts[depth:]).decode("utf-8", "surrogateescape")
                answer = spec.check_file(rest).include
                if answer is not None:
                    verdict = answer
        return verdict

    def _spec(self, name: bytes) -> GitIgnoreSpec | None:
        try:
            st = os.stat(name, dir_fd=self._root, follow_symlinks=False)
        except OSError:
            self._ignore.pop(name, None)
            return None
        key = (st.st_mtime_ns, st.st_size)
        known = self._ignore.get(name)
        if known is None or known[0] != key:
            raw = read_below(self._root, name, MAX_IGNORE_FILE) or b""
            try:
                spec = GitIgnoreSpec.from_lines(raw.decode("utf-8", "surrogateescape").splitlines())
            except ValueError:
                spec = None  # not ours to judge: git says what is wrong with it
            if len(self._ignore) > 1000:
                self._ignore.clear()
            known = self._ignore[name] = (key, spec)
        return known[1]


def _proc_locks() -> bytes:
    try:
        with open("/proc/locks", "rb") as f:
            return f.read()
    except OSError:
        return b""
