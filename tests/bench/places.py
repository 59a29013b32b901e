"""Where the workloads run: a plain directory, fsguard in each mode, and peers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

__all__ = ["NATIVE", "PEERS", "Place", "open_place"]

NATIVE = "native"
ROOT = Path(__file__).resolve().parents[2]
# name -> command; {src}: the directory behind, {at}: the mountpoint, {top}: for what else it needs
PEERS: dict[str, Sequence[str]] = {
    "bindfs": ["bindfs", "{src}", "{at}"],
    "mergerfs": ["mergerfs", "-o", "cache.files=auto-full,cache.readdir=true", "{src}", "{at}"],
    "loggedfs": ["loggedfs", "-c", "/dev/null", "-l", "/dev/null", "-p", "{at}"],
    "fuse-overlayfs": [
        "fuse-overlayfs", "-o", "lowerdir={top}/lower,upperdir={src},workdir={top}/work", "{at}",
    ],
}  # fmt: skip
SECONDS = 15.0


class Place:
    """One directory to work in, perhaps a mount; `close` ends it."""

    def __init__(self, name: str, top: Path) -> None:
        self.name = name
        self.at = top / "w"
        self.top = top
        self.pid: int | None = None
        self._env = {
            **os.environ,
            "FSGUARD_RUNTIME_DIR": str(top / "run"),
            "XDG_STATE_HOME": str(top / "state"),
        }
        self.at.mkdir(parents=True)

    def fsguard(self, *args: str) -> str:
        command = [sys.executable, "-m", "fsguard.cli", *args]
        done = subprocess.run(command, cwd=ROOT, env=self._env, check=True, capture_output=True, text=True)
        return done.stdout

    def mount(self) -> None:
        """Raises OSError or CalledProcessError: it can't be had here."""
        if self.name == NATIVE:
            return
        if self.name.startswith("fsguard"):
            (self.top / "run").mkdir(mode=0o700)
            self.fsguard("mount", str(self.at), "--io", self.name.partition(" ")[2] or "auto", "--json")
        else:
            for name in ("src", "lower", "work"):
                (self.top / name).mkdir()
            words = [w.format(src=self.top / "src", at=self.at, top=self.top) for w in PEERS[self.name]]
            subprocess.run(words, check=True, stdin=subprocess.DEVNULL, capture_output=True)
        end = time.monotonic() + SECONDS
        while not os.path.ismount(self.at):
            if time.monotonic() > end:
                raise TimeoutError(f"{self.name} did not mount")
            time.sleep(0.05)
        self.pid = _server_of(str(self.at), self.name.split()[0])

    def spent(self) -> dict[str, float]:
        """CPU seconds and peak memory (MiB) of the process that serves the mount."""
        if self.pid is None:
            return {}
        with open(f"/proc/{self.pid}/stat", "rb") as f:
            fields = f.read().rpartition(b")")[2].split()
        cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        with open(f"/proc/{self.pid}/status") as f:
            peak = next((int(line.split()[1]) / 1024 for line in f if line.startswith("VmHWM")), 0.0)
        return {"cpu_seconds": round(cpu, 2), "peak_mib": round(peak, 1)}

    def close(self) -> None:
        if self.name.startswith("fsguard") and self.pid is not None:
            self.fsguard("unmount", str(self.at))
        elif self.pid is not None:
            subprocess.run(["umount", str(self.at)], check=True, capture_output=True)
        shutil.rmtree(self.top, ignore_errors=True)


def _server_of(mountpoint: str, program: str) -> int | None:
    """The process that was started for this mount: it names it, or is fsguard's daemon for it."""
    wanted = "fsguard.daemon" if program == "fsguard" else program
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                words = f.read().decode("utf-8", "replace").split("\0")
            with open(f"/proc/{pid}/environ", "rb") as f:
                environ = f.read().decode("utf-8", "replace")
        except OSError:
            continue
        if any(wanted in w for w in words) and (
            mountpoint in words or str(Path(mountpoint).parent) in environ
        ):
            found.append(int(pid))
    return max(found, default=None)


def open_place(name: str, top: Path) -> Place:
    place = Place(name, top)
    try:
        place.mount()
    except BaseException:
        shutil.rmtree(top, ignore_errors=True)
        raise
    return place
