"""Everything that one mount consists of, composed here and nowhere else."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import trio

from fsguard import __version__, config, facts, outliving, restart, takeover, taping
from fsguard._clone import die_with_parent
from fsguard.attribution.cgroup import CgroupPattern
from fsguard.attribution.resolver import Resolver
from fsguard.caching import Caching
from fsguard.control import registry
from fsguard.control.server import Door, Handler, Peer, serve
from fsguard.core.guard import Guard, Limits
from fsguard.core.model import Actor, Process
from fsguard.core.policy import DEFAULT_IGNORE, Policies
from fsguard.core.turns import Turns
from fsguard.dispatch import Dispatch, Shield
from fsguard.errors import BusyError, FsguardError, NotMountedError
from fsguard.fuse.connection import Connection
from fsguard.fuse.filesystem import Settings as FuseSettings
from fsguard.fuse.operations import Operations
from fsguard.fuse.tracebacks import describe
from fsguard.keeping import StoreKeeper
from fsguard.notify import Notifier
from fsguard.observer import NullObserver, Observer
from fsguard.probe import Facts
from fsguard.service import Service
from fsguard.starting import Ready, Spec, choose_io
from fsguard.succession import Succession
from fsguard.tape import Tape
from fsguard.versions import Store
from fsguard.versions.secrets import Secrets

__all__ = ["SIGNALS", "Daemon"]

_log = logging.getLogger("fsguard.daemon")

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Blocked until the daemon hears them, or a dead mount would be left."""
SETTLE_SECONDS = 0.1
# What only asks. After anything else a task may not be alone with a file any more that it has made.
_QUESTIONS = frozenset(
    [
        "status",
        "metrics",
        "activity",
        "records",
        "run.begin",
        "run.end",
        "warnings",
        "warnings.follow",
        "log",
        "who",
        "check",
        "task.list",
        "task.show",
        "policy.get",
        "lease.list",
        "versions.list",
        "versions.find",
        "versions.read",
        "versions.conflicts",
        "versions.diffable",
    ]
)
HOUSEKEEPING_SECONDS = 20.0


