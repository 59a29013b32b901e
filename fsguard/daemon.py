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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import trio

from fsguard import __version__, config, mountflags
from fsguard.attribution.cgroup import CgroupPattern
from fsguard.attribution.resolver import Resolver
from fsguard.caching import Caching, why_not
from fsguard.control import registry
from fsguard.control.server import Handler, Peer, serve
from fsguard.core.guard import Guard, Limits
from fsguard.core.model import Actor, Process
from fsguard.core.policy import DEFAULT_IGNORE, Policies
from fsguard.core.turns import Turns
from fsguard.dispatch import Dispatch, Shield
from fsguard.errors import BusyError, FsguardError, MissingError, NotMountedError, UsageError
from fsguard.fuse._library import interposed
from fsguard.fuse.connection import Connection, mount
from fsguard.fuse.filesystem import Settings as FuseSettings
from fsguard.fuse.operations import Operations
from fsguard.fuse.tracebacks import describe, install
from fsguard.keeping import StoreKeeper
from fsguard.notify import Notifier
from fsguard.observer import NullObserver, Observer
from fsguard.probe import Facts
from fsguard.service import Service
from fsguard.versions import Limits as StoreLimits
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


@dataclass(frozen=True, slots=True)
class Spec:
    """What `fsguard mount` asks for."""

    workspace: str
    mountpoint: str
    state_dir: str
    socket: str
    registry_file: str
    owner_uids: tuple[int, ...]
    config: str | None = None
    allow_other: bool | None = None
    io: str = "auto"
    cache: str | None = None
    policy: str | None = None
    disabled: bool = False
    foreground: bool = False
    wait: float | None = None
    flags: tuple[str, ...] = ()

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Spec:
        try:
            known = {k: v for k, v in raw.items() if k in cls.__dataclass_fields__}
            known["owner_uids"] = tuple(known.get("owner_uids") or (os.getuid(),))
            known["flags"] = tuple(known.get("flags") or ())
            mountflags.bits(known["flags"])
            return cls(**known)
        except (TypeError, KeyError) as e:
            raise UsageError(f"the daemon was started without what it needs: {e}") from None


class Daemon:
    """Everything that one mount consists of."""

    def __init__(
        self, spec: Spec, settings: config.Settings, connection: Connection, store: Store | None
    ) -> None:
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
        self.io, self.io_reason = _io(spec.io)
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
            "cpu_seconds": round(sum(os.times()[:2]), 3),
        }

    def _cache(self) -> dict[str, object]:
        error = self.operations.unwatched
        return self.caching.report(self.operations.heard(), why_not(error.errno or 0) if error else None)

    async def run(self, ready: Ready, notifier: Notifier) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self._serve)
            await nursery.start(self.connection.run, self.operations)
            await nursery.start(self._signals)
            self._register()
            self.service.account.forget(self.spec.state_dir)
            ready.say({"ready": True, "pid": os.getpid(), "features": self.connection.features()})
            notifier.say(READY="1", STATUS=f"guarding {self.spec.workspace}")
            _log.info("mounted %s on %s", self.spec.workspace, self.spec.mountpoint)
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
        await serve(self.spec.socket, self._handlers(), self.spec.owner_uids, task_status=task_status)

    def _handlers(self) -> dict[str, Handler]:
        """The service's, each of which knows what the lane has seen, and may change what it may do."""
        lane, handlers = self.operations.lane, self.service.handlers()
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
        asked = False
        with trio.open_signal_receiver(*_SIGNALS) as received:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            task_status.started()
            try:
                async for number in received:
                    if number == signal.SIGHUP:
                        continue
                    try:
                        await self.connection.shut_down()
                    except BusyError as e:
                        # Going on is better than a dead mount under somebody's work.
                        _log.warning("asked to end, but %s", e.message)
                    except NotMountedError:
                        # By `unmount --lazy`, or another mount namespace has a copy (a container): it
                        # lives as long as its last user, unless whoever asks insists.
                        if asked:
                            self.connection.abandon()
                        asked = True
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


class Ready:
    """The pipe on which the starter waits; says one thing, once."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def say(self, what: Mapping[str, Any]) -> bool:
        """False when nobody waits there."""
        if self._fd is None:
            return False
        try:
            os.write(self._fd, json.dumps(what).encode("ascii") + b"\n")
        except OSError:
            pass  # whoever started us has gone; the mount is there all the same
        os.close(self._fd)
        self._fd = None
        return True


def _io(asked: str) -> tuple[str, str]:
    """(the mode, why that one). MissingError: the one that was asked for cannot be had."""
    if asked == "daemon":
        return "daemon", "asked for"
    if interposed():
        return "lane", "asked for" if asked == "lane" else "the fastest that can be had here"
    reason = "pyfuse3's calls into libfuse cannot be interposed here"
    if asked == "lane":
        raise MissingError(f"no lane: {reason}", "mount with --io daemon, or leave the choice to auto")
    return "daemon", reason


def _memory() -> int:
    """Resident memory of the daemon in bytes."""
    try:
        with open("/proc/self/statm", "rb") as f:
            return int(f.read().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0


def _settings(spec: Spec) -> config.Settings:
    """The configuration that was named, else the workspace's own; read before the mount."""
    own = os.path.join(spec.workspace, config.CONFIG_NAME)
    if spec.config is not None:
        settings = config.load(spec.config)
    else:
        settings = config.load(own) if os.path.lexists(own) else config.Settings()
    return settings if spec.wait is None else replace(settings, turn_wait=spec.wait)


def _store(spec: Spec, settings: config.Settings) -> Store:
    limits = StoreLimits(
        file_bytes=settings.keep_file_bytes,
        age=settings.keep_age,
        per_path=settings.keep_per_path,
        total_bytes=settings.keep_total_bytes,
    )
    try:
        return Store.open(os.path.join(spec.state_dir, "versions"), limits=limits)
    except OSError as e:
        raise UsageError(
            f"kept versions cannot be stored in {spec.state_dir}: {os.strerror(e.errno or 0)}",
            "Name another place with --state-dir.",
        ) from None


def _number(name: str) -> int | None:
    value = os.environ.pop(name, "")
    return int(value) if value.isdigit() else None


class _Formatter(logging.Formatter):
    """No source lines in tracebacks: they may lie under the mount."""

    def formatException(self, ei: Any) -> str:
        return describe(ei[1]) if ei[1] is not None else ""


def _log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def main() -> int:
    """Entry point of ``python -m fsguard.daemon``; returns the exit code."""
    spec_fd, ready = _number("FSGUARD_SPEC_FD"), Ready(_number("FSGUARD_STATUS_FD"))
    notifier = Notifier.take(os.environ)
    install()
    _log_to_stderr()
    os.umask(0o077)
    # Until they are heard (`Daemon._signals`), or a dead mount would be left. Before any thread is made.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        if spec_fd is None:
            raise UsageError("this is fsguard's daemon", "It is started by `fsguard mount WORKSPACE`.")
        with open(spec_fd, encoding="ascii") as f:
            spec = Spec.read(json.load(f))
        settings = _settings(spec)
        place = None if spec.mountpoint == spec.workspace else spec.mountpoint
        store = _store(spec, settings) if settings.keep and not spec.disabled else None
        try:
            connection = mount(spec.workspace, place, allow_other=spec.allow_other, flags=spec.flags)
            try:
                trio.run(Daemon(spec, settings, connection, store).run, ready, notifier)
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
