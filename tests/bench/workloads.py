"""What people and their tools do all day, as functions of a directory."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

__all__ = ["SINGLE", "WHOLE"]

GIT = "git -c user.name=a -c user.email=a@b -c commit.gpgsign=false -c gc.auto=0"


def _sh(script: str) -> Callable[[Path, Path], None]:
    def run(place: Path, source: Path) -> None:
        env = {**os.environ, "SRC": str(source), "LC_ALL": "C", "GIT_CONFIG_GLOBAL": "/dev/null"}
        subprocess.run(["sh", "-ec", script], cwd=place, check=True, stdout=subprocess.DEVNULL, env=env)

    return run


def _appends(place: Path, _: Path) -> None:
    line = b"a line of a hundred bytes, as builds and tests write them to their logs".ljust(99, b".") + b"\n"
    with open(place / "lines", "wb", buffering=0) as f:
        for _n in range(20_000):
            f.write(line)
    os.unlink(place / "lines")


# In this order: each finds what the ones before have left.
WHOLE: dict[str, Callable[[Path, Path], None]] = {
    "untar": _sh('mkdir tree; tar xzf "$SRC" --no-same-owner --strip-components=1 -C tree'),
    "git init, add, commit": _sh(
        f"cd tree; git init -q .; {GIT} add -A; {GIT} commit -qm one; git repack -adq"
    ),
    "git status": _sh("cd tree; git status --porcelain"),
    "git status, warm": _sh("cd tree; git status --porcelain"),
    "find, warm": _sh("find tree -type f -newer tree/.git/HEAD | wc -l"),
    "grep -r": _sh("grep -rIl 'import os' tree || true"),
    "grep -r, warm": _sh("grep -rIl 'import os' tree || true"),
    "git checkout of 400 files": _sh(
        "cd tree; git checkout -q -b two;"
        " git ls-files | head -400 | while read -r f; do echo '# x' >>\"$f\"; done;"
        f" {GIT} commit -qam two; git checkout -q -; git checkout -q two"
    ),
    "sed -i, 150 files": _sh(
        "cd tree; git ls-files | head -150 | while read -r f; do sed -i '1s/^/# t\\n/' \"$f\"; done"
    ),
    "cp -a": _sh("cp -a tree copy"),
    "rm -rf": _sh("rm -rf copy"),
    "256 MiB write, two reads": _sh(
        "dd if=/dev/zero of=big bs=1M count=256 status=none; cat big >/dev/null; cat big >/dev/null; rm big"
    ),
    "20,000 appends of 100 bytes": _appends,
}


def _open_read_close(place: Path, count: int) -> None:
    path = os.fsencode(place / "single")
    for _ in range(count):
        fd = os.open(path, os.O_RDONLY)
        os.read(fd, 4096)
        os.close(fd)


def _stat(place: Path, count: int) -> None:
    path = os.fsencode(place / "single")
    for _ in range(count):
        os.stat(path)


def _stat_missing(place: Path, count: int) -> None:
    for n in range(count):
        try:
            os.stat(os.fsencode(place / f"missing{n % 50}"))
        except FileNotFoundError:
            pass


def _chmod(place: Path, count: int) -> None:
    path = os.fsencode(place / "single")
    for _ in range(count):
        os.chmod(path, 0o644)


def _write(place: Path, count: int) -> None:
    with open(place / "writes", "wb", buffering=0) as f:
        for _ in range(count):
            f.write(b"x" * 100)


def _create_remove(place: Path, count: int) -> None:
    for n in range(count):
        path = os.fsencode(place / f"made{n}")
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        os.write(fd, b"content")
        os.close(fd)
        os.unlink(path)


def _rename(place: Path, count: int) -> None:
    one, other = os.fsencode(place / "rename1"), os.fsencode(place / "rename2")
    open(one, "wb").close()
    for n in range(count):
        os.rename(one if n % 2 == 0 else other, other if n % 2 == 0 else one)


# (what it does, how often in one measurement)
SINGLE: dict[str, tuple[Callable[[Path, int], None], int]] = {
    "stat": (_stat, 2000),
    "stat, missing": (_stat_missing, 1000),
    "open, read, close": (_open_read_close, 1000),
    "write of 100 bytes": (_write, 1000),
    "create, write, close, unlink": (_create_remove, 200),
    "rename": (_rename, 300),
    "chmod": (_chmod, 500),
}
