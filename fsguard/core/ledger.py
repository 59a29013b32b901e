"""What is on record: versions, writers and read stamps of every path.

Memory is bounded: the least recently used path goes first, and a path keeps
the looks of so many tasks only. What is dropped is forgotten in favour of
silence: see `PathState.floor`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from fsguard.core.model import Act, Actor, Look, PathState, Process, Task, Write

__all__ = ["Ledger"]

WHOLE = frozenset({Act.TRUNCATE, Act.REPLACE, Act.CREATE, Act.DELETE, Act.MOVE_AWAY})
MAX_WRITERS = 8
MAX_CONTENTS = 8
MAX_LOOKS_PER_PATH = 64
MAX_LOOKS_PER_PROCESS = 4096


class Ledger:
    """Versions, writers and looks by path.

    :param max_paths: how many paths are remembered at most.
    """

    def __init__(self, max_paths: int = 200_000) -> None:
        self.max_paths = max_paths
        self.version = 0
        self._paths: OrderedDict[bytes, PathState] = OrderedDict()

    def __len__(self) -> int:
        return len(self._paths)

    def __iter__(self) -> Iterator[PathState]:
        return iter(self._paths.values())

    def find(self, path: bytes) -> PathState | None:
        return self._paths.get(path)

    def at(self, path: bytes) -> PathState:
        """The state of `path`, made anew when nothing is known about it."""
        state = self._paths.get(path)
        if state is None:
            state = self._paths[path] = PathState(path)
            while len(self._paths) > self.max_paths:
                self._paths.popitem(last=False)
        else:
            self._paths.move_to_end(path)
        return state

    # -- looks ----------------------------------------------------------------

    def stamp(self, state: PathState, task: Task, look: Look) -> None:
        looks = state.looks
        if task not in looks and len(looks) >= MAX_LOOKS_PER_PATH:
            oldest = min(looks, key=lambda t: looks[t].time)
            del looks[oldest]
            state.floor = state.version
        looks[task] = look

    @staticmethod
    def stamp_process(state: PathState, process: Process, version: int, time: float) -> None:
        looks = process.looks
        looks[state] = (version, time)
        looks.move_to_end(state)
        if len(looks) > MAX_LOOKS_PER_PROCESS:
            looks.popitem(last=False)

    def drop_task(self, task: Task) -> None:
        """Forget every look of `task` (it was forgotten, or its ID is free again)."""
        for state in self._paths.values():
            state.looks.pop(task, None)

    # -- changes --------------------------------------------------------------

    def move(self, state: PathState, actor: Actor, act: Act, time: float) -> int:
        """A new version of `state` by `actor`; returns its number."""
        self.version += 1
        version = self.version
        state.version = version
        state.absent = act in (Act.DELETE, Act.MOVE_AWAY)
        appended = act is Act.APPEND
        last = state.writers[-1] if state.writers else None
        if (
            last is not None
            and last.process is actor.process
            and last.task is actor.task
            and last.command is actor.command
            and last.appended == appended
        ):
            last.version, last.time, last.act = version, time, act
            last.whole = last.whole or act in WHOLE
        else:
            state.writers.append(
                Write(
                    task=actor.task,
                    process=actor.process,
                    command=actor.command,
                    act=act,
                    time=time,
                    version=version,
                    first=version,
                    appended=appended,
                    whole=act in WHOLE,
                )
            )
            if len(state.writers) > MAX_WRITERS:
                # Whoever has not seen the dropped one has not seen the next one either.
                del state.writers[0]
        return version

    @staticmethod
    def remember_content(state: PathState, version: int, digest: bytes) -> None:
        """`digest` is what the path held at `version`."""
        contents = state.contents
        if contents and contents[-1] == (version, digest):
            return
        contents.append((version, digest))
        if len(contents) > MAX_CONTENTS:
            del contents[0]

    def rename(self, source: PathState, target: PathState, actor: Actor, time: float) -> None:
        """`source` takes the name of `target`: versions move, looks go along."""
        seen = [(t, look) for t, look in source.looks.items() if look.existed]
        current = source.version
        history = [w for w in source.writers if w.act not in (Act.DELETE, Act.MOVE_AWAY)]
        fresh = not target.writers and not target.looks
        if fresh:
            target.writers = history[-(MAX_WRITERS - 1) :]
            target.contents = list(source.contents)
            target.self_locking = source.self_locking
            target.floor = source.floor
        self.move(target, actor, Act.REPLACE, time)
        for task, look in seen:
            if look.version >= current:
                copy = Look(target.version, look.time, True, look.partial, look.command, look.before)
            elif fresh:
                copy = Look(look.version, look.time, True, look.partial, look.command, look.before)
            else:
                continue  # it knew an older state of a file that was called otherwise
            copy.blind, copy.noted = look.blind, look.noted
            self.stamp(target, task, copy)
        self.move(source, actor, Act.MOVE_AWAY, time)
        source.contents.clear()

    def rename_tree(self, source: bytes, target: bytes, actor: Actor, time: float) -> list[PathState]:
        """Every path below directory `source` moves to below `target`.

        Returns the states that stood below `source`, under their new paths.
        """
        prefix = source + b"/"
        moved = [s for p, s in self._paths.items() if p.startswith(prefix) and not s.absent]
        result = []
        for old in moved:
            new = self.at(target + old.path[len(source) :])
            self.rename(old, new, actor, time)
            result.append(new)
        return result

    def below(self, directory: bytes) -> list[PathState]:
        prefix = directory + b"/"
        return [s for p, s in self._paths.items() if p.startswith(prefix)]
