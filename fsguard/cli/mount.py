"""fsguard mount: checks, the daemon's start, and who still stands outside."""

from __future__ import annotations

import os

from fsguard.cli import holders, terminal
from fsguard.cli.base import Parser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from fsguard.cli.launch import Daemon
    from fsguard.cli.site import Place

__all__ = ["Wish", "about_standing", "begin", "main"]


class Wish:
    """How to mount; `spec` turns it into what the daemon is told. `wait` in seconds;
    `operators` are users, by name or number, who may use the control socket too;
    `flags` are names of `mountflags.SET`."""

    def __init__(
        self,
        *,
        config: str | None = None,
        io: str = "auto",
        cache: str | None = None,
        policy: str | None = None,
        allow_other: bool | None = None,
        foreground: bool = False,
        wait: float | None = None,
        operators: Sequence[str] = (),
        flags: Sequence[str] = (),
    ) -> None:
        self.config = config
        self.io = io
        self.cache = cache
        self.policy = policy
        self.allow_other = allow_other
        self.foreground = foreground
        self.wait = wait
        self.operators = operators
        self.flags = flags


def main(argv: list[str]) -> int:
    args = _parser().parse(argv)
    from fsguard.cli import site
    from fsguard.cli.mountoptions import duration

    place = site.choose(args.workspace, args.mountpoint, args.state_dir)
    wish = Wish(
        config=args.config,
        io=args.io,
        cache=args.cache,
        policy=args.policy,
        allow_other=args.allow_other,
        foreground=args.foreground,
        wait=None if args.wait is None else duration(args.wait),
        operators=args.operator or (),
        flags=("ro",) if args.read_only else (),
    )
    answer, daemon = begin(place, wish)
    if args.json:
        terminal.print_json(answer)
    else:
        _say(answer, place.in_place)
    return _attend(daemon, place.mountpoint) if args.foreground else 0


def begin(place: Place, wish: Wish) -> tuple[dict[str, Any], Daemon]:
    """Mount; returns when it is ready, with the facts about it and the daemon.

    In the foreground below a service manager that wants to be told (sd_notify), this
    process becomes the daemon, and nothing is returned. FsguardError: it failed, and
    nothing of it is left.
    """
    from fsguard.cli import launch, site

    recovered = site.clear_dead(place)
    site.check(place)
    standing = holders.standing(place.workspace) if place.in_place else []
    spec = site.spec(place, wish)
    if wish.foreground and os.environ.get("NOTIFY_SOCKET"):
        for line in about_standing([holder.as_dict() for holder in standing]):
            terminal.note(line)
        launch.become(spec)
    daemon = launch.launch(spec, place.log)
    if wish.foreground:
        _hold_signals()
    return {
        "workspace": place.workspace,
        "mountpoint": place.mountpoint,
        "pid": daemon.ready.get("pid", daemon.process.pid),
        "features": daemon.ready.get("features", {}),
        "recovered": recovered,
        "disabled": spec["disabled"],
        "standing": [holder.as_dict() for holder in standing],
    }, daemon


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
            "sudo fsguard mount --operator runner --state-dir /var/lib/fsguard/ws /srv/ws",
        ],
        [0, 2, 3, 4, 5, 6, (7, "the daemon did not come up; its log is named")],
    )
    parser.add_argument("workspace", metavar="WORKSPACE", help="the directory to guard")
    parser.add_argument("mountpoint", metavar="MOUNTPOINT", nargs="?", help="default: WORKSPACE itself")
    parser.add_argument("--foreground", action="store_true", help="stay, log to stderr; Ctrl-C unmounts")
    parser.add_argument("--config", metavar="FILE", help="default: fsguard.toml in the workspace, if there")
    parser.add_argument("--state-dir", metavar="DIR", help="default: below $XDG_STATE_HOME/fsguard")
    parser.add_argument(
        "--io",
        choices=["auto", "lane", "daemon"],
        default="auto",
        help="who answers what needs no decision: the compiled lane, or Python for everything",
    )
    parser.add_argument(
        "--cache",
        choices=["auto", "short", "trust"],
        help="what the kernel may believe: for long where changes behind the mount are heard of (auto); for"
        " a second; for long, as nobody goes around the mount (trust)",
    )
    parser.add_argument("--policy", choices=["warn", "block", "off"], help="default: as configured")
    parser.add_argument("--wait", metavar="TIME", help="how long an open waits for its turn: 10s, 500ms")
    parser.add_argument("--read-only", action="store_true", help="nobody writes through this mount")
    parser.add_argument("--operator", metavar="USER", action="append", help="this user may use the control"
                        " socket, too (run tasks, read warnings); may be given several times")  # fmt: skip
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--allow-other", dest="allow_other", action="store_true", default=None,
                       help="let other users in (default for root)")  # fmt: skip
    other.add_argument("--no-allow-other", dest="allow_other", action="store_false", help="only yourself")
    parser.json_flag()
    return parser


def about_standing(standing: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines about the processes (as dictionaries) that entered the directory before the mount."""
    if not standing:
        return []
    lines = [f"{len(standing)} process(es) entered the directory before and go around the mount:"]
    lines += [f"  {holders.describe(holder)}" for holder in standing[:10]]
    if len(standing) > 10:
        lines.append(f"  and {len(standing) - 10} more")
    return [*lines, 'a shell comes in by: cd "$PWD"']


def _say(answer: dict[str, Any], in_place: bool) -> None:
    where = "in place" if in_place else f"at {terminal.shown(answer['mountpoint'])}"
    guard = " with no guard (FSGUARD_DISABLE=1)" if answer["disabled"] else ""
    print(f"mounted {terminal.shown(answer['workspace'])} {where}{guard}", flush=True)
    for line in about_standing(answer["standing"]):
        terminal.note(line)


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
