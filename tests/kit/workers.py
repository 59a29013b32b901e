"""Tasks that work at the same time, each in a directory of its own, and check all that they do."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import textwrap
from collections.abc import Callable, Iterator, Mapping

from tests.kit.agents import Agent
from tests.kit.mounting import Workspace

__all__ = ["WORKERS", "at_work"]

# Each goes on until it is told to stop, checks all that it does, and says how often it did it.
WORKERS = {
    "appends": """
        f = open("log", "a")
        def work(n):
            f.write(f"{n}\\n"); f.flush()
        def check(n):
            same(open("log").read().split(), n)
    """,
    "renames": """
        open("r-0", "w").write("here")
        def work(n):
            os.rename(f"r-{n}", f"r-{n + 1}")
        def check(n):
            assert [x for x in os.listdir(".") if x.startswith("r-")] == [f"r-{n}"]
            assert open(f"r-{n}").read() == "here"
    """,
    "trees": """
        import shutil
        def work(n):
            os.makedirs(f"t{n}/a/b")
            for i in range(5):
                open(f"t{n}/a/b/f{i}", "x").write(str(i))
            os.symlink("a", f"t{n}/l")
            assert sorted(os.listdir(f"t{n}/l/b")) == [f"f{i}" for i in range(5)]
            os.link(f"t{n}/a/b/f0", f"t{n}/h")
            shutil.rmtree(f"t{n}")
        def check(n):
            assert not [x for x in os.listdir(".") if x[0] == "t" and x[1:].isdigit()]
    """,
    "database": """
        import sqlite3
        db = sqlite3.connect("db.sqlite", timeout=30)
        db.execute("create table t (n integer)")
        def work(n):
            with db:
                db.execute("insert into t values (?)", (n,))
        def check(n):
            assert db.execute("select count(*), sum(n) from t").fetchone() == (n, n * (n - 1) // 2)
            assert db.execute("pragma integrity_check").fetchone() == ("ok",)
    """,
    "mapping": """
        import mmap
        open("mapped", "wb").write(bytes(65536))
        m = mmap.mmap(os.open("mapped", os.O_RDWR), 65536)
        def work(n):
            m[n * 8 % 65536 : n * 8 % 65536 + 8] = n.to_bytes(8, "big")
            if n % 50 == 0: m.flush()
        def check(n):
            m.flush()
            assert open("mapped", "rb").read() == m[:]
    """,
    "commits": """
        import subprocess
        def git(*words):
            return subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e", *words], check=True,
                                  capture_output=True, text=True, cwd="repo").stdout
        os.mkdir("repo"); git("init", "-q")
        def work(n):
            open("repo/file", "a").write(f"{n}\\n")
            git("add", "file"); git("commit", "-q", "-m", str(n))
        def check(n):
            assert git("log", "--format=%s").split() == [str(i) for i in reversed(range(n))]
            git("fsck", "--strict"); assert git("status", "--porcelain") == ""
    """,
}
LOOP = """
import select, sys
def same(found, n):
    for i, one in enumerate(found):
        assert one == str(i), f"{found[i - 3 : i + 3]} at {i}, of {len(found)}, not {n}"
    assert len(found) == n, f"{len(found)}, not {n}"
stop("works")
n = 0
while not select.select([0], [], [], 0)[0]:
    work(n)
    n += 1
check(n)
print(n)
"""


@contextlib.contextmanager
def at_work(
    workspace: Workspace, workers: Mapping[str, str] = WORKERS, patience: float = 60
) -> Iterator[Callable[[], dict[str, int]]]:
    """All of them, at work. What this yields stops them; not one of their calls may have failed, nor a
    warning have come up. It returns how often each did what it does."""
    agents: dict[str, Agent] = {}
    pipes = []
    for name, script in workers.items():
        here = workspace.root / name
        here.mkdir()
        read, write = os.pipe()
        pipes.append(write)
        body = textwrap.dedent(script) + LOOP
        agents[name] = Agent(workspace, name, body, cwd=here, stdin=read, patience=patience)
        os.close(read)

    def stop() -> dict[str, int]:
        for write in pipes:
            with contextlib.suppress(BrokenPipeError):  # it has failed, and says how
                os.write(write, b"x")
        done = {}
        for name, agent in agents.items():
            result = agent.finish(go=False)
            assert result.code == 0, f"{name}: {result.err}"
            assert "fsguard:" not in result.err, f"{name} works alone in its directory: {result.err}"
            done[name] = int(result.out.split()[0])
            assert done[name] > 0, name
        if "database" in workers:
            with contextlib.closing(sqlite3.connect(workspace.root / "database" / "db.sqlite")) as db:
                assert db.execute("pragma integrity_check").fetchone() == ("ok",)
        return done

    try:
        for agent in agents.values():
            agent.until("works")
        for agent in agents.values():
            agent.go()
        yield stop
    finally:
        for agent in agents.values():
            if agent.process.poll() is None:
                agent.kill()
            agent.close()
        for write in pipes:
            os.close(write)
