"""A guarded workspace for a test: the real command line, the real daemon, real processes.

`Workspace` keeps everything of one mount (state, sockets, the directories) below
one short temporary directory, so that what is left over can be told from other
people's mounts, and nothing is left in a home directory.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["READY", "Result", "Workspace", "leftovers", "shim"]

READY = 10.0
"""Seconds within which a mount must be ready or say why not."""

ROOT = Path(__file__).resolve().parents[2]
BUSY = 4  # exit code of BusyError


def _children(pid: int) -> list[int]:
    """Of a process with one thread."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def shim(directory: Path) -> Path:
    """A directory for PATH in which `fsguard` is the tree under test."""
    directory.mkdir(exist_ok=True)
    script = directory / "fsguard"
    if not script.exists():
        script.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m fsguard.cli "$@"\n')
        script.chmod(0o755)
    return directory


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    args: tuple[str, ...]
    code: int
    out: str
    err: str

    def ok(self) -> Result:
        """The same, after making sure that it succeeded."""
        assert self.code == 0, f"{' '.join(self.args)!r} ended with {self.code}\n{self.out}{self.err}"
        return self

    def json(self) -> Any:
        return json.loads(self.ok().out)

    def lines(self) -> list[Any]:
        """One JSON object a line."""
        return [json.loads(line) for line in self.ok().out.splitlines() if line.strip()]


