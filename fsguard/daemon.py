"""The daemon: one per workspace.

Started by `fsguard mount` with what it shall do as JSON on one pipe, it says on
another that it is ready, or what is wrong, in one line. Below a service manager
it takes the place of the command instead, and says it there. It ends when the
filesystem is unmounted, by whomever; SIGTERM and SIGINT unmount it.

Where another process can take over when it dies, this one becomes the keeper, and a
copy of it does the work (`keeper.py`).
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import trio

from fsguard import __version__, config, flat, keeper, restart, takeover
from fsguard._clone import die_with_parent
from fsguard.composition import SIGNALS, Daemon
from fsguard.control import registry
from fsguard.errors import DaemonError, FsguardError, UsageError
from fsguard.fuse.connection import Connection, mount, resume
from fsguard.fuse.tracebacks import describe, install
from fsguard.notify import Notifier
from fsguard.starting import Ready, Spec, choose_io, number_from, open_store, read_settings
from fsguard.versions import Store

__all__ = ["Spec", "main"]

_log = logging.getLogger("fsguard.daemon")


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


class Beginning(NamedTuple):
    """What every worker starts from. `connection` is None after a restart: `estate` has it."""

    spec: Spec
    settings: config.Settings
    ready: Ready
    notifier: Notifier
    estate: restart.Estate | None
    connection: Connection | None


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
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    return _answering(lambda: _run(_begin(spec_fd, ready, notifier)), ready, notifier)


def _answering(run: Callable[[], int], ready: Ready, notifier: Notifier) -> int:
    """`run()`; what goes wrong in it is told to whoever started us."""
    try:
        return run()
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


def _begin(spec_fd: int | None, ready: Ready, notifier: Notifier) -> Beginning:
    """Mount, or take what the program before has left."""
    estate = restart.take()
    if estate is not None:
        settings: Any = flat.load(estate.settings, lambda name: name)
        return Beginning(Spec.read(estate.spec), settings, ready, Notifier(*estate.notifier), estate, None)
    if spec_fd is None:
        raise UsageError("this is fsguard's daemon", "It is started by `fsguard mount WORKSPACE`.")
    with open(spec_fd, encoding="ascii") as f:
        spec = Spec.read(json.load(f))
    settings = read_settings(spec)
    if settings.keep and not spec.disabled:
        open_store(spec, settings).close()  # what is wrong with it is said before anything is mounted
    place = None if spec.mountpoint == spec.workspace else spec.mountpoint
    connection = mount(spec.workspace, place, allow_other=spec.allow_other, flags=spec.flags)
    return Beginning(spec, settings, ready, notifier, None, connection)


def _run(beginning: Beginning) -> int:
    """Serve until it is unmounted, in this process or in one that it keeps."""
    spec = beginning.spec
    reason = "it needs the lane" if choose_io(spec.io)[0] != "lane" else takeover.why_no_keeper()
    if beginning.estate is not None and beginning.estate.worker != os.getpid():
        _end(beginning.estate.worker)
    if reason is not None:
        return _work(beginning, None, reason)
    estate, connection = beginning.estate, beginning.connection
    board = keeper.Board()
    fuse_fd = estate.connection.fuse_fd if estate is not None else connection.fuse_fd  # type: ignore[union-attr]
    memory = takeover.Memory(fuse_fd)
    if estate is not None:
        memory.save(takeover.Checkpoint(1, 0, estate.objects))

    def work(dead: Sequence[int]) -> int:
        life = takeover.Life(board, memory, tuple(dead))
        if not dead:
            die_with_parent(True)
            return _answering(lambda: _work(beginning, life, None), beginning.ready, beginning.notifier)
        return _answering(lambda: _work_on(beginning, life), Ready(None), beginning.notifier)

    try:
        return keeper.keep(work, board, restart.execute)
    except keeper.NoWorkerError as error:  # better a mount that dies with this process than none
        return _work(beginning, None, f"no second process can be made here: {error}")


def _end(worker: int) -> None:
    """Of the program before this one; it has left everything, and does nothing any more."""
    try:
        os.kill(worker, signal.SIGKILL)
        while os.waitpid(worker, os.WNOHANG)[0] == 0 and not keeper.dying(worker):
            time.sleep(0.001)
    except (ProcessLookupError, ChildProcessError):
        pass


def _work_on(beginning: Beginning, life: takeover.Life) -> int:
    """Take the place of a worker that has died."""
    will = life.memory.will()
    if will is None:
        life.board.done = True
        raise DaemonError("the daemon died before it served anybody", "its log may say why")
    takeover.close_those_below(beginning.spec.state_dir)
    before = takeover.open_now()
    fuse_fd = os.dup(life.memory.connection)
    if beginning.estate is not None:
        past = beginning.estate.connection._replace(fuse_fd=fuse_fd, agreement=will.agreement)
    else:
        assert beginning.connection is not None
        past = beginning.connection.held(fuse_fd, will.agreement)
    known = {*past.descriptors(), will.listener, *life.memory.descriptors()} - {fuse_fd}

    def ready(daemon: Daemon) -> None:
        takeover.close_strangers(before, known | daemon.descriptors())

    return _work(beginning._replace(connection=resume(past), ready=Ready(None)), life, None, ready)


def _work(
    beginning: Beginning,
    life: takeover.Life | None,
    reason: str | None,
    composed: Callable[[Daemon], object] = lambda daemon: None,
) -> int:
    spec, settings, ready, notifier, estate, connection = beginning
    if estate is None and (life is None or not life.dead):
        store = open_store(spec, settings) if settings.keep and not spec.disabled else None
    else:
        store = _store_again(spec, settings)
    if connection is None:
        assert estate is not None
        connection = resume(estate.connection)
    done = True
    try:
        daemon = Daemon(spec, settings, connection, store, estate, life)
        daemon.keeper_trouble = reason
        composed(daemon)
        trio.run(daemon.run, ready, notifier)
    except Exception as error:
        done = life is None or isinstance(error, FsguardError) or life.memory.will() is None
        raise
    finally:
        if done:
            if life is not None:
                life.board.done = True
            registry.remove(spec.registry_file)
            connection.close()
            if store is not None:
                store.close()
    return 0


def _leave(code: int) -> NoReturn:
    """End this process without taking the interpreter apart: who unmounts waits for it."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _leave(main())
