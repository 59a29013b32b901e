"""The lane's own tests, and many more mangled requests, with the sanitizers of the compiler built in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ["-g", "-O1", "-fno-omit-frame-pointer", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra"]


def _runtime(name: str) -> str:
    found = subprocess.run(
        ["cc", f"-print-file-name={name}"], check=True, capture_output=True, text=True
    ).stdout.strip()
    if not os.path.isabs(found):
        pytest.skip(f"this compiler has no {name}")
    return found


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_nothing_is_read_or_written_where_it_should_not_be(tmp_path: Path, sanitizers: str) -> None:
    for name in ("fsguard", "tests", "pyproject.toml"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    made = tmp_path / "fsguard" / "lane" / f"_lane{sysconfig.get_config_var('EXT_SUFFIX')}"
    made.unlink(missing_ok=True)
    sources = sorted((tmp_path / "fsguard" / "lane").glob("*.c"))
    include = sysconfig.get_path("include")
    command = ["cc", *FLAGS, f"-fsanitize={sanitizers}", f"-I{include}", *map(str, sources), "-o", str(made)]
    subprocess.run(command, check=True)
    # glibc frees the thread-local memory of threads that have ended when another one ends.
    known = tmp_path / "known"
    known.write_text("race:_dl_deallocate_tls\n")
    runtimes = ["libtsan.so"] if sanitizers == "thread" else ["libasan.so", "libubsan.so"]
    env = {
        **os.environ,
        "LD_PRELOAD": " ".join(map(_runtime, runtimes)),
        "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter's own
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
        "TSAN_OPTIONS": f"halt_on_error=1:suppressions={known}",
        "FSGUARD_FUZZ": "5000",
    }
    tests = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/adapter/test_lane.py",
        "tests/adapter/test_lane_making.py",
    ]
    done = subprocess.run(
        tests, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=1800, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
