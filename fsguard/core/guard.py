"""The only door into the core: events come in, decisions and warnings go out.

Nothing here waits, so nothing can come between reading the ledger and writing
it, and no lock is needed. An intended change (`intend`) and a finished one
(`done`) are two calls: between them the system call happens; if it fails, the
second never comes and the ledger is as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fsguard.core.authors import revive
from fsguard.core.changes import Change
from fsguard.core.custody import Custody, Keeping
from fsguard.core.doubt import Doubt
from fsguard.core.history import History
from fsguard.core.ledger import Ledger
from fsguard.core.looks import Looks
from fsguard.core.model import (
    Act,
    Actor,
    Command,
    Kept,
    Kind,
    Look,
    PathState,
    Task,
    Warning,
    Write,
)
from fsguard.core.outbox import Outbox
from fsguard.core.policy import DEFAULT_IGNORE, Patterns, Policies
from fsguard.core.questions import Questions
from fsguard.core.reverts import Deletion, Undo, victims_of_content, victims_of_deletion
from fsguard.core.rules import Finding, judge, old_picture, unseen
from fsguard.core.tasks import Tasks
from fsguard.core.telling import Probe, Teller

__all__ = ["Change", "Guard", "Keeping", "Limits", "Probe"]

_OPS = {Act.CREATE: "create", Act.DELETE: "delete", Act.MOVE_AWAY: "rename"}
_Begun = tuple[list[Write], Undo, int, Finding | None]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of what is remembered."""

    paths: int = 200_000
    tasks: int = 10_000
    warnings: int = 10_000
    log: int = 50_000
    bulk_files: int = 200


