"""Other people's programs that put a filesystem to the test: stress-ng's file stressors and fio.

Both check what they get back. What fails on a plain directory already (a kernel without
something, a fault of the tool) is told apart from what only fails on the mount.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FIO", "STRESSORS", "Outcome", "fio", "stress_ng"]

# Those that work on files of a directory and pass on ext4, with what keeps them small. Left out: what acts on
# the whole machine (sync(2)), and what every FUSE mount refuses (chattr, fs-verity).
STRESSORS: Mapping[str, Sequence[str]] = {
    name: more.split()
    for name, more in {
        "access": "", "aio": "", "aiol": "", "chdir": "--chdir-dirs 256", "chmod": "", "chown": "",
        "dentry": "--dentries 256", "dir": "--dir-dirs 256", "dirdeep": "--dirdeep-dirs 2",
        "dirmany": "", "dnotify": "", "fallocate": "--fallocate-bytes 8m", "fault": "", "fcntl": "",
        "file-ioctl": "", "filename": "", "flock": "", "fpunch": "", "fsize": "", "fstat": "",
        "getdent": "", "handle": "", "hdd": "--hdd-bytes 8m", "inotify": "", "iomix": "--iomix-bytes 8m",
        "lease": "", "link": "", "locka": "", "lockf": "", "lockofd": "", "mknod": "",
        "mmap": "--mmap-file --mmap-bytes 8m", "msync": "", "open": "", "readahead": "--readahead-bytes 8m",
        "rename": "", "revio": "--revio-bytes 8m", "rmap": "", "seek": "--seek-size 8m", "sendfile": "",
        "splice": "", "symlink": "", "sync-file": "--sync-file-bytes 8m", "touch": "", "utime": "",
        "xattr": "",
    }.items()
}  # fmt: skip

# By name: how bytes come to the file; each is read back and compared.
FIO: Mapping[str, Sequence[str]] = {
    name: options.split()
    for name, options in {
        "one after the other": "--rw=write --bs=64k",
        "here and there": "--rw=randwrite --bs=4k",
        "sizes mixed": "--rw=randwrite --bssplit=512/20:3k/30:4k/30:64k/20 --bs_unaligned=1",
        "reads between": "--rw=randrw --rwmixread=40 --bs=4k",
        "mapped": "--ioengine=mmap --rw=randwrite --bs=4k",
        "mapped, written to the disk": "--ioengine=mmap --rw=write --bs=16k --fsync=16",
        "past the cache": "--ioengine=libaio --iodepth=16 --direct=1 --rw=randwrite --bs=4k",
        "many at once": "--ioengine=io_uring --iodepth=16 --rw=randwrite --bs=8k",
        "vectors": "--ioengine=pvsync2 --rw=write --bs=12k",
        "spliced": "--ioengine=splice --rw=write --bs=32k",
        "written through": "--rw=randwrite --bs=4k --sync=1",
        "fsync": "--rw=randwrite --bs=4k --fsync=8",
        "fdatasync, four processes": "--rw=randwrite --bs=4k --fdatasync=8 --numjobs=4",
        "reserved before": "--fallocate=posix --rw=randwrite --bs=4k",
    }.items()
}


@dataclass(frozen=True)
class Outcome:
    """`failures`: as the tool counts them, at least one when it says that it failed."""

    operations: int
    failures: int
    text: str


def _run(
    command: Sequence[str], env: Mapping[str, str] | None, seconds: float
) -> subprocess.CompletedProcess[str]:
    # In another directory: both leave files where they are started.
    with tempfile.TemporaryDirectory(prefix="c") as cwd:
        return subprocess.run(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )


def stress_ng(
    directory: Path,
    stressors: Sequence[str],
    *,
    seconds: int,
    instances: int = 1,
    before: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> dict[str, Outcome]:
    """All of them at once, for so long; `before`: the beginning of the command (`fsguard run …`)."""
    command = [*before, "stress-ng", "--temp-path", str(directory), "--verify", "--timeout", f"{seconds}s"]
    for name in stressors:
        command += [f"--{name}", str(instances), *STRESSORS[name]]
    with tempfile.NamedTemporaryFile("r", prefix="y") as metrics:
        done = _run([*command, "--metrics", "--yaml", metrics.name], env, seconds + 240)
        measured = metrics.read()
    counts = {
        name: int(count) for name, count in re.findall(r"- stressor: (\S+)\s+bogo-ops: (\d+)", measured)
    }
    found = {}
    for name in stressors:
        wrong = re.findall(rf"^stress-ng: (?:fail|error): *\[\d+\] {name}: .*", done.stdout, re.MULTILINE)
        found[name] = Outcome(counts.get(name, 0), len(wrong), "\n".join(wrong[:5]))
    if done.returncode and not any(outcome.failures for outcome in found.values()):
        first = stressors[0]
        found[first] = Outcome(counts.get(first, 0), 1, f"exit code {done.returncode}\n{done.stdout[-2000:]}")
    return found


def fio(
    directory: Path,
    profiles: Sequence[str],
    *,
    size: str,
    again: bool = False,
    before: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> dict[str, Outcome]:
    """All of them at once: write a file per process and read it back; `again`: only read what an earlier
    call has written."""
    command = [
        *before, "fio", f"--directory={directory}", f"--size={size}", "--ioengine=psync", "--verify=crc32c",
        "--verify_dump=0", "--verify_state_save=0", "--do_verify=1", "--output-format=json",
        *(["--verify_only=1"] if again else []),
    ]  # fmt: skip
    for number, profile in enumerate(profiles):
        command += [f"--name=p{number}", *FIO[profile]]
    done = _run(command, env, 900)
    try:
        jobs = json.loads(done.stdout[done.stdout.index("{") : done.stdout.rindex("}") + 1])["jobs"]
    except ValueError:
        return {profiles[0]: Outcome(0, 1, f"exit code {done.returncode}\n{done.stdout[-2000:]}")}
    found = {}
    for number, profile in enumerate(profiles):
        parts = [job for job in jobs if job["jobname"] == f"p{number}"]
        operations = sum(job[way]["total_ios"] for job in parts for way in ("read", "write"))
        failures = sum(max(job.get("total_err", 0), int(job["error"] != 0)) for job in parts)
        wrong = [line for line in done.stdout.splitlines() if line.startswith((f"fio: p{number}", "verify:"))]
        found[profile] = Outcome(operations, failures, "\n".join(wrong[:5]) if failures else "")
    if done.returncode and not any(outcome.failures for outcome in found.values()):
        found[profiles[0]] = Outcome(0, 1, f"exit code {done.returncode}\n{done.stdout[-2000:]}")
    return found
