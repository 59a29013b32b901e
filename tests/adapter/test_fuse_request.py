"""The peek at raw requests, FUSE_INIT as we change it, mounts as the kernel lists them."""

import struct
import subprocess
import sys

import pytest

from fsguard.errors import MissingError
from fsguard.fuse import _request, handshake, mounts
from fsguard.fuse.handshake import FLAGS, patch_reply, patch_request

OPEN, WRITE, SETATTR, SETXATTR, CREATE, READ, INTERRUPT = 14, 16, 4, 21, 35, 15, 36


def request(opcode, body=b"", unique=42, pid=77):
    return struct.pack("=IIQQIIIHH", 40 + len(body), opcode, unique, 5, 1, 2, pid, 0, 0) + body


@pytest.mark.parametrize(
    ("opcode", "body", "flags"),
    [
        (OPEN, struct.pack("=II", 0o2, 1), 1),
        (CREATE, struct.pack("=IIII", 0o102, 0o644, 0o22, 1), 1),
        (WRITE, struct.pack("=QQIIQII", 1, 4096, 3, 5, 0, 0o2002, 0), 5),
        (SETATTR, struct.pack("=II", 1 << 11 | 8, 0), 1 << 11 | 8),
        (SETXATTR, struct.pack("=II", 3, 2), 2),
        (READ, struct.pack("=QQII", 1, 2, 3, 4), 0),
    ],
)
def test_who_asks_and_how(opcode, body, flags):
    _request.look(request(opcode, body))
    assert _request.current() == (opcode, 42, 77, flags)
    assert (_request.tid(), _request.flags(), _request.unique()) == (77, flags, 42)
    assert _request.file_flags() == (0o2002 if opcode == WRITE else 0)


@pytest.mark.parametrize("opcode", [OPEN, CREATE, WRITE, SETATTR, SETXATTR, INTERRUPT])
def test_a_cut_off_request_is_read_no_further(opcode):
    whole = request(opcode, b"\xff" * 64)
    for length in range(len(whole)):
        _request.look(whole[:length])
        if length < 40:
            assert _request.current() == (0, 0, 0, 0)
        assert _request.flags() in (0, 0xFFFFFFFF)
    _request.take_interrupts()


def test_interrupts_are_kept_until_taken():
    _request.take_interrupts()
    for unique in (7, 2**63 + 1):
        _request.look(request(INTERRUPT, struct.pack("=Q", unique)))
    assert _request.take_interrupts() == [7, 2**63 + 1]
    assert _request.take_interrupts() == []


def test_more_interrupts_than_room_forget_the_oldest():
    for unique in range(5000):
        _request.look(request(INTERRUPT, struct.pack("=Q", unique)))
    assert _request.take_interrupts() == list(range(5000 - 4096, 5000))


def test_the_peek_needs_to_be_loaded_before_pyfuse3():
    script = "{}; from fsguard.fuse._library import interposed; print(interposed())"
    for first, answer in (("pass", "True"), ("import pyfuse3", "False")):
        done = subprocess.run(
            [sys.executable, "-c", script.format(first)], capture_output=True, text=True, check=True
        )
        assert (done.stdout.strip(), done.stderr) == (answer, "")


# ---- FUSE_INIT --------------------------------------------------------------------------


def init(flags):
    return request(26, struct.pack("=IIII", 7, 45, 131072, flags) + bytes(48))


def init_reply(flags):
    return struct.pack("=IiQIIII", 80, 0, 42, 7, 31, 131072, flags) + bytes(48)


def bits(*names):
    return sum(1 << FLAGS[name] for name in names)


def test_offers_that_do_harm_are_kept_from_libfuse():
    offered = bits("splice_read", "splice_write", "handle_killpriv", "handle_killpriv_v2", "posix_acl")
    patched, seen = patch_request(init(offered))
    assert seen == offered
    assert struct.unpack_from("=I", patched, 52)[0] == bits("posix_acl")
    assert len(patched) == len(init(0)) and patched[:52] == init(0)[:52]


def test_wishes_are_put_into_the_reply_as_far_as_offered():
    offered = bits("dont_mask", "handle_killpriv_v2")
    reply, agreed = patch_reply(init_reply(bits("posix_acl")), offered, True)
    assert agreed == bits("posix_acl", "dont_mask", "handle_killpriv_v2")
    assert struct.unpack_from("=I", reply, 28)[0] == agreed
    _, agreed = patch_reply(init_reply(bits("posix_acl")), bits("posix_acl"), True)
    assert agreed == bits("posix_acl")


def test_what_needs_the_peek_is_not_asked_for_without():
    assert patch_reply(init_reply(0), bits("dont_mask", "handle_killpriv_v2"), False)[1] == bits("dont_mask")


def test_an_old_kernels_short_request_is_understood():
    short = init(bits("splice_read"))[:56]
    short = struct.pack("=I", len(short)) + short[4:]
    assert struct.unpack_from("=I", patch_request(short)[0], 52)[0] == 0


@pytest.mark.parametrize("wrong", [request(1), init(0)[:50], b"x" * 30])
def test_anything_but_init_is_refused(wrong):
    with pytest.raises((MissingError, struct.error)):
        patch_request(wrong)


def test_a_refusal_by_libfuse_is_said():
    with pytest.raises(MissingError):
        patch_reply(struct.pack("=IiQ", 16, -71, 42), 0, True)


def test_features_are_named():
    shake = handshake.Handshake.__new__(handshake.Handshake)
    shake.agreed = bits("posix_acl", "dont_mask")
    assert {name for name, on in shake.features().items() if on} == {"posix_acl", "dont_mask"}


# ---- /proc/self/mountinfo ----------------------------------------------------------------

MOUNTINFO = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 22 0:39 / /home/a\\040b rw,relatime shared:7 - fuse.fsguard /home/a\\040b rw,user_id=0,group_id=0
41 22 0:40 / /mnt rw,relatime - fuse.sshfs host: rw
42 22 0:41 / /srv/w rw - fuse.fsguard /srv/back\\134slash rw,allow_other
broken line
"""


def test_our_mounts_are_found_among_others(monkeypatch):
    found = mounts.parse(MOUNTINFO)
    assert [(m.mountpoint, m.source, m.device) for m in found] == [
        ("/home/a b", "/home/a b", "0:39"),
        ("/srv/w", "/srv/back\\slash", "0:41"),
    ]


def test_nothing_mounted_is_no_state(tmp_path):
    assert mounts.state(str(tmp_path)) == "none"
