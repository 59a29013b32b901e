"""What a user types about kept versions, read; and diffs."""

from __future__ import annotations

import difflib
import random
import subprocess
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from fsguard.cli import kept, textdiff
from fsguard.cli.undo import moment
from fsguard.errors import UsageError

# ---- PATH@VERSION --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "version", "read"),
    [
        ("f@12", None, ("f", 12)),
        ("f", None, ("f", None)),
        ("f@", None, ("f@", None)),
        ("@12", None, ("@12", None)),
        ("a@3@12", None, ("a@3", 12)),
        ("a@x", None, ("a@x", None)),
        ("a@-1", None, ("a@-1", None)),
        ("a@1.5", None, ("a@1.5", None)),
        ("a@²", None, ("a@²", None)),
        ("d@1/f", None, ("d@1/f", None)),
        ("a@12", "3", ("a@12", 3)),
    ],
)
def test_path_and_version(text: str, version: str | None, read: tuple[str, int | None]) -> None:
    assert kept.split(text, version) == read


@pytest.mark.parametrize(
    ("text", "version", "read"),
    [
        ("f", None, ("f", None, None)),
        ("f@1", None, ("f", 1, None)),
        ("f@1..20", None, ("f", 1, 20)),
        ("f@1..", None, ("f@1..", None, None)),
        ("f@..2", None, ("f@..2", None, None)),
        ("f@1..2..3", None, ("f@1..2..3", None, None)),
        ("a@1@2..3", None, ("a@1", 2, 3)),
        ("a@12", "3", ("a@12", 3, None)),
        ("a@12", "3..4", ("a@12", 3, 4)),
    ],
)
def test_path_and_two_versions(
    text: str, version: str | None, read: tuple[str, int | None, int | None]
) -> None:
    assert kept.split_span(text, version) == read


@pytest.mark.parametrize("text", ["x", "", "-1", "1.5", "²", "9" * 17, "9" * 5000])
def test_no_version_number(text: str) -> None:
    with pytest.raises(UsageError):
        kept.number(text)


def test_sizes() -> None:
    numbers = [0, 1023, 1024, 1536, 64 << 20, 5 << 40]
    shown = ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "64.0 MiB", "5120.0 GiB"]
    assert [kept.size(n) for n in numbers] == shown


@pytest.mark.parametrize(
    "word", ["plain", "two words", "it's", "\\n 'x' \n", "\x1b[31m", "caf\udce9", "\u202e1", "$(x)"]
)
def test_a_command_can_be_pasted_into_a_shell(word: str) -> None:
    line = kept.shell("printf", "%s", word)
    said = subprocess.run(
        ["bash", "-c", line], env={"LC_ALL": "C.UTF-8"}, capture_output=True, check=True
    ).stdout
    assert said.decode("utf-8", "surrogateescape") == word
    assert line.isprintable()


# ---- TIME --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10m", 600),
        ("2h", 7200),
        ("1d", 86400),
        ("30s", 30),
        ("10m ago", 600),
        (" 5 min ago", 300),
        ("0s", 0),
    ],
)
def test_so_long_ago(text: str, seconds: float) -> None:
    assert moment(text) == pytest.approx(time.time() - seconds, abs=5)


def test_the_time_of_day_and_rfc_3339() -> None:
    now = datetime.now()
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    assert moment("00:00") == today.timestamp()
    assert moment(f"{now:%H:%M:%S}") == now.replace(microsecond=0).timestamp()
    assert moment("2024-05-06T07:08:09+02:00") == 1714972089
    assert moment("2024-05-06T07:08:09.5Z") == 1714979289.5
    assert moment("2024-05-06 07:08") == datetime(2024, 5, 6, 7, 8).timestamp()
    assert moment("2024-05-06") == datetime(2024, 5, 6).timestamp()


@pytest.mark.parametrize(
    "text", ["", "x", "10", "10x", "-5m", "25:00", "12", "m", "ago", "1e3s", "²m", "2024-13-01", "9" * 400]
)
def test_no_time(text: str) -> None:
    with pytest.raises(UsageError, match="is no time"):
        moment(text)


def test_a_time_to_come() -> None:
    with pytest.raises(UsageError, match="still to come"):
        moment((datetime.now() + timedelta(days=1)).isoformat())


# ---- diffs ----------------------------------------------------------------------------------------


def plain(old: bytes, new: bytes) -> list[bytes]:
    """As the standard library says it."""
    split = [[line + b"\n" for line in data.split(b"\n")[:-1]] for data in (old, new)]
    return list(difflib.diff_bytes(difflib.unified_diff, *split, b"a", b"b"))


def test_one_change_is_told_as_by_the_standard_library() -> None:
    old = [b"%d\n" % n for n in range(30)]
    for place in range(31):
        for gone in range(4):
            for came in ([], [b"new\n"], [b"new\n", b"er\n"]):
                new = [*old[:place], *came, *old[place + gone :]]
                said = textdiff.unified(b"".join(old), b"".join(new), "a", "b")
                assert said[2:] == plain(b"".join(old), b"".join(new))[2:]


@pytest.mark.parametrize("seed", range(20))
def test_patch_makes_the_new_from_the_old(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    pieces = [b"a", b"b\r", b"", b"\x0c", b"\xe9\xff", b"-x", b"+++ y", b"\\ No newline at end of file"]
    old, new = (
        b"\n".join(rng.choice(pieces) for _ in range(rng.randrange(30))) + rng.choice([b"", b"\n"])
        for _ in "12"
    )
    (tmp_path / "f").write_bytes(old)
    lines = textdiff.unified(old, new, "f", "f")
    subprocess.run(
        ["patch", "-p0", "--binary", "f"],
        input=b"".join(lines),
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    assert (tmp_path / "f").read_bytes() == new if (tmp_path / "f").exists() else new == b""


def test_a_diff_of_much_takes_little_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = (b"".join(b"%d\n" % (n * k) for n in range(200_000)) for k in (7, 9))
    begun = time.monotonic()
    lines = textdiff.unified(
        b"same\n" * 10 + old + b"end\n" * 10, b"same\n" * 10 + new + b"end\n" * 10, "f", "f"
    )
    assert time.monotonic() - begun < 5
    assert lines[2] == b"@@ -9,200005 +9,200005 @@\n"
    (tmp_path / "f").write_bytes(b"same\n" * 10 + old + b"end\n" * 10)
    subprocess.run(
        ["patch", "-p0", "f"], input=b"".join(lines), cwd=tmp_path, check=True, capture_output=True
    )
    assert (tmp_path / "f").read_bytes() == b"same\n" * 10 + new + b"end\n" * 10


def test_equal_bytes_have_no_diff() -> None:
    assert textdiff.unified(b"a", b"a", "f", "f") == []


def test_binary() -> None:
    assert textdiff.binary(b"a\0b") and not textdiff.binary(b"\xe9\x1b") and not textdiff.binary(b"")
