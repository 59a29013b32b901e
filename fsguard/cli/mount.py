"""fsguard mount: checks, the daemon's start, and who still stands outside."""

from __future__ import annotations

from fsguard.cli import holders, terminal
from fsguard.cli.base import Parser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fsguard.cli.holders import Holder
    from fsguard.cli.launch import Daemon

__all__ = ["main"]


def main(argv: list[str]) -> int:
    args = _parser().parse(argv)
    from fsguard.cli import site
    from fsguard.cli.launch import launch

    place = site.choose(args.workspace, args.mountpoint, args.state_dir)
    recovered = site.clear_dead(place)
    site.check(place)
    standing = holders.standing(place.workspace) if place.in_place else []
    spec = site.spec(place, args)
    daemon = launch(spec, place.log)
    if args.foreground:
        _hold_signals()
    answer = {
        "workspace": place.workspace,
        "mountpoint": place.mountpoint,
        "pid": daemon.ready.get("pid", daemon.process.pid),
        "features": daemon.ready.get("features", {}),
        "recovered": recovered,
        "standing": [holder.as_dict() for holder in standing],
    }
    if args.json:
        terminal.print_json(answer)
    else:
        _say(answer, place.in_place, standing, spec)
    return _attend(daemon, place.mountpoint) if args.foreground else 0


def _parser() -> Parser:
    parser = Parser(
        "mount",
        "Guard WORKSPACE: every write in it is watched, and whoever is about to overwrite what it has not\n"
        "seen is told. Without MOUNTPOINT the mount lies over the directory itself, so that all paths stay.\n"
        "Returns when the mount is ready. FSGUARD_DISABLE=1 mounts without any guard.",
        [
            "fsguard mount project",
            "fsguard mount --policy block project",
            "fsguard mount --foreground /srv/tree /srv/guarded",
        ],
        [0, 2, 3, 4, 5, 6, (7, "the daemon did not come up; its log is named")],
    )
    parser.add_argument("workspace", metavar="WORKSPACE", help="the directory to guard")
    parser.add_argument("mountpoint", metavar="MOUNTPOINT", nargs="?", help="default: WORKSPACE itself")
    parser.add_argument("--foreground", action="store_true", help="stay, log to stderr; Ctrl-C unmounts")
    parser.add_argument("--config", metavar="FILE", help="default: fsguard.toml in the workspace, if there")
    parser.add_argument("--state-dir", metavar="DIR", help="default: below $XDG_STATE_HOME/fsguard")
    parser.add_argument("--io", choices=["daemon"], default="daemon", help="who moves the bytes")
    parser.add_argument("--policy", choices=["warn", "block", "off"], help="default: as configured")
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--allow-other", dest="allow_other", action="store_true", default=None,
                       help="let other users in (default for root)")  # fmt: skip
    other.add_argument("--no-allow-other", dest="allow_other", action="store_false", help="only yourself")
    parser.json_flag()
    return parser


def _say(answer: dict[str, Any], in_place: bool, standing: list[Holder], spec: dict[str, Any]) -> None:
    where = "in place" if in_place else f"at {terminal.shown(answer['mountpoint'])}"
    guard = " with no guard (FSGUARD_DISABLE=1)" if spec["disabled"] else ""
    print(f"mounted {terminal.shown(answer['workspace'])} {where}{guard}", flush=True)
    if standing:
        terminal.note(f"{len(standing)} process(es) entered the directory before and go around the mount:")
        for holder in standing[:10]:
            terminal.note(f"  {holder}")
        if len(standing) > 10:
            terminal.note(f"  and {len(standing) - 10} more")
        terminal.note('a shell comes in by: cd "$PWD"')


def _hold_signals() -> set[int]:
    """Keep back what `_attend` will wait for."""
    import signal

    waited = {int(signal.SIGINT), int(signal.SIGTERM), int(signal.SIGHUP), int(signal.SIGCHLD)}
    signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    return waited


def _attend(daemon: Daemon, mountpoint: str) -> int:
    """Stay until the mount ends. The first INT, TERM or HUP unmounts, and if it is busy
    says who holds it and stays; the next one takes it out of the tree at once."""
    import signal

    from fsguard.cli import detach
    from fsguard.cli.unmount import strictly
    from fsguard.errors import BusyError, FsguardError

    waited = _hold_signals()
    busy = False
    while daemon.process.poll() is None:
        if signal.sigwait(waited) == signal.SIGCHLD:
            continue
        try:
            if busy:
                detach.unmount(mountpoint, lazy=True)
            else:
                strictly(mountpoint)
        except BusyError as error:
            busy = True
            terminal.complain(error)
            terminal.note("once more takes the mount out of the tree at once, whoever holds it")
        except FsguardError as error:  # not mounted any more, or not ours to unmount: by its own hand
            terminal.complain(error)
            daemon.process.terminate()
    return daemon.process.returncode if daemon.process.returncode >= 0 else 7
