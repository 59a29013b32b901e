"""Files that lost their name while somebody's turn was running on them: what is written into them is kept."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fsguard.core.guard import Change as Edit
from fsguard.core.guard import Guard
from fsguard.core.model import Act, Actor, Task, Warning
from fsguard.dispatch.ports import Keeper
from fsguard.observer import FileView

__all__ = ["Orphans"]


@dataclass(slots=True)
class _Orphan:
    """`actor` did `act` to `path`, which was the file's name; `warning` is what it was told."""

    path: bytes
    actor: Actor
    act: Act
    warning: Warning | None
    written: bool = False


class Orphans:
    """By file, from the collision to the release of the last handle that may write it."""

    def __init__(self, guard: Guard, keeper: Keeper | None) -> None:
        self._guard = guard
        self._keeper = keeper
        self._files: dict[FileView, _Orphan] = {}

    def __len__(self) -> int:
        return len(self._files)

    def clear(self) -> None:
        """None is known any more."""
        self._files.clear()

    def expect(self, file: FileView, path: bytes, act: Act, edit: Edit) -> None:
        """`path` is about to be taken from `file`, under a running turn."""
        if self._keeper is not None and act in (Act.REPLACE, Act.DELETE):
            warning = next((w for w, p in reversed(edit.raised) if p == path), None)
            self._files[file] = _Orphan(path, edit.actor, act, warning)

    def written(self, file: FileView) -> None:
        """A file without a name was written."""
        orphan = self._files.get(file)
        if orphan is not None:
            orphan.written = True

    def settle(self, file: FileView, author: Task | None, now: float) -> None:
        """Nobody can write `file` any more: its final bytes are `author`'s.

        Those at the time when it lost its name were kept then.
        """
        orphan = self._files.pop(file, None)
        if orphan is None or self._keeper is None or not orphan.written or file.paths():
            return
        keeping = replace(
            self._guard.keeping(orphan.actor, orphan.path),
            sibling=author.id if author is not None else None,
        )
        self._keeper.keep(file, orphan.path, orphan.actor, orphan.act.value, keeping, orphan.warning, now)
