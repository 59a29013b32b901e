"""Read stamps: how a look is made, kept, taken back and renewed by a write."""

from __future__ import annotations

from fsguard.core.ledger import Ledger
from fsguard.core.model import Act, Actor, Command, Look, PathState, Task

__all__ = ["Looks"]

BURST_SECONDS = 10.0


class Looks:
    """:param bulk_files: a command that opens more files for reading is bulk."""

    def __init__(self, ledger: Ledger, bulk_files: int = 200) -> None:
        self.ledger = ledger
        self.bulk_files = bulk_files

    def looked(self, state: PathState, actor: Actor, now: float, partial: bool) -> None:
        task, command = actor.task, actor.command
        assert task is not None
        state.absent = False
        self.ledger.stamp_process(state, actor.process, state.version, now)
        task.reads += 1
        old = state.looks.get(task)
        if self._bulk(actor, now, new=old is None or old.command is not command):
            return
        look = Look(
            version=state.version,
            time=now,
            partial=partial or command.partial,
            command=command,
            before=_before(old, actor),
            noted=old.noted if old is not None else 0,
            process=actor.process,
            came=old.came if old is not None else 0,
        )
        if not command.bulk:
            first = command.renewed.get(state)
            command.renewed[state] = (old if first is None or first[1] is not old else first[0], look)
        _replaced(state, old, command)
        self.ledger.stamp(state, task, look)

    def _bulk(self, actor: Actor, now: float, new: bool) -> bool:
        """Count this read; True when the command reads too much for it to be a look."""
        command, task = actor.command, actor.task
        assert task is not None
        if now - command.last_opened > BURST_SECONDS:
            command.opened, command.bulk = 0, False
            command.renewed.clear()
        command.last_opened = now
        if new:
            command.opened += 1
        if command.bulk:
            return True
        if command.opened <= self.bulk_files:
            return False
        command.bulk = True
        for state, (old, look) in command.renewed.items():
            if state.looks.get(task) is not look:
                continue  # written or read again since
            if old is None:
                del state.looks[task]
            else:
                state.looks[task] = old
        command.renewed.clear()
        return True

    def looked_absent(self, state: PathState, actor: Actor, now: float) -> None:
        task = actor.task
        assert task is not None
        old = state.looks.get(task)
        if old is not None:
            state.looks[task] = Look(
                version=state.version,
                time=now,
                existed=False,
                command=actor.command,
                before=_before(old, actor),
                process=actor.process,
                came=old.came,
            )

    def knows(self, state: PathState, actor: Actor, now: float) -> None:
        """`actor` left exactly what was there: it knows the content."""
        task, process = actor.task, actor.process
        if self.ledger.has_read(state, process):
            self.ledger.stamp_process(state, process, state.version, now)
        if task is None:
            return
        old = state.looks.get(task)
        look = Look(
            version=state.version,
            time=now,
            command=actor.command,
            before=_before(old, actor),
            noted=old.noted if old is not None else 0,
            process=process,
            came=old.came if old is not None else 0,
        )
        _replaced(state, old, actor.command)
        self.ledger.stamp(state, task, look)

    def moved(self, state: PathState, actor: Actor, now: float) -> None:
        """`actor` gave this name to a file that it had not seen: it knows that it exists."""
        task = actor.task
        if task is None:
            return
        self.ledger.stamp(state, task, Look(max(state.floor, task.floor), now, blind=True))

    def ignorant(self, state: PathState, task: Task) -> bool:
        """True when `task` does not know what the path holds now."""
        look = state.looks.get(task)
        return look is None or look.blind or look.version < state.version

    def wrote(self, state: PathState, actor: Actor, act: Act, missed: bool, now: float) -> None:
        """A write is an implicit read of what was written.

        An append over something unseen (`missed`) is not: what the sibling
        wrote is still there, and still unseen.
        """
        task = actor.task
        version = state.version
        if act in (Act.DELETE, Act.MOVE_AWAY):
            self.ledger.drop_process_look(state, actor.process)
        elif self.ledger.has_read(state, actor.process):
            self.ledger.stamp_process(state, actor.process, version, now)
        if task is None:
            return
        old = state.looks.get(task)
        look = Look(
            version=version,
            time=now,
            existed=act not in (Act.DELETE, Act.MOVE_AWAY),
            command=actor.command,
            before=_before(old, actor),
            noted=version,
            process=actor.process,
            came=old.came if old is not None else 0,
        )
        _replaced(state, old, actor.command)
        if act is Act.APPEND and missed:
            look.version = old.version if old is not None else max(state.floor, task.floor)
            look.time = old.time if old is not None else now
            look.blind = old is None or old.blind
            look.before = old.before if old is not None else None
            look.command = old.command if old is not None else None
        self.ledger.stamp(state, task, look)


def _replaced(state: PathState, old: Look | None, command: Command) -> None:
    """`old` can't be taken back any more: its command need not remember it."""
    if old is not None and old.command is not None and old.command is not command:
        old.command.renewed.pop(state, None)


def _before(old: Look | None, actor: Actor) -> tuple[int, float] | None:
    """What the task had seen before this command began."""
    if old is None or old.blind:
        return None
    if old.command is actor.command:
        return old.before
    return (old.version, old.time)
