"""The daemon: one process per workspace, composed here and nowhere else.

Started by `fsguard mount` with what it shall do as JSON on one pipe, it says on
another that it is ready, or what is wrong, in one line. Below a service manager
it takes the place of the command instead, and says it there. It ends when the
filesystem is unmounted, by whomever; SIGTERM and SIGINT unmount it.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import trio

from fsguard import __version__, config, flat, restart
from fsguard.attribution.cgroup import CgroupPattern
from fsguard.attribution.resolver import Resolver
from fsguard.caching import Caching, why_not
from fsguard.control import registry
from fsguard.control.server import Door, Handler, Peer, serve
from fsguard.core.guard import Guard, Limits
from fsguard.core.model import Actor, Process
from fsguard.core.policy import DEFAULT_IGNORE, Policies
from fsguard.core.turns import Turns
from fsguard.dispatch import Dispatch, Shield
from fsguard.errors import BusyError, FsguardError, NotMountedError, UsageError
from fsguard.fuse.connection import Connection, mount, resume
from fsguard.fuse.filesystem import Settings as FuseSettings
from fsguard.fuse.operations import Operations
from fsguard.fuse.tracebacks import describe, install
from fsguard.keeping import StoreKeeper
from fsguard.notify import Notifier
from fsguard.observer import NullObserver, Observer
from fsguard.probe import Facts
from fsguard.service import Service
from fsguard.starting import Ready, Spec, choose_io, number_from, open_store, read_settings
from fsguard.succession import Succession
from fsguard.versions import Store
from fsguard.versions.secrets import Secrets

__all__ = ["Spec", "main"]

_log = logging.getLogger("fsguard.daemon")

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
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Daemon:
    """Everything that one mount consists of."""

    def __init__(
        self,
        spec: Spec,
        settings: config.Settings,
        connection: Connection,
        store: Store | None,
        estate: restart.Estate | None = None,
    ) -> None:
        """`estate`: what the program before has left (`restart`)."""
        self.restarts = estate.restarts if estate is not None else 0
        self.asked_to_end = False  # and somebody was still in there
        self.door = Door(estate.listener if estate is not None else -1)
        self.spec = spec
        self.settings = settings
        self.connection = connection
        self.started = time.time()
        policies = Policies(spec.policy or settings.policy)
        for pattern, policy in settings.policy_paths:
            policies.set(policy, path=pattern)
        for task, policy in settings.policy_tasks:
            policies.set(policy, task=task)
        self.guard = Guard(
            Facts(connection.workspace_fd),
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
        self.resolver = Resolver(self.guard, [CgroupPattern(c.pattern, c.task) for c in settings.cgroups])
        self.dispatch = Dispatch(
            self.guard,
            self.resolver,
            turns=Turns(settings.turn_lapse),
            keeper=keeper,
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
        self.service = Service(self.dispatch, self.resolver, self.status, keeper, connection.workspace_fd)
        self.notifier = Notifier()
        self.succession = Succession(
            self._parts(),
            connection,
            self.operations,
            self.dispatch,
            store,
            self.door,
            self._leave,
            _SIGNALS,
        )
        if estate is not None:
            self._inherit(estate)

    def _parts(self) -> dict[str, object]:
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
            **self.service.parts(),
        }
        return {name: part for name, part in parts.items() if part is not None}

    def _leave(self) -> tuple[Spec, int, config.Settings, tuple[str | None, float | None]]:
        if self.notifier.watchdog is not None:
            self.notifier.say(WATCHDOG="1")  # the next program gets the whole time to start
        return self.spec, self.restarts, self.settings, self.notifier.parts()

    def _inherit(self, estate: restart.Estate) -> None:
        """Go on where the program before has ended. The files that are open come through whatever happens."""
        operations = self.operations
        try:
            restart.restore(estate.objects, self._parts(), operations.nodes.__getitem__)
        except Exception as error:
            _log.error("what was on record is lost: %s", describe(error))
            if operations.lane is not None:
                operations.lane.lost_count()
        operations.adopt_handles(estate.handles, dict(operations.handles.files))
        self.dispatch.waiting.resumed = dict(estate.waiting)
        self.connection.resumed = estate.requests

    def status(self) -> dict[str, Any]:
        return {
            "version": __version__,
            "workspace": self.spec.workspace,
            "mountpoint": self.spec.mountpoint,
            "in_place": self.connection.in_place,
            "pid": os.getpid(),
            "io": self.io,
            "io_reason": self.io_reason,
            "disabled": self.spec.disabled,
            "config": list(self.settings.sources),
            "turn_wait": self.dispatch.waiting.seconds,
            "uptime": round(time.time() - self.started, 3),
            "features": self.connection.features(),
            "requests": self.operations.requests(),
            "decisions": self.operations.decisions(),
            "open_files": self.operations.open_files(),
            "nodes": len(self.operations.nodes),
            "cache": self._cache(),
            "memory_bytes": _memory(),
            "keeping": self.store is not None,
            "guard_faults": self.shield.faults,
            "restarts": self.restarts,
            "restart_trouble": self.succession.trouble,
            "cpu_seconds": round(sum(os.times()[:2]), 3),
        }

    def _cache(self) -> dict[str, object]:
        error = self.operations.unwatched
        return self.caching.report(self.operations.heard(), why_not(error.errno or 0) if error else None)

    async def run(self, ready: Ready, notifier: Notifier) -> None:
        self.notifier = notifier
        async with trio.open_nursery() as nursery:
            await nursery.start(self._serve)
            await nursery.start(self.connection.run, self.operations)
            await nursery.start(self._signals)
            if not self.restarts:
                self._register()
                self.service.account.forget(self.spec.state_dir)
            else:
                with _not_fatal("registering"):
                    self._register()
            ready.say({"ready": True, "pid": os.getpid(), "features": self.connection.features()})
            notifier.say(READY="1", STATUS=f"guarding {self.spec.workspace}")
            how = "restarted" if self.restarts else "mounted"
            _log.info("%s %s on %s, version %s", how, self.spec.workspace, self.spec.mountpoint, __version__)
            nursery.start_soon(self.succession.wait)
            if notifier.watchdog is not None:
                nursery.start_soon(self._signs_of_life, notifier, notifier.watchdog / 2)
            nursery.start_soon(self.operations.listen, self.connection.device)
            nursery.start_soon(self._settle)
            nursery.start_soon(self._housekeeping)
            await self.connection.over.wait()
            notifier.say(STOPPING="1", STATUS="unmounted")
            nursery.cancel_scope.cancel()
        for _ in range(2):  # the first look may find that a run's starter was killed
            self.service.runs.forget_runs()
        if not self.spec.disabled:
            await self.service.account.save(self.spec.state_dir)
        _log.info("unmounted %s", self.spec.mountpoint)

    async def _serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        await serve(
            self.spec.socket, self._handlers(), self.spec.owner_uids, door=self.door, task_status=task_status
        )

    def _handlers(self) -> dict[str, Handler]:
        """The service's, each of which knows what the lane has seen, and may change what it may do."""
        lane, handlers = self.operations.lane, self.service.handlers()
        handlers["restart"] = self.succession.restart
        if lane is None:
            return handlers

        def informed(name: str, handler: Handler) -> Handler:
            def call(peer: Peer, params: dict[str, Any]) -> Awaitable[Any] | AsyncIterator[Any]:
                self.operations.let_nobody_make()
                if name not in _QUESTIONS:
                    lane.disown_all()
                return handler(peer, params)

            return call

        return {name: informed(name, handler) for name, handler in handlers.items()}

    def _register(self) -> None:
        start = registry.start_time(os.getpid())
        owners = [uid for uid in self.spec.owner_uids if uid != os.getuid()]
        registry.register(
            self.spec.registry_file,
            registry.Mount(
                mountpoint=self.spec.mountpoint,
                workspace=self.spec.workspace,
                socket=self.spec.socket,
                pid=os.getpid(),
                uid=os.getuid(),
                started=start or 0,
                owners=owners,
            ),
        )

    async def _signals(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with trio.open_signal_receiver(*_SIGNALS) as received:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
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
                signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)

    async def _signs_of_life(self, notifier: Notifier, seconds: float) -> None:
        """For the watchdog. From here, as what hangs this loop hangs the mount."""
        while True:
            notifier.say(WATCHDOG="1")
            await trio.sleep(seconds)

    async def _settle(self) -> None:
        """Deletions whose author has ended are judged now, whoever asks or not."""
        while True:
            await trio.sleep(SETTLE_SECONDS)
            if self.operations.lane is not None:
                self.operations.lane.tidy()
                with _not_fatal("taking records"):
                    self.operations.take_records()
            if self.guard.deletions:
                with _not_fatal("judging deletions"):
                    self.guard.settle(time.time(), self._gone_once())

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
                self.guard.tasks.forget_idle(time.time() - self.settings.forget_after)