class Daemon:
    """Everything that one mount consists of."""

    def __init__(
        self,
        spec: Spec,
        settings: config.Settings,
        connection: Connection,
        store: Store | None,
        estate: restart.Estate | None = None,
        life: takeover.Life | None = None,
    ) -> None:
        """`estate`: what the program before has left (`restart`); `life`: there is a keeper."""
        self.life = life
        self.restarts = estate.restarts if estate is not None else 0
        self.takeovers = (estate.takeovers if estate is not None else 0) + (len(life.dead) if life else 0)
        self.keeper_trouble: str | None = None
        """Why there is no keeper any more."""
        self.takeover_trouble: str | None = None
        """What this worker could not go on with."""
        self.asked = 0  # requests on the control socket
        self.asked_to_end = False  # and somebody was still in there
        will = life.memory.will() if self.goes_on and life is not None else None
        self.door = Door(will.listener if will is not None else estate.listener if estate is not None else -1)
        self.spec = spec
        self.settings = settings
        self.connection = connection
        self.started = time.time()
        policies = Policies(spec.policy or settings.policy)
        for pattern, policy in settings.policy_paths:
            policies.set(policy, path=pattern)
        for task, policy in settings.policy_tasks:
            policies.set(policy, task=task)
        self.tape = Tape(life.memory.tape) if life is not None and not spec.disabled else None
        tape = self.tape
        self.guard = Guard(
            taping.probe(tape, Facts(connection.workspace_fd)),
            policies=policies,
            ignore=(settings.ignore if settings.ignore is not None else DEFAULT_IGNORE)
            + settings.ignore_more,
            first_version=store.catalogue.highest_version() if store is not None else 0,
            limits=Limits(
                settings.max_paths,
                settings.max_tasks,
                settings.max_warnings,
                settings.max_log,
                settings.bulk_files,
            ),
        )
        self.store = store
        keeper = StoreKeeper(store, Secrets(settings.secrets)) if store is not None else None
        self.resolver = Resolver(
            self.guard,
            [CgroupPattern(c.pattern, c.task) for c in settings.cgroups],
            proc=taping.proc(tape),
        )
        self.dispatch = Dispatch(
            self.guard,
            self.resolver,
            turns=Turns(settings.turn_lapse),
            keeper=taping.keeper(tape, keeper),
            wait_seconds=settings.turn_wait,
            digest_limit=settings.compare_bytes,
        )
        self.dispatch.waiting.announced = lambda: [
            (call.task, call.path)
            for call in self.resolver.announced
            if call.writes and not self.resolver.gone(call.actor)
        ]
        self.shield = Shield(self.dispatch, describe)
        observer: Observer = NullObserver() if spec.disabled else self.shield
        self.io, self.io_reason = choose_io(spec.io)
        self.caching = Caching.choose(
            spec.cache or settings.cache, connection.in_place, lane=self.io == "lane"
        )
        lifetime = self.caching.plain
        self.operations = Operations(
            connection.workspace_fd,
            observer,
            FuseSettings(
                entry_timeout=lifetime,
                attr_timeout=lifetime,
                keep_cache=lifetime > 0,
                lane=self.io == "lane",
                watch=True,
                watched_timeout=self.caching.watched,
                lane_state=estate.lane if estate is not None else None,
                lane_memory=life.memory.lane if life is not None else None,
                lane_goes_on=self.goes_on,
                workers_before=(
                    *((estate.worker,) if estate is not None else ()),
                    *(life.dead if life else ()),
                ),
            ),
        )
        self.dispatch.take_records = self.operations.take_records
        self.dispatch.reading = self.operations.reading
        self.dispatch.waiting.leases.before_granting = self.operations.let_nobody_make
        if self.operations.lane is not None:
            self.operations.lane.group_of = lambda actor: actor.task if isinstance(actor, Actor) else None
            self.resolver.changed = self.operations.lane.forget
            self.resolver.recall = self.operations.lane.known
            self.resolver.learn = self.operations.lane.know
        self.recorder = outliving.record(self, tape) if tape is not None else None
        self.service = Service(self.dispatch, self.resolver, self.status, keeper, connection.workspace_fd)
        self._asked = self.service.handlers()
        self._acts: dict[str, Callable[[], object]] = {
            "settle": lambda: self.guard.settle(self.dispatch.clock(), self._gone_once()),
            "forget": lambda: self.guard.tasks.forget_idle(self.dispatch.clock() - settings.forget_after),
        }
        if self.recorder is not None:
            self._asked = taping.note(self.recorder, self.service.groups(), self._asked)
            self._acts = {name: self.recorder.act(name, act) for name, act in self._acts.items()}
        self.notifier = Notifier()
        self.succession = Succession(
            self.parts(),
            connection,
            self.operations,
            self.dispatch,
            store,
            self.door,
            self._leave,
            SIGNALS,
            life.board if life is not None else None,
        )
        if self.goes_on and life is not None:
            outliving.take_over(self, life)
        elif estate is not None:
            self._inherit(estate)

    @property
    def goes_on(self) -> bool:
        """Whether another worker has died."""
        return self.life is not None and bool(self.life.dead)

    @property
    def _first(self) -> bool:
        return not self.restarts and not self.takeovers

    def parts(self) -> dict[str, object]:
        """By the names of `restart.KEPT`."""
        guard, dispatch, operations = self.guard, self.dispatch, self.operations
        parts = {
            "daemon": self,
            "guard": guard,
            "outbox": guard.outbox,
            "ledger": guard.ledger,
            "tasks": guard.tasks,
            "history": guard.history,
            "policies": guard.policies,
            "shield": self.shield,
            "dispatch": dispatch,
            "orphans": dispatch.orphans,
            "outsiders": dispatch.outsiders,
            "waiting": dispatch.waiting,
            "turns": dispatch.waiting.turns,
            "leases": dispatch.waiting.leases,
            "resolver": self.resolver,
            "announced": self.resolver.announced,
            "operations": operations,
            "handles": operations.handles,
            "lane": operations.lane,
            "recorder": self.recorder,
            "waits": dispatch.waiting.pending,
            "behind": dispatch.waiting.behind,
            **self.service.parts(),
        }
        return {name: part for name, part in parts.items() if part is not None}

    def _leave(self) -> tuple[Spec, int, int, config.Settings, tuple[str | None, float | None]]:
        if self.notifier.watchdog is not None:
            self.notifier.say(WATCHDOG="1")  # the next program gets the whole time to start
        return self.spec, self.restarts, self.takeovers, self.settings, self.notifier.parts()

    def _inherit(self, estate: restart.Estate) -> None:
        """Go on where the program before has ended. The files that are open come through whatever happens."""
        operations = self.operations
        try:
            restart.restore(estate.objects, self.parts(), operations.nodes.__getitem__)
        except Exception as error:
            _log.error("what was on record is lost: %s", describe(error))
            if operations.lane is not None:
                operations.lane.lost_count()
        operations.adopt_handles(estate.handles, dict(operations.handles.files))
        self.dispatch.waiting.resumed = dict(estate.waiting)
        self.connection.resumed = estate.requests

    def descriptors(self) -> set[int]:
        """Those that this worker goes on with."""
        left = self.operations.lane.left if self.operations.lane is not None else None
        return {*(left.fds if left is not None else ()), *(handle.fd for handle in self.operations.handles)}

    def status(self) -> dict[str, Any]:
        return facts.status(self)

    @property
    def pid(self) -> int:
        """Of the process that everybody else takes for the daemon."""
        return self.life.board.keeper if self.life is not None else os.getpid()

    async def run(self, ready: Ready, notifier: Notifier) -> None:
        self.notifier = notifier
        if self.life is not None and self._first:
            began = self.tape.cut() if self.tape is not None else 0
            data = restart.gather(self.parts(), under_way=True)
            self.life.memory.save(takeover.Checkpoint(1, began, data))
        async with trio.open_nursery() as nursery:
            await nursery.start(self._serve)
            await nursery.start(self.connection.run, self.operations)
            await nursery.start(self._signals)
            if self._first:
                self._register()
                self.service.account.forget(self.spec.state_dir)
            else:
                with _not_fatal("registering"):
                    self._register()
            self._make_will()
            ready.say({"ready": True, "pid": self.pid, "features": self.connection.features()})
            notifier.say(READY="1", STATUS=f"guarding {self.spec.workspace}")
            how = "taken over" if self.goes_on else "restarted" if self.restarts else "mounted"
            _log.info("%s %s on %s, version %s", how, self.spec.workspace, self.spec.mountpoint, __version__)
            nursery.start_soon(self.succession.wait)
            if notifier.watchdog is not None:
                nursery.start_soon(self._signs_of_life, notifier, notifier.watchdog / 2)
            nursery.start_soon(self.operations.listen, self.connection.device)
            nursery.start_soon(self._settle)
            if self.life is not None:
                nursery.start_soon(outliving.checkpoints(self, self.life).run)
                nursery.start_soon(outliving.forget_requests, self)
                nursery.start_soon(self._keeper_gone, self.life.board.keeper)
            nursery.start_soon(self._housekeeping)
            await self.connection.over.wait()
            notifier.say(STOPPING="1", STATUS="unmounted")
            nursery.cancel_scope.cancel()
        for _ in range(2):  # the first look may find that a run's starter was killed
            self.service.runs.forget_runs()
        if not self.spec.disabled:
            await self.service.account.save(self.spec.state_dir)
        _log.info("unmounted %s", self.spec.mountpoint)

    def _make_will(self) -> None:
        if self.life is not None:
            will = takeover.Will(self.connection.handed_on().agreement, self.door.fileno())
            self.life.memory.make_will(will)
            die_with_parent(False)  # from now on there is something to go on with

    async def _keeper_gone(self, keeper: int) -> None:
        """Without a keeper this goes on, but nobody would take over: so execute this program anew, which
        begins with one."""
        try:
            pidfd = os.pidfd_open(keeper)
        except ProcessLookupError:
            pass
        else:
            await trio.lowlevel.wait_readable(pidfd)
            trio.lowlevel.notify_closing(pidfd)
            os.close(pidfd)
        _log.error("the keeper %d is gone: starting another", keeper)
        self.life = None
        try:
            await self.succession.renew()
        except FsguardError as error:
            self.keeper_trouble = f"the keeper has died, and no other could be started: {error.message}"
            _log.error("%s", self.keeper_trouble)

    async def _serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        await serve(
            self.spec.socket, self._handlers(), self.spec.owner_uids, door=self.door, task_status=task_status
        )

    def _handlers(self) -> dict[str, Handler]:
        """The service's, each of which knows what the lane has seen, and may change what it may do."""
        lane, handlers = self.operations.lane, self._asked
        handlers["restart"] = self.succession.restart
        if lane is None:
            return handlers

        def informed(name: str, handler: Handler) -> Handler:
            def call(peer: Peer, params: dict[str, Any]) -> Awaitable[Any] | AsyncIterator[Any]:
                self.asked += 1
                self.operations.let_nobody_make()
                if name not in _QUESTIONS:
                    lane.disown_all()
                return handler(peer, params)

            return call

        return {name: informed(name, handler) for name, handler in handlers.items()}

    def _register(self) -> None:
        start = registry.start_time(self.pid)
        owners = [uid for uid in self.spec.owner_uids if uid != os.getuid()]
        registry.register(
            self.spec.registry_file,
            registry.Mount(
                mountpoint=self.spec.mountpoint,
                workspace=self.spec.workspace,
                socket=self.spec.socket,
                pid=self.pid,
                uid=os.getuid(),
                started=start or 0,
                owners=owners,
            ),
        )

    async def _signals(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with trio.open_signal_receiver(*SIGNALS) as received:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            task_status.started()
            try:
                async for number in received:
                    if number == signal.SIGHUP:
                        continue
                    self.succession.ending = True
                    try:
                        await self.connection.shut_down()
                    except BusyError as e:
                        # Going on is better than a dead mount under somebody's work.
                        _log.warning("asked to end, but %s", e.message)
                        self.succession.ending = False
                    except NotMountedError:
                        # By `unmount --lazy`, or another mount namespace has a copy (a container): it
                        # lives as long as its last user, unless whoever asks insists.
                        if self.asked_to_end:
                            self.connection.abandon()
                        self.asked_to_end = True
                        self.succession.ending = False
                        _log.info("asked to end; unmounted already, and still in use")
            finally:  # on the way out: what is left to do is short
                signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

    async def _signs_of_life(self, notifier: Notifier, seconds: float) -> None:
        """For the watchdog. From here, as what hangs this loop hangs the mount."""
        while True:
            notifier.say(WATCHDOG="1")
            await trio.sleep(seconds)

    async def _settle(self) -> None:
        """Deletions whose author has ended are judged now, whoever asks or not."""
        while True:
            await trio.sleep(SETTLE_SECONDS)
            if self.life is not None:
                self.life.board.beat()
            if self.operations.lane is not None:
                self.operations.lane.tidy()
                with _not_fatal("taking records"):
                    self.operations.take_records()
            if self.guard.deletions:
                with _not_fatal("judging deletions"):
                    self._acts["settle"]()

    def _gone_once(self) -> Callable[[Actor], bool]:
        """`Resolver.gone`, asked once for each process: one `rm -rf` leaves thousands of deletions."""
        known: dict[Process, bool] = {}

        def gone(actor: Actor) -> bool:
            if actor.process not in known:
                known[actor.process] = self.resolver.gone(actor)
            return known[actor.process]

        return gone

    async def _housekeeping(self) -> None:
        while True:
            await trio.sleep(HOUSEKEEPING_SECONDS)
            with _not_fatal("forgetting runs"):
                self.service.runs.forget_runs()
            with _not_fatal("forgetting tasks"):
                self._acts["forget"]()


@contextmanager
def _not_fatal(what: str) -> Iterator[None]:
    """The mount outlives a mistake in what is only done beside it: somebody works there."""
    try:
        yield
    except Exception as e:
        _log.error("%s failed: %s", what, describe(e))