class Guard(Custody, Doubt, Questions):
    """Judges what tasks do to the paths of one workspace."""

    def __init__(
        self,
        probe: Probe,
        *,
        policies: Policies | None = None,
        ignore: Iterable[str] = DEFAULT_IGNORE,
        limits: Limits | None = None,
        first_version: int = 0,
    ) -> None:
        self.limits = limits or Limits()
        self.probe = probe
        self.policies = policies or Policies()
        self.ignored = Patterns(ignore)
        self.ledger = Ledger(self.limits.paths, first_version)
        self.tasks = Tasks(self.limits.tasks)
        self.outbox = Outbox(self.limits.warnings)
        self.tell = Teller(self.outbox, self.probe, self.policies, self.ignored)
        self.history = History(self.limits.log)
        self.looks = Looks(self.ledger, self.limits.bulk_files)
        self.deletions: dict[PathState, Deletion] = {}
        self.on_told: Callable[[Kept, Warning], None] | None = None

    # -- looks ----------------------------------------------------------------

    def looked(self, actor: Actor, paths: Iterable[bytes], now: float, partial: bool = False) -> None:
        """`actor` has opened the content of a file for reading; `paths` are its names."""
        for path in paths:
            footprint = actor.command.footprint
            if footprint is not None:
                footprint.read[path] = None
            if self.ignored(path):
                continue
            self.history.add(now, "read", path, actor)
            if actor.task is None:
                known = self.ledger.find(path)
                if known is not None and known.writers:
                    self.ledger.stamp_process(known, actor.process, known.version, now)
                else:
                    self.ledger.glanced(actor.process, path)
                continue
            self.looks.looked(self.ledger.at(path), actor, now, partial)

    def looked_absent(self, actor: Actor, path: bytes, now: float) -> None:
        """`actor` tried to read `path` and found nothing there."""
        state = self.ledger.find(path)
        if state is not None and state.absent and actor.task is not None:
            self.looks.looked_absent(state, actor, now)

    # -- intended changes -----------------------------------------------------

    def watched(self, path: bytes, actor: Actor) -> bool:
        """False when nothing is ever said about `actor`'s changes to `path`."""
        if actor.task is None or actor.disabled or self.ignored(path):
            return False
        return self.policies.of(path, actor.task.id) != "off"

    def intend(
        self,
        change: Change,
        path: bytes,
        act: Act,
        now: float,
        file: object = None,
        link: bool = False,
        late: bool = False,
    ) -> Warning | None:
        """Judge a change that is about to happen; `link`: to a symlink; `late`: it has happened.

        Returns the warning that was put on record, if any; `Warning.refused`
        means that the change must not happen (policy ``block``).
        """
        actor = change.actor
        state = self.ledger.find(path)
        if state is None or not self.watched(path, actor):
            return None
        finding = judge(state, actor, act)
        if finding is None and act is Act.CREATE:
            finding = self._view_of_replaced(state, actor)
            late = True  # it has deleted the file already: a refusal would leave none
        if finding is None or self._excused(state, act, file):
            return None
        warning = self.tell.found(state, actor, finding, now, link=link, late=late)
        if not warning.refused:
            change.raised.append((warning, path))
        return warning

    def _view_of_replaced(self, state: PathState, actor: Actor) -> Finding | None:
        """What is to be said when a command makes anew what it has just deleted."""
        deletion = self.deletions.get(state)
        if deletion is None or deletion.actor.command is not actor.command:
            return None
        view, deletion.view = deletion.view, None
        return view

    def locks_itself(self, path: bytes, file: object, act: Act) -> bool:
        """True when the programs that write `path` in place lock it for themselves."""
        state = self.ledger.find(path)
        if state is not None and state.self_locking:
            return True
        if not self.probe.self_locking(path, file, act):
            return False
        if state is not None:
            state.self_locking = True
        return True

    def _excused(self, state: PathState, act: Act, file: object) -> bool:
        """True for writes in place to files whose users lock them for themselves."""
        in_place = act in (Act.WRITE, Act.APPEND)
        if in_place and state.self_locking:
            return True
        if not self.probe.self_locking(state.path, file, act):
            return False
        state.self_locking = state.self_locking or in_place
        return True

    def collide(
        self, change: Change, path: bytes, act: Act, holder: Write, now: float, waited: float | None
    ) -> Warning:
        """Two tasks write one file at once: told to both, whoever came second first.

        `waited`: seconds for which the second waited for its turn in vain.
        """
        warning = self.tell.collision(self.ledger.at(path), change.actor, act, holder, now, waited)
        if not warning.refused:
            change.raised.append((warning, path))
        return warning

    def rival_since(self, change: Change, path: bytes) -> Write | None:
        """Another task that wrote since this session last did: its turn had lapsed."""
        state = self.ledger.find(path)
        actor = change.actor
        if state is None or actor.task is None:
            return None
        last = change.last.get(state)
        if last is None or last == state.version:
            return None
        for write in reversed(state.writers):
            if write.version <= last:
                return None
            if write.task is not None and not actor.task.related(write.task):
                return write
        return None

    # -- finished changes -----------------------------------------------------

    def done(self, change: Change, path: bytes, act: Act, now: float) -> None:
        """A change of content has happened: the version moves."""
        actor = change.actor
        self._record(actor, path, act, now)
        if self.ignored(path):
            return
        state = self.ledger.at(path)
        if act in (Act.DELETE, Act.MOVE_AWAY):
            self._deleted(change, state, act, now)
            return
        if act is Act.CREATE:
            self._recreated(change, state, now)
        change.bases.setdefault(state, (Undo.of(state, actor.task), None))
        self._move(change, state, act, now)

    def _move(self, change: Change, state: PathState, act: Act, now: float) -> None:
        actor = change.actor
        missed = unseen(state, actor.task) if actor.task is not None else []
        version = self.ledger.move(state, actor, act, now)
        change.first.setdefault(state, version)
        change.last[state] = version
        self.looks.wrote(state, actor, act, bool(missed), now)

    def current(self, change: Change, path: bytes) -> bool:
        """True when nobody else has changed `path` since this session last did."""
        state = self.ledger.find(path)
        return state is not None and change.last.get(state) == state.version

    def adopt(self, opener: Change, writer: Change, path: bytes) -> None:
        """A task writes through a handle that no task opened: `fsguard run … > f`.

        The shell outside has truncated or made the file on the task's behalf.
        """
        state = self.ledger.find(path)
        if state is None or opener.actor.task is not None or not self.current(opener, path):
            return
        if state not in opener.first:
            return  # another task has adopted it already
        write, actor = state.writers[-1], writer.actor
        write.task, write.process, write.command = actor.task, actor.process, actor.command
        writer.bases[state] = opener.bases.pop(state, (Undo.of(state, actor.task), None))
        writer.first[state] = opener.first.pop(state)

    def _record(self, actor: Actor, path: bytes, act: Act, now: float, target: bytes | None = None) -> None:
        if not self.ignored(path):
            self.history.add(now, _OPS.get(act, "write"), path, actor, target)
        if actor.task is not None:
            actor.task.writes += 1
        footprint = actor.command.footprint
        if footprint is None:
            return
        if act is Act.DELETE:
            footprint.deleted[path] = None
        elif act is Act.MOVE_AWAY:
            if target is not None:
                footprint.renamed.append((path, target))
        else:
            footprint.written[path] = None
            if act is Act.CREATE:
                footprint.created[path] = None

    def renamed(
        self,
        change: Change,
        source: bytes,
        target: bytes,
        now: float,
        directory: bool,
        same: bool = False,
        free: bool = False,
    ) -> None:
        """`source` has been renamed to `target`.

        `same`: over a file of equal content; `free`: nothing had that name.
        """
        actor = change.actor
        self._record(actor, source, Act.MOVE_AWAY, now, target)
        if directory:
            if not (self.ignored(source + b"/x") and self.ignored(target + b"/x")):
                below = self.ledger.below(source)
                moving = [s for s in below if not s.absent and (s.writers or s.looks)]
                self._cleared(target, {target + s.path[len(source) :] for s in moving}, now)
                for state in moving:
                    new = self.ledger.at(target + state.path[len(source) :])
                    self._moved(change, state, new, now, True)
            return
        if actor.command.footprint is not None:
            actor.command.footprint.written[target] = None
        if self.ignored(source) and self.ignored(target):
            return
        old, new = self.ledger.at(source), self.ledger.at(target)
        if same:
            self._deleted(change, old, Act.MOVE_AWAY, now)
            self.looks.knows(new, actor, now)
            return
        self._moved(change, old, new, now, free)

    def _cleared(self, directory: bytes, coming: set[bytes], now: float) -> None:
        """Another directory takes this name; which files it brings is not known here, but for `coming`.

        What was known of other paths below is void: they may be there again.
        """
        self.ledger.void_glances(directory, coming)
        for state in self.ledger.below(directory):
            if state.path in coming:
                continue
            deletion = self.deletions.pop(state, None)
            if deletion is not None:
                self._tell_deleted(state, deletion, now)
            self.ledger.drop(state)

    def _moved(self, change: Change, old: PathState, new: PathState, now: float, free: bool) -> None:
        actor = change.actor
        again = self._recreated(change, new, now)
        blind = actor.task is not None and self.looks.ignorant(old, actor.task)
        picture = old.looks.get(actor.task) if actor.task is not None else None
        known = again.seen if again is not None else self.ledger.known_to(new, actor)
        if blind:
            known = 0  # a file that it does not know is not made from what it knows
        undo = Undo.of(new, actor.task)
        begun = self._begin_deletion(old, actor)
        self.ledger.rename(old, new, actor, now, known, free)
        change.bases.setdefault(new, (undo, None))
        change.first.setdefault(new, new.version)
        change.last[new] = new.version
        if blind:
            change.blind.add(new)
            if picture is None or not picture.existed:
                self.looks.moved(new, actor, now)
        else:
            self.looks.wrote(new, actor, Act.REPLACE, False, now)
        self.looks.wrote(old, actor, Act.MOVE_AWAY, False, now)
        self._pend(change, old, begun, now)

    def linked(self, change: Change, known: Iterable[bytes], target: bytes, now: float) -> None:
        """`target` is a further name of the file called `known`: same content, same latest looks."""
        actor = change.actor
        self.done(change, target, Act.CREATE, now)
        new = self.ledger.find(target)
        if new is None:
            return
        latest: dict[Task, Look] = {}
        for path in sorted(known):
            old = self.ledger.find(path)
            if old is None:
                continue
            for task, look in old.looks.items():
                had = latest.get(task)
                if look.existed and look.version >= old.version and (had is None or had.time < look.time):
                    latest[task] = look.carried(old.version, new.version)
        for task, look in latest.items():
            if task is not actor.task:
                self.ledger.stamp(new, task, look)

    # -- deletions and reverts ------------------------------------------------

    def _begin_deletion(self, state: PathState, actor: Actor) -> _Begun:
        return (
            victims_of_deletion(state, actor),
            Undo.of(state, actor.task),
            self.ledger.known_to(state, actor),
            old_picture(state, actor),
        )

    def _deleted(self, change: Change, state: PathState, act: Act, now: float) -> None:
        begun = self._begin_deletion(state, change.actor)
        self._move(change, state, act, now)
        self._pend(change, state, begun, now)

    def _pend(self, change: Change, state: PathState, begun: _Begun, now: float) -> None:
        victims, undo, seen, view = begun
        earlier = self.deletions.pop(state, None)
        if earlier is not None:
            self._tell_deleted(state, earlier, now)
        base = change.bases.get(state)
        digest = base[1] if base is not None else None
        raised = [(w, p) for w, p in change.raised if p == state.path]
        kept = change.kept.get(state)
        view = None if raised else view
        if undo.writers or digest is not None:
            self.deletions[state] = Deletion(
                change.actor,
                now,
                state.writers[-1],
                state.version,
                victims,
                undo,
                digest,
                seen,
                raised,
                kept,
                view,
            )

    def _recreated(self, change: Change, state: PathState, now: float) -> Deletion | None:
        """`state` comes back; returns its deletion when one command did both."""
        deletion = self.deletions.pop(state, None)
        if deletion is None:
            return None
        if deletion.actor.task is change.actor.task and deletion.actor.command is change.actor.command:
            # Unlink and create by one command is a replacement: judged by what it leaves.
            change.bases[state] = (deletion.undo, deletion.digest)
            change.first[state] = deletion.version
            change.raised += deletion.raised
            if deletion.kept is not None:
                change.kept[state] = deletion.kept
            deletion.undo.replaced(state, deletion.seen)
            return deletion
        self._tell_deleted(state, deletion, now)
        return None

    def settle(self, now: float, gone: Callable[[Actor], bool], ended: Command | None = None) -> bool:
        """Judge the deletions that have waited long enough; True when some still wait."""
        if ended is not None:
            ended.renewed.clear()
        for state, deletion in list(self.deletions.items()):
            if deletion.ripe(now, gone, ended):
                del self.deletions[state]
                self._tell_deleted(state, deletion, now)
        return bool(self.deletions)

    def _tell_deleted(self, state: PathState, deletion: Deletion, now: float) -> None:
        for victim in deletion.victims:
            self._tell_victim(
                state, deletion.write, deletion.actor, victim, now, deleted=True, kept=deletion.kept
            )

    def _tell_victim(
        self,
        state: PathState,
        act: Write,
        actor: Actor,
        victim: Write,
        now: float,
        deleted: bool,
        kept: Kept | None,
    ) -> None:
        if not self.ignored(state.path) and not self._excused(state, act.act, None):
            warning = self.tell.victim(state, act, actor, victim, now, deleted, kept)
            if warning is not None and kept is not None and self.on_told is not None:
                self.on_told(kept, warning)

    def spared(self, change: Change) -> None:
        """The session has ended: withdraw what was said of paths that it did not change after all."""
        changed = {state.path for state in change.first}
        for warning, path in change.raised:
            if warning.kind is not Kind.CONCURRENT_WRITE and path not in changed:
                self.outbox.withdraw(warning, path)

    def closed(self, change: Change, digest: Callable[[], bytes | None], now: float) -> list[Kept]:
        """The write session has ended; `digest` gives the content it leaves.

        Returns what was kept for nothing, because the content is as it was.
        """
        needless: list[Kept] = []
        value: bytes | None = None
        known = False
        for state, first in list(change.first.items()):
            if state.absent:
                continue
            undo, base = change.bases.get(state, (None, None))
            candidates = base is not None or any(c.version < first for c in state.contents)
            if candidates and not known:
                value, known = digest(), True
            if value is not None and value == base and undo is not None:
                if undo.apply(state, change.actor):
                    if state not in change.blind:  # moved away and back, unseen
                        self.looks.knows(state, change.actor, now)
                    if state in change.kept:
                        needless.append(change.kept[state])
                    for warning, path in change.raised:
                        if path == state.path:
                            self.outbox.withdraw(warning, path)
                continue
            task = change.actor.task
            act = next((w for w in reversed(state.writers) if w.version >= first and w.task is task), None)
            earlier = undo.holding(value, first) if value is not None and undo is not None else None
            if act is None or undo is None or earlier is None:
                continue
            revive(state, earlier, act)
            if value is not None and change.last.get(state) == state.version:
                self.ledger.remember_content(state, value)
            for victim in victims_of_content(undo, change.actor, first, earlier):
                kept = change.kept.get(state)
                self._tell_victim(state, act, change.actor, victim, now, deleted=False, kept=kept)

        return needless
