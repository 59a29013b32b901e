"""Telling the service manager: readiness, the watchdog and the end, as sd_notify(3) says.

One datagram of NAME=VALUE lines to the socket that NOTIFY_SOCKET names; nothing
of libsystemd is needed. Whoever started us in another way has no such variable,
and nothing is said.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

__all__ = ["Notifier"]


class Notifier:
    """`watchdog` is how many seconds the service manager waits for a sign of life; None: it does not."""

    def __init__(self, address: str | None = None, watchdog: float | None = None) -> None:
        self._address = address
        self.watchdog = watchdog

    @classmethod
    def take(cls, environ: MutableMapping[str, str]) -> Notifier:
        """From the variables of the service manager, which are taken out: children have no part in it."""
        address = environ.pop("NOTIFY_SOCKET", "")
        wanted, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        if address[:1] not in ("/", "@") or len(address) < 2:
            return cls()
        ours = not pid or pid == str(os.getpid())
        watchdog = int(wanted) / 1e6 if ours and wanted.isdecimal() and int(wanted) > 0 else None
        return cls(address, watchdog)

    def parts(self) -> tuple[str | None, float | None]:
        """For the program that comes next: what to make one of."""
        return self._address, self.watchdog

    def say(self, **facts: str) -> None:
        """Send the facts. Never waits and never fails: the work goes on without the manager."""
        if self._address is None:
            return
        lines = (f"{name}={value.replace(chr(10), ' ')}\n" for name, value in facts.items())
        data = "".join(lines).encode("utf-8", "replace")
        # "@" stands for the zero byte of the abstract namespace.
        address = os.fsencode(self._address)
        if address.startswith(b"@"):
            address = b"\0" + address[1:]
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.setblocking(False)
            try:
                sock.sendto(data, address)
            except OSError:
                pass
