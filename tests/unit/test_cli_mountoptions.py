"""What stands behind `mount -o`, and how mount.fsguard is called."""

import shutil
import subprocess

import pytest

from fsguard import mountflags
from fsguard.cli import mounthelper, mountoptions
from fsguard.errors import BusyError, DaemonError, MissingError, RefusedError, UsageError


def test_all_our_options_are_read():
    found = mountoptions.parse(
        'policy=block,wait=10s,config=/etc/a.toml,"state_dir=/var/lib/a,b",operator=runner,operator=0,'
        "allow_other,io=daemon,cache=trust"
    )
    assert (found.policy, found.wait, found.config) == ("block", 10.0, "/etc/a.toml")
    assert (found.state_dir, found.operators) == ("/var/lib/a,b", ["runner", "0"])
    assert (found.allow_other, found.io, found.cache, found.remount) == (True, "daemon", "trust", False)
    assert found.flags == ()


@pytest.mark.parametrize(
    "text",
    [
        "rw",
        "defaults",
        "_netdev,nofail,noauto,user",
        "user=anna,comment=ours,uhelper=hal",
        "x-systemd.automount,x-systemd.requires=a.service,X-mount.mkdir,x-gvfs-show",
        'x-anything="a,b",rw',
        ",,rw,",
        "",
    ],
)
def test_what_belongs_to_mount_fstab_and_systemd_is_passed_over(text):
    found = mountoptions.parse(text)
    assert (found.flags, found.unknown, found.policy) == ((), [], None)


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("ro,nosuid", ("ro", "nosuid")),
        ("ro,rw", ()),
        ("rw,ro", ("ro",)),
        ("nosuid,nodev,ro,defaults,noexec", ("noexec",)),
        ("noatime,atime,nodiratime", ("nodiratime",)),
    ],
)
def test_a_later_option_counts_more(text, flags):
    assert mountoptions.parse(text).flags == flags
    assert bin(mountflags.bits(flags)).count("1") == len(flags)
    assert mountoptions.parse("policy=warn,policy=block").policy == "block"


def test_what_the_kernel_shows_comes_back_at_a_remount():
    shown = "rw,user_id=0,group_id=0,default_permissions,allow_other"
    assert mountoptions.parse(f"{shown},remount,ro").flags == ("ro",)
    with pytest.raises(UsageError):
        mountoptions.parse(shown)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b", ["a", "b"]),
        ('a="b,c",d', ["a=b,c", "d"]),
        ("a=b\\,c,d", ["a=b,c", "d"]),
        ("a\\", ["a\\"]),
        ("a=b=c", ["a=b=c"]),
    ],
)
def test_commas_in_quotes_and_after_a_backslash_belong_to_the_value(text, words):
    assert mountoptions.split(text) == words


@pytest.mark.parametrize(
    ("text", "seconds"), [("10", 10), ("10s", 10), ("500ms", 0.5), ("2min", 120), ("1.5m", 90), ("0", 0)]
)
def test_times(text, seconds):
    assert mountoptions.duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("polcy=block", "polcy=block", "did you mean policy?"),
        ("policy=blok", "warn, block, off", "policy=block"),
        ("policy", "needs a value", "policy=block"),
        ("policy=", "needs a value", ""),
        ("wait=1h", "not a time", "ms, s or min"),
        ("wait=-1", "not a time", ""),
        ("wait=11min", "too long", "10 minutes"),
        ("wait=1e9", "not a time", ""),
        ("config=ws.toml", "no absolute path", ""),
        ("remount=yes", "takes no value", ""),
        ("ro=1", "unknown mount option", ""),
        ('a="b', "quote", ""),
        ("io=passthrough", "io is one of auto, lane, daemon", ""),
        ("cache=long", "cache is one of auto, short, trust, not long", ""),
        ("po\nlicy", "unknown mount option", ""),
    ],
)
def test_a_mistake_is_told_with_what_would_be_right(text, said, hint):
    with pytest.raises(UsageError) as caught:
        mountoptions.parse(text)
    assert said in caught.value.message and hint in (caught.value.hint or "")


def test_sloppy_passes_over_what_is_unknown_but_not_a_bad_value():
    assert mountoptions.parse("polcy=block,policy=block", sloppy=True).unknown == ["polcy=block"]
    with pytest.raises(UsageError):
        mountoptions.parse("policy=blok", sloppy=True)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("x"), 1),
        (RefusedError("x"), 1),
        (MissingError("x"), 2),
        (BusyError("x"), 32),
        (DaemonError("x"), 32),
    ],
)
def test_errors_end_with_the_codes_of_mount(error, code):
    assert mounthelper.exit_code(error) == code


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "not 0 names"),
        (["/a"], "not 1 names"),
        (["/a", "/b", "/c"], "not 3 names"),
        (["/a", "/b", "-o"], "-o needs a value"),
        (["/a", "/b", "-x"], "unknown flag: -x"),
        (["/a", "/b", "-fno", "polcy=x"], "unknown mount option"),
        (["/nowhere/at/all", "/nowhere/at/all", "-f"], "no such directory"),
        (["", "/b"], "workspace comes first"),
        (["guard", "/srv/ws", "-o", "rw"], "the workspace comes first, and guard is no directory"),
    ],
)
def test_wrong_calls_are_told_and_end_with_1(argv, said, capsys):
    assert mounthelper.main(argv) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("fsguard: ") and said in err and "Traceback" not in err


def test_help_and_version(capsys):
    assert mounthelper.main(["--help"]) == 0 and "policy=warn|block|off" in capsys.readouterr().out
    assert mounthelper.main(["-V"]) == 0 and capsys.readouterr().out.startswith("mount.fsguard ")


PATHS = {
    "/srv/ws": "srv-ws",
    "/": "-",
    "/a-b/c d": r"a\x2db-c\x20d",
    "/.hidden/x": r"\x2ehidden-x",
    "/a//b/": "a-b",
    "/ü": r"\xc3\xbc",
}


@pytest.mark.parametrize("path", PATHS)
def test_state_directories_are_named_as_systemd_names_instances(path):
    assert mounthelper.state_name(path) == PATHS[path]
    if shutil.which("systemd-escape"):
        said = subprocess.run(["systemd-escape", "--path", path], capture_output=True, text=True, check=True)
        assert said.stdout.strip() == PATHS[path]