@contextmanager
def _not_fatal(what: str) -> Iterator[None]:
    """The mount outlives a mistake in what is only done beside it: somebody works there."""
    try:
        yield
    except Exception as e:
        _log.error("%s failed: %s", what, describe(e))


def _memory() -> int:
    """Resident memory of the daemon in bytes."""
    try:
        with open("/proc/self/statm", "rb") as f:
            return int(f.read().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0


class _Formatter(logging.Formatter):
    """No source lines in tracebacks: they may lie under the mount."""

    def formatException(self, ei: Any) -> str:
        return describe(ei[1]) if ei[1] is not None else ""


def _log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def _store_again(spec: Spec, settings: config.Settings) -> Store | None:
    """After a restart: better nothing is kept than nobody served."""
    if not settings.keep or spec.disabled:
        return None
    try:
        return open_store(spec, settings)
    except Exception as e:
        _log.error("nothing is kept any more: %s", e.message if isinstance(e, FsguardError) else describe(e))
        return None


def main() -> int:
    """Entry point of ``python -m fsguard.daemon``; returns the exit code."""
    if restart.on_trial(__version__, choose_io("auto")[0]):
        return 0
    spec_fd, ready = number_from("FSGUARD_SPEC_FD"), Ready(number_from("FSGUARD_STATUS_FD"))
    notifier = Notifier.take(os.environ)
    install()
    _log_to_stderr()
    os.umask(0o077)
    # Until they are heard (`Daemon._signals`), or a dead mount would be left. Before any thread is made.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        estate = restart.take()
        if estate is not None:
            notifier = Notifier(*estate.notifier)
            spec = Spec.read(estate.spec)
            settings = flat.load(estate.settings, lambda name: name)
            store = _store_again(spec, settings)
        elif spec_fd is None:
            raise UsageError("this is fsguard's daemon", "It is started by `fsguard mount WORKSPACE`.")
        else:
            with open(spec_fd, encoding="ascii") as f:
                spec = Spec.read(json.load(f))
            settings = read_settings(spec)
            store = open_store(spec, settings) if settings.keep and not spec.disabled else None
        try:
            if estate is not None:
                connection = resume(estate.connection)
            else:
                place = None if spec.mountpoint == spec.workspace else spec.mountpoint
                connection = mount(spec.workspace, place, allow_other=spec.allow_other, flags=spec.flags)
            try:
                trio.run(Daemon(spec, settings, connection, store, estate).run, ready, notifier)
            finally:
                registry.remove(spec.registry_file)
                connection.close()
        finally:
            if store is not None:
                store.close()
    except FsguardError as e:
        notifier.say(STATUS=e.message)
        told = ready.say({"error": {"code": e.exit_code, "message": e.message, "hint": e.hint}})
        print(f"fsguard: {e.message}", file=sys.stderr)
        if e.hint and not told:
            print(f"  {e.hint}", file=sys.stderr)
        return e.exit_code
    except Exception as e:
        _log.error("%s", describe(e))
        ready.say({"error": {"code": 1, "message": f"the daemon failed: {e}", "hint": None}})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
