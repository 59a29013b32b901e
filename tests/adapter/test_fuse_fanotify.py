"""fanotify's events: what real ones say, and that mangled ones do no harm."""

from __future__ import annotations

import os
from collections.abc import Iterator
from errno import EREMOTE
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fsguard.caching import why_not
from fsguard.fuse import fanotify
from fsguard.fuse.outside import THERE, kinds
from tests.kit.abilities import lacking


@pytest.fixture
def group() -> Iterator[fanotify.Group]:
    try:
        made = fanotify.Group()
    except OSError as error:
        lacking(f"fanotify: {error.strerror}")
    yield made
    made.close()


def mark(group: fanotify.Group, directory: Path) -> bytes:
    fd = os.open(directory, os.O_PATH)
    try:
        return group.mark(fd)
    finally:
        os.close(fd)


def test_each_event_names_its_directory_and_its_author(group: fanotify.Group, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    here, below = mark(group, tmp_path), mark(group, tmp_path / "d")
    assert here != below
    (tmp_path / "f").touch()
    (event,) = group.read()
    assert event.pid == os.getpid() and event.source == (here, b"f") and "create" in kinds(event.mask)
    (tmp_path / "f").rename(tmp_path / "d" / "g")
    (event,) = group.read()
    assert (event.source, event.target) == ((here, b"f"), (below, b"g")) and kinds(event.mask) == ["rename"]
    (tmp_path / "d" / "g").chmod(0o600)
    (event,) = group.read()
    assert event.source == (below, b"g") and kinds(event.mask) == ["attributes"]
    assert group.read() == []
    fd = os.open(tmp_path / "d", os.O_PATH)
    group.unmark(fd)
    os.close(fd)
    (tmp_path / "d" / "g").unlink()
    assert group.read() == []


def test_what_came_from_elsewhere_and_went_there(group: fanotify.Group, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    key = mark(group, tmp_path / "in")
    (tmp_path / "out" / "f").touch()
    (tmp_path / "out" / "f").rename(tmp_path / "in" / "f")
    (tmp_path / "in" / "f").rename(tmp_path / "out" / "f")
    came, went = group.read()
    assert (came.source, came.target) == (None, (key, b"f"))
    assert (went.source, went.target) == ((key, b"f"), None)


def test_merged_events_are_put_in_order_by_what_is_there() -> None:
    both = fanotify.CREATE | fanotify.DELETE | fanotify.CLOSE_WRITE
    assert kinds(both) == ["create", "delete"]
    assert kinds(both | THERE) == ["delete", "create"]
    assert kinds(fanotify.CREATE | fanotify.MODIFY) == ["create", "write"]
    assert kinds(fanotify.CLOSE_WRITE) == ["write"], "a mapping's stores are told by nothing else"


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_mangled_events_do_no_harm(group: fanotify.Group, tmp_path: Path, data: st.DataObject) -> None:
    mark(group, tmp_path)
    (tmp_path / "e").touch()
    (tmp_path / "e").rename(tmp_path / "f")
    (tmp_path / "f").unlink()
    real = bytearray(os.read(group.fd, 65536))
    for at, byte in data.draw(st.lists(st.tuples(st.integers(0, len(real) - 1), st.integers(0, 255)))):
        real[at] = byte
    cut = data.draw(st.integers(0, len(real)))
    for event in fanotify.parse(bytes(real[:cut]) + data.draw(st.binary(max_size=60))):
        kinds(event.mask)


def test_where_other_machines_may_change_it_nothing_is_promised(
    group: fanotify.Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanotify, "is_shared", lambda fd: True)
    with pytest.raises(OSError) as refused:
        mark(group, tmp_path)
    assert refused.value.errno == EREMOTE and "other machines" in why_not(EREMOTE)
