"""mount.fsguard: what mount(8) calls for `mount -t fsguard WORKSPACE MOUNTPOINT`, and for a line of fstab.

mount(8) looks for it in /sbin, also under the name mount.fuse.fsguard when it
remounts: that is the type which the kernel shows. Called with
`SOURCE TARGET [-sfnv] [-N NAMESPACE] [-t TYPE] [-o OPTIONS]`; ends with the exit
codes of mount(8).
"""

from __future__ import annotations

import os
import sys

from fsguard.cli import mountoptions, terminal
from fsguard.errors import ConfigError, FsguardError, MissingError, RefusedError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from fsguard.cli.mountoptions import Options
    from fsguard.cli.site import Place

__all__ = ["STATE_DIR", "exit_code", "main", "state_name"]

STATE_DIR = "/var/lib/fsguard"
"""Where root's mounts made by mount(8) and by the unit keep what outlives them."""

USAGE, SYSTEM, BUG, INTERRUPTED, FAILED = 1, 2, 4, 8, 32

_HELP = """usage: mount -t fsguard WORKSPACE MOUNTPOINT [-o OPTION,...]
       mount.fsguard WORKSPACE MOUNTPOINT [-sfnv] [-N NAMESPACE] [-o OPTION,...]

Guards WORKSPACE, a directory; with MOUNTPOINT the same, in place. A line of /etc/fstab:

  /srv/ws  /srv/ws  fsguard  policy=block,wait=10s,operator=runner,nofail  0  0

options:
  policy=warn|block|off  what happens to a conflict (default: as configured)
  wait=TIME              how long an open waits for its turn: 10s, 500ms, 2min
  config=FILE            instead of fsguard.toml in the workspace
  state_dir=DIR          for kept bytes and the log (root's default: below /var/lib/fsguard)
  io=auto|lane|daemon    who answers what needs no decision: compiled code, or Python for everything
  cache=auto|short|trust what the kernel may keep: for long where changes behind the mount are heard of,
                         for a second, or for long since nobody makes any
  operator=USER          who else may use the control socket; may be given several times
  allow_other, noallow_other   let other users in (root's default), or not
  ro, nosuid, nodev, noexec, noatime, ... and their opposites, as in mount(8)
  remount                change policy, wait, ro and the like of a mount that stands
A value with a comma is put in double quotes.

exit codes, as mount(8) has them:
  0   mounted
  1   a wrong option, name or value, or not allowed
  2   something the machine lacks
  32  the mount failed
"""


class _Call:
    """How mount(8) called us."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.options: list[str] = []
        self.sloppy = self.fake = self.verbose = False
        self.namespace: str | None = None


def main(argv: Sequence[str] | None = None) -> int:
    terminal.prepare()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if any(word in ("-h", "--help") for word in arguments):
        print(_HELP, end="")
        return 0
    if any(word in ("-V", "--version") for word in arguments):
        from fsguard import __version__

        print(f"mount.fsguard {__version__}")
        return 0
    try:
        return _mount(_read(arguments))
    except KeyboardInterrupt:
        return INTERRUPTED
    except FsguardError as error:
        terminal.complain(error)
        return exit_code(error)
    except Exception as error:
        if os.environ.get("FSGUARD_DEBUG"):
            import traceback

            traceback.print_exc()
        what = f"an error of its own: {type(error).__name__}: {error}"
        terminal.complain(FsguardError(what, "FSGUARD_DEBUG=1 shows where"))
        return BUG


def exit_code(error: FsguardError) -> int:
    """mount(8)'s code for an error of ours."""
    if isinstance(error, MissingError):
        return SYSTEM
    if isinstance(error, UsageError | ConfigError | RefusedError):
        return USAGE
    return FAILED


def state_name(path: str) -> str:
    """An absolute path as one file name, as `systemd-escape --path` spells it."""
    raw = os.fsencode(os.path.normpath(path)).strip(b"/")
    if not raw:
        return "-"
    plain = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:_."
    out = []
    for at, byte in enumerate(raw):
        if byte == ord("/"):
            out.append("-")
        elif byte in plain and not (at == 0 and byte == ord(".")):
            out.append(chr(byte))
        else:
            out.append(f"\\x{byte:02x}")
    return "".join(out)


def _read(arguments: list[str]) -> _Call:
    call = _Call()
    rest = iter(arguments)
    only_words = False
    for word in rest:
        if only_words or not word.startswith("-") or word == "-":
            call.words.append(word)
        elif word == "--":
            only_words = True
        else:
            _letters(call, word, rest)
    if len(call.words) != 2:
        raise UsageError(
            f"mount.fsguard needs a workspace and a mountpoint, not {len(call.words)} names",
            "mount -t fsguard /srv/ws /srv/ws",
        )
    return call


