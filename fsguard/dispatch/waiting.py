"""Waiting for turns: bounded, first come first served, left at once when told to stop.

The only place of fsguard that waits for anybody. Which turn it is, and who
comes next, is decided in `fsguard.core.turns`; that state machine hears of a
file only when a second task wants to write it. Until then a turn is two times
noted in its open file (`parts.Part`).

Only the OPEN of a file that exists waits. A CREATE does not, though it is an
open(2) as well: the kernel holds the directory's lock until the reply (measured
on Linux 6.18), and a holder that makes or looks up a name there would stand.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from fsguard.core.guard import Change as Edit
from fsguard.core.guard import Guard
from fsguard.core.model import Act, Actor, Task, Write
from fsguard.core.policy import Patterns
from fsguard.core.turns import Ticket, Turn, Turns
from fsguard.dispatch.behind import BehindLeases, shown
from fsguard.dispatch.parts import NEVER
from fsguard.dispatch.ports import Processes
from fsguard.dispatch.waits import Bell, Stage, Wait, Waits, as_queue
from fsguard.observer import Caller, FileView

if TYPE_CHECKING:
    from fsguard.dispatch.openfile import OpenFile

__all__ = ["Waiting"]

NOTED_SECONDS = 0.01
# How long a RELEASE may be on its way, and how often that is looked at.
RELEASE_SECONDS = 0.001
RELEASE_CHECKS = 5
# Within so long the kernel looks a name up again after ESTALE; it does that once.
AGAIN_SECONDS = 2.0
MAX_AGAIN = 10_000

IN_PLACE = frozenset({Act.WRITE, Act.APPEND})


class Waiting:
    """:param seconds: how long an open waits at most.
    :param writable: the handles that are open for writing, by file.
    """

    def __init__(
        self,
        guard: Guard,
        turns: Turns[FileView],
        processes: Processes,
        seconds: float,
        clock: Callable[[], float],
        writable: Mapping[FileView, Sequence[OpenFile]],
    ) -> None:
        self._guard = guard
        self.turns = turns
        self.seconds = seconds
        self._clock = clock
        self._writable = writable
        self.now: Callable[[], float] = time.monotonic
        self.pending = Waits(processes)
        self.behind = BehindLeases(guard, self.pending, self._writing, self._time, clock)
        self.leases = self.behind.leases
        self.announced: Callable[[], Iterable[tuple[Task, bytes]]] = tuple
        self._waits: dict[Ticket[FileView], Wait] = {}
        self.waits = 0
        self.waited = 0.0  # seconds, by all that waited for a turn together
        self._again: dict[int, float] = {}
        # Since when opens wait that came to the program before this one, by the number of their request.
        self.resumed: dict[int, float] = {}

    def _time(self) -> float:
        return self.now()  # tests set another clock

    def applies(self, paths: Iterable[bytes], actor: Actor) -> bool:
        """False where nothing is serialised: no task, ignored, policy ``off``."""
        return any(self._guard.watched(path, actor) for path in paths)

    # -- opens ----------------------------------------------------------------

    async def enter(self, session: OpenFile, caller: Caller, act: Act, file: FileView) -> bool:
        """Wait until `session` may do `act` to `file`; True when it goes on without its turn.

        :raises OSError: EAGAIN when the wait ran out under ``block``, EBUSY when a
            lease was in the way until then, EINTR when the waiter was killed or
            interrupted, ESTALE when the name leads to another file now.
        """
        actor, paths = session.actor, tuple(file.paths())
        if actor.task is None or actor.disabled or not paths:
            return False
        append, began = act is Act.APPEND, self.resumed.pop(caller.unique, None) or self.now()
        if self.behind.over(paths, actor) is None and not (
            self.applies(paths, actor) and self._contest(file, paths, actor, append, began)
        ):
            return False
        asked = self._again.pop(caller.tid, None)
        again = asked is not None and began - asked < AGAIN_SECONDS
        wait = Wait(session, caller, act, file, paths, began, began + self.seconds, again)
        with self.pending.one(wait):
            return await self._go(wait)

    async def go_on(self, wait: Wait) -> bool:
        """`enter`, from where it had come to when a checkpoint was made."""
        await self.pending.rest(wait, 0.0)
        with self.pending.one(wait):
            return await self._go(wait)

    def _same_names(self, wait: Wait) -> None:
        """Every check is made when the turn comes, and so is the choice of the file.

        Another file may have taken the name while this open waited; what it wrote into the old one
        would be lost. The kernel takes ESTALE as "look again", one time for each open(2).

        :raises OSError: ESTALE.
        """
        if wait.again or set(wait.paths) <= set(wait.file.paths()):
            return
        if len(self._again) >= MAX_AGAIN:
            self._again.clear()
        self._again[wait.tid] = self.now()
        raise OSError(errno.ESTALE, "the name leads to another file now")

    async def _go(self, wait: Wait) -> bool:
        file, paths, actor = wait.file, wait.paths, wait.actor
        append = wait.act is Act.APPEND
        if wait.stage is Stage.BEHIND:
            if await self.behind.go(wait):
                wait.began = self.now()
                self._same_names(wait)
            wait.stage = Stage.CLEAR
        if wait.stage is Stage.CLEAR:
            if not self.applies(paths, actor) or not self._contest(file, paths, actor, append, wait.began):
                return False
            if wait.act in IN_PLACE and self._guard.locks_itself(paths[0], file, wait.act):
                return False
            wait.stage = Stage.LETTING
        if wait.stage is Stage.LETTING:
            await self._let_go(wait, append)
            stands = wait.tid == actor.process.pid
            wait.ticket = self.turns.enter(file, wait.session, actor, append, wait.began, stands)
            if wait.ticket is None:
                return False
            wait.holder = self._holder(file, actor)
            if wait.ticket.broken:
                self._collide(wait.session.edit, paths[0], wait.act, wait.holder, 0.0)
                return True
            wait.stage = Stage.LINE
        assert wait.ticket is not None
        return await self._in_line(wait, wait.ticket)

    async def _in_line(self, wait: Wait, ticket: Ticket[FileView]) -> bool:
        actor, append, file, path = wait.actor, wait.act is Act.APPEND, wait.file, wait.paths[0]
        self._waits[ticket] = wait
        try:
            outcome = await self._until_ready(wait, ticket)
        except BaseException:
            self._give_up(ticket)
            raise
        finally:
            del self._waits[ticket]
            self.waits += 1
            self.waited += self.now() - wait.began
        part, edit, holder = wait.session.part, wait.session.edit, wait.holder
        if outcome == "granted":
            part.turn = self.turns.turn(file)
            part.wrote_at(self.now(), actor, append, self.turns.lapse)
            waited = self.now() - wait.began
            if waited >= NOTED_SECONDS and holder is not None:
                self._guard.tell.waited(actor, path, holder, waited, self._clock())
            return False
        self._give_up(ticket)
        if outcome == "killed":
            raise OSError(errno.EINTR, "interrupted while waiting for a turn")
        waited = 0.0 if outcome == "broken" else self.seconds
        self._collide(edit, path, wait.act, self._holder(file, actor) or holder, waited)
        return True

    async def _let_go(self, wait: Wait, append: bool) -> None:
        """A holder that comes again where others wait may have closed already.

        RELEASE comes after close(2) has returned, perhaps after the next open(2): who rewrites a
        file in a loop would always be in its own turn, and never at the end of the queue.
        """
        file = wait.file
        while wait.checks < RELEASE_CHECKS:
            turn = self.turns.running(file, self.now())
            if self.turns.head(file) is None or turn is None or not turn.own(wait.actor, append):
                return
            wait.checks += 1
            wait.event = Bell()
            await self.pending.rest(wait, RELEASE_SECONDS)

    async def _until_ready(self, wait: Wait, ticket: Ticket[FileView]) -> str:
        file = wait.file
        while True:
            now = self.now()
            self._wake(self.turns.tick(file, now))
            if self.pending.told_to_stop(wait):
                return "killed"
            self._same_names(wait)
            if ticket.ready:
                return "granted" if ticket.granted else "broken"
            if now >= wait.end:
                return "expired"
            pause = wait.end - now
            if self.turns.head(file) is ticket:  # the others are woken when they come to stand here
                lapse = self.turns.deadline(file)
                if lapse is not None:
                    pause = min(pause, max(lapse - now, 0.0) + 0.001)
            await self.pending.pause(wait, pause)

    def forget_waits(self) -> None:
        """Those that are on record come again, as new ones."""
        self.turns.forget_queues()
        for ticket in self._waits:
            if ticket.granted:
                self.turns.left(ticket.handle, self.now())
        self._waits.clear()
        self.pending.clear()
        self.behind.clear()

    def interrupted(self, unique: int) -> None:
        self.pending.interrupted(unique)

    def moved(self, file: FileView) -> None:
        """A name of `file` leads elsewhere now: who waits for it looks again."""
        for ticket in self.turns.queue(file):
            self._rouse(ticket)

    def _give_up(self, ticket: Ticket[FileView]) -> None:
        self._wake(self.turns.cancel(ticket, self.now()))
        self._rouse(self.turns.head(ticket.place))

    def _wake(self, tickets: list[Ticket[FileView]]) -> None:
        """The turn of these has come, and who is next in line watches the time from now on."""
        for ticket in tickets:
            self._rouse(ticket)
        for place in {ticket.place for ticket in tickets}:
            self._rouse(self.turns.head(place))

    def _rouse(self, ticket: Ticket[FileView] | None) -> None:
        wait = self._waits.get(ticket) if ticket is not None else None
        if wait is not None:
            wait.event.set()

    # -- writes and endings ---------------------------------------------------

    def begin(self, session: OpenFile, paths: Sequence[bytes], file: FileView | None) -> None:
        """`session` empties the file, or makes it (None: it is not there yet): its turn begins."""
        part, actor, now = session.part, session.actor, self.now()
        part.made = part.sure = True
        part.wrote_at(now, actor, part.append, self.turns.lapse)
        if file is not None and self.turns.busy(file) and self.applies(paths, actor):
            part.turn = self._join(file, session, actor, part.append, now)
            if part.turn is None:
                part.wrote = NEVER  # it goes on without: each of its writes collides
        if self.leases.held:
            self.leases.wrote(paths, actor.task, now)

    def _join(
        self, file: FileView, session: OpenFile, actor: Actor, append: bool, now: float
    ) -> Turn[FileView] | None:
        """`Turns.begin`; a further holder's own do not wait any longer."""
        before = self.turns.running(file, now)
        holders = len(before.tasks) if before is not None else 0
        turn = self.turns.begin(file, session, actor, append, now)
        if turn is not None and len(turn.tasks) > holders:
            self._wake(self.turns.tick(file, now, joined=True))
        return turn

    def write(self, session: OpenFile, edit: Edit, paths: Sequence[bytes], act: Act, file: FileView) -> bool:
        """A WRITE on `session` that does not simply go on (`Part.goes_on`); True when it collides.

        :raises OSError: EBUSY under ``block``.
        """
        part, actor, append, now = session.part, edit.actor, act is Act.APPEND, self.now()
        if actor.task is None or part.out:
            return False
        part.writes += 1
        if not part.sure and part.writes > 1:
            # Programs that lock for themselves take no turns for writes in place. To see
            # that costs more than a turn does: the first write is too soon to ask.
            part.sure = True
            if self._guard.locks_itself(paths[0], file, act):
                self._out(session)
                return False
        rival: Write | None = None
        turn: Turn[FileView] | None = None
        if self._contest(file, paths, actor, append, now):
            turn = self._join(file, session, actor, append, now)
            if turn is None:
                rival = self._holder(file, actor)
        if rival is None:
            part.turn = turn
            part.wrote_at(now, actor, append, self.turns.lapse)
            if edit.last and not append:
                rival = self._guard.rival_since(edit, paths[0])
        if rival is None or not self.applies(paths, actor):
            return False
        if self._guard.locks_itself(paths[0], file, act):
            self._out(session)
            return False
        self._collide(edit, paths[0], act, rival, None)
        return True

    def leave(self, session: OpenFile) -> None:
        """The handle is released, or was never opened."""
        part = session.part
        if part.turn is not None:
            part.turn = None
            self._wake(self.turns.left(session, self.now()))

    def _out(self, session: OpenFile) -> None:
        session.part.out = True
        self.leave(session)

    def _contest(
        self, file: FileView, paths: Sequence[bytes], actor: Actor, append: bool, now: float
    ) -> bool:
        """True when a second task is concerned with `file`: from now on the state machine knows it.

        False also when all that run, `actor` included, append.
        """
        if self.turns.busy(file):
            return True
        sessions = self._writable.get(file, ())
        if len(sessions) == 1 and sessions[0].part.writer is actor:
            return False
        lapse = self.turns.lapse
        running = [s for s in sessions if s.part.runs(now, lapse)]
        others = [
            s
            for s in running
            if s.part.writer.task is not actor.task
            and not (append and s.part.append)
            and self.applies(paths, s.part.writer)
        ]
        if not others:
            return False
        if any(not s.part.made for s in others) and self._guard.locks_itself(paths[0], file, Act.WRITE):
            for s in others:
                s.part.out = s.part.out or not s.part.made
            others = [s for s in others if s.part.made]
            if not others:
                return False
        for s in sorted(running, key=lambda s: s.part.began):
            part = s.part
            if not part.out and self.applies(paths, part.writer):
                part.turn = self.turns.begin(file, s, part.writer, part.append, part.wrote, part.began)
        return True

    # -- collisions -----------------------------------------------------------

    def foreign(self, file: FileView, path: bytes, actor: Actor) -> Turn[FileView] | None:
        """Another task's running turn on `file`, where that matters to `actor`."""
        if actor.task is None or (file not in self._writable and not self.turns.busy(file)):
            return None
        now = self.now()
        if not self.applies((path,), actor) or not self._contest(file, (path,), actor, False, now):
            return None
        return self.turns.foreign(file, actor, False, now)

    def collide(self, edit: Edit, path: bytes, act: Act, turn: Turn[FileView]) -> None:
        self._collide(edit, path, act, self._author(turn, edit.actor), None)

    def _collide(self, edit: Edit, path: bytes, act: Act, holder: Write | None, waited: float | None) -> None:
        if holder is None:
            return
        warning = self._guard.collide(edit, path, act, holder, self._clock(), waited)
        if warning.refused:
            code = errno.EBUSY if waited is None else errno.EAGAIN
            raise OSError(code, warning.message)

    def _holder(self, file: FileView, actor: Actor) -> Write | None:
        turn = self.turns.turn(file)
        return self._author(turn, actor) if turn is not None else None

    def _author(self, turn: Turn[FileView], actor: Actor) -> Write | None:
        """Who holds the turn, and since when: the same words for as long as it runs."""
        writers = list(turn.writers())
        if not writers:
            return None
        holder = next((w for w in writers if w.task is not actor.task), writers[0])
        since = self._clock() - (self.now() - turn.since)
        return Write(holder.task, holder.process, holder.command, Act.WRITE, since, 0, 0)

    # -- for others -----------------------------------------------------------

    def _writing(self, patterns: Patterns, task: Task) -> str | None:
        """Another task that is writing a path of `patterns` right now."""
        now, lapse = self.now(), self.turns.lapse
        for file, sessions in self._writable.items():
            for session in sessions:
                writer = session.part.writer.task
                if (
                    session.part.runs(now, lapse)
                    and writer is not None
                    and not writer.related(task)
                    and any(map(patterns, file.paths()))
                ):
                    return writer.id
        for announcer, path in self.announced():  # not yet approved, perhaps; in progress all the same
            if patterns(path) and not announcer.related(task):
                return announcer.id
        return None

    def written(self) -> list[FileView]:
        """The files that are open for writing."""
        return list(self._writable)

    def queues(self) -> list[dict[str, object]]:
        """Who holds and who waits, for every file that is waited for.

        First those that wait for a turn (`lease` is None), then those behind a lease (its id).
        """
        now = self.now()
        turns = [self._queue(place, now) for place in self.turns.contended()]
        return turns + self.behind.queues(now)

    def _queue(self, place: FileView, now: float) -> dict[str, object]:
        turn = self.turns.turn(place)
        return {
            "path": shown(place),
            "lease": None,
            "holder": sorted(t.id for t in turn.tasks) if turn is not None else [],
            "command": next((w.command.text for w in turn.writers()), None) if turn is not None else None,
            "since": round(now - turn.since, 3) if turn is not None else None,
            "queue": as_queue(self.turns.queue(place), now),
        }
