"""Changing a file that belongs to somebody else: read, back up, replace at once.

A link is followed and stays a link; mode and owner stay; whoever reads sees the
old content or the new one.
"""

from __future__ import annotations

import errno
import os
import time

from fsguard.errors import BusyError, FsguardError, RefusedError, UsageError

__all__ = ["File"]


class File:
    """A configuration file as it is now; `before` is None when it is not there."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.real = os.path.realpath(path)
        self.before = self._read()

    @property
    def linked(self) -> bool:
        """Is the file itself a link to another place?"""
        return os.path.islink(self.path)

    def text(self) -> str:
        """Its text. UsageError: it is not UTF-8."""
        try:
            return (self.before or b"").decode("utf-8")
        except UnicodeDecodeError as error:
            line = (self.before or b"")[: error.start].count(b"\n") + 1
            raise UsageError(
                f"{self.path}, line {line}: not UTF-8 text", "mend it, then try again; nothing was changed"
            ) from None

    def replace(self, after: bytes, *, executable: bool = False) -> str | None:
        """Write the new content; the path of the backup, None when there was nothing to back up.

        BusyError: somebody else changed it meanwhile.
        """
        with _plain_errors(self):
            os.makedirs(os.path.dirname(self.real), exist_ok=True)
            status = os.stat(self.real) if self.before is not None else None
            mode = 0o755 if executable else 0o644
            mode = status.st_mode & 0o7777 if status is not None else mode & ~_umask()
            if executable:
                mode |= (mode & 0o444) >> 2
            backup = None
            if self.before is not None and status is not None:
                backup = self._free(time.strftime("%Y%m%d-%H%M%S"))
                _write(backup, self.before, mode, status)
            draft = f"{self.real}.fsguard-{os.getpid()}"
            _write(draft, after, mode, status)
            try:
                if self._read() != self.before:
                    raise BusyError(f"{self.path} was changed by somebody else meanwhile", "try again")
                os.replace(draft, self.real)
            except BaseException:
                os.unlink(draft)
                raise
        return backup

    def remove(self) -> str:
        """Take the file away; the path of its backup."""
        with _plain_errors(self):
            backup = self._free(time.strftime("%Y%m%d-%H%M%S"))
            os.rename(self.real, backup)
            if self.linked:
                os.unlink(self.path)
        return backup

    def _read(self) -> bytes | None:
        with _plain_errors(self):
            try:
                with open(self.real, "rb") as file:
                    return file.read()
            except FileNotFoundError:
                return None

    def _free(self, stamp: str) -> str:
        name = f"{self.real}.before-fsguard-{stamp}"
        number = 1
        while os.path.lexists(name if number == 1 else f"{name}-{number}"):
            number += 1
        return name if number == 1 else f"{name}-{number}"


def _write(path: str, data: bytes, mode: int, like: os.stat_result | None) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)
        if like is not None and (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
            try:
                os.fchown(descriptor, like.st_uid, like.st_gid)
            except OSError:
                pass  # not ours to give away: then it is ours
        os.fchmod(descriptor, mode)
        file.flush()
        os.fsync(descriptor)


def _umask() -> int:
    old = os.umask(0o077)
    os.umask(old)
    return old


class _plain_errors:
    """Turns what the system says into a sentence."""

    def __init__(self, file: File) -> None:
        self._file = file

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, OSError):
            return
        file = self._file
        where = file.path if file.real == os.path.abspath(file.path) else f"{file.path} ({file.real})"
        if isinstance(error, PermissionError) or error.errno == errno.EROFS:
            raise RefusedError(
                f"{where} cannot be changed: {error.strerror}",
                "where another program makes this file, add the hooks there: --dry-run shows them",
            ) from None
        raise FsguardError(f"{where}: {error.strerror}") from None
