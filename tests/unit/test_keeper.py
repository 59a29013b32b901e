"""Where no second process can be made, that is said, and nothing is left changed."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Sequence

import pytest

from fsguard import keeper


def test_without_a_second_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    def work(dead: Sequence[int]) -> int:
        raise AssertionError("there is no worker")

    monkeypatch.setattr(keeper, "clone_sharing", refused)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with pytest.raises(keeper.NoWorkerError, match="not permitted"):
        keeper.keep(work, keeper.Board(), lambda order: None)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_a_process_that_lives_is_not_dying() -> None:
    assert not keeper.dying(os.getpid())
