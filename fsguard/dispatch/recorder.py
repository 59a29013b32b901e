"""Notes each call that reaches `Dispatch` on a tape, with what the outside answers meanwhile.

Stands between `Shield` and `Dispatch` where somebody may go on when this process is killed; then
`replay` makes the same calls on the state of the last checkpoint. An entry is

    (kind, number of the request, arguments, answers)

with files as node ids, sessions and processes (`cast`) as numbers of their own. A call that waits
(an open) gives one entry for each stretch that it runs. What was done past us and is told now
(`record`) has its number, negative, in place of the request's.

A request that was under way comes again (bit 63 of its number is set). What it had announced or
confirmed already is in `past` then, and is not done again: it gets the answer that it got.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager
from operator import attrgetter
from types import coroutine
from typing import Any

from fsguard.core.model import Actor
from fsguard.dispatch.cast import Cast
from fsguard.dispatch.observer import Dispatch
from fsguard.dispatch.openfile import OpenFile
from fsguard.dispatch.recorded import AdoptedChange, Done, RecordedChange, RecordedSession
from fsguard.dispatch.waits import Wait
from fsguard.observer import Caller, Change, FileView, Outside, Session, Truncated
from fsguard.tape import FAULT, Script, Tape

__all__ = ["NUMBER", "Recorder"]

NUMBER = (1 << 63) - 1
"""Of a request, without the mark that it comes again (FUSE_UNIQUE_RESEND)."""


@coroutine
def _carry(stretches: Coroutine[Any, Any, OpenFile]) -> Generator[Any, Any, OpenFile]:
    """Go on with a coroutine that was driven by hand before."""
    try:
        asked = stretches.send(None)
        while True:
            try:
                answer = yield asked
            except BaseException as error:
                asked = stretches.throw(error)
            else:
                asked = stretches.send(answer)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


def _note_fault(items: list[Any] | Script | None, error: Exception) -> None:
    if type(items) is list and not isinstance(error, OSError):
        items.append(FAULT)


class Recorder(Cast):
    """:param request: the number of the request that is being handled; 0: of none.
    :param node_number: what a file is called on the tape.
    """

    def __init__(
        self,
        inner: Dispatch,
        tape: Tape,
        request: Callable[[], int] = lambda: 0,
        node_number: Callable[[Any], int] = attrgetter("id"),
    ) -> None:
        self.inner = inner
        self.tape = tape
        self._request = request
        self.node_number = node_number
        self.numbers = 0
        self.sessions: dict[int, RecordedSession] = {}
        self.changes: dict[int, RecordedChange] = {}  # announced and not confirmed
        self.actors: dict[int, Actor] = {}
        self.cast: dict[Actor, int] = {}
        self.past: dict[int, list[Done]] = {}
        # Opens that waited when the process before ended, by request.
        self.opening: dict[int, tuple[int, int, Coroutine[Any, Any, OpenFile]]] = {}
        self.stand = inner.waiting.pending.rest
        self.record = 0
        """The number of what was done past us, while it is told; numbers only grow."""
        self.acts: dict[str, Callable[..., Any]] = {}
        self.play_nested: Callable[[Script], None] = lambda script: None
        self.running = 0  # number of the open that runs
        self._head: tuple[Any, ...] = ()

    # -- calls ----------------------------------------------------------------------

    def request(self) -> int:
        return self._request() & NUMBER

    def call(
        self, kind: str, unique: int, args: tuple[Any, ...], key: int, fn: Callable[..., Any], *real: Any
    ) -> Any:
        """Make a call, and note it; or give what it gave when the same request came first."""
        if self.past:
            done = self.done(kind, unique, key)
            if done is not None:
                if done.error is not None:
                    raise done.error
                return done.value
        tape = self.tape
        outer = tape.items
        items: list[Any] = []
        tape.items = items
        try:
            return fn(*real)
        except Exception as error:
            _note_fault(items, error)
            raise
        finally:
            tape.end(outer, (kind, unique, args, items))

    def done(self, kind: str, unique: int, key: int) -> Done | None:
        """That call of the request, if it was made before; the request is known no more otherwise."""
        calls = self.past.get(unique) if unique else None
        if calls is None:
            return None
        if calls and (calls[0].kind, calls[0].key) == (kind, key):
            done = calls.pop(0)
            if not calls:
                del self.past[unique]
            return done
        del self.past[unique]
        return None

    # -- Observer ---------------------------------------------------------------------

    def missed(self, caller: Caller, path: bytes) -> None:
        self.call("missed", self.request(), (tuple(caller), path), 0, self.inner.missed, caller, path)

    def readlink(self, caller: Caller, file: FileView) -> None:
        args = (tuple(caller), self.node_number(file))
        self.call("readlink", self.request(), args, 0, self.inner.readlink, caller, file)

    def attribute(self, caller: Caller, file: FileView, name: str) -> bytes | None:
        args = (tuple(caller), self.node_number(file), name)
        return self.call("attribute", self.request(), args, 0, self.inner.attribute, caller, file, name)  # type: ignore[no-any-return]

    def looked(self, caller: Caller, file: FileView) -> Hashable | None:
        args = (tuple(caller), self.node_number(file))
        return self.call("looked", self.request(), args, 0, self.look, caller, file)  # type: ignore[no-any-return]

    def look(self, caller: Caller, file: FileView) -> Actor | None:
        actor = self.inner.looked(caller, file)
        if actor is not None:
            self.agree(self.name(actor))
        return actor

    def looks(self, looks: Iterable[tuple[Hashable, Sequence[bytes], float]]) -> None:
        looks = list(looks)
        args = tuple((self.who(actor), tuple(paths), at) for actor, paths, at in looks)
        self.call("looks", -self.record, args, 0, self.inner.looks, looks)

    def outside(self, change: Outside) -> Iterable[bytes]:
        args = (tuple(change.kinds), *change[1:6], dict(change.author))
        return self.call("outside", -self.record, args, 0, self.inner.outside, change)  # type: ignore[no-any-return]

    def misses(self, path: bytes) -> bool:
        return self.inner.misses(path)

    def makes_freely(self) -> bool:
        return self.inner.makes_freely()

    def made(self, who: Hashable | None, path: bytes, file: FileView | None, at: float, wrote: bool) -> None:
        args = (self.who(who), path, self.node_number(file) if file is not None else 0, at, wrote)
        self.call("made", -self.record, args, 0, self.inner.made, who, path, file, at, wrote)

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
        number, names = self.number(), tuple(paths)
        args = (number, self.who(who), names, self.node_number(file), flags, tid, at, wrote)
        inner = self.call(
            "making", -self.record, args, 0, self.inner.making, who, names, file, flags, tid, at, wrote
        )
        return self.session(number, inner, 0)

    def found(self, tid: int, file: FileView, flags: int) -> Session:
        number = self.number()
        args = (number, tid, self.node_number(file), flags)
        inner = self.call("found", 0, args, 0, self.inner.found, tid, file, flags)
        return self.session(number, inner, 0)

    def removed(self, who: Hashable | None, path: bytes, at: float) -> None:
        self.call("removed", -self.record, (self.who(who), path, at), 0, self.inner.removed, who, path, at)

    def linked(self, who: Hashable | None, path: bytes, file: FileView, at: float) -> None:
        args = (self.who(who), path, self.node_number(file), at)
        self.call("linked", -self.record, args, 0, self.inner.linked, who, path, file, at)

    async def open(self, caller: Caller, file: FileView, flags: int) -> Session:
        unique = caller.unique & NUMBER
        if self.past or self.opening:
            waited = self.opening.pop(unique, None)
            if waited is not None:
                return await self.carry_on(*waited)
            done = self.done("open", unique, 0)
            if done is not None:
                if done.error is not None:
                    raise done.error
                return done.value  # type: ignore[no-any-return]
        if caller.unique > NUMBER:
            caller = caller._replace(unique=unique)
        number = self.number()
        self._begin(number, ("open", unique, (number, tuple(caller), self.node_number(file), flags)))
        try:
            inner = await self.inner.open(caller, file, flags)
        except Exception as error:
            _note_fault(self.tape.items, error)
            raise
        finally:
            self._end()
        return self.session(number, inner, unique)

    async def rest(self, wait: Wait, seconds: float) -> None:
        """In place of `waits.rest`: an open stands still, and what it does next is another entry."""
        number = wait.number = wait.number or self.running
        self._end()
        kind = "cancelled"
        try:
            await self.stand(wait, seconds)
            kind = "goes_on_waiting"
        finally:
            self._begin(number, (kind, wait.unique, (number,)))

    async def carry_on(self, number: int, unique: int, stretches: Coroutine[Any, Any, OpenFile]) -> Session:
        """With an open that waited when the process before ended; its request has come again."""
        self._begin(number, ("goes_on_waiting", unique, (number,)))
        try:
            inner = await _carry(stretches)
        except Exception as error:
            _note_fault(self.tape.items, error)
            raise
        finally:
            self._end()
        return self.session(number, inner, unique)

    def _begin(self, number: int, head: tuple[Any, ...]) -> None:
        self.running, self._head, self.tape.items = number, head, []

    def _end(self) -> None:
        self.tape.end(None, (*self._head, self.tape.items))

    async def create(self, caller: Caller, path: bytes, flags: int) -> Session:
        unique = self.request()
        if self.past:
            done = self.done("create", unique, 0)
            if done is not None:
                if done.error is not None:
                    raise done.error
                return done.value  # type: ignore[no-any-return]
        number = self.number()
        self._begin(number, ("create", unique, (number, tuple(caller), path, flags)))
        try:
            inner = await self.inner.create(caller, path, flags)
        except Exception as error:
            _note_fault(self.tape.items, error)
            raise
        finally:
            self._end()
        return self.session(number, inner, unique)

    def interrupted(self, unique: int) -> None:
        unique &= NUMBER
        self.call("interrupted", 0, (unique,), 0, self.inner.interrupted, unique)

    def changing(self, caller: Caller, change: Change) -> AbstractContextManager[object]:
        key = 0
        if isinstance(change, Truncated) and isinstance(change.session, RecordedSession):
            key = change.session.number
        if self.past:
            done = self.done("changing", self.request(), key)
            if done is not None:
                if done.error is not None:
                    raise done.error
                return AdoptedChange(done.value)
        return RecordedChange(self, self.number(), caller, change, key)

    # -- what is no announcement ------------------------------------------------------

    def session(self, number: int, inner: Any, unique: int) -> RecordedSession:
        session = self.sessions[number] = RecordedSession(self, number, inner, unique)
        return session

    def act(self, name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
        """`fn`, noted and played back under that name: what a timer or a request on the control socket
        changes. Its arguments must be of marshal's types."""
        self.acts[name] = fn

        def acts(*args: Any) -> Any:
            if self.tape.items is not None:  # part of another call, which is made again as a whole
                return fn(*args)
            return self.call("act", 0, (name, args), 0, fn, *args)

        return acts

    def takes(self, take: Callable[[], object]) -> Callable[[], object]:
        """`take`, which tells what was done past us; played back, it is what was told at that point."""

        def taking() -> object:
            items = self.tape.items
            if type(items) is Script:
                self.play_nested(items)
                items.take()
                return None
            told = take()
            if type(items) is list:
                items.append(0)  # that was all of it
            return told

        return taking

    def live(self, fn: Callable[[], object]) -> Callable[[], object]:
        """`fn`, which changes nothing but what is outside: played back, it is left out."""

        def calling() -> object:
            return None if type(self.tape.items) is Script else fn()

        return calling

    def has_handle(self, session: Session, fh: int, file: FileView, flags: int, readable: bool) -> int:
        """An open file has got its number; 0, or the number of the one that it had got from a process
        that ended before it could say so."""
        if not isinstance(session, RecordedSession):
            return 0
        before, session.fh = session.fh, fh
        args = (session.number, fh, self.node_number(file), flags, readable)
        self.call("has_handle", session.unique, args, session.number, lambda: None)
        return before

    def forget_requests(self) -> None:
        """What was under way when the process before ended, and has not come again: it is answered, or its
        asker is gone. Sessions that no handle belongs to are over."""
        self.past.clear()
        for change in list(self.changes.values()):
            change.__exit__(OSError, OSError(), None)
        for number, unique, stretches in list(self.opening.values()):
            self._begin(number, ("cancelled", unique, (number,)))
            try:
                stretches.close()
            finally:
                self._end()
        self.opening.clear()
        for session in [s for s in self.sessions.values() if not s.fh]:
            if session.inner.file is None:
                session.aborted()
            else:
                session.released()

    @property
    def written(self) -> bool:
        """Whether all that was told is on the tape: who has told it may forget it."""
        return self.tape.items is None

    @property
    def settled(self) -> bool:
        """Whether nothing is half done that a checkpoint could not hold."""
        return not (self.past or self.opening or self.changes)
