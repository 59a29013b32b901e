"""Read-modify-write across processes: told from the process's own read, whatever way it writes back."""

from __future__ import annotations

import pytest

from tests.kit.agents import Agent, together
from tests.kit.mounting import Workspace

#: how a program puts back what it has made of its copy
WAYS = {
    "truncate": 'open("f", "w").write(new)',
    "in place": 'f = open("f", "r+"); f.write(new); f.truncate(); f.close()',
    "held open": "own.seek(0); own.truncate(); own.write(new); own.close()",
    "rename": 'open("f.tmp", "w").write(new); os.rename("f.tmp", "f")',
    "rename from elsewhere": 'open("d/f", "w").write(new); os.replace("d/f", "f")',
    "unlink and create": 'os.unlink("f"); open("f", "x").write(new)',
    "backup": 'os.rename("f", "f.bak"); open("f", "x").write(new)',
    "link over": 'open("g", "w").write(new); os.unlink("f"); os.link("g", "f")',
    "mapping": "own.seek(0); m = mmap.mmap(own.fileno(), 0); m[0:5] = b'A new'; m.close(); own.close()",
    "cat": 'subprocess.run("cat > f", shell=True, input=new, text=True, check=True)',
}

SCRIPT = """
    import mmap, os, subprocess, sys
    own = open("f", "r+")
    new = own.read().replace("base", "A new")
    stop("has read")
    exec(sys.argv[1])
"""


def race(workspace: Workspace, way: str, other: str) -> None:
    """A reads, `other` writes, A writes back what it made of its copy."""
    workspace.plain("sh", "-c", "mkdir d; echo base line > f").ok()
    with Agent(workspace, "A", SCRIPT, WAYS[way]) as agent:
        agent.until("has read")
        workspace.sh(other, "echo base of another > f").ok()
        assert agent.finish().code == 0
    assert "A new" in (workspace.root / "f").read_text()


@pytest.mark.parametrize("way", WAYS)
def test_another_tasks_write_in_between(workspace: Workspace, way: str) -> None:
    race(workspace, way, "B")
    (warning,) = workspace.conflicts("A")
    # An unlink is judged by what the task has seen, and so is a child that has read nothing itself.
    unread = way in ("unlink and create", "backup", "link over", "cat")
    assert warning["kind"] == ("stale_write" if unread else "lost_update"), warning
    assert warning["sibling"] == "B" and warning["path"] == "f" and warning["read_time"]


@pytest.mark.parametrize("way", ["truncate", "rename", "unlink and create"])
def test_a_parallel_command_of_the_same_task_in_between(workspace: Workspace, way: str) -> None:
    race(workspace, way, "A")
    (warning,) = workspace.conflicts("A")
    assert (warning["kind"], warning["sibling"], warning["path"]) == ("lost_update", "A", "f")


def test_parallel_commands_are_told_when_what_one_added_is_gone(workspace: Workspace) -> None:
    """Whatever the schedule: lines are missing at the end, or somebody was told."""
    workspace.plain("sh", "-c", ": > f").ok()
    script = """if True:
        import os, sys
        for i in range(15):
            text = open("f").read()
            with open(f"f.{sys.argv[1]}", "w") as new:
                new.write(text + f"{sys.argv[1]} {i}\\n")
            os.rename(new.name, "f")
    """
    results = together(*[workspace.start("A", "python3", "-c", script, str(i)) for i in range(3)])
    assert [r.code for r in results] == [0, 0, 0], results
    lines = (workspace.root / "f").read_text().splitlines()
    told = [w for w in workspace.conflicts("A") if w["kind"] == "lost_update"]
    assert (len(lines) < 45) == bool(told), (lines, told)


FORMATTERS = {
    "a child process": ["sed", "-i", "s/  */ /g", "f"],
    "a grandchild": ["sh", "-c", "sh -c 'sed -i \"s/  */ /g\" f; true'; true"],
    "in place": ["python3", "-c", "t = open('f').read(); open('f', 'w').write(t.replace('  ', ' '))"],
    "a child task": ["fsguard", "run", "--task", "A.fmt", "--", "sed", "-i", "s/  */ /g", "f"],
}


@pytest.mark.parametrize("formatter", FORMATTERS)
def test_never_between_an_agent_and_its_own_formatter(workspace: Workspace, formatter: str) -> None:
    script = """if True:
        import ast, subprocess, sys
        text = "a  b\\n"
        for i in range(3):
            text = open("f").read() + f"x  {i}\\n"
            open("f", "w").write(text)
            subprocess.run(ast.literal_eval(sys.argv[1]), check=True)
            open("f", "w").write(text + "from what it remembers\\n")
    """
    workspace.plain("sh", "-c", "echo 'a  b' > f").ok()
    workspace.python("A", script, repr(FORMATTERS[formatter])).ok()
    lost = [w for w in workspace.conflicts() if w["kind"] == "lost_update"]
    assert lost == []
    if formatter != "a child task":  # of which its parent is told, as of any other task that it has not asked
        assert workspace.conflicts() == []
