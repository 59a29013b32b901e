"""Starting the daemon and waiting until it is ready.

The daemon is a fresh interpreter that shares nothing with the command: own
session, cwd /, no terminal. What it shall do comes as JSON on one inherited
pipe, whether it does on another: one line, {"ready": true, …} or {"error": …}.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time

from fsguard import errors
from fsguard.cli import terminal
from fsguard.errors import DaemonError, FsguardError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

__all__ = ["Daemon", "become", "launch", "program", "python_path"]

READY_WITHIN = 90.0
"""Seconds until a daemon that has said nothing is given up."""

NOTE_AFTER = 2.0
"""Seconds until the user is told that it takes longer."""

ENDS_WITHIN = 3.0
"""Seconds that a daemon gets to end: by itself, by SIGTERM."""

# By these GitHub's runner and Jenkins find what a job left running, to kill it: then the mount would be dead.
_CI_COOKIES = (
    "RUNNER_TRACKING_ID",
    "JENKINS_NODE_COOKIE",
    "JENKINS_SERVER_COOKIE",
    "HUDSON_COOKIE",
    "BUILD_ID",
)
_OWN_VARIABLES = ("FSGUARD_TASK", "FSGUARD_PARENT", "FSGUARD_RUN", "FSGUARD_DISABLE")
_MANAGERS_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class Daemon:
    """A started daemon that said it is ready; `ready` is what it said."""

    def __init__(self, process: subprocess.Popen[bytes], ready: dict[str, Any]) -> None:
        self.process = process
        self.ready = ready


def launch(spec: dict[str, Any], log: str, command: list[str] | None = None) -> Daemon:
    """Start a daemon for `spec`; return when it is ready.

    Its output goes to the file `log`, or to our stderr when spec["foreground"].
    FsguardError: what the daemon said was wrong, or that it died or said nothing
    in time; then no process and no mount of it remains.
    """
    spec_read, spec_write = os.pipe()
    status_read, status_write = os.pipe()
    with (
        open(status_read, "rb", buffering=0) as status,
        open(os.devnull, "rb") as nothing,
        open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "wb") as output,
    ):
        try:
            process = subprocess.Popen(
                command or program(),
                stdin=nothing,
                stdout=2 if spec["foreground"] else output,
                stderr=2 if spec["foreground"] else output,
                cwd="/",
                env=_environment(spec_read, status_write),
                pass_fds=(spec_read, status_write),
                start_new_session=True,  # Ctrl-C in this terminal is for us, not for it
            )
        finally:
            os.close(spec_read)
            os.close(status_write)
        try:
            with open(spec_write, "w", encoding="ascii") as pipe:
                json.dump(spec, pipe)
        except BrokenPipeError:
            pass  # it died; the status pipe ends too
        try:
            return Daemon(process, _ready(process, status, log, spec["mountpoint"]))
        except BaseException:
            _abandon(process, spec["mountpoint"])
            raise


def become(spec: dict[str, Any]) -> NoReturn:
    """Turn this process into the daemon, for a service manager that started it: it
    keeps its pid, output and variables, and says there what else would be said here."""
    spec_read, spec_write = os.pipe()
    data = json.dumps(spec).encode("ascii")
    if os.write(spec_write, data) != len(data):  # a pipe holds 64 KiB; paths are shorter
        raise DaemonError("the daemon could not be told what to do")
    os.close(spec_write)
    os.set_inheritable(spec_read, True)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.chdir("/")
    sys.stdout.flush()
    os.execve(sys.executable, program(), _environment(spec_read))


def program() -> list[str]:
    """What runs the daemon that belongs to this command."""
    return [sys.executable, "-P", "-m", "fsguard.daemon"]


def python_path() -> str:
    """PYTHONPATH for it."""
    path = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(":") if entry]
    source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if os.path.basename(source) not in ("site-packages", "dist-packages") and source not in path:
        path.append(source)  # run from a source tree, perhaps found by a cwd that it will not have
    return ":".join(path)


def _ready(process: subprocess.Popen[bytes], status: Any, log: str, mountpoint: str) -> dict[str, Any]:
    line = b""
    begun = time.monotonic()
    noted = False
    poll = select.poll()
    poll.register(status, select.POLLIN)
    while not line.endswith(b"\n"):
        waited = time.monotonic() - begun
        if waited >= READY_WITHIN:
            raise DaemonError(f"the daemon was not ready within {READY_WITHIN:g} s", f"its log: {log}")
        if waited >= NOTE_AFTER and not noted:
            noted = True
            terminal.note(f"still mounting {terminal.shown(mountpoint)} …")
        if not poll.poll(1000 * ((READY_WITHIN if noted else NOTE_AFTER) - waited)):
            continue
        data = status.read(65536)
        if not data:
            raise DaemonError(f"the daemon ended before it was ready ({_ending(process)})", _last_words(log))
        line += data
    try:
        said = json.loads(line)
        if said.get("ready") is True:
            return dict(said)
        error = said["error"]
        kind = errors.BY_CODE.get(error["code"], FsguardError)
        failure = kind(str(error["message"]), error.get("hint"))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DaemonError("the daemon spoke nonsense at its start", f"its log: {log}") from None
    raise failure


def _ending(process: subprocess.Popen[bytes]) -> str:
    try:
        code = process.wait(ENDS_WITHIN)
    except subprocess.TimeoutExpired:
        return "it closed its status pipe"
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def _last_words(log: str) -> str:
    try:
        with open(log, "rb") as file:
            file.seek(-min(4000, os.fstat(file.fileno()).st_size), os.SEEK_END)
            lines = os.fsdecode(file.read()).strip().splitlines()
    except OSError:
        lines = []
    return f"its log {log} ends: {lines[-1][:300]}" if lines else f"its log {log} is empty"


def _abandon(process: subprocess.Popen[bytes], mountpoint: str) -> None:
    """End a daemon that did not make it. Its mount, if it got that far, dies with it
    and is taken away."""
    from fsguard.cli import detach
    from fsguard.control import mountinfo

    for stop in (process.terminate, process.kill):
        if process.poll() is None:
            stop()
            try:
                process.wait(ENDS_WITHIN)
            except subprocess.TimeoutExpired:
                continue
    top = mountinfo.top_at(mountpoint, mountinfo.read())
    if top is not None and top.fstype == mountinfo.FSTYPE:
        try:
            detach.unmount(mountpoint)
        except FsguardError as error:
            terminal.complain(error)


def _environment(spec_fd: int, status_fd: int | None = None) -> dict[str, str]:
    """Ours, without the task that happens to mount, and able to import from anywhere."""
    own = {*_OWN_VARIABLES, *_CI_COOKIES, *(() if status_fd is None else _MANAGERS_VARIABLES)}
    env = {name: value for name, value in os.environ.items() if name not in own}
    if path := python_path():
        env["PYTHONPATH"] = path
    env["FSGUARD_SPEC_FD"] = str(spec_fd)
    if status_fd is not None:
        env["FSGUARD_STATUS_FD"] = str(status_fd)
    return env
