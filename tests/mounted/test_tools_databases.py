"""SQLite on the mount: rollback journal and WAL, several processes, a killed writer."""

from __future__ import annotations

import sqlite3

import pytest

from tests.kit.abilities import need_tools
from tests.kit.agents import Agent, together
from tests.kit.mounting import Workspace

COUNT = """
import sqlite3, sys
con = sqlite3.connect("d.db", timeout=30, isolation_level=None)
for n in range(int(sys.argv[2])):
    con.execute("begin immediate")
    con.execute("update counter set n = n + 1")
    con.execute("insert into log values (?, ?, zeroblob(500))", (sys.argv[1], n))
    con.execute("commit")
con.close()
"""


def database(workspace: Workspace, journal: str) -> None:
    script = f"""
import sqlite3
con = sqlite3.connect("d.db")
assert con.execute("pragma journal_mode = {journal}").fetchone() == ("{journal}",)
con.executescript("create table counter (n); create table log (who, n, data)")
con.execute("insert into counter values (0)")
con.commit()
con.close()
"""
    workspace.python("alice", script).ok()


def asked(workspace: Workspace, question: str) -> object:
    con = sqlite3.connect(workspace.root / "d.db", timeout=30)
    try:
        return con.execute(question).fetchone()[0]
    finally:
        con.close()


@pytest.mark.parametrize("journal", ["delete", "truncate", "wal"])
def test_processes_of_two_tasks_count_together(workspace: Workspace, journal: str) -> None:
    database(workspace, journal)
    results = together(
        *(
            workspace.start(task, "python3", "-c", COUNT, f"{task}{n}", "20")
            for task in ("alice", "bob")
            for n in range(2)
        )
    )
    assert [(r.code, r.err) for r in results] == [(0, "")] * 4
    assert asked(workspace, "select n from counter") == 80
    assert asked(workspace, "select count(*) from log") == 80
    assert asked(workspace, "pragma integrity_check") == "ok"
    assert workspace.conflicts() == []


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_killed_writer_is_rolled_back(workspace: Workspace, journal: str) -> None:
    database(workspace, journal)
    script = """
    import sqlite3
    con = sqlite3.connect("d.db", isolation_level=None)
    con.execute("pragma cache_size = 2")
    con.execute("begin immediate")
    con.execute("update counter set n = 1000")
    con.executemany("insert into log values ('x', ?, zeroblob(2000))", [(n,) for n in range(200)])
    stop("in the middle")
    """
    with Agent(workspace, "alice", script) as agent:
        agent.until("in the middle")
        agent.kill()
        agent.process.wait(10)
    assert asked(workspace, "select n from counter") == 0
    assert asked(workspace, "select count(*) from log") == 0
    assert asked(workspace, "pragma integrity_check") == "ok"


def test_the_command_line_tool(workspace: Workspace) -> None:
    need_tools("sqlite3")
    script = """
    sqlite3 d.db 'create table t (x); insert into t values (1), (2)'
    sqlite3 d.db 'vacuum; pragma integrity_check; select sum(x) from t'
    sqlite3 d.db .dump | sqlite3 e.db
    sqlite3 e.db 'select count(*) from t'
    """
    assert workspace.sh("alice", script).ok().out.split() == ["ok", "3", "2"]
    assert workspace.conflicts() == []


def test_a_reader_sees_what_another_task_committed(workspace: Workspace) -> None:
    database(workspace, "wal")
    script = """
    import sqlite3
    con = sqlite3.connect("d.db", isolation_level=None)
    print(con.execute("select n from counter").fetchone()[0])
    stop("asked once")
    print(con.execute("select n from counter").fetchone()[0])
    """
    with Agent(workspace, "bob", script) as reader:
        reader.until("asked once")
        workspace.run("alice", "python3", "-c", COUNT, "a", "5").ok()
        assert reader.finish().ok().out.split() == ["0", "5"]
