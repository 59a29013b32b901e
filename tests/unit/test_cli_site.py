"""What stands against a mount: each case with its own sentence."""

import os
import pwd

import pytest

from fsguard.cli import site
from fsguard.cli.mount import Wish
from fsguard.control import mountinfo, registry
from fsguard.control.registry import Mount
from fsguard.errors import BusyError, MissingError, UsageError


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    monkeypatch.setenv("FSGUARD_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("SUDO_UID", raising=False)
    monkeypatch.delenv("FSGUARD_DISABLE", raising=False)
    monkeypatch.chdir(tmp_path)
    for name in ("ws/sub", "mp", "other"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "file").touch()


arguments = Wish


def test_a_place_in_order_gets_its_state_directory(tmp_path):
    place = site.choose("ws", None, None)
    site.check(place)
    assert place.in_place and place.workspace == str(tmp_path / "ws")
    assert os.stat(place.state_dir).st_mode & 0o777 == 0o700
    assert place.state_dir.startswith(f"{tmp_path}/state/fsguard/")
    assert site.choose("other", None, None).state_dir != place.state_dir


def test_a_symlink_names_the_directory_behind_it(tmp_path):
    (tmp_path / "link").symlink_to("ws")
    place = site.choose("link", "mp/../mp", "given")
    assert (place.workspace, place.mountpoint) == (str(tmp_path / "ws"), str(tmp_path / "mp"))
    assert place.state_dir == str(tmp_path / "given") and not place.in_place


@pytest.mark.parametrize(
    ("workspace", "mountpoint", "state", "said"),
    [
        ("absent", None, None, "no such directory"),
        ("file", None, None, "is not a directory"),
        ("ws", "absent", None, "no such directory"),
        ("ws", "file", None, "is not a directory"),
        ("ws", "ws/sub", None, "lie in one another"),
        ("ws/sub", "ws", None, "lie in one another"),
        ("ws", None, "ws", "inside the workspace"),
        ("ws", None, "ws/sub/state", "inside the workspace"),
        ("ws", "mp", "mp/state", "inside the workspace"),
        (".", None, "/tmp/elsewhere", "inside the workspace"),  # the control socket
        ("/", None, None, "/ cannot be guarded"),
    ],
)
def test_mistakes_in_the_paths(workspace, mountpoint, state, said):
    with pytest.raises(UsageError, match=said):
        site.check(site.choose(workspace, mountpoint, state))


@pytest.mark.parametrize("paths", [("", None), ("ws", "")])
def test_an_empty_path_is_no_directory(paths):
    with pytest.raises(UsageError, match="empty"):
        site.choose(*paths, None)


@pytest.mark.parametrize(
    ("workspace", "mountpoint", "error", "said"),
    [
        ("ws", None, BusyError, "ws is already mounted at .*mp"),
        ("mp", None, BusyError, "mp is already mounted"),
        ("other", "mp", BusyError, "mp is already mounted"),
        ("ws/sub", None, UsageError, "is inside the guarded workspace .*ws"),
        (".", None, UsageError, "is guarded already"),
    ],
)
def test_a_second_mount_and_one_inside_another(tmp_path, workspace, mountpoint, error, said):
    file, sock = registry.slot(str(tmp_path / "mp"))
    started = registry.start_time(os.getpid())
    held = Mount(str(tmp_path / "mp"), str(tmp_path / "ws"), sock, os.getpid(), os.geteuid(), started)
    registry.register(file, held)
    with pytest.raises(error, match=said):
        site.check(site.choose(workspace, mountpoint, "/tmp/elsewhere"))


def test_what_the_kernel_shows_counts_even_if_nobody_noted_it(tmp_path, monkeypatch):
    standing = mountinfo.MountEntry(1, "0:9", "/", str(tmp_path / "ws"), mountinfo.FSTYPE, "x", "")
    monkeypatch.setattr(mountinfo, "read", lambda: [standing])
    with pytest.raises(BusyError):
        site.check(site.choose("ws", None, None))


def test_the_spec_says_all_that_the_daemon_needs(tmp_path, monkeypatch):
    place = site.choose("ws", None, None)
    spec = site.spec(place, arguments(policy="block", foreground=True))
    uid = os.geteuid()
    assert spec == {
        "workspace": place.workspace,
        "mountpoint": place.mountpoint,
        "config": None,
        "state_dir": place.state_dir,
        "socket": place.socket,
        "registry_file": place.registry_file,
        "allow_other": uid == 0,
        "io": "auto",
        "cache": None,
        "policy": "block",
        "disabled": False,
        "owner_uids": [uid],
        "foreground": True,
        "wait": None,
        "flags": [],
    }
    monkeypatch.setenv("FSGUARD_DISABLE", "1")
    assert site.spec(place, arguments())["disabled"] is True


def test_root_by_sudo_serves_the_user_who_typed_it(monkeypatch):
    place = site.choose("ws", None, None)
    monkeypatch.setenv("SUDO_UID", "1000")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert site.spec(place, arguments())["owner_uids"] == [0, 1000]
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert site.spec(place, arguments())["owner_uids"] == [1000]


def test_operators_are_served_too_and_must_be_known_and_let_in(monkeypatch):
    place = site.choose("ws", None, None)
    nobody = pwd.getpwnam("nobody").pw_uid
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    asked = Wish(operators=["nobody", str(nobody), "root"])
    assert site.spec(place, asked)["owner_uids"] == [0, nobody]
    with pytest.raises(UsageError, match="no such user: nosuchuser"):
        site.spec(place, Wish(operators=["nosuchuser"]))
    with pytest.raises(UsageError, match="could not enter"):
        site.spec(place, Wish(operators=["nobody"], allow_other=False))


def test_a_configuration_file_must_be_there(tmp_path):
    place = site.choose("ws", None, None)
    with pytest.raises(UsageError, match="no such configuration file: nope"):
        site.spec(place, arguments(config="nope"))
    assert site.spec(place, arguments(config="file"))["config"] == str(tmp_path / "file")


def test_allow_other_is_for_users_only_where_root_allowed_it(tmp_path, monkeypatch):
    conf = tmp_path / "fuse.conf"
    assert not site.user_allow_other(str(conf))
    conf.write_text("# user_allow_other\nmount_max = 7\n")
    assert not site.user_allow_other(str(conf))
    conf.write_text("  user_allow_other # yes\n")
    assert site.user_allow_other(str(conf))
    place = site.choose("ws", None, None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(site, "user_allow_other", lambda: False)
    with pytest.raises(MissingError, match="allow-other"):
        site.spec(place, arguments(allow_other=True))


def test_a_state_directory_that_cannot_be_made(tmp_path):
    with pytest.raises(MissingError, match="cannot make"):
        site.check(site.choose("ws", None, str(tmp_path / "file/state")))


def test_a_workspace_behind_an_automount_point_is_refused_before_it_is_asked_for(tmp_path, monkeypatch):
    place = site.choose("ws", None, None)
    line = f"99 1 0:50 / {place.workspace} rw - autofs systemd-1 rw"
    monkeypatch.setattr(mountinfo, "read", lambda: mountinfo.parse(line))
    monkeypatch.setattr(os, "stat", lambda *a, **k: pytest.fail("it was asked for"))
    with pytest.raises(UsageError, match="automount point"):
        site.check(place)
