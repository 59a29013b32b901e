"""After something was lost: what is on record may be old, and nobody is told anything because of it."""

from __future__ import annotations

from fsguard.core.changes import Change
from fsguard.core.ledger import Ledger
from fsguard.core.model import PathState
from fsguard.core.reverts import Deletion
from fsguard.core.tasks import Tasks

__all__ = ["Doubt"]


class Doubt:
    """The part of the guard that gives up what it can't be sure of."""

    ledger: Ledger
    tasks: Tasks
    deletions: dict[PathState, Deletion]

    def forget_doubtful(self, least: int = 0) -> None:
        """Something has happened that is not on record: every change until now counts as seen by everybody.

        Any task may have looked at it, replaced it or taken it back meanwhile. Who wrote what stays on
        record, for `fsguard who`; what waits to be told stays, too. `least`: versions up to here may
        have been given.
        """
        ledger = self.ledger
        ledger.version = max(ledger.version, least)
        self.deletions.clear()  # it may have been made anew
        for state in ledger:
            _all_seen(state)
        for task in self.tasks:
            task.floor = ledger.version
        ledger.all_processes_know()

    @staticmethod
    def nothing_begun(change: Change) -> None:
        """The same for a write session: what it does from now on is judged as if it began here."""
        change.raised.clear()
        change.bases.clear()
        change.kept.clear()
        change.first.clear()
        change.blind.clear()
        for state in change.last:
            change.last[state] = state.version


def _all_seen(state: PathState) -> None:
    version = state.floor = state.version
    # Other bytes may be there by now than those that were compared, or put by.
    state.contents.clear()
    state.kept.clear()
    for write in state.writers:
        write.left, write.seen, write.kept, write.back = False, True, (), 0
    for look in state.looks.values():
        look.version = look.noted = version
        look.before, look.partial = None, False
        if look.command is not None:
            look.command.renewed.clear()  # nothing older is put back
