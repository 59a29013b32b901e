"""Where the daemon's time goes: `make profile` (ARGS='--only untar,sed --io daemon').

Each workload's time, its requests, how many of them were decided in Python, and
the CPU time of Python's thread and of the others (the lane's); then the Python
functions that took longest by themselves, and what perf(1) saw, where it is.
A profiled daemon is slower: compare shares, not seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import pstats
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench import source
from tests.bench.places import Place, open_place
from tests.bench.workloads import WHOLE

HERE = Path(__file__).resolve().parent
TICKS = os.sysconf("SC_CLK_TCK")


def _threads(pid: int) -> tuple[float, float]:
    """CPU seconds of Python's thread, and of all others."""
    python = others = 0.0
    for task in Path(f"/proc/{pid}/task").iterdir():
        fields = (task / "stat").read_bytes().rpartition(b")")[2].split()
        seconds = (int(fields[11]) + int(fields[12])) / TICKS
        if task.name == str(pid):
            python = seconds
        else:
            others += seconds
    return python, others


def _status(place: Place) -> dict[str, dict[str, int]]:
    said = json.loads(place.fsguard("status", "--json", str(place.at)))
    return {"requests": said["requests"], "decisions": said["decisions"]}


def _perf(pid: int, data: Path) -> subprocess.Popen[bytes] | None:
    if not shutil.which("perf"):
        return None
    command = ["perf", "record", "-q", "-o", str(data), "-p", str(pid)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make profile", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--only", help="names of workloads, separated by commas (parts of names will do)")
    parser.add_argument("--io", default="auto", choices=["auto", "lane", "daemon"])
    parser.add_argument("--lines", type=int, default=25, help="how many functions and symbols (25)")
    arguments = parser.parse_args()
    wanted = [part.strip() for part in (arguments.only or "").split(",") if part.strip()]
    with tempfile.TemporaryDirectory(prefix="fsp") as name:
        top = Path(name)
        archive = source.make(top / "source.tgz")
        os.environ["FSGUARD_BENCH_PROFILE"] = str(top / "python.prof")
        os.environ["PYTHONPATH"] = str(HERE / "profiled")
        place = open_place(f"fsguard {arguments.io}", top / "place")
        del os.environ["FSGUARD_BENCH_PROFILE"], os.environ["PYTHONPATH"]
        assert place.pid is not None
        perf = _perf(place.pid, top / "perf.data")
        try:
            heads = f"{'seconds':>8} {'requests':>9} {'decided':>8} {'Python, s':>10} {'lane, s':>8}"
            print(f"{'workload':28} {heads}")
            for workload, work in WHOLE.items():
                before, spent = _status(place), _threads(place.pid)
                began = os.times().elapsed
                work(place.at, archive)
                took = os.times().elapsed - began
                after, now = _status(place), _threads(place.pid)
                if not wanted or any(part in workload for part in wanted):
                    asked, decided = (sum(after[k].values()) - sum(before[k].values()) for k in after)
                    print(
                        f"{workload:28} {took:8.2f} {asked:9} {decided:8}"
                        f" {now[0] - spent[0]:10.2f} {now[1] - spent[1]:8.2f}",
                        flush=True,
                    )
        finally:
            if perf is not None:
                perf.terminate()
                perf.wait()
            place.fsguard("unmount", str(place.at))
            place.pid = None
        stats = pstats.Stats(str(top / "python.prof"), stream=sys.stdout)
        stats.strip_dirs().sort_stats("tottime").print_stats(arguments.lines)
        if perf is not None and (top / "perf.data").exists():
            report = ["perf", "report", "-i", str(top / "perf.data"), "--stdio", "--no-children", "-q"]
            seen = subprocess.run(report, capture_output=True, text=True, check=False).stdout
            lines = [line for line in seen.splitlines() if line.strip() and not line.startswith("#")]
            print("\n".join(["what perf saw of the whole process:", *lines[: arguments.lines]]))
        place.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
