"""Fixtures for the whole suite; what they are made of is in `tests/kit`."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.kit.abilities import IN_CI, need_mount
from tests.kit.mounting import Workspace, leftovers
from tests.kit.posix import Places


def pytest_configure() -> None:
    """What the shell that started us has set, and tests can't do with."""
    # A background job has SIGINT and SIGQUIT ignored, and hands that on: tests send them.
    for number in (signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL if number == signal.SIGQUIT else signal.default_int_handler)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096  # tests with a thousand clients; a login shell has 1,024
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


# The same examples in every run of CI: what is new is looked for elsewhere (`make stress`).
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("here", deadline=None)  # a loaded machine is no fault of the code
settings.load_profile("ci" if IN_CI else "here")


@pytest.fixture(scope="session", autouse=True)
def _everything_below_one_directory() -> Iterator[Path]:
    """Tests make their directories below one place, so that leftovers are known to be ours.

    It is short, since socket paths have room for 107 bytes only.
    """
    parent = os.environ.get("FSGUARD_TEST_DIR") or tempfile.gettempdir()
    top = Path(tempfile.mkdtemp(prefix="fsg", dir=parent))
    top.chmod(0o755)
    before, tempfile.tempdir = tempfile.tempdir, str(top)
    yield top
    tempfile.tempdir = before
    left = leftovers(f"{top}/")
    if not left:
        shutil.rmtree(top, ignore_errors=True)
    assert not left, "the tests left behind:\n" + "\n".join(left)


@pytest.fixture
def make_workspace() -> Iterator[Callable[..., Workspace]]:
    """Makes workspaces (`separate=`, `options=`; `mount=False` leaves the mounting to the test)."""
    need_mount()
    made: list[Workspace] = []

    def make(*, mount: bool = True, separate: bool = False, options: tuple[str, ...] = ()) -> Workspace:
        workspace = Workspace(separate=separate, options=options)
        made.append(workspace)
        if mount:
            workspace.mount()
        return workspace

    yield make
    troubles = []
    for workspace in made:
        troubles += _end(workspace)
    assert not troubles, "\n".join(troubles)


def _end(workspace: Workspace) -> list[str]:
    troubles = []
    try:
        workspace.close()
    except AssertionError as error:
        troubles.append(str(error))
    complaints = workspace.complaints()
    if complaints:
        troubles.append("the daemon complained, and the test did not announce it:\n" + "\n".join(complaints))
    if not troubles:
        workspace.remove()
    return troubles


def _checked(workspace: Workspace) -> Iterator[Workspace]:
    """The workspace, and afterwards: has the daemon as many descriptors open as before?"""
    before = workspace.daemon_fds()
    yield workspace
    for process in workspace.processes:
        if process.poll() is None:
            process.kill()
            process.wait(10)
    if workspace.mounted and before:
        after = workspace.settled_fds(len(before))
        more = list(after)
        for target in before:
            if target in more:
                more.remove(target)
        assert len(after) <= len(before) + workspace.deaths, (
            f"the daemon keeps {len(after) - len(before)} descriptors: {more}"
        )


@pytest.fixture
def workspace(make_workspace: Callable[..., Workspace]) -> Iterator[Workspace]:
    """A workspace guarded in place: the mount covers the directory."""
    yield from _checked(make_workspace())


@pytest.fixture
def split_workspace(make_workspace: Callable[..., Workspace]) -> Iterator[Workspace]:
    """A workspace with a mountpoint of its own; `backing` is the directory behind."""
    yield from _checked(make_workspace(separate=True))


@pytest.fixture(scope="session")
def places(_everything_below_one_directory: Path) -> Iterator[Places]:
    """Where the POSIX table is carried out: a plain directory and a mount.

    FSGUARD_POSIX_AT (and FSGUARD_POSIX_BACKING) name another filesystem to try.
    """
    plain = Path(tempfile.mkdtemp(prefix="p"))
    plain.chmod(0o755)
    given = os.environ.get("FSGUARD_POSIX_AT")
    if given:
        behind = os.environ.get("FSGUARD_POSIX_BACKING")
        yield Places(plain, Path(given), Path(behind) if behind else None)
        return
    need_mount()
    workspace = Workspace(separate=True)
    workspace.mount()
    before = workspace.daemon_fds()
    yield Places(plain, workspace.root, workspace.backing)
    after = workspace.settled_fds(len(before))
    troubles = _end(workspace)
    if len(after) > len(before):
        troubles.append(f"the daemon kept {len(after) - len(before)} descriptors open")
    assert not troubles, "\n".join(troubles)
