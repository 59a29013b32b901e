"""What a machine can do, and what happens to a test when it cannot.

On a laptop the test is skipped, with the reason. Where CI is set it fails: a run
that skips what it should show is not green.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

import pytest

__all__ = ["IN_CI", "can_mount", "lacking", "need", "need_mount", "need_root", "need_tools"]

IN_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")


def lacking(reason: str) -> None:
    """Skip this test with a reason; in CI, fail it."""
    if IN_CI:
        pytest.fail(f"CI lacks an ability: {reason}", pytrace=False)
    pytest.skip(reason)


def need(able: bool | Callable[[], bool], reason: str) -> None:
    if not (able() if callable(able) else able):
        lacking(reason)


def need_root() -> None:
    need(os.geteuid() == 0, "needs root")


def need_tools(*names: str) -> None:
    missing = [
        name
        for name in names
        if shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin") is None
    ]
    need(not missing, f"not installed: {', '.join(missing)}")


def can_mount() -> str | None:
    """Why nothing can be mounted here; None when it can."""
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"/dev/fuse: {error.strerror}"
    if os.geteuid() != 0 and shutil.which("fusermount3") is None:
        return "fusermount3 is not installed"
    return None


def need_mount() -> None:
    reason = can_mount()
    need(reason is None, reason or "")