class Workspace:
    """A workspace and its mount.

    `root` is where everybody works: the mountpoint. `backing` is the directory
    behind it, where it can be reached (with a separate mountpoint), else None.
    """

    def __init__(
        self, *, separate: bool = False, options: Sequence[str] = (), top: Path | None = None
    ) -> None:
        self.top = top or Path(tempfile.mkdtemp(prefix="fsg-"))
        self.top.chmod(0o755)  # other users work here too
        self.directory = self.top / "w"
        self.root = self.top / "m" if separate else self.directory
        self.backing = self.directory if separate else None
        # Every test in every mode: FSGUARD_TEST_IO=daemon pytest tests/mounted
        mode = os.environ.get("FSGUARD_TEST_IO")
        self.options = (*(("--io", mode) if mode else ()), *options)
        self.announced: list[re.Pattern[str]] = []
        self.processes: list[subprocess.Popen[str]] = []
        self.mounted = False
        self.deaths = 0
        """Workers that were killed: each may leave one file that it had just shown counted as known, and
        so, once that is deleted, a descriptor."""
        for directory in (self.directory, self.root, self.top / "state", self.top / "run", self.top / "home"):
            directory.mkdir(exist_ok=True)
        (self.top / "run").chmod(0o700)
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("FSGUARD_", "GIT_", "XDG_"))},
            "HOME": str(self.top / "home"),
            "XDG_STATE_HOME": str(self.top / "state"),
            "XDG_RUNTIME_DIR": str(self.top / "run"),
            "FSGUARD_RUNTIME_DIR": str(self.top / "run" / "fsguard"),
            "PATH": f"{shim(self.top / 'bin')}:{os.environ.get('PATH', os.defpath)}",
        }

    # ---- the mount ----------------------------------------------------------------

    def mount(self, *more: str, env: Mapping[str, str] | None = None, check: bool = True) -> Result:
        """`fsguard mount`: ready, an error, or 10 s."""
        where = [str(self.directory)] + ([str(self.root)] if self.backing else [])
        result = self.fsguard("mount", *where, *self.options, *more, cwd=self.top, env=env, timeout=READY)
        self.mounted = result.code == 0
        if check:
            assert result.code == 0, f"no mount: exit {result.code}\n{result.out}{result.err}{self.log()}"
            assert os.path.ismount(self.root), "mount said that it is ready, and nothing is mounted"
        return result

    def unmount(self) -> None:
        """A strict unmount: exit code 0, never lazy, and the daemon gone.

        Busy is accepted for a while only when no process is to blame: the kernel
        sends the last RELEASE after close(2) and exit(2) returned.
        """
        pid = self.daemon_pid()
        end = time.monotonic() + 5
        while True:
            result = self.fsguard("unmount", str(self.root), cwd=self.top, timeout=READY)
            if result.code == 0:
                break
            holders = self.holders()
            assert result.code == BUSY and not holders and time.monotonic() < end, (
                f"unmount: exit {result.code}: {result.err}\nheld by: {holders}\n{self.log()}"
            )
            time.sleep(0.05)
        self.mounted = False
        assert not os.path.ismount(self.root), "unmount said that it is done, and something is mounted"
        if pid is not None:
            _gone(pid, 5)

    def daemon_pid(self) -> int | None:
        """From the note that the daemon leaves beside its socket."""
        for note in (self.top / "run" / "fsguard").glob("*.json"):
            facts = json.loads(note.read_text())
            if facts["mountpoint"] == os.path.realpath(self.root):
                return int(facts["pid"])
        return None

    def worker_pid(self) -> int | None:
        """Who does the daemon's work: a child of the process that is known as the daemon, or that itself."""
        pid = self.daemon_pid()
        if pid is None:
            return None
        children = _children(pid)
        return children[-1] if children else pid

    def holders(self) -> list[str]:
        """Processes that stand in the mount or have a file of it open."""
        found = []
        for pid in _pids():
            for link in (f"/proc/{pid}/cwd", f"/proc/{pid}/root", *_fds(pid)):
                try:
                    target = os.readlink(link)
                except OSError:
                    continue
                if target == str(self.root) or target.startswith(f"{self.root}/"):
                    found.append(f"{pid} ({_command(pid)}): {target}")
        return found

    def kill_daemon(self) -> None:
        """SIGKILL, and what then has to be cleared away so that the test can end."""
        pid = self.daemon_pid()
        assert pid is not None
        # Both at once, the keeper and its worker, or the one would go on without the other.
        pids = [pid, *_children(pid)]
        for one in pids:
            os.kill(one, signal.SIGKILL)
        for one in pids:
            _gone(one, 5)

    # ---- commands -------------------------------------------------------------------

    def fsguard(
        self,
        *args: str,
        cwd: Path | str | None = None,
        env: Mapping[str, str] | None = None,
        input: str | None = None,
        timeout: float = 60,
    ) -> Result:
        """Any `fsguard` command; by default it runs in the workspace."""
        return self._finish(["fsguard", *args], cwd, env, input, timeout)

    def plain(self, *command: str, cwd: Path | str | None = None, timeout: float = 60, **more: Any) -> Result:
        """A command of no task."""
        return self._finish(list(command), cwd, more.get("env"), more.get("input"), timeout)

    def run(self, task: str, *command: str, options: Sequence[str] = (), **more: Any) -> Result:
        """`fsguard run --task TASK -- COMMAND`."""
        return self.fsguard(*self._run_args(task, options), *command, **more)

    def sh(self, task: str, script: str, **more: Any) -> Result:
        """A shell script of a task."""
        return self.run(task, "sh", "-c", script, **more)

    def python(self, task: str, script: str, *args: str, **more: Any) -> Result:
        """A Python script of a task."""
        return self.run(task, sys.executable, "-c", script, *args, **more)

    def start(
        self,
        task: str | None,
        *command: str,
        options: Sequence[str] = (),
        cwd: Path | str | None = None,
        env: Mapping[str, str] | None = None,
        **more: Any,
    ) -> subprocess.Popen[str]:
        """The same, not waited for; what still runs when the test ends is killed."""
        full = list(command) if task is None else ["fsguard", *self._run_args(task, options), *command]
        settings: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
        settings |= {"stderr": subprocess.PIPE, "text": True, "errors": "surrogateescape", **more}
        process = subprocess.Popen(
            full, cwd=cwd or self.root, env={**self.env, **(env or {})}, start_new_session=True, **settings
        )
        self.processes.append(process)
        return process

    def _run_args(self, task: str, options: Sequence[str]) -> list[str]:
        return ["run", "--task", task, "--workspace", str(self.root), *options, "--"]

    def _finish(
        self,
        args: list[str],
        cwd: Path | str | None,
        env: Mapping[str, str] | None,
        input: str | None,
        timeout: float,
    ) -> Result:
        process = subprocess.Popen(
            args,
            cwd=cwd or self.root,
            env={**self.env, **(env or {})},
            stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="surrogateescape",
            start_new_session=True,
        )
        try:
            out, err = process.communicate(input, timeout=timeout)
        except subprocess.TimeoutExpired:
            stuck = self._stuck(process.pid)
            os.killpg(process.pid, signal.SIGKILL)
            try:
                out, err = process.communicate(timeout=5)
            except subprocess.TimeoutExpired:
                out = err = "(its output is held open by a process that cannot be killed)"
            raise AssertionError(
                f"{' '.join(args)!r} did not end within {timeout} s\n{out}{err}\n{stuck}\n{self.log()}"
            ) from None
        return Result(tuple(args), process.returncode, out, err)

    def _stuck(self, group: int) -> str:
        """Where the processes of a command, and the daemon, stand in the kernel."""
        lines = []
        for pid in _pids():
            if pid in (self.daemon_pid(), self.worker_pid()) or _stat(pid, 2) == str(group):
                lines.append(f"{pid} {_stat(pid, 0)} {_command(pid)}")
                for task in sorted(os.listdir(f"/proc/{pid}/task")):
                    for fact in ("wchan", "stack"):
                        lines.append(f"  {task} {fact}: {_read(f'/proc/{pid}/task/{task}/{fact}')}")
        return "\n".join(lines)

    # ---- what the guard says -----------------------------------------------------------

    def warnings(self, task: str | None = None, *options: str) -> list[dict[str, Any]]:
        """Every warning on record (of one task), oldest first."""
        args = ["warnings", "--all", "--json", *options, *(["--task", task] if task else []), str(self.root)]
        return self.fsguard(*args, cwd=self.top).lines()

    def conflicts(self, task: str | None = None) -> list[dict[str, Any]]:
        return [warning for warning in self.warnings(task) if warning["severity"] == "conflict"]

    def status(self) -> dict[str, Any]:
        result: dict[str, Any] = self.fsguard("status", "--json", str(self.root), cwd=self.top).json()
        return result

    # ---- the daemon's log ---------------------------------------------------------------

    def logs(self) -> list[Path]:
        return sorted((self.top / "state").rglob("*.log"))

    def log(self) -> str:
        """The end of the daemon's log, for the message of a failed test."""
        return "".join(
            f"--- {path.name}\n{''.join(path.read_text(errors='replace').splitlines(True)[-40:])}"
            for path in self.logs()
        )

    def announce(self, pattern: str) -> None:
        """A warning or error in the daemon's log that this test brings about."""
        self.announced.append(re.compile(pattern))

    def complaints(self) -> list[str]:
        """Warnings and errors in the log that nobody announced."""
        found = []
        for path in self.logs():
            for line in path.read_text(errors="replace").splitlines():
                bad = re.search(r"\b(WARNING|ERROR|CRITICAL)\b|^Traceback", line)
                if bad and not any(pattern.search(line) for pattern in self.announced):
                    found.append(line)
        return found

    # ---- leaks ------------------------------------------------------------------------------

    def daemon_fds(self) -> list[str]:
        """What the daemon's descriptors point at, sorted; sockets and pipes without their numbers.

        A directory that exists is not counted: the daemon reaches what is below it
        through its descriptor, for as long as the kernel remembers the directory.
        """
        pid = self.daemon_pid()
        targets = []
        for link in _fds(pid) if pid else ():
            try:
                target, st = os.readlink(link), os.stat(link)
            except OSError:
                continue
            if not (stat.S_ISDIR(st.st_mode) and st.st_nlink):
                targets.append(re.sub(r"\[\d+\]", "", target))
        return sorted(targets)

    def settled_fds(self, limit: int, seconds: float = 3.0) -> list[str]:
        """The daemon's descriptors, once there are no more than `limit`; releases are asynchronous."""
        end = time.monotonic() + seconds
        while len(found := self.daemon_fds()) > limit and time.monotonic() < end:
            time.sleep(0.02)
        return found

    def close(self) -> None:
        """End everything; AssertionError names what would not end."""
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        if self.mounted:
            self.unmount()

    def remove(self) -> None:
        """Remove the directories, unless something is still mounted there."""
        if not any(mount.startswith(f"{self.top}/") for mount in _mounts()):
            shutil.rmtree(self.top, ignore_errors=True)


