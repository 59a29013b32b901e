"""Brings the state of a checkpoint to what it was when the process ended, from the tape.

The calls that were noted since are made once more, with the answers that they got then. Whatever
does not fit raises DoubtError; the state is between the two then, and no warning may come of what
was on record (`Guard.forget_doubtful`).

What was under way at the end is left where it stood, for the request that comes again: opens that
wait, changes that are announced and not confirmed, sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import suppress
from types import coroutine
from typing import Any

from fsguard.dispatch.openfile import OpenFile
from fsguard.dispatch.recorded import (
    TRUNCATED,
    Done,
    RecordedChange,
    RecordedSession,
    change_of_values,
)
from fsguard.dispatch.recorder import Recorder
from fsguard.dispatch.waits import Wait
from fsguard.observer import Caller, FileView, Outside
from fsguard.tape import DoubtError, Script

__all__ = ["Replay"]


class _GivenUpError(BaseException):
    """In place of the cancellation of an open."""


@coroutine
def _stand() -> Generator[None, None, None]:
    yield


async def _rest(wait: Wait, seconds: float) -> None:
    await _stand()


class Replay:
    """:param node: the file of a number; one that is gone needs no more than an identity.
    :param has_handle: told of each open file that has got its number: (session, number, file, flags of
        open(2), readable), and of each that is closed.
    :param numbered: told what number the filesystem has given to whom.
    :param faults: told of each bug that the guard had (see `Shield`).
    """

    def __init__(
        self,
        recorder: Recorder,
        node: Callable[[int], Any],
        has_handle: Callable[[RecordedSession, int, FileView, int, bool], object] = lambda *_: None,
        closed: Callable[[int], object] = lambda fh: None,
        numbered: Callable[[int, Any], object] = lambda number, actor: None,
        faults: Callable[[], object] = lambda: None,
    ) -> None:
        self._recorder = recorder
        self._dispatch = recorder.inner
        self._node = node
        self._has_handle = has_handle
        self._closed = closed
        self._numbered = numbered
        self._faults = faults
        self._opens: dict[int, tuple[int, Coroutine[Any, Any, OpenFile]]] = {}
        self._aborted: dict[int, RecordedSession] = {}
        self._last: tuple[int, list[Done]] = (0, [])
        self.calls = 0
        """How many were made."""

    def run(self, entries: Iterable[Any]) -> None:
        """Play them back. Raises DoubtError; whatever happens, calls are noted again afterwards."""
        recorder, tape = self._recorder, self._recorder.tape
        pending = self._dispatch.waiting.pending
        before, pending.rest = pending.rest, _rest
        recorder.play_nested = self._nested
        try:
            self._stand_again()
            for entry in entries:
                self._play(entry)
                self.calls += 1
        except Exception as error:
            tape.items = None
            self._give_up()
            if isinstance(error, DoubtError):
                raise
            raise DoubtError(f"{type(error).__name__}: {error}") from error
        finally:
            tape.items = None
            pending.rest = before
        unique, done = self._last
        if unique and done:
            recorder.past[unique] = done
        for number, (request, stretches) in self._opens.items():
            recorder.opening[request] = (number, request, stretches)

    def _give_up(self) -> None:
        """What was under way comes again, and begins anew."""
        for _, stretches in self._opens.values():
            with suppress(Exception):
                stretches.close()
        self._opens.clear()
        self._recorder.changes.clear()

    def _stand_again(self) -> None:
        """Opens that waited when the checkpoint was made."""
        for unique, wait in self._dispatch.waiting.pending.all().items():
            self._stretch(wait.number, unique, self._dispatch.go_on(wait))
            self._recorder.numbers = max(self._recorder.numbers, wait.number)

    def _play(self, entry: tuple[Any, ...]) -> None:
        kind, unique, args, items = entry
        tape = self._recorder.tape
        outer, script = tape.items, Script(items)
        tape.items = script
        value: Any = None
        refused: OSError | None = None
        play = getattr(self, f"_{kind}_", None)
        if play is None:
            raise DoubtError(f"an unknown call: {kind}")
        try:
            value = play(unique, *args)
        except DoubtError:
            raise
        except OSError as error:
            refused = error
        except Exception as error:
            if not script.failed():
                raise DoubtError(f"{kind}: {type(error).__name__}: {error}") from error
            script.skip()
            if kind != "act":
                self._faults()
        finally:
            tape.items = outer
        script.finish()
        if unique < 0:
            self._recorder.record = -unique
        elif outer is None and kind not in _UNASKED:
            self._note(kind, unique, args, value, refused)

    def _note(
        self, kind: str, unique: int, args: tuple[Any, ...], value: Any, refused: OSError | None
    ) -> None:
        if unique != self._last[0]:
            self._last = (unique, [])
        if not unique or value is _WAITS:
            return
        if kind in _OF_SESSIONS:
            key = args[0]
        elif kind == "changing":
            key = _key(args[2])
        elif kind == "changed":
            key = value.key
        else:
            key = 0
        self._last[1].append(Done(_AS_CALLED.get(kind, kind), key, value, refused))

    def _nested(self, script: Script) -> None:
        while (entry := script.nested()) is not None:
            self._play(entry)

    # -- calls ------------------------------------------------------------------------

    def _session(self, number: int) -> RecordedSession:
        return self._recorder.sessions.get(number) or self._aborted[number]

    def _who(self, number: int) -> Any:
        return self._recorder.actors[number] if number else None

    def _missed_(self, unique: int, caller: Any, path: bytes) -> None:
        self._dispatch.missed(Caller(*caller), path)

    def _readlink_(self, unique: int, caller: Any, file: int) -> None:
        self._dispatch.readlink(Caller(*caller), self._node(file))

    def _attribute_(self, unique: int, caller: Any, file: int, name: str) -> bytes | None:
        return self._dispatch.attribute(Caller(*caller), self._node(file), name)

    def _looked_(self, unique: int, caller: Any, file: int) -> object:
        return self._recorder.look(Caller(*caller), self._node(file))

    def _looks_(self, unique: int, *looks: Any) -> None:
        self._dispatch.looks([(self._who(who), paths, at) for who, paths, at in looks])

    def _outside_(self, unique: int, kinds: Any, path: Any, target: Any, pid: int, *rest: Any) -> None:
        self._dispatch.outside(Outside(kinds, path, target, pid, *rest))

    def _made_(self, unique: int, who: int, path: bytes, file: int, at: float, wrote: bool) -> None:
        self._dispatch.made(self._who(who), path, self._node(file) if file else None, at, wrote)

    def _making_(self, unique: int, number: int, who: int, paths: Any, file: int, *rest: Any) -> object:
        self._recorder.numbers = max(self._recorder.numbers, number)
        inner = self._dispatch.making(self._who(who), paths, self._node(file), *rest)
        return self._recorder.session(number, inner, 0)

    def _found_(self, unique: int, number: int, tid: int, file: int, flags: int) -> object:
        self._recorder.numbers = max(self._recorder.numbers, number)
        return self._recorder.session(number, self._dispatch.found(tid, self._node(file), flags), 0)

    def _removed_(self, unique: int, who: int, path: bytes, at: float) -> None:
        self._dispatch.removed(self._who(who), path, at)

    def _linked_(self, unique: int, who: int, path: bytes, file: int, at: float) -> None:
        self._dispatch.linked(self._who(who), path, self._node(file), at)

    def _interrupted_(self, unique: int, request: int) -> None:
        self._dispatch.interrupted(request)

    def _act_(self, unique: int, name: str, args: Any) -> None:
        self._recorder.acts[name](*args)

    def _numbered_(self, unique: int, number: int, who: int) -> None:
        self._numbered(number, self._who(who))

    # -- sessions ---------------------------------------------------------------------

    def _open_(self, unique: int, number: int, caller: Any, file: int, flags: int) -> object:
        return self._begun(unique, number, self._dispatch.open(Caller(*caller), self._node(file), flags))

    def _create_(self, unique: int, number: int, caller: Any, path: bytes, flags: int) -> object:
        return self._begun(unique, number, self._dispatch.create(Caller(*caller), path, flags))

    def _begun(self, unique: int, number: int, stretches: Any) -> object:
        self._recorder.numbers = max(self._recorder.numbers, number)
        return self._stretch(number, unique, stretches)

    def _goes_on_waiting_(self, unique: int, number: int) -> object:
        return self._stretch(number, *self._opens.pop(number))

    def _cancelled_(self, unique: int, number: int) -> object:
        return self._stretch(number, *self._opens.pop(number), cancelled=True)

    def _stretch(self, number: int, unique: int, stretches: Any, cancelled: bool = False) -> object:
        self._recorder.running = number
        try:
            if cancelled:
                stretches.throw(_GivenUpError())
            else:
                stretches.send(None)
        except StopIteration as done:
            return self._recorder.session(number, done.value, unique)
        except (_GivenUpError, GeneratorExit):
            return None
        self._opens[number] = (unique, stretches)
        return _WAITS

    def _opened_(self, unique: int, number: int, file: int) -> None:
        session = self._recorder.sessions[number] = self._session(number)
        session.inner.opened(self._node(file))

    def _aborted_(self, unique: int, number: int) -> None:
        session = self._aborted[number] = self._recorder.sessions.pop(number)
        session.inner.aborted()

    def _reading_(self, unique: int, number: int, tid: int) -> None:
        self._session(number).inner.reading(tid)

    def _writing_(self, unique: int, number: int, tid: int, offset: int, size: int) -> None:
        self._session(number).inner.writing(tid, offset, bytes(size))

    def _wrote_(self, unique: int, number: int, offset: int, size: int) -> None:
        self._session(number).inner.wrote(offset, size)

    def _goes_on_(self, unique: int, number: int, tid: int) -> bool:
        return self._session(number).inner.goes_on(tid)

    def _went_on_(self, unique: int, number: int, last: float) -> None:
        self._session(number).inner.went_on(last)

    def _released_(self, unique: int, number: int) -> None:
        session = self._recorder.sessions.pop(number)
        if session.fh:
            self._closed(session.fh)
        session.inner.released()

    def _has_handle_(self, unique: int, number: int, fh: int, file: int, flags: int, readable: bool) -> None:
        session = self._session(number)
        if session.fh:
            self._closed(session.fh)
        session.fh = fh
        self._has_handle(session, fh, self._node(file), flags, readable)

    # -- changes ----------------------------------------------------------------------

    def _changing_(self, unique: int, number: int, caller: Any, values: Any) -> object:
        recorder = self._recorder
        recorder.numbers = max(recorder.numbers, number)
        change = change_of_values(values, self._node, lambda n: recorder.sessions[n].inner)
        recorded = RecordedChange(recorder, number, Caller(*caller), change, _key(values))
        recorder.changes[number] = recorded
        try:
            recorded.enter()
        except BaseException:
            del recorder.changes[number]
            raise
        return recorded

    def _changed_(self, unique: int, number: int, failed: bool) -> object:
        change = self._recorder.changes.pop(number)
        try:
            change.leave(failed)
        except OSError:
            if not failed:
                raise
        return change


def _key(change: Any) -> int:
    """The session that a change is made through; 0: through none."""
    return int(change[-1]) if change[0] == TRUNCATED else 0


_WAITS = object()
_OF_SESSIONS = frozenset(["opened", "aborted", "reading", "writing", "wrote", "goes_on", "released"])
# How the parts of an open that waited are asked for by the request that comes again.
_AS_CALLED = {"goes_on_waiting": "open"}
# No part of what a request does.
_UNASKED = frozenset(
    [
        "has_handle",
        "went_on",
        "interrupted",
        "act",
        "numbered",
        "looks",
        "outside",
        "made",
        "making",
        "found",
        "removed",
        "linked",
    ]
)
