"""fsguard unmount: end a mount, living or dead; who holds it open, when busy."""

from __future__ import annotations

import os
import select
import time

from fsguard.cli import detach, holders, site, terminal, where
from fsguard.cli.base import Parser
from fsguard.control import mountinfo, registry
from fsguard.errors import BusyError, DaemonError, NotMountedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from fsguard.cli.holders import Holder
    from fsguard.control.registry import Mount

__all__ = ["finish", "main", "strictly", "target"]

_END_WITHIN = 10.0
"""Seconds that a daemon may take to end after its mount is gone."""

_COPIES_AFTER = 2.0
"""Seconds after which a daemon that goes on makes one ask who else shows its filesystem."""

_SETTLE = 1.0
"""Seconds in which a mount that nobody visible holds may still be let go."""


def main(argv: list[str]) -> int:
    parser = Parser(
        "unmount",
        "End the mount that WORKSPACE belongs to. Nothing is forced: while it is in use it stays, unless\n"
        "with --lazy: then nobody enters it any more, and it ends with its last user.",
        ["fsguard unmount project", "fsguard unmount --json /srv/project"],
        [0, 2, 3, (4, "still in use; the processes are listed"), 5, 6, 7],
    )
    parser.workspace_argument()
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--lazy", action="store_true", help="while in use, take it out of the tree all the same")
    how.add_argument("--dead", action="store_true", help="only if its daemon is gone; then as with --lazy")
    parser.json_flag()
    args = parser.parse(argv)
    path = where.named(args.place, args.workspace) or where.here()
    try:
        mountpoint, notes = target(path)
    except NotMountedError:
        if args.dead:
            return _left(os.path.abspath(path), args.json)
        raise
    if args.dead and not site.is_dead(mountpoint):
        return _left(mountpoint, args.json)
    held = []
    try:
        shown = mountinfo.top_at(mountpoint, mountinfo.read())
        strictly(mountpoint)
    except BusyError as error:
        top = mountinfo.top_at(mountpoint, mountinfo.read())
        held = [holder.as_dict() for holder in holders.holding(top)] if top else []
        if not (args.lazy or args.dead):
            if args.json:
                terminal.print_json({"unmounted": False, "mountpoint": mountpoint, "holders": held})
            raise
        terminal.complain(error)
        detach.unmount(mountpoint, lazy=True)
    else:
        finish(notes, shown.device if shown is not None else "")
    if args.json:
        terminal.print_json({"unmounted": True, "mountpoint": mountpoint, "holders": held})
    else:
        print(f"unmounted {terminal.shown(mountpoint)}" + (", and still in use" if held else ""))
    return 0


def _left(path: str, as_json: bool) -> int:
    """--dead, and there is nothing dead."""
    if as_json:
        terminal.print_json({"unmounted": False, "mountpoint": path, "holders": []})
    return 0


def strictly(mountpoint: str, *, besides: Collection[int] = ()) -> None:
    """Unmount, or BusyError with the processes that hold it open.

    Those of `besides` are not named: with them alone the error has no hint.
    A process that just ended may hold it for a moment without being seen any more;
    that moment is waited for.
    """
    deadline = time.monotonic() + _SETTLE
    while True:
        try:
            detach.unmount(mountpoint)
            return
        except BusyError as error:
            entries = mountinfo.read()
            top = mountinfo.top_at(mountpoint, entries)
            inner = [entry.path for entry in mountinfo.under(mountpoint, entries)]
            held = holders.holding(top) if top else []
            if held and not inner and all(holder.pid in besides for holder in held):
                raise BusyError(error.message) from None
            held = [holder for holder in held if holder.pid not in besides]
            if not (held or inner) and time.monotonic() < deadline:
                time.sleep(0.02)
                continue
            raise BusyError(error.message, _who(held, inner)) from None


def finish(notes: list[tuple[str, Mount]], device: str = "") -> None:
    """Wait until the daemons of a mount that is gone have ended, and forget them.

    `device`: of the filesystem, as mountinfo says it. DaemonError: one goes on
    running, perhaps because other mount namespaces still show the filesystem.
    """
    for file, mount in notes:
        if not _ended(mount, _COPIES_AFTER):
            others = mountinfo.elsewhere(device) if device else []
            if others:
                named = ", ".join(f"{terminal.quoted(holders.command_of(p))} (pid {p})" for p in others)
                raise DaemonError(
                    f"{mount.mountpoint} is unmounted, but goes on in other mount namespaces: {named}",
                    f"the daemon ends with them; `kill {mount.pid}` twice ends it now: they get ENOTCONN",
                )
        if not _ended(mount, _END_WITHIN):
            raise DaemonError(
                f"{mount.mountpoint} is unmounted, but its daemon (pid {mount.pid}) is still running",
                f"its log may say why; `kill {mount.pid}` ends it",
            )
        for left in (file, mount.socket):
            try:
                os.unlink(left)
            except OSError:
                pass  # gone, as it should be; or root's, and then root's daemon did it


def target(path: str) -> tuple[str, list[tuple[str, Mount]]]:
    """(mountpoint, the notes about it) for any path inside a mount or its workspace."""
    noted = registry.entries()
    entries = mountinfo.read()
    for mount in registry.matching(path, [mount for _, mount in noted]):
        top = mountinfo.top_at(mount.mountpoint, entries)
        if top is not None and top.fstype == mountinfo.FSTYPE:
            return mount.mountpoint, [note for note in noted if note[1].mountpoint == mount.mountpoint]
    plain = os.path.abspath(path)
    guarded = [entry.path for entry in entries if entry.fstype == mountinfo.FSTYPE]
    for spelling in (plain, os.path.realpath(plain)):
        tops = [top for top in guarded if mountinfo.inside(spelling, top)]
        if tops:
            return max(tops, key=len), []
    registry.live()  # throws away notes of dead daemons whose mount is gone
    raise NotMountedError(f"{plain} is not in a guarded workspace")


def _ended(mount: Mount, seconds: float) -> bool:
    try:
        fd = os.pidfd_open(mount.pid)
    except OSError:
        return True
    try:
        if registry.start_time(mount.pid) != mount.started:
            return True  # another process by now
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(1000 * seconds))
    finally:
        os.close(fd)


def _who(held: list[Holder], inner: list[str]) -> str:
    lines = [str(holder) for holder in held[:20]]
    if len(held) > 20:
        lines.append(f"and {len(held) - 20} more processes")
    lines += [f"{path} is mounted inside" for path in inner[:5]]
    return "\n".join(lines) or "by a process that we may not see (try as root)"