# ---- what is left over ------------------------------------------------------------------------


def leftovers(prefix: str) -> list[str]:
    """Mounts and daemons below a path prefix, of a test that did not clean up."""
    found = [f"mount {mount}" for mount in _mounts() if mount.startswith(prefix)]
    for pid in _pids():
        command = _command(pid)
        if "fsguard" in command and f" {prefix}" in command:
            found.append(f"process {pid}: {command}")
    return found


def _mounts() -> list[str]:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return [re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), line.split()[4]) for line in file]


def _pids() -> Iterator[int]:
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            yield int(name)


def _fds(pid: int) -> list[str]:
    try:
        return [f"/proc/{pid}/fd/{name}" for name in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return []


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode("utf-8", "surrogateescape").strip()
    except OSError:
        return ""


def _gone(pid: int, seconds: float) -> None:
    """Wait for the end of a process that is not our child."""
    end = time.monotonic() + seconds
    while (state := _stat(pid, 0)) not in ("Z", ""):
        assert time.monotonic() < end, f"process {pid} is still there ({state}): {_command(pid)}"
        time.sleep(0.01)


def _stat(pid: int, field: int) -> str:
    """A field of /proc/PID/stat: 0 state, 1 parent, 2 process group; "" when the process is gone."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[field] if fields else ""


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read().strip()
    except OSError:
        return ""
