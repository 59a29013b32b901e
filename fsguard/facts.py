"""Facts about a running mount, for status."""

from __future__ import annotations

import os
import resource
import time
from typing import TYPE_CHECKING, Any

from fsguard import __version__
from fsguard.caching import why_not

if TYPE_CHECKING:
    from fsguard.composition import Daemon

__all__ = ["status"]


def status(daemon: Daemon) -> dict[str, Any]:
    """What `fsguard status` says of the mount itdaemon."""
    return {
        "version": __version__,
        "workspace": daemon.spec.workspace,
        "mountpoint": daemon.spec.mountpoint,
        "in_place": daemon.connection.in_place,
        "pid": daemon.pid,
        "worker_pid": os.getpid(),
        "keeper_pid": daemon.life.board.keeper if daemon.life is not None else None,
        "keeper_reason": daemon.keeper_trouble,
        "takeovers": daemon.takeovers,
        "takeover_trouble": daemon.takeover_trouble,
        "io": daemon.io,
        "io_reason": daemon.io_reason,
        "disabled": daemon.spec.disabled,
        "config": list(daemon.settings.sources),
        "turn_wait": daemon.dispatch.waiting.seconds,
        "uptime": round(time.time() - daemon.started, 3),
        "features": daemon.connection.features(),
        "requests": daemon.operations.requests(),
        "decisions": daemon.operations.decisions(),
        "open_files": daemon.operations.open_files(),
        "nodes": len(daemon.operations.nodes),
        "cache": _cache(daemon),
        "memory_bytes": _memory(),
        "keeping": daemon.store is not None,
        "guard_faults": daemon.shield.faults,
        "restarts": daemon.restarts,
        "restart_trouble": daemon.succession.trouble,
        "cpu_seconds": round(sum(os.times()[:2]), 3),
    }


def _cache(daemon: Daemon) -> dict[str, object]:
    error = daemon.operations.unwatched
    return daemon.caching.report(daemon.operations.heard(), why_not(error.errno or 0) if error else None)


def _memory() -> int:
    """Resident memory of the daemon in bytes."""
    try:
        with open("/proc/self/statm", "rb") as f:
            return int(f.read().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0
