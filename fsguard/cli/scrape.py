"""The small HTTP server of `fsguard metrics --listen`: one path, this machine only.

It says what runs in a workspace, so it listens on the loopback alone, and answers
only to requests that were meant for it: a page in a browser that lets its own name
point to 127.0.0.1 sends that name as Host.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import socketserver
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING

from fsguard.cli import terminal
from fsguard.errors import BusyError, MissingError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["address", "serve"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def address(text: str) -> tuple[str, int]:
    """(host, port) of [HOST:]PORT. UsageError: no such port, or a host beyond the loopback."""
    host, _, digits = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not (digits.isascii() and digits.isdigit() and int(digits) < 65536):
        raise UsageError(f"--listen {terminal.shown(text)}: no port", "for example --listen 127.0.0.1:9797")
    if host == "localhost":
        host = "127.0.0.1"
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        hint = (
            "127.0.0.1 or ::1; a scraper elsewhere comes by its own tunnel or the node exporter's text files"
        )
        raise UsageError(f"--listen {terminal.shown(text)}: only the loopback is served", hint)
    return host, int(digits)


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 16

    def __init__(self, place: tuple[str, int], text: Callable[[], str]) -> None:
        self.address_family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        self.text = text
        super().__init__(place, _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A scraper that went away is nobody's fault."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10
    server_version = "fsguard"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, body: bool) -> None:
        if not _ours(self.headers.get("Host", "")):
            self._send(403, "text/plain", "fsguard: not for this host\n", body)
        elif self.path.split("?")[0] != "/metrics":
            self._send(404, "text/plain", "fsguard: GET /metrics\n", body)
        else:
            self._send(200, CONTENT_TYPE, self.server.text(), body)

    def _send(self, code: int, kind: str, text: str, body: bool) -> None:
        data = text.encode("utf-8", "backslashreplace")
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """No line a scrape."""


def _ours(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    name = name.removeprefix("[").removesuffix("]")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def serve(place: tuple[str, int], text: Callable[[], str]) -> int:
    """Answer until Ctrl-C; `text` is called for each scrape."""
    try:
        server = _Server(place, text)
    except OSError as error:
        where = f"{place[0]}:{place[1]}"
        if error.errno == errno.EADDRINUSE:
            raise BusyError(f"{where} is in use", "another port; 0 takes a free one") from None
        raise MissingError(f"cannot listen on {where}: {error.strerror}") from None
    with server:
        host, port = server.server_address[:2]
        shown = f"[{host!s}]" if ":" in str(host) else str(host)
        print(f"http://{shown}:{port}/metrics", flush=True)
        server.serve_forever(poll_interval=0.2)
    return 0
