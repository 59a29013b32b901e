"""One lane a process, so one for all tests that play the kernel against it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fsguard.lane import engine
from tests.kit.kernel import Kernel
from tests.kit.records import told


@pytest.fixture(scope="session")
def _kernel(tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    return Kernel(str(tmp_path_factory.mktemp("lane")))


@pytest.fixture
def kernel(_kernel: Kernel) -> Iterator[Kernel]:
    yield _kernel
    engine.let_make(False)
    engine.forget_threads(False)
    told()
    while engine.next_request() is not None:
        pass


@pytest.fixture
def root(kernel: Kernel, request: pytest.FixtureRequest) -> Path:
    """A directory of the test's own; its name is the first component of every path."""
    path = Path(kernel.root, str(abs(hash(request.node.nodeid))))
    path.mkdir()
    return path
