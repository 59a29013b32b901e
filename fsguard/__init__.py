"""fsguard: many agents, one tree, no lost work.

A workspace is mounted through a passthrough FUSE filesystem. From the outside in:

    api, trio    the same for Python programs: `fsguard.connect`, `fsguard.trio.connect`
    cli          one module per command; talks to the daemon over a Unix socket
    daemon       composition root: the only module that knows all the others
    fuse         the filesystem (pyfuse3); knows files, handles and callers
    attribution  which task a process belongs to (cgroup, environment, ancestry)
    control      the socket: protocol, server, client
    dispatch     carries events to the guard and its decisions back
    core         the guard itself: pure, no clock, no process, no file

Imports go down only; DESIGN.md beside this file says why and what must stay true.
"""

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fsguard.api import (
        Check,
        Completed,
        Footprint,
        GuardWarning,
        Lease,
        TaskInfo,
        ToolCall,
        Version,
        Worker,
        Workspace,
        connect,
    )
    from fsguard.errors import (
        BusyError,
        DaemonError,
        FsguardError,
        MissingError,
        NotMountedError,
        RefusedError,
        UsageError,
    )

__all__ = [
    "BusyError",
    "Check",
    "Completed",
    "DaemonError",
    "Footprint",
    "FsguardError",
    "GuardWarning",
    "Lease",
    "MissingError",
    "NotMountedError",
    "RefusedError",
    "TaskInfo",
    "ToolCall",
    "UsageError",
    "Version",
    "Worker",
    "Workspace",
    "connect",
]


def __getattr__(name: str) -> object:
    """The API, when it is first asked for: every `fsguard hook` imports this module."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = __import__("fsguard.errors" if name.endswith("Error") else "fsguard.api", fromlist=[name])
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
