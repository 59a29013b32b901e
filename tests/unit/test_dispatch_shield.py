"""A bug of the guard is logged and counted; the system call goes on."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from fsguard.dispatch import Shield
from fsguard.observer import Caller, Made, Truncated

CALLER = Caller(1, 0, 0)


class Faulty:
    """An observer whose every method fails as it is told to."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __getattr__(self, name: str) -> Any:
        def fail(*_: object) -> None:
            raise self.error

        async def fail_later(*_: object) -> None:
            raise self.error

        return fail_later if name in ("open", "create") else fail


def finish(coroutine: Any) -> Any:
    return asyncio.run(coroutine)


def test_a_bug_never_reaches_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    shield = Shield(Faulty(ValueError("a bug")))  # type: ignore[arg-type]
    with caplog.at_level(logging.CRITICAL):
        shield.missed(CALLER, b"f")
        shield.interrupted(7)
        assert shield.attribute(CALLER, None, "writer") is None  # type: ignore[arg-type]
        for session in (
            finish(shield.open(CALLER, None, 0)),  # type: ignore[arg-type]
            finish(shield.create(CALLER, b"f", 0)),
        ):
            session.writing(1, 0, b"x")
            session.wrote(0, 1)
            session.released()
        ran = []
        with shield.changing(CALLER, Made(b"f", "fifo")):
            ran.append(True)
    assert ran and shield.faults == 6


def test_a_refusal_passes() -> None:
    shield = Shield(Faulty(OSError(16, "busy")))  # type: ignore[arg-type]
    with pytest.raises(OSError, match="busy"):
        finish(shield.open(CALLER, None, 0))  # type: ignore[arg-type]
    with pytest.raises(OSError, match="busy"), shield.changing(CALLER, Made(b"f", "fifo")):
        raise AssertionError("the body must not run")
    assert shield.faults == 0


def test_the_callers_own_error_stays_its_own() -> None:
    class Quiet(Faulty):
        def changing(self, *_: object) -> Any:
            from contextlib import contextmanager

            @contextmanager
            def nothing() -> Any:
                yield

            return nothing()

    shield = Shield(Quiet(ValueError()))  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError), shield.changing(CALLER, Truncated(None, 0, None)):  # type: ignore[arg-type]
        raise FileNotFoundError
    assert shield.faults == 0
