"""See the package."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench import source
from tests.bench.places import NATIVE, PEERS, Place, open_place
from tests.bench.workloads import SINGLE, WHOLE

MODES = ["fsguard lane", "fsguard daemon"]
Times = dict[str, dict[str, list[float]]]  # workload -> place -> seconds (whole) or microseconds (single)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=sys.modules["tests.bench"].__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("-n", "--rounds", type=int, default=3)
    parser.add_argument("--only", help="names of workloads, separated by commas (parts of names will do)")
    parser.add_argument("--places", help=f"of {', '.join([*MODES, *PEERS])}; default: all that are installed")
    parser.add_argument("--json", metavar="FILE", type=Path, help="everything that was measured")
    return parser.parse_args()


def _open(names: list[str], top: Path) -> list[Place]:
    places = [open_place(NATIVE, top / "native")]
    for name in names:
        try:
            places.append(open_place(name, top / name.replace(" ", "-")))
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", b"") or b""
            words = said if isinstance(said, str) else said.decode(errors="replace")
            _say(f"left out: {name}: {error} {words}")
    return places


def _whole(places: list[Place], archive: Path, wanted: list[str], rounds: int) -> Times:
    times: Times = {}
    chosen = [w for w in WHOLE if not wanted or any(part in w for part in wanted)]
    last = max((list(WHOLE).index(w) for w in chosen), default=-1)
    for number in range(rounds):
        for place in places:
            for name in ("tree", "copy"):
                shutil.rmtree(place.at / name, ignore_errors=True)
        for workload in list(WHOLE)[: last + 1]:  # those before make what the chosen ones need
            for place in places:
                _say(f"round {number + 1}/{rounds}: {workload} on {place.name}")
                began = time.perf_counter()
                WHOLE[workload](place.at, archive)
                took = time.perf_counter() - began
                if workload in chosen:
                    times.setdefault(workload, {}).setdefault(place.name, []).append(took)
    return times


def _single(places: list[Place], wanted: list[str], rounds: int) -> Times:
    times: Times = {}
    for place in places:
        (place.at / "single").write_bytes(b"x" * 4096)
    for workload, (work, count) in SINGLE.items():
        if wanted and not any(part in workload for part in wanted):
            continue
        for _ in range(3 * rounds):
            for place in places:
                began = time.perf_counter()
                work(place.at, count)
                took = (time.perf_counter() - began) / count * 1e6
                times.setdefault(workload, {}).setdefault(place.name, []).append(took)
    return times


def _ratios(by: dict[str, list[float]]) -> dict[str, float]:
    """The median of the ratios of each round."""
    return {
        name: round(statistics.median(x / y for x, y in zip(found, by[NATIVE], strict=True)), 2)
        for name, found in by.items()
        if name != NATIVE
    }


def _table(title: str, unit: str, times: Times, names: list[str]) -> None:
    if not times:
        return
    width = max(map(len, times))
    others = [n for n in names if n != NATIVE]
    print(f"| {title:{width}} | {NATIVE + ', ' + unit:>12} |" + "".join(f" {n:>14} |" for n in others))
    print(f"| {'-' * width} | {'-' * 11}: |" + "".join(f" {'-' * 13}: |" for _ in others))
    for workload, by in times.items():
        ratios = _ratios(by)
        native = f"{statistics.median(by[NATIVE]):.3g}"
        print(f"| {workload:{width}} | {native:>12} |" + "".join(f" {ratios[n]:>14.2f} |" for n in others))
    print()


def main() -> int:
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what is mounted is unmounted then, too
    wanted = [w.strip() for w in (arguments.only or "").split(",") if w.strip()]
    names = [n.strip() for n in (arguments.places or "").split(",") if n.strip()]
    names = names or [*MODES, *(p for p in PEERS if shutil.which(p))]
    unknown = set(names) - {*MODES, *PEERS, "fsguard auto"}
    if unknown:
        _say(f"no such place: {', '.join(sorted(unknown))}")
        return 2
    with tempfile.TemporaryDirectory(prefix="fsguard-bench-") as top:
        archive = source.make(Path(top) / "tree.tar.gz")
        places = _open(names, Path(top))
        try:
            single = _single(places, wanted, arguments.rounds)
            whole = _whole(places, archive, wanted, arguments.rounds)
            spent = {place.name: place.spent() for place in places}
        finally:
            for place in reversed(places):
                try:
                    place.close()
                except subprocess.CalledProcessError as error:
                    _say(f"{place.name} would not end: {error.stderr}")
    present = [place.name for place in places]
    machine = (
        f"{platform.system()} {platform.release()}, {os.cpu_count()} processors, {time.strftime('%Y-%m-%d')}"
    )
    print(f"Ratios to native: medians of {arguments.rounds} rounds; {machine}\n")
    _table("workload", "s", whole, present)
    _table("one call", "µs", single, present)
    for name, facts in spent.items():
        if facts:
            print(f"{name}: {facts['cpu_seconds']} s of CPU in all, peak {facts['peak_mib']} MiB")
    if arguments.json:
        result = {
            "machine": machine,
            "rounds": arguments.rounds,
            "whole_seconds": whole,
            "single_microseconds": single,
            "ratios": {w: _ratios(by) for w, by in {**whole, **single}.items()},
            "daemons": spent,
        }
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
