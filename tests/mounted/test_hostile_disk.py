"""What is behind the mount runs full, breaks or goes away: callers get its errors, and nothing hangs."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kit.abilities import need_root
from tests.kit.faulty import bad_disk
from tests.kit.mounting import Workspace
from tests.kit.posix import attempt, carry_out, get, opened, put

Disk = Callable[[Path], Path]


@pytest.fixture
def small_disk() -> Iterator[Disk]:
    """Mounts a tmpfs (1 MiB, 40 inodes) at a new directory, and gives an empty directory on it."""
    need_root()
    made: list[Path] = []

    def mount(at: Path) -> Path:
        at.mkdir()
        options = "size=1m,nr_inodes=40,mode=755"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "small", str(at)], check=True)
        made.append(at)
        (at / "w").mkdir()
        return at / "w"

    yield mount
    for at in made:
        subprocess.run(["umount", "--lazy", str(at)], check=False, capture_output=True)


def on(disk: Path, workspace: Workspace) -> Workspace:
    """The workspace is that directory; mounted."""
    workspace.directory = disk
    if workspace.backing is None:
        workspace.root = disk
    workspace.mount()
    return workspace


def to_the_last_byte(d: str) -> object:
    """Each way to need more space than there is, and that all is well when there is some again."""
    seen: list[object] = []
    with opened(d + "/a", os.O_RDWR | os.O_CREAT) as fd:
        written = 0
        while isinstance(count := attempt(os.write, fd, b"x" * 50_000), int):
            written += count
        seen += [count, written, os.fstat(fd).st_size, attempt(os.write, fd, b"more" * 5000)]
        seen.append(attempt(os.posix_fallocate, fd, 0, 4 << 20))
        seen += [attempt(os.pwrite, fd, b"y", 10), os.pread(fd, 3, 9)]
    with opened(d + "/b", os.O_RDWR | os.O_CREAT) as fd:
        seen.append(attempt(os.write, fd, b"new" * 2000))
        seen += [
            attempt(os.fsync, fd),
            attempt(os.truncate, d + "/a", 100_000),
            attempt(os.write, fd, b"room"),
        ]
    seen.append(attempt(os.rename, d + "/b", d + "/a"))
    return seen, os.stat(d + "/a").st_size


def to_the_last_name(d: str) -> object:
    seen: list[object] = []
    ways: list[Callable[[str], object]] = [put, os.mkdir, lambda path: os.symlink("x" * 200, path), os.mkfifo]
    for number in range(60):
        seen.append(attempt(lambda path, way: way(path) and None, f"{d}/n{number}", ways[number % 4]))
    os.unlink(d + "/n0")
    end = time.monotonic() + 10  # behind a mount the inode is free when the kernel has forgotten it
    while (again := attempt(put, d + "/again")) == "ENOSPC" and time.monotonic() < end:
        time.sleep(0.01)
    seen.append(again == d + "/again" or again)
    return seen, sorted(os.listdir(d)), attempt(os.link, d + "/n4", d + "/link")


@pytest.mark.parametrize("row", [to_the_last_byte, to_the_last_name], ids=lambda row: row.__name__)
def test_a_full_disk(
    small_disk: Disk,
    make_workspace: Callable[..., Workspace],
    tmp_path: Path,
    row: Callable[[str], object],
) -> None:
    plain = small_disk(tmp_path / "plain")
    workspace = on(small_disk(tmp_path / "guarded"), make_workspace(mount=False))
    expected = carry_out(row, str(plain), 20)
    assert expected.ended == "value" and "ENOSPC" in str(expected.value), expected
    seen = carry_out(row, str(workspace.root), 20)
    assert seen == expected
    for name in sorted(os.listdir(plain)):
        if (plain / name).is_file():
            assert (workspace.root / name).read_bytes() == (plain / name).read_bytes()


def test_a_task_that_overwrites_anothers_work_on_a_full_disk(
    small_disk: Disk, make_workspace: Callable[..., Workspace], tmp_path: Path
) -> None:
    """The bytes are kept elsewhere, the write fails as it would without us, and what was there stays."""
    workspace = on(small_disk(tmp_path / "guarded"), make_workspace(mount=False))
    workspace.sh("A", "cat f; echo from A > f")
    workspace.sh("B", "cat f; echo from B > f; head -c 2M /dev/zero > rest")
    script = (
        "import os; f = os.open('f', os.O_WRONLY | os.O_APPEND)\nfor _ in range(9): os.write(f, b'z' * 4000)"
    )
    result = workspace.python("A", script)
    assert "No space left on device" in result.err
    assert (workspace.root / "f").read_bytes()[:7] == b"from B\n"
    workspace.sh("A", "rm rest; echo room > g").ok()


def on_a_bad_disk(d: str) -> object:
    """errno of each operation on each file; what is not to fail does not."""

    def write(path: str) -> object:
        with opened(path, os.O_RDWR) as fd:
            return attempt(os.pwrite, fd, b"x", 0), attempt(os.fsync, fd), attempt(os.ftruncate, fd, 4)

    def read(path: str) -> object:
        with opened(path) as fd:
            return attempt(os.read, fd, 10), attempt(os.read, fd, 10)

    seen: dict[str, object] = {}
    for name in sorted(os.listdir(d)):
        path = f"{d}/{name}"
        seen[name] = (
            attempt(read, path),
            attempt(write, path),
            attempt(os.truncate, path, 3),
            attempt(os.chmod, path, 0o640),
            attempt(os.link, path, f"{path}-link"),
            attempt(put, path, b"all anew") == path or "not",
            attempt(os.rename, path, f"{path}-moved"),
            attempt(os.unlink, path if os.path.lexists(path) else f"{path}-moved"),
        )
    seen["create"] = attempt(put, f"{d}/fails-create")
    seen["mkdir"] = attempt(os.mkdir, f"{d}/fails-mkdir"), attempt(os.mkdir, f"{d}/works")
    # A file that is made, written and closed by its maker alone.
    seen["made"] = attempt(put, f"{d}/new"), attempt(put, f"{d}/fails-write", b"x"), sorted(os.listdir(d))
    return seen


def test_a_broken_disk(make_workspace: Callable[..., Workspace], tmp_path: Path) -> None:
    need_root()
    plain, guarded = tmp_path / "plain", tmp_path / "guarded"
    plain.mkdir()
    guarded.mkdir()
    with bad_disk(plain):
        expected = carry_out(on_a_bad_disk, str(plain / "top"), 20)
    assert expected.ended == "value" and str(expected.value).count("EIO") > 10, expected
    workspace = make_workspace(mount=False)
    with bad_disk(guarded):
        on(guarded / "top", workspace)
        seen = carry_out(on_a_bad_disk, str(workspace.root), 20)
        workspace.unmount()
    assert _neutral(seen.value, workspace.root) == _neutral(expected.value, plain / "top")


def _neutral(value: object, top: Path) -> str:
    return str(value).replace(str(top), "PLACE")


def in_a_place_that_is_gone(d: str) -> object:
    """Each must come to an end: with an error, or done on what is left."""
    return {
        "list": attempt(lambda: sorted(os.listdir(d))),
        "stat": attempt(lambda: os.stat(d + "/f").st_size),
        "read": attempt(get, d + "/f"),
        "make": attempt(put, d + "/new") == d + "/new" or attempt(put, d + "/new"),
        "mkdir": attempt(os.mkdir, d + "/newdir"),
        "rename": attempt(os.rename, d + "/f", d + "/g"),
        "unlink": attempt(os.unlink, d + "/g"),
    }


@pytest.mark.parametrize("how", ["removed", "moved", "emptied and replaced", "unmounted"])
def test_the_directory_behind_vanishes(
    small_disk: Disk, make_workspace: Callable[..., Workspace], tmp_path: Path, how: str
) -> None:
    """Work goes on in what is left, or ends with an error; the mount ends as it should."""
    workspace = make_workspace(mount=False, separate=True)
    behind = small_disk(tmp_path / "disk") if how == "unmounted" else workspace.directory
    (behind / "f").write_text("content")
    (behind / "d").mkdir()
    on(behind, workspace)
    with opened(str(workspace.root / "f"), os.O_RDWR) as fd:
        assert os.pread(fd, 20, 0) == b"content"
        elsewhere = behind.with_name("elsewhere")
        if how == "removed":
            shutil.rmtree(behind)
        elif how == "moved":
            behind.rename(elsewhere)
        elif how == "emptied and replaced":
            behind.rename(elsewhere)
            behind.mkdir()
            (behind / "f").write_text("another file")
        else:
            subprocess.run(["umount", "--lazy", str(behind.parent)], check=True)
        # What is open stays what it is.
        os.pwrite(fd, b"CON", 0)
        assert os.pread(fd, 20, 0) == b"CONtent"
        seen = carry_out(in_a_place_that_is_gone, str(workspace.root), 20)
        assert seen.ended == "value", seen
        if how == "removed":
            assert seen.value.pop("list") in ([], "ENOENT", "ESTALE")
            assert set(seen.value.values()) <= {"ENOENT", "ESTALE"}, seen.value
        else:
            # The same directory, wherever it is now; nothing is done to what came in its place.
            assert seen.value == {
                **{"list": ["d", "f"], "stat": 7, "read": b"CONtent", "make": True},
                **{"mkdir": None, "rename": None, "unlink": None},
            }
    if how == "emptied and replaced":
        assert sorted(os.listdir(behind)) == ["f"] and (behind / "f").read_text() == "another file"
        assert "new" in os.listdir(elsewhere)
    result = workspace.fsguard("status", str(workspace.root), cwd=workspace.top)
    assert result.code in (0, 3), result
    if elsewhere.exists() and not behind.exists():
        elsewhere.rename(behind)
    workspace.unmount()
