"""From what a user typed to a path in the workspace."""

import os

import pytest

from fsguard.cli import where
from fsguard.control import mountinfo, registry
from fsguard.control.registry import Mount
from fsguard.errors import NotMountedError, UsageError


@pytest.fixture
def mount(tmp_path, monkeypatch):
    monkeypatch.setenv("FSGUARD_RUNTIME_DIR", str(tmp_path / "run"))
    for name in ("ws/src/deep", "mp", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    mp, ws = str(tmp_path / "mp"), str(tmp_path / "ws")
    file, socket = registry.slot(mp)
    found = Mount(mp, ws, socket, os.getpid(), os.geteuid(), registry.start_time(os.getpid()))
    registry.register(file, found)
    return found


def test_paths_are_relative_to_where_one_stands(mount, monkeypatch):
    monkeypatch.chdir(f"{mount.workspace}/src")
    for typed, inside in (
        ("f", "src/f"),
        ("./f", "src/f"),
        ("deep/../f", "src/f"),
        ("../f", "f"),
        ("deep/", "src/deep"),
        ("gone/f", "src/gone/f"),
        (f"{mount.workspace}/a//b", "a/b"),
        (f"{mount.mountpoint}/a", "a"),
        (os.fsdecode(b"\xe9"), os.fsdecode(b"src/\xe9")),
    ):
        assert where.relative(mount, typed) == inside


def test_symlinked_directories_are_followed_a_symlink_at_the_end_is_not(mount, tmp_path, monkeypatch):
    (tmp_path / "ws/link").symlink_to("src")
    (tmp_path / "outside").symlink_to(tmp_path / "ws/src")
    (tmp_path / "ws/file-link").symlink_to("/etc/passwd")
    monkeypatch.chdir(mount.workspace)
    assert where.relative(mount, "link/f") == "src/f"
    assert where.relative(mount, f"{tmp_path}/outside/f") == "src/f"
    assert where.relative(mount, "file-link") == "file-link"
    assert where.relative(mount, "src/deep/..") == "src"


@pytest.mark.parametrize(
    ("typed", "said"), [("../x", "not in"), ("/etc/passwd", "not in"), ("", "empty"), (".", "itself")]
)
def test_paths_outside_are_refused(mount, monkeypatch, typed, said):
    monkeypatch.chdir(mount.workspace)
    with pytest.raises(UsageError, match=said):
        where.relative(mount, typed)


def test_the_mount_is_that_of_the_flag_or_the_directory_or_the_path(mount, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path / "elsewhere")
    path = f"{mount.workspace}/src/f"
    assert where.locate_for(mount.workspace, path)[1] == "src/f"
    assert where.locate_for(None, path)[1] == "src/f"
    assert where.locate_for(None, mount.workspace, whole=True)[1] == ""
    with pytest.raises(NotMountedError):
        where.locate_for(None, "f")
    with pytest.raises(NotMountedError, match="elsewhere"):
        where.locate(None)
    monkeypatch.chdir(mount.mountpoint)
    assert where.locate(None).mountpoint == mount.mountpoint
    assert where.locate_for(None, "f")[1] == "f"
    with pytest.raises(UsageError, match="two workspaces"):
        where.locate("/a", "/b")


def test_without_a_mount_it_is_said_what_there_is(mount, tmp_path):
    with pytest.raises(NotMountedError) as caught:
        where.locate(str(tmp_path))
    assert mount.mountpoint in (caught.value.hint or "")


def test_a_mount_without_a_daemon_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("FSGUARD_RUNTIME_DIR", str(tmp_path / "run"))
    standing = mountinfo.MountEntry(1, "0:9", "/", str(tmp_path), mountinfo.FSTYPE, "x", "")
    monkeypatch.setattr(mountinfo, "read", lambda: [standing])
    with pytest.raises(NotMountedError) as caught:
        where.locate(str(tmp_path / "below"))
    assert "no living daemon" in caught.value.message
    assert f"fsguard unmount {tmp_path}" in (caught.value.hint or "")


def test_a_directory_that_is_gone_is_no_workspace(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert where.here() == "/"
