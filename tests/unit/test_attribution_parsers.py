"""/proc texts as they are, and as hostile processes would like them to be."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsguard.attribution import cgroup, procfs
from fsguard.attribution.cgroup import CgroupPattern, Membership
from fsguard.control import mountinfo

STAT_TAIL = (
    b" 4242 4242 4242 0 -1 4194304 100 0 0 0 1 2 0 0 20 0 1 0 987654 10000000 500 18446744073709551615 "
    b"1 2 3 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 11 12 13 14 15 140737488347136 140737488351211 0"
)


def stat_line(comm: bytes, state: bytes = b"S", ppid: bytes = b"7") -> bytes:
    return b"4242 (" + comm + b") " + state + b" " + ppid + STAT_TAIL[5:] + b"\n"


# -- stat ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "comm", [b"sh", b"", b"a b", b") S 1 (", b"((", b"))", b"x\ny", b"\xff\xfe", b") R 1 1 1"]
)
def test_a_name_may_hold_anything(comm):
    stat = procfs.parse_stat(stat_line(comm))
    assert stat is not None
    assert stat.comm.encode("utf-8", "surrogateescape") == comm
    assert (stat.state, stat.ppid) == ("S", 7)


@given(st.binary(max_size=15))
def test_no_name_moves_the_numbers(comm):
    stat = procfs.parse_stat(stat_line(comm, b"Z", b"31"))
    plain = procfs.parse_stat(stat_line(b"sh", b"Z", b"31"))
    assert stat is not None and plain is not None
    assert stat[1:] == plain[1:] and stat.start > 0


def test_the_fields_are_those_of_proc5():
    numbers = b" ".join(str(n).encode() for n in range(4, 53))
    stat = procfs.parse_stat(b"1 (x) R " + numbers)
    assert stat == procfs.Stat("x", "R", 4, 22, 50, threads=20)


@given(st.binary(max_size=400))
def test_what_is_no_stat_line_is_none_and_no_error(raw):
    stat = procfs.parse_stat(raw)
    assert stat is None or isinstance(stat.start, int)


def test_a_line_that_was_cut():
    line = stat_line(b"sh")
    for end in range(len(line) - 1):
        stat = procfs.parse_stat(line[:end])
        assert stat is None or stat.comm == "sh"


# -- status ------------------------------------------------------------------------------

STATUS = b"Name:\tx\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t41\nNgid:\t0\nPid:\t42\n"


def test_the_thread_group():
    assert procfs.parse_tgid(STATUS) == 41


def test_a_name_cannot_forge_a_thread_group():
    # The kernel writes a newline in a name as backslash n.
    assert procfs.parse_tgid(STATUS.replace(b"Name:\tx", b"Name:\tx\\nTgid:\\t1")) == 41
    assert procfs.parse_tgid(b"Tgid:\t1\n" + STATUS) == 41, "the first line is the name's"


@given(st.binary(max_size=200))
def test_any_status(raw):
    assert procfs.parse_tgid(raw) is None or isinstance(procfs.parse_tgid(raw), int)
    assert procfs.pending_signals(raw) >= 0


@pytest.mark.parametrize("raw", [b"", b"\nTgid:", b"\nTgid:\n", b"\nTgid:\tx\n", b"\nTgid:\t"])
def test_a_status_without_a_thread_group(raw):
    assert procfs.parse_tgid(raw) is None


def test_pending_signals_of_thread_and_process():
    raw = b"Name:\tx\nSigPnd:\t0000000000000002\nShdPnd:\t0000000000004000\nSigBlk:\tffffffffffffffff\n"
    assert procfs.pending_signals(raw) == 1 << 1 | 1 << 14
    assert procfs.pending_signals(b"SigPnd:\tzz\nShdPnd:\n") == 0


# -- environ, cmdline, syscall -----------------------------------------------------------

NAMES = (b"FSGUARD_TASK", b"FSGUARD_RUN")


def test_the_first_of_a_name_counts_as_for_getenv():
    raw = b"A=1\0FSGUARD_TASK=one\0FSGUARD_TASK=two\0FSGUARD_TASKS=x\0XFSGUARD_TASK=y\0"
    assert procfs.parse_environ(raw, NAMES) == {b"FSGUARD_TASK": b"one"}


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (b"", {}),
        (b"FSGUARD_TASK", {}),
        (b"FSGUARD_TASK=", {b"FSGUARD_TASK": b""}),
        (b"FSGUARD_TASK=a=b\n\xff", {b"FSGUARD_TASK": b"a=b\n\xff"}),
        (b"X=1\nFSGUARD_TASK=forged\0", {}),
        (b"\0\0=\0FSGUARD_RUN=t\0", {b"FSGUARD_RUN": b"t"}),
    ],
)
def test_environ(raw, found):
    assert procfs.parse_environ(raw, NAMES) == found


@given(st.binary(max_size=300))
def test_any_environ(raw):
    assert set(procfs.parse_environ(raw, NAMES)) <= set(NAMES)


@given(st.binary(max_size=600), st.text(max_size=10))
def test_any_command_line_is_one_short_text(raw, comm):
    text = procfs.text_of(raw, comm)
    assert len(text) <= 400


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"cat\0f\0", "cat f"),
        (b"sh\0-c\0echo 'a b' > f\0", "sh -c 'echo '\"'\"'a b'\"'\"' > f'"),
        (b"nginx: worker process\0\0\0\0", "'nginx: worker process'"),
        (b"", "comm"),
        (None, "comm"),
        (b"\0\0", "comm"),
        (b"x\0\0y\0", "x '' y"),
        (b"a\xff\0", "'a\udcff'"),
    ],
)
def test_command_lines(raw, text):
    assert procfs.text_of(raw, "comm") == text


@pytest.mark.parametrize(
    ("raw", "call"),
    [
        (b"257 0xffffff9c 0x7f00 0x0 0x0 0x1 0x2 0x7ffc 0x7f01\n", (257, (0xFFFFFF9C, 0x7F00, 0, 0, 1, 2))),
        (b"running\n", None),
        (b"-1 0x7ffc 0x7f01\n", (-1, (0x7FFC, 0x7F01))),
        (b"", None),
        (b"2 0xzz\n", None),
    ],
)
def test_system_calls(raw, call):
    assert procfs.parse_syscall(raw) == call


@given(st.binary(max_size=200))
def test_any_system_call(raw):
    procfs.parse_syscall(raw)


def test_reading_what_is_not_there():
    assert procfs.read("/proc/self/no-such-file") is None
    assert procfs.read("/proc") is None, "a directory"
    assert procfs.syscall(1 << 30) is None


# -- control groups ------------------------------------------------------------------------

V2 = b"0::/user.slice/user-1000.slice/session-2.scope/fsguard-aa/fsguard-bb\n"
V1 = (
    b"12:pids:/user.slice/fsguard-aa\n11:memory:/user.slice\n5:cpu,cpuacct:/\n"
    b"1:name=systemd:/user.slice/user-0.slice/session-1.scope\n"
)
HYBRID = V1 + b"0::/user.slice/fsguard-cc\n"


def test_v2():
    assert cgroup.parse_cgroup(V2) == [
        Membership(0, "", "/user.slice/user-1000.slice/session-2.scope/fsguard-aa/fsguard-bb")
    ]


def test_v1_with_the_named_hierarchy_first():
    members = cgroup.parse_cgroup(V1)
    assert [m.controllers for m in members] == ["name=systemd", "cpu,cpuacct", "memory", "pids"]


def test_hybrid_with_the_v2_tree_first():
    members = cgroup.parse_cgroup(HYBRID)
    assert members[0] == Membership(0, "", "/user.slice/fsguard-cc") and len(members) == 5


def test_tokens_the_innermost_first():
    assert cgroup.token_of(cgroup.parse_cgroup(V2)) == ["bb", "aa"]
    assert cgroup.token_of(cgroup.parse_cgroup(HYBRID)) == ["cc", "aa"]
    assert cgroup.token_of(cgroup.parse_cgroup(b"0::/a/fsguard-x/y/fsguard-x/z\n")) == ["x"]
    assert cgroup.token_of(cgroup.parse_cgroup(b"0::/fsguards/xfsguard-1\n")) == []


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\n\n",
        b"0:/no-second-colon\n",
        b"x::/a\n",
        b"-1::/a\n",
        "²::/a\n".encode(),
        b"0::relative\n",
        b"0::\n",
        b"::\n",
    ],
)
def test_lines_that_are_none_are_passed_over(raw):
    assert cgroup.parse_cgroup(raw) == []
    assert len(cgroup.parse_cgroup(raw + V2)) == 1


def test_a_path_may_hold_colons_and_any_byte():
    assert cgroup.parse_cgroup(b"0::/a:b/\xff (deleted)\n") == [Membership(0, "", "/a:b/\udcff (deleted)")]


@given(st.binary(max_size=400))
def test_any_membership(raw):
    members = cgroup.parse_cgroup(raw)
    assert all(m.path.startswith("/") for m in members)
    assert all("/" not in t for t in cgroup.token_of(members))


@given(
    st.lists(
        st.text(st.characters(exclude_characters="/\n:", exclude_categories=["Cs"]), min_size=1, max_size=8),
        max_size=6,
    )
)
def test_tokens_of_any_path(parts):
    path = "/" + "/".join(parts)
    tokens = cgroup.token_of([Membership(0, "", path)])
    wanted = [p[8:] for p in reversed(parts) if p.startswith("fsguard-")]
    assert tokens == list(dict.fromkeys(wanted))


PATTERNS = [
    CgroupPattern(re.compile(r"/agents\.slice/agent-(?P<name>\w+)\.service"), "agent-{name}"),
    CgroupPattern(re.compile(r"/docker/([0-9a-f]{4})"), "docker-{1}"),
    CgroupPattern(re.compile(r"everything"), "{0}"),
]


@pytest.mark.parametrize(
    ("path", "task"),
    [
        ("/agents.slice/agent-bob.service/x", "agent-bob"),
        ("/docker/0123abc", "docker-0123"),
        ("/x/everything", "everything"),
        ("/user.slice", None),
    ],
)
def test_patterns(path, task):
    assert cgroup.match([Membership(3, "cpu", "/"), Membership(0, "", path)], PATTERNS) == task


def test_the_first_pattern_wins_over_the_first_path():
    members = [Membership(0, "", "/everything"), Membership(1, "pids", "/docker/ffff")]
    assert cgroup.match(members, PATTERNS) == "docker-ffff"
    assert cgroup.match([], PATTERNS) is None and cgroup.match(members, []) is None


def test_a_group_that_took_no_part_is_empty():
    pattern = CgroupPattern(re.compile(r"/a(b)?(?P<c>c)?"), "t{1}{c}")
    assert cgroup.match([Membership(0, "", "/a")], [pattern]) == "t"


def test_a_number_of_thousands_of_digits_is_none():
    assert cgroup.parse_cgroup(b"9" * 5000 + b":cpu:/a\n0::/b\n") == [Membership(0, "", "/b")]


# -- the real ones, mangled ------------------------------------------------------------


REAL = {
    name: Path(f"/proc/self/{name}").read_bytes()
    for name in ("stat", "status", "cgroup", "environ", "cmdline")
}
READERS = {
    "stat": procfs.parse_stat,
    "status": lambda raw: (procfs.parse_tgid(raw), procfs.pending_signals(raw)),
    "cgroup": lambda raw: cgroup.match(cgroup.parse_cgroup(raw), ANY_GROUP),
    "environ": lambda raw: procfs.parse_environ(raw, (b"PATH", b"HOME")),
    "cmdline": lambda raw: procfs.text_of(raw, "sh"),
    "syscall": procfs.parse_syscall,
    "mountinfo": lambda raw: mountinfo.parse(raw.decode("utf-8", "surrogateescape")),
}
ANY_GROUP = [CgroupPattern(re.compile(r"/(?P<id>[^/]+)"), "t-{id}")]
REAL["syscall"] = b"257 0xffffff9c 0x7ffd0 0x80000 0x0 0x0 0x0 0x7ffd1 0x7f000\n"
REAL["mountinfo"] = Path("/proc/self/mountinfo").read_bytes()[:4000]
PIECES = st.one_of(
    st.binary(max_size=6),
    st.sampled_from(
        [b"9" * 5000, b"-1", b"0x", b" ", b"\n", b"\t", b":", b"/", b"\0", b")", b"\\040", b"\\9", b"_"]
    ),
)


@settings(max_examples=int(os.environ.get("FSGUARD_FUZZ", "200")))
@given(st.data())
@pytest.mark.parametrize("name", sorted(READERS))
def test_a_real_one_that_was_mangled(name, data):
    """Cut, repeated, and with anything put in: an answer or none, no error."""
    raw = REAL[name]
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(raw)))
        gone = data.draw(st.integers(0, 40))
        raw = raw[:at] + data.draw(PIECES) + raw[at + gone :]
    READERS[name](raw)
