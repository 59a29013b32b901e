"""vagrant/apart: a command in a mount namespace of its own keeps nobody's FUSE mount alive."""

from tests.kit.abilities import need_root, need_tools
from tests.kit.mounting import ROOT


def apart(ws, *kept):
    """A process that runs there, with the mounts that hold `kept`."""
    need_root()
    need_tools("unshare", "findmnt", "umount")
    command = ("sh", "-c", "echo there; exec sleep 1000")
    held = ws.start(None, str(ROOT / "vagrant/apart"), *map(str, kept), "--", *command, cwd="/")
    assert held.stdout.readline() == "there\n"
    return held


def mounted(pid, path):
    """Does the process's namespace show a mount there?"""
    named = str(path).encode().replace(b"\\", rb"\134").replace(b" ", rb"\040").replace(b"\n", rb"\012")
    with open(f"/proc/{pid}/mountinfo", "rb") as file:
        return named in [line.split()[4] for line in file]


def test_whoever_unmounts_outside_is_done(make_workspace):
    ws = make_workspace(mount=False)
    # As it stands in mountinfo, escaped, it is no path of its own.
    place = ws.top / "a 5\n%s\\x40\n"
    place.mkdir()
    ws.fsguard("mount", str(ws.directory), str(place), cwd="/").ok()
    try:
        held = apart(ws, ws.top / "elsewhere")
        assert mounted("self", place) and not mounted(held.pid, place)
        (place / "f").write_text("goes on")
    finally:
        done = ws.fsguard("unmount", str(place), cwd="/")
    assert done.code == 0, done.err
    assert held.poll() is None


def test_a_mount_that_holds_a_named_path_stays(workspace):
    (workspace.root / "sub").mkdir()
    held = apart(workspace, workspace.root / "sub/not yet there")
    assert mounted(held.pid, workspace.root)


def test_the_command_is_run_as_it_is(workspace):
    need_root()
    done = workspace.plain(
        str(ROOT / "vagrant/apart"), "--", "sh", "-c", 'printf "%s" "$1"; exit 7', "sh", " a\\n* ", cwd="/"
    )
    assert (done.code, done.out) == (7, " a\\n* ")
