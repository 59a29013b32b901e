"""Fixtures for the whole suite; what they are made of is in `tests/kit`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.posix import Places


@pytest.fixture(scope="session")
def places() -> Iterator[Places]:
    """Where the POSIX table is carried out."""
    with tempfile.TemporaryDirectory(prefix="fsg-") as top:
        os.chmod(top, 0o755)
        for n in ("plain", "mount"):
            os.mkdir(f"{top}/{n}")
        yield Places(Path(top, "plain"), Path(os.environ.get("FSGUARD_POSIX_AT", top + "/mount")))
