"""From a thread id to the task that it works for.

Ways in, the most specific first:

* the control group that `fsguard run` made for it, which survives setsid,
  double fork and the death of every parent;
* the registered process itself, or ``FSGUARD_RUN`` in its environment;
* ``FSGUARD_TASK`` in its environment, exported by an orchestrator, or by the
  first words of a shell's own script (`shells`);
* a registered process among its ancestors;
* a pattern in the configuration that maps its control group;
* else it is external.

A thread is looked up while its request is open: it is blocked then, so /proc
still knows it. What was found is kept by (pid, start time) and dropped at exec
(the image moves) and, a second later at most, when it changes its group.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fsguard.attribution import cgroup, procfs, shells
from fsguard.attribution.announced import Announced
from fsguard.core.guard import Guard
from fsguard.core.model import Actor, Command, Process, Task

__all__ = ["Resolver", "Run"]

MAX_PROCESSES = 16_384
REGROUP_SECONDS = 1.0
MAX_NAME = 200
_ENDING = sum(
    1 << (n - 1) for n in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
)
_VARIABLES = (b"FSGUARD_TASK", b"FSGUARD_PARENT", b"FSGUARD_RUN", b"FSGUARD_DISABLE", b"FSGUARD_INTENT")


@dataclass(slots=True, eq=False)
class Run:
    """One `fsguard run`: its task, its command and the process that began it."""

    token: str
    number: int
    task: Task
    command: Command
    pid: int
    start: int
    cgroup: str | None
    ended: bool = False
    made_task: bool = False


@dataclass(slots=True)
class _Known:
    start: int
    image: int
    checked: float
    groups: bytes
    actor: Actor


class Resolver:
    """Implements the lookup that `fsguard.dispatch` asks for.

    :param patterns: how other control groups map to tasks.
    :param proc: answers what is asked of /proc.
    """

    def __init__(
        self,
        guard: Guard,
        patterns: Sequence[cgroup.CgroupPattern] = (),
        clock: Callable[[], float] = time.time,
        proc: procfs.Proc | None = None,
    ) -> None:
        self._guard = guard
        self._proc = proc or procfs.Proc()
        self._patterns = tuple(patterns)
        self.clock = clock
        self._threads: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self._known: OrderedDict[int, _Known] = OrderedDict()
        self._processes: OrderedDict[int, Process] = OrderedDict()
        self.changed: Callable[[], object] = lambda: None  # who a known thread works for may be another now
        # Who was found, remembered outside for as long as that holds (`fuse.lane`).
        self.recall: Callable[[int], object] = lambda tid: None
        self.learn: Callable[[int, Actor], object] = lambda tid, actor: None
        self.announced = Announced(self._say_changed)
        self.runs: dict[str, Run] = {}
        self._pids: dict[tuple[int, int], Run] = {}
        self.means: Counter[str] = Counter()
        self._nobody = Actor(
            None, Process(0, 0, "?"), Command("p0", "a process that cannot be seen from here")
        )

    def _say_changed(self) -> None:
        self.changed()

    # -- runs -----------------------------------------------------------------

    def register(self, run: Run) -> None:
        self.runs[run.token] = run
        self._pids[(run.pid, run.start)] = run
        self._known.pop(run.pid, None)
        self.changed()

    def forget_run(self, run: Run) -> None:
        self.runs.pop(run.token, None)
        self._pids.pop((run.pid, run.start), None)
        self.changed()

    # -- lookup ---------------------------------------------------------------

    def actor(self, tid: int, paths: Sequence[bytes] = ()) -> Actor:
        """Who thread `tid` (0: nobody we can see) works for.

        `paths`: what it is about to touch, for the tool calls that are announced.
        """
        if not len(self.announced):
            known = self.recall(tid)
            if isinstance(known, Actor):
                return known
        actor = self._actor(tid)
        if len(self.announced):
            return self._announced(actor, paths)
        if actor.process.pid in self._known:
            self.learn(tid, actor)
        return actor

    def author(self, pid: int, texts: Mapping[str, bytes], paths: Sequence[bytes] = ()) -> Actor:
        """Who process `pid` worked for, which may be gone: `texts` is what its files in /proc said."""
        then = procfs.parse_stat(texts["stat"]) if "stat" in texts else None
        if then is None:
            return self.actor(pid, paths)
        now = self._proc.stat(pid)
        if now is not None and (now.start, now.image) == (then.start, then.image):
            return self.actor(pid, paths)
        known = self._known.get(pid)
        # No image: it was about to end, and its arguments and environment were gone.
        if known is not None and known.start == then.start and then.image in (known.image, 0):
            return self._announced(known.actor, paths)
        return self._announced(self._resolve(pid, then, self.clock(), texts), paths)

    def _announced(self, actor: Actor, paths: Sequence[bytes]) -> Actor:
        if not paths or not len(self.announced):
            return actor
        return self.announced.find(actor.process, paths, self.clock()) or actor

    def _actor(self, tid: int) -> Actor:
        if tid <= 0:
            return self._nobody
        pid = self.tgid(tid)
        stat = self._proc.stat(pid) if pid else None
        known = self._known.get(pid) if pid else None
        if stat is None or pid is None:
            return known.actor if known is not None else self._nobody
        now = self.clock()
        if (
            known is not None
            and (known.start, known.image) == (stat.start, stat.image)
            and (now - known.checked < REGROUP_SECONDS or self._same_groups(pid, known, now))
        ):
            return self._refresh(known, now)
        return self._resolve(pid, stat, now)

    def tgid(self, tid: int) -> int | None:
        """The process of a thread; None when it is gone."""
        ino = self._proc.inode(tid)
        if ino is None:
            return None
        cached = self._threads.get(tid)
        if cached is not None and cached[0] == ino:
            return cached[1]
        tgid = self._proc.tgid(tid)
        if tgid is not None:
            self._threads[tid] = (ino, tgid)
            if len(self._threads) > MAX_PROCESSES:
                self._threads.popitem(last=False)
        return tgid

    def steady(self) -> bool:
        return not len(self.announced)

    def opens_for_reading(self, tid: int) -> bool:
        """True when the thread is in an open(2) that wants to read and not to create.

        Tells `cat f` from `stat f` when both find nothing: a FUSE lookup does
        not say what it is for. False where /proc/TID/syscall can't be read.
        """
        call = self._proc.syscall(tid)
        if call is None:
            return False
        number, args = call
        flags = _open_flags(number, args)
        if flags is None or flags & os.O_ACCMODE == os.O_WRONLY:
            return False
        # `cp` asks with O_PATH | O_DIRECTORY whether its target is a directory.
        return not flags & (os.O_CREAT | os.O_PATH | os.O_DIRECTORY)

    def reads_link(self, tid: int) -> bool:
        """True when the thread is in a readlink(2).

        Tells `readlink l` and `ls -l` from `cat l/f`: FUSE asks for the link in
        the same way when a path leads through it.
        """
        call = self._proc.syscall(tid)
        return call is not None and call[0] in _READLINK.get(os.uname().machine, ())

    def wants_out(self, tid: int) -> bool:
        """True when a wait of this thread should end now: it is gone, or told to stop."""
        pending = self._proc.pending(tid)
        return pending is None or bool(pending & _ENDING)

    def gone(self, actor: Actor) -> bool:
        """True when the process has ended."""
        stat = self._proc.stat(actor.process.pid)
        return stat is None or stat.start != actor.process.start or stat.state in "ZX"

    def process_start(self, pid: int) -> int | None:
        stat = self._proc.stat(pid)
        return stat.start if stat is not None else None

    def parent_of(self, pid: int) -> int | None:
        stat = self._proc.stat(pid)
        return stat.ppid if stat is not None else None

    # -- inside ---------------------------------------------------------------

    def _same_groups(self, pid: int, known: _Known, now: float) -> bool:
        groups = self._proc.groups(pid)
        known.checked = now
        return groups == known.groups

    def _refresh(self, known: _Known, now: float) -> Actor:
        task = known.actor.task
        if task is not None:
            current = self._guard.tasks.get(task.id, now, self._guard.ledger.version)
            if current is not task:  # forgotten meanwhile
                known.actor = Actor(current, known.actor.process, known.actor.command, known.actor.disabled)
        return known.actor

    def _resolve(
        self, pid: int, stat: procfs.Stat, now: float, texts: Mapping[str, bytes] | None = None
    ) -> Actor:
        """`texts`: instead of what /proc says now."""
        groups = self._proc.groups(pid) if texts is None else texts.get("cgroup") or b""
        sure = True

        def variables() -> dict[bytes, bytes]:
            nonlocal sure
            if texts is not None:
                return procfs.parse_environ(texts.get("environ", b"")[: procfs.ENVIRON], _VARIABLES)
            try:
                return self._proc.variables(pid, stat.threads, _VARIABLES)
            except TimeoutError:
                sure = False
                return {}

        def arguments() -> bytes:
            nonlocal sure
            if texts is not None:
                return texts.get("cmdline", b"")[: procfs.CMDLINE]
            try:
                return self._proc.cmdline(pid, stat.threads)
            except TimeoutError:
                sure = False
                return b""

        env = variables()
        cmdline: bytes | None = None
        if shells.is_shell(stat):
            cmdline = arguments()
            if mark := shells.marked(cmdline):
                env.pop(b"FSGUARD_INTENT", None)  # of the task that it was started for
                env.update(mark)
                cmdline = shells.unmarked(cmdline)
        process = self._process(pid, stat)
        members = cgroup.parse_cgroup(groups)
        run, override, means = self._run_of(process, members, env)
        command: Command | None = None
        task: Task | None = None
        if override is not None:
            parent = env.get(b"FSGUARD_PARENT")
            task = self._task(_name(override), now)
            if parent:
                self._guard.tasks.adopt(task, self._task(_name(parent), now))
            elif run is not None:
                self._guard.tasks.adopt(task, run.task)
            if b"FSGUARD_INTENT" in env:
                task.intent = env[b"FSGUARD_INTENT"].decode("utf-8", "replace")[:400]
        elif run is not None:
            task, command = self._task(run.task.id, now), run.command
        else:
            name = cgroup.match(members, self._patterns)
            if name:
                task, means = self._task(name[:MAX_NAME], now), "cgroup pattern"
        if command is None:
            cmdline = cmdline if cmdline is not None else arguments()
            text = procfs.text_of(cmdline, stat.comm)
            command = Command(f"p{pid}.{stat.start}.{stat.image:x}", text, task, now)
        self.means[means] += 1
        actor = Actor(task, process, command, env.get(b"FSGUARD_DISABLE", b"") not in (b"", b"0"))
        if not sure:
            self._known.pop(pid, None)
            return actor  # as far as can be said now; the next call asks again
        self._known[pid] = _Known(stat.start, stat.image, now, groups, actor)
        self._known.move_to_end(pid)
        if len(self._known) > MAX_PROCESSES:
            self._known.popitem(last=False)
        return actor

    def _run_of(
        self, process: Process, members: Sequence[cgroup.Membership], env: dict[bytes, bytes]
    ) -> tuple[Run | None, bytes | None, str]:
        """(run, FSGUARD_TASK where it overrides the run, by what means)."""
        run: Run | None = None
        means = "external"
        for token in cgroup.token_of(members):
            if token in self.runs:
                run, means = self.runs[token], "cgroup"
                break
        registered = self._pids.get((process.pid, process.start))
        if registered is not None and (run is None or registered.number > run.number):
            run, means = registered, "registered process"
        exported = env.get(b"FSGUARD_TASK") or None
        env_run = self.runs.get(env.get(b"FSGUARD_RUN", b"").decode("ascii", "replace"))
        if env_run is not None and (run is None or env_run.number >= run.number):
            if env_run is not run:
                run, means = env_run, "environment"
            # Set anew inside the run, by an orchestrator that just exports it.
            if exported is not None and _name(exported) != run.task.id:
                return run, exported, "environment"
            return run, None, means
        if run is not None:
            return run, None, means
        if exported is not None:
            return None, exported, "environment"
        ancestor = process.parent
        for _ in range(256):
            if ancestor is None:
                break
            found = self._pids.get((ancestor.pid, ancestor.start))
            if found is not None:
                return found, None, "ancestor"
            ancestor = ancestor.parent
        return None, None, means

    def _task(self, task_id: str, now: float) -> Task:
        return self._guard.tasks.get(task_id, now, self._guard.ledger.version)

    def _process(self, pid: int, stat: procfs.Stat, depth: int = 0) -> Process:
        process = self._processes.get(pid)
        if process is None and (known := self._known.get(pid)) is not None:
            process = known.actor.process  # one process is one object: who reads and whose child writes
        if process is not None and process.start == stat.start:
            process.name = stat.comm
            self._processes[pid] = process
            self._processes.move_to_end(pid)
            return process
        process = Process(pid, stat.start, stat.comm)
        if stat.ppid > 0 and depth < 64:
            above = self._proc.stat(stat.ppid)
            if above is not None:
                process.parent = self._process(stat.ppid, above, depth + 1)
        self._processes[pid] = process
        if len(self._processes) > MAX_PROCESSES:
            self._processes.popitem(last=False)
        return process


def _name(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")[:MAX_NAME]


# readlink(2) and readlinkat(2).
_READLINK = {"x86_64": (89, 267), "aarch64": (78,), "riscv64": (78,)}


def _open_flags(number: int, args: tuple[int, ...]) -> int | None:
    """The flags of open(2) and openat(2); None for any other system call."""
    machine = os.uname().machine
    if machine == "x86_64":
        if number == 2 and len(args) > 1:  # open
            return args[1]
        if number == 257 and len(args) > 2:  # openat
            return args[2]
        return None
    if machine in ("aarch64", "riscv64") and number == 56 and len(args) > 2:
        return args[2]
    return None
