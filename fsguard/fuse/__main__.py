"""Developer's harness: mount with the observer that observes nothing.

    python -m fsguard.fuse WORKSPACE [MOUNTPOINT] [--foreground] [--entry-timeout S] [--attr-timeout S]

SIGTERM or SIGINT unmounts (strictly: while busy it stays mounted), SIGUSR1
prints the status as JSON on standard error.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys

import trio

from ..errors import FsguardError
from ..observer import NullObserver
from .connection import Connection, mount
from .operations import Operations, Settings


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fsguard.fuse", description=__doc__)
    parser.add_argument("workspace")
    parser.add_argument("mountpoint", nargs="?")
    parser.add_argument("--foreground", action="store_true")
    parser.add_argument("--allow-other", action="store_true", default=None)
    parser.add_argument("--keep-cache", action="store_true")
    parser.add_argument("--lane", action="store_true")
    parser.add_argument("--entry-timeout", type=float)
    parser.add_argument("--attr-timeout", type=float)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    ready = None if arguments.foreground else _background()
    try:
        connection = mount(arguments.workspace, arguments.mountpoint, allow_other=arguments.allow_other)
    except FsguardError as error:
        print(f"fsguard.fuse: {error.message}", error.hint or "", sep="\n", file=sys.stderr)
        return error.exit_code
    default = 1.0 if connection.in_place else 0.0
    settings = Settings(
        entry_timeout=default if arguments.entry_timeout is None else arguments.entry_timeout,
        attr_timeout=default if arguments.attr_timeout is None else arguments.attr_timeout,
        keep_cache=arguments.keep_cache,
        lane=arguments.lane,
    )
    operations = Operations(connection.workspace_fd, NullObserver(), settings)
    trio.run(_serve, connection, operations, ready)
    connection.close()
    return 0


def _background() -> int:
    """Go on in a child; the parent leaves when the child says that it is ready."""
    read, write = os.pipe()
    if os.fork():
        os.close(write)
        code = os.read(read, 1)
        os._exit(0 if code else 1)
    os.close(read)
    os.setsid()
    return write


async def _serve(connection: Connection, operations: Operations, ready: int | None) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_signals, connection, operations)
        await nursery.start(connection.run, operations)
        if ready is not None:
            os.write(ready, b"1")
            os.close(ready)
        nursery.start_soon(_until_over, connection, nursery)


async def _until_over(connection: Connection, nursery: trio.Nursery) -> None:
    await connection.over.wait()
    nursery.cancel_scope.cancel()


async def _signals(connection: Connection, operations: Operations) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGUSR1) as signals:
        async for number in signals:
            if number == signal.SIGUSR1:
                status = {
                    **connection.features(),
                    **connection.load(),
                    **operations.status(),
                    "handles": [
                        {"fh": h["fh"], "paths": [os.fsdecode(p) for p in h["paths"]], "flags": h["flags"]}  # type: ignore[attr-defined]
                        for h in operations.open_handles()
                    ],
                }
                print(json.dumps(status), file=sys.stderr, flush=True)
                continue
            try:
                await connection.shut_down()
            except FsguardError as error:
                print(f"fsguard.fuse: {error.message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