def _letters(call: _Call, word: str, rest: Any) -> None:
    letters = word[1:]
    while letters:
        letter, letters = letters[0], letters[1:]
        if letter in "oNt":
            value = letters or next(rest, None)
            if value is None:
                raise UsageError(f"-{letter} needs a value", "see `mount.fsguard --help`")
            if letter == "o":
                call.options.append(value)
            elif letter == "N":
                call.namespace = value
            return
        if letter == "s":
            call.sloppy = True
        elif letter == "f":
            call.fake = True
        elif letter == "v":
            call.verbose = True
        elif letter not in "nrw":  # -n: there is no mtab to leave out
            raise UsageError(f"unknown flag: -{letter}", "see `mount.fsguard --help`")
        if letter in "rw":
            call.options.append("ro" if letter == "r" else "rw")


def _mount(call: _Call) -> int:
    options = mountoptions.parse(",".join(call.options), sloppy=call.sloppy)
    for word in options.unknown:
        terminal.note(f"the mount option {terminal.quoted(word)} is unknown, and passed over (-s)")
    if call.namespace is not None:
        _enter(call.namespace)
    if options.remount:
        return _remount(call, options)
    from fsguard.cli import mount, site

    source, target = call.words
    if "/" not in source and not os.path.isdir(source):
        raise UsageError(
            f"the workspace comes first, and {source or 'nothing'} is no directory",
            f"{target} {target} fsguard",
        )
    # One directory under two spellings is in place.
    at = None if os.path.realpath(source) == os.path.realpath(target) else target
    state = options.state_dir
    if state is None and os.geteuid() == 0:
        state = f"{STATE_DIR}/{state_name(os.path.realpath(source))}"
    place = site.choose(source, at, state)
    wish = _wish(options)
    if call.fake:
        return _would(place, wish, call.verbose)
    answer, _ = mount.begin(place, wish)
    for line in mount.about_standing(answer["standing"]):
        terminal.note(line)
    if call.verbose:
        print(f"mount.fsguard: {terminal.shown(source)} mounted on {terminal.shown(place.mountpoint)}.")
    return 0


def _wish(options: Options) -> Any:
    from fsguard.cli.mount import Wish

    return Wish(
        config=options.config,
        io=options.io or "auto",
        cache=options.cache,
        policy=options.policy,
        allow_other=options.allow_other,
        wait=options.wait,
        operators=options.operators,
        flags=options.flags,
    )


def _would(place: Place, wish: Any, verbose: bool) -> int:
    """-f: all but the mount itself."""
    from fsguard.cli import site

    site.check(place, make=False)
    site.spec(place, wish)
    if verbose:
        print(f"mount.fsguard: {terminal.shown(place.mountpoint)} could be mounted.")
    return 0


def _remount(call: _Call, options: Options) -> int:
    """Change a mount that stands: the kernel's flags by mount(2), the rest through the control socket."""
    from fsguard.cli import detach, where
    from fsguard.control.client import Client

    mount = where.locate(call.words[1])
    if call.fake:
        return 0
    with Client(mount) as client:
        status = client.call("status")
        for name, asked, now in (
            ("config", options.config and [os.path.realpath(options.config)], status.get("config")),
            ("io", None if options.io == "auto" else options.io, status.get("io")),
            ("cache", options.cache, status.get("cache", {}).get("mode")),
        ):
            if asked is not None and asked != now:
                raise UsageError(f"{name} cannot be changed by a remount", "unmount, then mount again")
        detach.remount(mount.mountpoint, options.flags)
        if options.policy is not None:
            client.call("policy.set", policy=options.policy)
        if options.wait is not None:
            client.call("turns.set", wait=options.wait)
    if call.verbose:
        print(f"mount.fsguard: {terminal.shown(mount.mountpoint)} remounted.")
    return 0


def _enter(namespace: str) -> None:
    """The mount namespace that `mount -N` names: a process id, or a file such as /run/netns has."""
    import ctypes

    path = f"/proc/{namespace}/ns/mnt" if namespace.isdecimal() else namespace
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"no mount namespace {namespace}: {error.strerror}") from None
    try:
        if os.fstat(fd).st_ino == os.stat("/proc/self/ns/mnt").st_ino:
            return
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(fd, 0x00020000) != 0:
            what = os.strerror(ctypes.get_errno())
            raise RefusedError(f"cannot enter the mount namespace {namespace}: {what}")
    finally:
        os.close(fd)


if __name__ == "__main__":
    sys.exit(main())
