"""fsguard restart: let a running daemon go on as another version of itself, under everybody's hands."""

from __future__ import annotations

import os
import time

from fsguard.cli import launch, terminal, where
from fsguard.cli.base import Parser
from fsguard.control.client import Client
from fsguard.errors import DaemonError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fsguard.control.registry import Mount

__all__ = ["main"]

_WITHIN = 60.0
"""Seconds until the next program has to answer."""

_NOTE_AFTER = 2.0
_PAUSE = 0.05


def main(argv: list[str]) -> int:
    parser = Parser(
        "restart",
        "Let the daemon of WORKSPACE go on as the program that this command belongs to: an upgrade in\n"
        "place. Calls that come meanwhile wait, none fails; open files, read stamps, turns, leases and\n"
        "warnings stay. If the new version cannot go on with what is on record, nothing is changed.",
        ["fsguard restart project", "fsguard restart --json /srv/project"],
        [0, 2, 3, (4, "it is being restarted or unmounted already"), 6, 7],
    )
    parser.workspace_argument()
    parser.json_flag()
    args = parser.parse(argv)
    mount = where.locate(args.place, args.workspace)
    began = time.monotonic()
    with Client(mount, timeout=_WITHIN + 30) as client:
        before = client.call("status")
        program: dict[str, Any] = {}
        if os.geteuid() == mount.uid:
            program = {"program": launch.program(), "path": launch.python_path()}
        answer = client.call("restart", **program)
    after = _until_it_goes_on(mount, before, time.monotonic())  # the trial is over, which may take long
    pause = round(time.monotonic() - began, 3)
    if args.json:
        terminal.print_json(
            {
                "restarted": True,
                "workspace": mount.workspace,
                "from": answer["from"],
                "to": after["version"],
                "pid": after["pid"],
                "restarts": after["restarts"],
                "seconds": pause,
            }
        )
    else:
        versions = " to ".join(dict.fromkeys([answer["from"], after["version"]]))
        print(f"restarted {terminal.shown(mount.workspace)} (version {versions}, {pause:.1f} s)")
    return 0


def _until_it_goes_on(mount: Mount, before: dict[str, Any], began: float) -> dict[str, Any]:
    noted = False
    while True:
        now: dict[str, Any] | None
        try:
            with Client(mount) as client:
                now = client.call("status")
        except DaemonError:
            now = None
        waited = time.monotonic() - began
        if now is not None:
            if now["restarts"] > before["restarts"]:
                return now
            if now["restart_trouble"]:
                raise DaemonError(f"not restarted: {now['restart_trouble']}", "the daemon goes on as before")
        if waited > _WITHIN:
            raise DaemonError(f"not restarted within {_WITHIN:g} s", "see the daemon's log")
        if waited > _NOTE_AFTER and not noted:
            noted = True
            terminal.note("waiting for what is under way to end …")
        time.sleep(_PAUSE)
