"""A fault of the guard must not become a fault of somebody's file.

Stands between the filesystem and `Dispatch`. A refusal (OSError) passes; any
other exception is a bug of ours: it is logged and counted, and the system call
goes on as if nobody watched. After the bytes have landed nothing is refused
any more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import TracebackType

from fsguard.observer import Caller, Change, FileView, NullObserver, Observer, Outside, Session, Truncated

__all__ = ["Shield"]

_log = logging.getLogger("fsguard.guard")


class Shield:
    """:param describe: makes a traceback for the log that opens no source file."""

    def __init__(self, inner: Observer, describe: Callable[[BaseException], str] = repr) -> None:
        self._inner = inner
        self._describe = describe
        self._blind = NullObserver()
        self.faults = 0

    def ask(self, inner: Observer) -> None:
        """This one from now on."""
        self._inner = inner

    def fault(self, what: str, error: Exception) -> None:
        self.faults += 1
        _log.error("unguarded %s: %s", what, self._describe(error))

    def session(self, inner: Session) -> Session:
        """What `open` would have given for it."""
        return _Session(inner, self)

    def missed(self, caller: Caller, path: bytes) -> None:
        try:
            self._inner.missed(caller, path)
        except Exception as error:
            self.fault("lookup", error)

    def readlink(self, caller: Caller, file: FileView) -> None:
        try:
            self._inner.readlink(caller, file)
        except Exception as error:
            self.fault("readlink", error)

    def looked(self, caller: Caller, file: FileView) -> Hashable | None:
        try:
            return self._inner.looked(caller, file)
        except Exception as error:
            self.fault("open", error)
            return None

    def looks(self, looks: Iterable[tuple[Hashable, Sequence[bytes], float]]) -> None:
        try:
            self._inner.looks(looks)
        except Exception as error:
            self.fault("looks", error)

    def outside(self, change: Outside) -> Iterable[bytes]:
        try:
            return self._inner.outside(change)
        except Exception as error:
            self.fault("change from behind", error)
            return ()

    def makes_freely(self) -> bool:
        try:
            return self._inner.makes_freely()
        except Exception as error:
            self.fault("create", error)
            return False

    def made(self, who: Hashable | None, path: bytes, file: FileView | None, at: float, wrote: bool) -> None:
        try:
            self._inner.made(who, path, file, at, wrote)
        except Exception as error:
            self.fault("create", error)

    def making(
        self,
        who: Hashable | None,
        paths: Sequence[bytes],
        file: FileView,
        flags: int,
        tid: int,
        at: float,
        wrote: bool,
    ) -> Session:
        try:
            return _Session(self._inner.making(who, paths, file, flags, tid, at, wrote), self)
        except Exception as error:
            self.fault("create", error)
            return self._blind.making(who, paths, file, flags, tid, at, wrote)

    def found(self, tid: int, file: FileView, flags: int) -> Session:
        try:
            return _Session(self._inner.found(tid, file, flags), self)
        except Exception as error:
            self.fault("open", error)
            return self._blind.found(tid, file, flags)

    def removed(self, who: Hashable | None, path: bytes, at: float) -> None:
        try:
            self._inner.removed(who, path, at)
        except Exception as error:
            self.fault("removed", error)

    def linked(self, who: Hashable | None, path: bytes, file: FileView, at: float) -> None:
        try:
            self._inner.linked(who, path, file, at)
        except Exception as error:
            self.fault("linked", error)

    def misses(self, path: bytes) -> bool:
        try:
            return self._inner.misses(path)
        except Exception as error:
            self.fault("lookup", error)
            return False

    async def open(self, caller: Caller, file: FileView, flags: int) -> Session:
        try:
            return _Session(await self._inner.open(caller, file, flags), self)
        except OSError:
            raise
        except Exception as error:
            self.fault("open", error)
            return await self._blind.open(caller, file, flags)

    async def create(self, caller: Caller, path: bytes, flags: int) -> Session:
        try:
            return _Session(await self._inner.create(caller, path, flags), self)
        except OSError:
            raise
        except Exception as error:
            self.fault("create", error)
            return await self._blind.create(caller, path, flags)

    def attribute(self, caller: Caller, file: FileView, name: str) -> bytes | None:
        try:
            return self._inner.attribute(caller, file, name)
        except Exception as error:
            self.fault("attribute", error)
            return None

    def interrupted(self, unique: int) -> None:
        try:
            self._inner.interrupted(unique)
        except Exception as error:
            self.fault("interrupt", error)

    def changing(self, caller: Caller, change: Change) -> AbstractContextManager[object]:
        return _Changing(self, caller, change, self._inner)


class _Changing:
    def __init__(self, shield: Shield, caller: Caller, change: Change, inner: Observer) -> None:
        self._shield = shield
        self._caller = caller
        self._change = change
        self._inner = inner
        self._manager: AbstractContextManager[object] | None = None

    def __enter__(self) -> None:
        change = self._change
        if isinstance(change, Truncated) and isinstance(change.session, _Session):
            change = replace(change, session=change.session.inner)
        try:
            manager = self._inner.changing(self._caller, change)
            manager.__enter__()
            self._manager = manager
        except OSError:
            raise
        except Exception as error:
            self._shield.fault(type(self._change).__name__.lower(), error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._manager is None:
            return
        try:
            self._manager.__exit__(kind, error, trace)
        except Exception as own:
            if own is not error:
                self._shield.fault(type(self._change).__name__.lower(), own)


class _Session:
    def __init__(self, inner: Session, shield: Shield) -> None:
        self.inner = inner
        self._shield = shield

    def opened(self, file: FileView) -> None:
        try:
            self.inner.opened(file)
        except Exception as error:
            self._shield.fault("open", error)

    def aborted(self) -> None:
        try:
            self.inner.aborted()
        except Exception as error:
            self._shield.fault("open", error)

    def reading(self, tid: int) -> None:
        try:
            self.inner.reading(tid)
        except Exception as error:
            self._shield.fault("read", error)

    def writing(self, tid: int, offset: int, data: bytes) -> None:
        try:
            self.inner.writing(tid, offset, data)
        except OSError:
            raise
        except Exception as error:
            self._shield.fault("write", error)

    def wrote(self, offset: int, size: int) -> None:
        try:
            self.inner.wrote(offset, size)
        except Exception as error:
            self._shield.fault("write", error)

    def goes_on(self, tid: int) -> bool:
        try:
            return self.inner.goes_on(tid)
        except Exception as error:
            self._shield.fault("write", error)
            return False

    def went_on(self, last: float) -> None:
        try:
            self.inner.went_on(last)
        except Exception as error:
            self._shield.fault("write", error)

    def released(self) -> None:
        try:
            self.inner.released()
        except Exception as error:
            self._shield.fault("release", error)
