"""A server dies within a change, and the next one answers: the change is made exactly once.

Each operation on a real mount, with a SIGKILL before it, after it, after the table has it, and after
the answer. The caller notices nothing.
"""

from __future__ import annotations

import os
import select
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.kit.abilities import need_mount

ROOT = Path(__file__).parents[2]
POINTS = {"before": 1, "done": 2, "in the table": 3, "answered": 4}


class Mortal:
    """The mount, and orders for whom serves it."""

    def __init__(self) -> None:
        top = Path(tempfile.mkdtemp(prefix="once"))
        self.behind, self.root = top / "behind", top / "mount"
        self.behind.mkdir()
        self.root.mkdir()
        self.log = top / "mount.log"
        self._heard = b""
        self._serial = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.remount", str(self.behind), str(self.root)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._hear("ready")

    def _hear(self, word: str) -> None:
        said = self._said()
        assert said == word, f"{said}, not {word}"

    def _said(self) -> str:
        assert self._process.stdout is not None
        while b"\n" not in self._heard:
            if not select.select([self._process.stdout], [], [], 20)[0]:
                return "nothing"
            self._heard += os.read(self._process.stdout.fileno(), 4096)
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode()

    def _order(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def dies_at(self, point: int, times: int = 1) -> int:
        """The next server that comes by there, and `times` - 1 of those after it; how many died of an
        order before."""
        deaths, said = -1, "served"
        while said == "served":
            deaths += 1
            self._serial += 1
            self._order(f"arm {self._serial} {point} 1 {times}")
            while (said := self._said()).startswith("armed") and said != f"armed {self._serial}":
                pass
        assert said == f"armed {self._serial}", said
        return deaths

    def lives(self) -> int:
        """From now on; how often one has died."""
        return self.dies_at(0, 0)

    def is_served_again(self) -> None:
        self._hear("served")

    def told(self) -> list[str]:
        """What the observer was: KIND PATH. (Of what the lane did it hears before the next decision.)"""
        (self.root / "poke").symlink_to("anything")
        (self.root / "poke").unlink()
        return self.log.read_text().splitlines()

    def end(self) -> None:
        self._order("end")
        assert self._process.wait(20) == 0


@pytest.fixture(scope="module")
def mortal() -> Iterator[Mortal]:
    need_mount()
    mount = Mortal()
    yield mount
    mount.end()


@pytest.fixture
def places(mortal: Mortal, request: pytest.FixtureRequest) -> tuple[Path, Path]:
    """(through the mount, behind it): a directory of the test's own."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    (mortal.behind / name).mkdir()
    return mortal.root / name, mortal.behind / name


Op = Callable[[Path, Path], Callable[[], None]]
"""Makes ready, and gives what is to be done; its assertions are checked once more behind the mount."""


def _append(d: Path, b: Path) -> Callable[[], None]:
    fd = os.open(d / "f", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, b"one,")

    def act() -> None:
        assert os.write(fd, b"two,") == 4
        os.write(fd, b"three")
        os.close(fd)
        assert (b / "f").read_bytes() == b"one,two,three"

    return act


def _write(d: Path, b: Path) -> Callable[[], None]:
    (b / "f").write_bytes(b"0123456789")
    fd = os.open(d / "f", os.O_RDWR)

    def act() -> None:
        assert os.pwrite(fd, b"abc", 3) == 3
        assert os.pread(fd, 10, 0) == b"012abc6789"
        os.close(fd)

    return act


def _mkdir(d: Path, b: Path) -> Callable[[], None]:
    def act() -> None:
        os.mkdir(d / "new")
        (d / "new" / "f").write_text("x")
        assert os.listdir(b / "new") == ["f"]

    return act


def _mkdir_there(d: Path, b: Path) -> Callable[[], None]:
    (b / "new").mkdir()
    # Long enough ago for the clock of timestamps.
    while os.stat(b / "new").st_ctime_ns + 30_000_000 > _now(b):
        pass

    def act() -> None:
        # The kernel knows of no such directory, and it appears behind the mount: so it was not us.
        with pytest.raises(FileExistsError):
            os.mkdir(d / "new")

    return act


def _now(b: Path) -> int:
    (b / "clock").write_text("")
    try:
        return os.stat(b / "clock").st_ctime_ns
    finally:
        (b / "clock").unlink()


def _mknod(d: Path, b: Path) -> Callable[[], None]:
    def act() -> None:
        os.mkfifo(d / "new")
        assert stat.S_ISFIFO(os.lstat(d / "new").st_mode) and stat.S_ISFIFO(os.lstat(b / "new").st_mode)

    return act


def _symlink(d: Path, b: Path) -> Callable[[], None]:
    def act() -> None:
        os.symlink("there", d / "new")
        assert os.readlink(d / "new") == os.readlink(b / "new") == "there"

    return act


def _create(mode: int) -> Op:
    def make(d: Path, b: Path) -> Callable[[], None]:
        def act() -> None:
            fd = os.open(d / "new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            os.write(fd, b"text")
            os.close(fd)
            assert (b / "new").read_bytes() == b"text"
            assert stat.S_IMODE(os.stat(d / "new").st_mode) == mode

        return act

    return make


def _create_known(d: Path, b: Path) -> Callable[[], None]:
    """By a thread that the lane knows: it makes the file itself."""
    (b / "read").write_text("x")
    assert (d / "read").read_text() == "x"
    return _create(0o644)(d, b)


def _link(d: Path, b: Path) -> Callable[[], None]:
    (b / "old").write_text("x")

    def act() -> None:
        os.link(d / "old", d / "new")
        assert os.stat(d / "new").st_nlink == 2 and os.path.samefile(d / "old", d / "new")
        assert (b / "new").samefile(b / "old")

    return act


def _unlink(d: Path, b: Path) -> Callable[[], None]:
    (b / "old").write_text("x")
    (b / "other").hardlink_to(b / "old")

    def act() -> None:
        os.unlink(d / "old")
        assert os.listdir(b) == ["other"] and not os.path.lexists(d / "old")
        assert (d / "other").read_text() == "x"

    return act


def _unlink_open(d: Path, b: Path) -> Callable[[], None]:
    (b / "old").write_text("still")
    fd = os.open(d / "old", os.O_RDONLY)

    def act() -> None:
        os.unlink(d / "old")
        assert os.pread(fd, 10, 0) == b"still" and os.fstat(fd).st_nlink == 0
        os.close(fd)

    return act


def _unlink_own(d: Path, b: Path) -> Callable[[], None]:
    """What the thread has made itself, and is alone with: the lane removes it."""
    (b / "read").write_text("x")
    assert (d / "read").read_text() == "x"
    (d / "own").write_text("x")

    def act() -> None:
        os.unlink(d / "own")
        assert os.listdir(b) == ["read"]

    return act


def _rmdir(d: Path, b: Path) -> Callable[[], None]:
    (b / "old").mkdir()
    os.stat(d / "old")

    def act() -> None:
        os.rmdir(d / "old")
        assert os.listdir(b) == [] and not os.path.lexists(d / "old")

    return act


def _rename(d: Path, b: Path) -> Callable[[], None]:
    (b / "old").write_text("x")
    (b / "sub").mkdir()

    def act() -> None:
        os.rename(d / "old", d / "sub" / "new")
        assert (d / "sub" / "new").read_text() == "x" and not os.path.lexists(d / "old")
        assert os.listdir(b / "sub") == ["new"] and os.listdir(b) == ["sub"]

    return act


def _rename_over(d: Path, b: Path) -> Callable[[], None]:
    (b / "old").write_text("new text")
    (b / "target").write_text("old text")
    fd = os.open(d / "target", os.O_RDONLY)

    def act() -> None:
        os.rename(d / "old", d / "target")
        assert (d / "target").read_text() == "new text" and os.listdir(b) == ["target"]
        assert os.pread(fd, 20, 0) == b"old text"
        os.close(fd)

    return act


def _rename_directory(d: Path, b: Path) -> Callable[[], None]:
    (b / "old").mkdir()
    (b / "old" / "f").write_text("x")
    (d / "old" / "f").stat()

    def act() -> None:
        os.rename(d / "old", d / "new")
        assert (d / "new" / "f").read_text() == "x" and os.listdir(d) == ["new"]

    return act


def _renameat2(flags: int, source: Path, target: Path) -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, os.fsencode(source), -100, os.fsencode(target), flags) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _rename_noreplace(d: Path, b: Path) -> Callable[[], None]:
    (b / "old").write_text("x")

    def act() -> None:
        _renameat2(1, d / "old", d / "new")
        assert os.listdir(b) == ["new"] and (d / "new").read_text() == "x"

    return act


def _exchange(d: Path, b: Path) -> Callable[[], None]:
    (b / "one").write_text("1")
    (b / "two").mkdir()

    def act() -> None:
        _renameat2(2, d / "one", d / "two")
        assert (d / "two").read_text() == "1" and (b / "one").is_dir() and (d / "one").is_dir()

    return act


def _setxattr(d: Path, b: Path) -> Callable[[], None]:
    (b / "f").touch()

    def act() -> None:
        os.setxattr(d / "f", "user.a", b"1", os.XATTR_CREATE)
        assert os.getxattr(b / "f", "user.a") == b"1"

    return act


def _removexattr(d: Path, b: Path) -> Callable[[], None]:
    (b / "f").touch()
    os.setxattr(b / "f", "user.a", b"1")

    def act() -> None:
        os.removexattr(d / "f", "user.a")
        assert os.listxattr(b / "f") == []

    return act


def _open_write(d: Path, b: Path) -> Callable[[], None]:
    (b / "f").write_text("0123456789")

    def act() -> None:
        fd = os.open(d / "f", os.O_RDWR | os.O_TRUNC)
        os.write(fd, b"x")
        os.close(fd)
        assert (b / "f").read_text() == "x"

    return act


def _close(flags: int) -> Op:
    def make(d: Path, b: Path) -> Callable[[], None]:
        (b / "f").write_text("x")
        fds = [os.open(d / "f", flags) for _ in range(2)]

        def act() -> None:
            os.close(fds[0])
            os.mkdir(d / "then")  # behind the release, which nobody waits for
            assert os.pread(fds[1], 1, 0) == b"x"
            os.close(fds[1])
            assert (d / "f").read_text() == "x"

        return act

    return make


def _open_read(d: Path, b: Path) -> Callable[[], None]:
    """The first time the thread is not known to the lane."""
    (b / "f").write_text("text")

    def act() -> None:
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit((d / "f").read_text).result() == "text"
        assert (d / "f").read_text() == "text"

    return act


OPERATIONS: dict[str, tuple[Op, str]] = {  # and what the observer hears of, at least once
    "append": (_append, ""),
    "write": (_write, ""),
    "mkdir": (_mkdir, ""),
    "mknod": (_mknod, "Made {}/new"),
    "symlink": (_symlink, "Made {}/new"),
    "create": (_create(0o644), ""),
    "create read-only": (_create(0o400), ""),
    "create in the lane": (_create_known, ""),
    "link": (_link, "Linked {}/new"),
    "unlink": (_unlink, "Removed {}/old"),
    "unlink what is open": (_unlink_open, "Removed {}/old"),
    "unlink one's own": (_unlink_own, "Removed {}/own"),
    "rmdir": (_rmdir, ""),
    "rename": (_rename, "Renamed {}/old"),
    "rename over another": (_rename_over, "Renamed {}/old"),
    "rename a directory": (_rename_directory, "Renamed {}/old"),
    "rename, no replacing": (_rename_noreplace, "Renamed {}/old"),
    "exchange": (_exchange, "Exchange {}/one"),
    "setxattr": (_setxattr, ""),
    "removexattr": (_removexattr, ""),
    "open to write": (_open_write, ""),
    "open to read": (_open_read, ""),
    "close what was read": (_close(os.O_RDONLY), ""),
    "close what was written": (_close(os.O_RDWR), ""),
}
# They don't come by there: there is nothing to enter in the table; or doing it again does no harm.
NEVER = {
    *((op, "in the table") for op in ("append", "write", "setxattr", "removexattr")),
    *(("write", point) for point in ("before", "done")),
    *((f"close what was {how}", "before") for how in ("read", "written")),
}


@pytest.mark.parametrize(
    ("operation", "point"), [(o, p) for o in OPERATIONS for p in POINTS if (o, p) not in NEVER]
)
def test_it_is_done_once(mortal: Mortal, places: tuple[Path, Path], operation: str, point: str) -> None:
    prepare, event = OPERATIONS[operation]
    act = prepare(*places)
    mortal.dies_at(POINTS[point])
    act()
    mortal.is_served_again()
    name = places[0].name
    assert not event or event.format(name) in mortal.told()
    # The table is right afterwards: what is there can be found, and removed again.
    through, behind = places
    for _ in range(2):
        assert sorted(os.listdir(through)) == sorted(os.listdir(behind))
        for entry in os.scandir(through):
            assert entry.inode() == os.lstat(behind / entry.name).st_ino
    subprocess.run(["rm", "-rf", str(through)], check=True)
    assert not behind.exists()


@pytest.mark.parametrize(
    ("operation", "point"),
    [(o, p) for o in OPERATIONS for p in POINTS if (o, p) not in NEVER and p != "answered"],
)
def test_it_is_done_once_however_many_die(
    mortal: Mortal, places: tuple[Path, Path], operation: str, point: str
) -> None:
    """The second may die in it as well, and the third in what comes next."""
    prepare, _ = OPERATIONS[operation]
    act = prepare(*places)
    mortal.dies_at(POINTS[point], times=3)
    try:
        act()
    finally:
        deaths = mortal.lives()
    assert deaths
    through, behind = places
    assert sorted(os.listdir(through)) == sorted(os.listdir(behind))
    subprocess.run(["rm", "-rf", str(through)], check=True)
    assert not behind.exists()
