"""Hours of work in short: what the daemon holds at the end it held at the beginning.

FSGUARD_SOAK_MINUTES: for how long (10). Three tasks unpack, commit, search, edit,
copy and remove trees of their own, and rewrite files that they share.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable

import pytest

from tests.bench import source
from tests.kit.mounting import Workspace

MINUTES = float(os.environ.get("FSGUARD_SOAK_MINUTES", "10"))
GIT = "git -c user.name=a -c user.email=a@b -c gc.auto=0"
CYCLE = f"""
set -e
rm -rf "$1"; mkdir "$1"; cd "$1"
tar xzf "$SRC" --no-same-owner --strip-components=1
git init -q .; {GIT} add -A; {GIT} commit -qm one
grep -rIl 'import os' . > /dev/null || true
git ls-files | head -40 | while read -r f; do sed -i '1s/^/# x\\n/' "$f"; done
git checkout -q .
cp -a . ../"$1.copy"; rm -rf ../"$1.copy"
cd ..
python3 -c '
import sqlite3, sys
c = sqlite3.connect(sys.argv[1] + ".db", isolation_level=None)
c.execute("create table if not exists t(a)")
for i in range(50): c.execute("insert into t values(?)", (i,))
' "$1"
for i in 1 2 3 4 5; do cat shared > /dev/null; echo "$1 $i" > shared; echo "$1" >> log; done
rm -f "$1.db"
"""
# Small limits, so that what is remembered is full early.
LIMITS = """[retention]
paths = 2000
tasks = 50
warnings = 200
log = 2000
"""


@pytest.mark.parametrize("io", ["lane", "daemon"])
def test_nothing_grows(make_workspace: Callable[..., Workspace], io: str) -> None:
    workspace = make_workspace(mount=False, options=("--io", io))
    (workspace.root / "fsguard.toml").write_text(LIMITS)
    workspace.mount()
    archive = source.make(workspace.top / "source.tgz")
    (workspace.root / "shared").write_text("x")
    fds, samples = len(workspace.daemon_fds()), []
    end = time.monotonic() + MINUTES * 60 / 2
    failures: list[str] = []

    def work(task: str) -> None:
        cycle = 0
        while time.monotonic() < end and not failures:
            result = workspace.run(
                f"{task}{cycle % 40}", "sh", "-c", CYCLE, "sh", task, env={"SRC": str(archive)}, timeout=900
            )
            if result.code:
                failures.append(f"{task}: exit {result.code}\n{result.err}")
            cycle += 1

    threads = [threading.Thread(target=work, args=(task,)) for task in "ABC"]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for thread in threads:
            thread.join(2.0)
        samples.append(workspace.status()["memory_bytes"])
    assert not failures, failures[0]
    workspace.plain("sh", "-c", "rm -rf ./*").ok()
    left = workspace.settled_fds(fds, 30.0)
    status = workspace.status()
    quarter = max(1, len(samples) // 4)
    second, last = (statistics.median(q) for q in (samples[quarter : 2 * quarter], samples[-quarter:]))
    print(
        f"{io}: {sum(status['requests'].values())} requests, {sum(status['decisions'].values())} decided;"
        f" memory {second / 2**20:.1f} MiB in the second quarter, {last / 2**20:.1f} in the last;"
        f" descriptors {fds} and {len(left)}; nodes {status['nodes']}; warnings {status['warnings_total']}"
    )
    assert len(left) <= fds, left
    assert status["open_files"] == 0
    assert last < 1.15 * second
