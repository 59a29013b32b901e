"""Errors that a user may meet, each with its exit code.

    FsguardError            1
    ├── UsageError          2   a wrong flag, name or value
    │   └── ConfigError     2   a mistake in fsguard.toml
    ├── NotMountedError     3   no guarded workspace where one is needed
    ├── BusyError           4   still in use, or already mounted
    ├── MissingError        5   something the machine lacks (see fsguard doctor)
    ├── RefusedError        6   the caller may not do that
    └── DaemonError         7   the daemon does not answer, or answered nonsense

`fsguard run` passes the command's own exit code through; what goes wrong before
the command starts is 125 there, 126 and 127 mean what they mean in a shell.
"""

from __future__ import annotations


class FsguardError(Exception):
    """Base of all errors shown to users: a sentence, and what to do next."""

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(FsguardError):
    exit_code = 2


class ConfigError(UsageError):
    """A mistake in the configuration; `message` starts with FILE:LINE."""


class NotMountedError(FsguardError):
    exit_code = 3


class BusyError(FsguardError):
    exit_code = 4


class MissingError(FsguardError):
    exit_code = 5


class RefusedError(FsguardError):
    exit_code = 6


class DaemonError(FsguardError):
    exit_code = 7


BY_CODE: dict[int, type[FsguardError]] = {
    c.exit_code: c
    for c in (FsguardError, UsageError, NotMountedError, BusyError, MissingError, RefusedError, DaemonError)
}
