"""fsguard metrics: counters and gauges as Prometheus text, once or by HTTP on the loopback.

https://prometheus.io/docs/instrumenting/exposition_formats/ (text format 0.0.4); names by
https://prometheus.io/docs/practices/naming/.
"""

from __future__ import annotations

from fsguard import __version__
from fsguard.cli import terminal, where
from fsguard.cli.base import Parser
from fsguard.control import registry
from fsguard.control.client import Client
from fsguard.errors import FsguardError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from fsguard.control.registry import Mount

__all__ = ["exposition", "main"]

_SECONDS = 5.0
"""How long one daemon may keep a scrape waiting."""

Sample = tuple[dict[str, str], float]


def main(argv: list[str]) -> int:
    parser = Parser(
        "metrics",
        "Counters and gauges of the mount that WORKSPACE belongs to, as Prometheus text; outside of any\n"
        "mount, and without WORKSPACE: of all mounts of yours. --listen answers GET /metrics until Ctrl-C.",
        [
            "fsguard metrics",
            "fsguard metrics > /var/lib/node_exporter/fsguard.prom",
            "fsguard metrics --listen 127.0.0.1:9797",
        ],
        [0, 2, 3, (4, "--listen: the port is in use"), 6, 7, (130, "--listen was ended by Ctrl-C")],
    )
    parser.workspace_argument()
    parser.add_argument(
        "--listen", metavar="[HOST:]PORT", help="serve them by HTTP; HOST is of the loopback (127.0.0.1)"
    )
    args = parser.parse(argv)
    given = where.named(args.place, args.workspace)
    everything = not given and registry.find(where.here()) is None
    named = None if everything else where.locate(given)
    if args.listen is not None:
        return _listen(args.listen, named)
    if named is None:
        print(exposition([(mount, _ask(mount)) for mount in registry.live()]), end="")
        return 0
    with Client(named, timeout=_SECONDS) as client:  # here, one that does not answer is an error
        print(exposition([(named, client.call("metrics"))]), end="")
    return 0


def _listen(place: str, named: Mount | None) -> int:
    """Serve the mounts that there are, or the named one: when that has ended, it is down."""
    import os

    from fsguard.cli.scrape import address, serve

    def text() -> str:
        mounts = registry.live() if named is None else [registry.find(named.mountpoint) or named]
        return exposition([(mount, _ask(mount)) for mount in mounts])

    host, port = address(place)
    os.chdir("/")  # standing in the workspace would keep it from being unmounted
    return serve((host, port), text)


def _ask(mount: Mount) -> dict[str, Any] | None:
    try:
        with Client(mount, timeout=_SECONDS) as client:
            answer: dict[str, Any] = client.call("metrics")
            return answer
    except FsguardError:
        return None


class _Text:
    """Families of samples, each with its HELP and TYPE."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, name: str, kind: str, help_: str, samples: Sequence[Sample]) -> None:
        if not samples:
            return
        self._lines.append(f"# HELP {name} {help_}")
        self._lines.append(f"# TYPE {name} {kind}")
        for labels, value in samples:
            inner = ",".join(f'{key}="{_label(text)}"' for key, text in labels.items())
            number = int(value) if value == int(value) else value  # the shortest that reads back the same
            self._lines.append(f"{name}{{{inner}}} {number}" if inner else f"{name} {number}")

    def __str__(self) -> str:
        return "".join(line + "\n" for line in self._lines)


def exposition(found: Sequence[tuple[Mount, dict[str, Any] | None]]) -> str:
    """The text for these mounts; None is a daemon that did not answer."""
    text = _Text()
    text.add("fsguard_build_info", "gauge", "Version of fsguard.", [({"version": __version__}, 1)])
    up = [({"workspace": mount.workspace}, float(state is not None)) for mount, state in found]
    text.add("fsguard_up", "gauge", "Whether the daemon of this workspace answers.", up)
    states = [({"workspace": mount.workspace}, state) for mount, state in found if state is not None]

    def one(name: str, kind: str, help_: str, *keys: str) -> None:
        """A number that lies below `keys`; what an older daemon does not say is left out."""
        samples: list[Sample] = []
        for labels, state in states:
            value: Any = state
            for key in keys:
                value = value.get(key) if isinstance(value, dict) else None
            if isinstance(value, int | float):
                samples.append((labels, float(value)))
        text.add(name, kind, help_, samples)

    def by(name: str, kind: str, help_: str, label: str, key: str) -> None:
        """A number for each name in the table at `key`."""
        samples = [
            ({**labels, label: str(what)}, float(number))
            for labels, state in states
            for what, number in sorted((state.get(key) or {}).items())
        ]
        text.add(name, kind, help_, samples)

    for _, state in states:
        _derive(state)
    one("fsguard_uptime_seconds", "gauge", "How long the mount has been there.", "uptime")
    one("fsguard_cpu_seconds_total", "counter", "Processor time of the daemon.", "cpu_seconds")
    one("fsguard_resident_memory_bytes", "gauge", "Memory of the daemon.", "memory_bytes")
    by("fsguard_requests_total", "counter", "Requests of the kernel to the daemon.", "operation", "requests")
    by(
        "fsguard_attributions_total",
        "counter",
        "How processes were found to belong to a task.",
        "means",
        "attribution",
    )
    by("fsguard_warnings_total", "counter", "Warnings that were raised.", "kind", "raised")
    by("fsguard_warnings_withdrawn_total", "counter", "Warnings that proved untrue.", "kind", "withdrawn")
    one("fsguard_warnings_pending", "gauge", "Warnings that are not yet delivered.", "pending")
    by("fsguard_tasks", "gauge", "Tasks that are remembered.", "state", "by_state")
    one("fsguard_open_handles", "gauge", "Files that are open now.", "open_handles")
    one("fsguard_known_paths", "gauge", "Paths in the ledger.", "paths_known")
    one("fsguard_log_lines", "gauge", "Lines of the log that are kept.", "log_lines")
    one("fsguard_waiting_opens", "gauge", "Opens that wait for a turn or behind a lease now.", "waiting")
    one("fsguard_turn_waits_total", "counter", "Opens that waited for a turn.", "turns", "waits")
    one("fsguard_turn_wait_seconds_total", "counter", "Time spent waiting for turns.", "turns", "seconds")
    one("fsguard_leases", "gauge", "Leases that are held.", "held")
    one(
        "fsguard_kept_versions",
        "gauge",
        "Versions on record in the store, of all mounts.",
        "kept",
        "versions",
    )
    one("fsguard_kept_bytes", "gauge", "Bytes in the store of kept versions.", "kept", "bytes")
    one(
        "fsguard_guard_faults_total",
        "counter",
        "Faults in the guard that were kept from callers.",
        "guard_faults",
    )
    return str(text)


def _derive(state: dict[str, Any]) -> None:
    """Numbers that `status` gives as lists."""
    counts = dict.fromkeys(("running", "idle", "ended"), 0)
    for task in state.get("tasks") or ():
        counts[task["state"]] = counts.get(task["state"], 0) + 1
    state["by_state"] = counts
    state["waiting"] = sum(len(queue["queue"]) for queue in state.get("queues") or ())
    state["held"] = len(state.get("leases") or ())


def _label(text: str) -> str:
    """A label's value: UTF-8 on one line; what is no text is spelled out."""
    return terminal.shown(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
