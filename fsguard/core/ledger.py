"""What is on record: versions, writers and read stamps of every path.

Memory is bounded: the least recently used path goes first, and a path keeps
the looks of so many tasks only. What is dropped is forgotten in favour of
silence: see `PathState.floor`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from fsguard.core.authors import GONE, bring, changing, trim
from fsguard.core.model import Act, Actor, Content, Look, PathState, Process, Task, Write
from fsguard.core.names import Names

__all__ = ["Ledger"]

MAX_WRITERS = 8
MAX_CONTENTS = 8
MAX_LOOKS_PER_PATH = 64
MAX_LOOKS_PER_PROCESS = 4096
MIN_PROCESS_LOOKS = 4096
MAX_GLANCES = 4096


class Ledger:
    """Versions, writers and looks by path.

    :param max_paths: how many paths are remembered at most.
    :param first: the number before the first version (those of earlier mounts are kept).
    """

    def __init__(self, max_paths: int = 200_000, first: int = 0) -> None:
        self.max_paths = max_paths
        self.version = first
        self._paths: OrderedDict[bytes, PathState] = OrderedDict()
        self._names = Names(self._paths)
        # A process's look holds on to a path's state even when the path was forgotten.
        self._max_process_looks = max(MIN_PROCESS_LOOKS, max_paths // 4)
        self._readers: OrderedDict[Process, None] = OrderedDict()
        self._process_looks = 0
        self._glances: OrderedDict[tuple[Process, bytes], None] = OrderedDict()

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
            self._names.came(path)
            while len(self._paths) > self.max_paths:
                self._names.went(self._paths.popitem(last=False)[0])
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
        last = state.writers[-1] if state.writers else None
        if last is not None and last.task is not task and look.version >= last.version:
            last.seen = True

    def stamp_process(self, state: PathState, process: Process, version: int, time: float) -> None:
        """`process` itself knows `state` at `version`; all processes together remember so many."""
        looks = process.looks
        if state not in looks:
            self._process_looks += 1
        looks[state] = (version, time)
        looks.move_to_end(state)
        if state.writers and state.writers[-1].process is not process:
            state.writers[-1].seen = True
        self._readers[process] = None
        self._readers.move_to_end(process)
        if len(looks) > MAX_LOOKS_PER_PROCESS:
            looks.popitem(last=False)
            self._process_looks -= 1
        while self._process_looks > self._max_process_looks:
            oldest, _ = self._readers.popitem(last=False)
            self._process_looks -= len(oldest.looks)
            oldest.looks.clear()

    def glanced(self, process: Process, path: bytes) -> None:
        """A person's `process` has read what nobody on record has written.

        An indexer reads everything, so this makes no path known; it counts once the process
        writes there.
        """
        self._glances[process, path] = None
        self._glances.move_to_end((process, path))
        if len(self._glances) > MAX_GLANCES:
            self._glances.popitem(last=False)

    def has_read(self, state: PathState, process: Process) -> bool:
        """True when `process` itself once read `state`, and has not deleted it since."""
        return state in process.looks or (process, state.path) in self._glances

    def void_glances(self, directory: bytes, but: set[bytes]) -> None:
        """What was read below `directory` is there no more, `but` for these paths."""
        below = directory + b"/"
        for key in [k for k in self._glances if k[1].startswith(below) and k[1] not in but]:
            del self._glances[key]

    def drop_process_look(self, state: PathState, process: Process) -> None:
        self._glances.pop((process, state.path), None)
        if process.looks.pop(state, None) is not None:
            self._process_looks -= 1
            if not process.looks:
                self._readers.pop(process, None)

    def all_processes_know(self) -> None:
        """Whatever a process has read, it knows as it is now."""
        for process in self._readers:
            for state, (_, when) in process.looks.items():
                process.looks[state] = (state.version, when)

    @staticmethod
    def known_to(state: PathState, actor: Actor) -> int:
        """The version of `state` that `actor` would make a new content from; 0: it knows none."""
        if state.absent:
            return 0
        own = actor.process.looks.get(state)
        if own is not None:
            return own[0]
        look = state.looks.get(actor.task) if actor.task is not None else None
        return look.version if look is not None and look.existed and not look.blind else 0

    # -- changes --------------------------------------------------------------

    def move(self, state: PathState, actor: Actor, act: Act, time: float) -> int:
        """A new version of `state` by `actor`; returns its number."""
        last = state.writers[-1] if state.writers else None
        same = last is not None and last.task is actor.task and _one_program(last, actor)
        author = actor.task.id if actor.task is not None else None
        kept = changing(state, act, self.known_to(state, actor), same, author)
        return self._write(state, actor, act, time, kept)

    def _write(
        self, state: PathState, actor: Actor, act: Act, time: float, kept: tuple[int, ...] = ()
    ) -> int:
        self.version += 1
        version = self.version
        state.version = version
        state.absent = act in GONE
        appended = act is Act.APPEND
        last = state.writers[-1] if state.writers else None
        if last is not None and _goes_on(last, actor) and last.appended == appended:
            last.version, last.time, last.act, last.left = version, time, act, not state.absent
            last.given_up = last.given_up and state.absent
            last.past, last.kept, last.back = state.absent, kept, 0
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
                    made=act is Act.CREATE,
                    left=not state.absent,
                    past=state.absent,
                    kept=kept,
                )
            )
            trim(state.writers, MAX_WRITERS)
        return version

    @staticmethod
    def remember_content(state: PathState, digest: bytes) -> None:
        """`digest` is what the path holds now."""
        content = Content.of(state, digest)
        if not state.contents or state.contents[-1] != content:
            state.contents.append(content)
            del state.contents[:-MAX_CONTENTS]

    def rename(
        self, source: PathState, target: PathState, actor: Actor, time: float, known: int, free: bool
    ) -> None:
        """`source` takes the name of `target`: versions move, looks and authors go along.

        `known` is the version of `target` that the new content may be made from;
        `free`: nothing had that name.
        """
        seen = [(t, look) for t, look in source.looks.items() if look.existed]
        current = source.version
        unwritten = all(w.task is None for w in target.writers)
        if not target.writers and not target.looks:
            target.self_locking = source.self_locking
            target.floor = source.floor
        target.contents = sorted(target.contents + source.contents)[-MAX_CONTENTS:]
        target.writers = bring(source, target, self.version + 1, known, actor, free)
        trim(target.writers, MAX_WRITERS - 1)
        last = source.contents[-1] if source.contents else None
        self._write(target, actor, Act.REPLACE, time)
        if last is not None and last.version == current:
            self.remember_content(target, last.digest)
        for task, look in seen:
            had = target.looks.get(task)
            if task is actor.task and look.version >= current and had is not None and not had.blind:
                continue  # it is the writer now, with the picture it had of `target`
            # An older look of a file that was called otherwise must not hide a task's work here.
            if look.version >= current or (unwritten and had is None) or task is actor.task:
                self.stamp(target, task, look.carried(current, target.version))
        self.move(source, actor, Act.MOVE_AWAY, time)

    def drop(self, state: PathState) -> None:
        """Forget all about a path."""
        if self._paths.get(state.path) is state:
            del self._paths[state.path]
            self._names.went(state.path)

    def below(self, directory: bytes) -> list[PathState]:
        """What is known of paths below `directory`; takes as long as they are many."""
        return [self._paths[p] for p in self._names.below(directory)]


def _one_program(write: Write, actor: Actor) -> bool:
    """`sh -c 'cat > f'`: the shell empties the file, its child fills it."""
    return write.command is actor.command or write.process.kin(actor.process)


def _goes_on(write: Write, actor: Actor) -> bool:
    """True when what `actor` writes next belongs to the same run."""
    if (
        write.process is not actor.process
        or write.task is not actor.task
        or write.command is not actor.command
    ):
        return False
    return not write.seen and not write.buried
