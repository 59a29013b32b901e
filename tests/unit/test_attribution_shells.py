"""Whose a shell is by the first words of its own script, and what is no such word."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fsguard.attribution import shells
from fsguard.attribution.resolver import Resolver
from fsguard.core.guard import Guard
from fsguard.hooks import shell
from tests.kit.oracle_world import Facts

MARK = "export FSGUARD_TASK=claude-1.a FSGUARD_PARENT=claude-1; "


def cmdline(*words: str) -> bytes:
    return b"".join(word.encode() + b"\0" for word in words)


@pytest.mark.parametrize(
    "words",
    [
        ("sh", "-c", MARK + "ls"),
        ("bash", "-lc", MARK + "ls", "name", "argument"),
        ("bash", "-c", "-l", "source /x/snapshot.sh && eval '" + MARK + "ls' < /dev/null && pwd -P >| /t"),
        ("bash", "-c", "source s && shopt -u extglob && eval -- $'" + MARK + "ls'"),
        ("bash", "--norc", "--rcfile", "/x", "-O", "extglob", "+o", "posix", "-ec", "--", MARK + "ls"),
        ("bash", "-c", "shopt -u promptvars; { " + MARK + "ls; }; __code=$?; exit $__code"),
        ("bash", "-c", "cd /w\n" + MARK + "ls"),
        ("zsh", "-o", "extendedglob", "-lc", MARK),
        ("bash", "-c", f"({MARK}ls)"),
    ],
)
def test_a_script_that_begins_with_the_mark(words: tuple[str, ...]) -> None:
    found = shells.marked(cmdline(*words))
    assert found == {b"FSGUARD_TASK": b"claude-1.a", b"FSGUARD_PARENT": b"claude-1"}
    assert b"FSGUARD" not in shells.unmarked(cmdline(*words))
    assert shells.unmarked(cmdline(*words)) == cmdline(*words).replace(MARK.encode(), b"")


@pytest.mark.parametrize(
    "words",
    [
        ("bash", "-c", f"grep -r '{MARK}' ."),
        ("bash", "-c", f'echo "{MARK}" > notes'),
        ("bash", "-c", f"cat <<< '{MARK}'"),
        ("bash", "-c", "ls", MARK),
        ("bash", "-c", "ls", "name", MARK),
        ("bash", "script.sh", "-c", MARK),
        ("bash", "--", "-c", MARK),
        ("bash", MARK),
        ("bash", "-i"),
        ("bash", "-c"),
        ("bash", "-O"),
        ("bash",),
        ("bash", "-c", "export FSGUARD_TASK=claude-1 ls"),
        ("bash", "-c", "export FSGUARD_TASK=; ls"),
        ("bash", "-c", "export FSGUARD_TASK='of two words'; ls"),
        ("bash", "-c", f"export FSGUARD_TASK={'x' * 300}; ls"),
        ("bash", "-c", "xexport FSGUARD_TASK=a; ls"),
        ("bash", "-c", 'for t in a b; do export FSGUARD_TASK="$t"; work; done'),
    ],
)
def test_words_that_are_merely_handled(words: tuple[str, ...]) -> None:
    assert shells.marked(cmdline(*words)) == {}
    assert shells.unmarked(cmdline(*words)) == cmdline(*words)


def test_a_script_for_several_tasks_is_none_of_theirs() -> None:
    script = "export FSGUARD_TASK=a; work > f; export FSGUARD_TASK=b; work > g"
    assert shells.marked(cmdline("bash", "-c", script)) == {}
    script = "export FSGUARD_TASK=a; work > f; export FSGUARD_TASK=a; work > g"
    assert shells.marked(cmdline("bash", "-c", script)) == {b"FSGUARD_TASK": b"a"}


def test_nothing_at_all() -> None:
    for raw in (b"", b"\0", b"\0\0\0", b"bash", b"bash\0-c\0\xff\xfe\0"):
        assert shells.marked(raw) == {} and shells.unmarked(raw) == raw


@pytest.mark.parametrize("parent", ["claude-1", "the boss's", "two words; export FSGUARD_TASK=x"])
def test_what_the_hooks_write_is_what_is_found(parent: str) -> None:
    command = shell.belongs_to({"FSGUARD_TASK": "claude-1.a", "FSGUARD_PARENT": parent}, "ls > f")
    for script in (command, f"{{ {command}; }}", f"eval {shell.quote(command)} < /dev/null"):
        found = shells.marked(cmdline("bash", "-c", script))
        assert found[b"FSGUARD_TASK"] == b"claude-1.a"
        assert found.get(b"FSGUARD_PARENT") == (b"claude-1" if parent == "claude-1" else None)


@contextmanager
def running(*words: str, **env: str) -> Iterator[int]:
    """A process that has begun to work, and stays until it has been looked at."""
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"PATH": "/usr/bin:/bin", **env}
    )
    assert process.stdin and process.stdout
    process.stdout.readline()
    yield process.pid
    process.stdin.close()
    process.stdout.close()
    process.wait(10)


def test_the_shell_itself_and_what_it_forks_work_for_the_task_that_it_exports() -> None:
    who = Resolver(Guard(Facts()))
    with running("bash", "-c", f"{MARK}echo ready; read -r _; true") as pid:
        actor = who.actor(pid)
        assert actor.task is not None and actor.task.id == "claude-1.a"
        assert actor.task.parent is not None and actor.task.parent.id == "claude-1"
        assert "FSGUARD" not in actor.command.text and "echo ready" in actor.command.text
    assert who.means == {"environment": 1}


def test_its_own_words_count_before_what_it_was_started_with() -> None:
    who = Resolver(Guard(Facts()))
    env = {"FSGUARD_TASK": "outer", "FSGUARD_INTENT": "the outer one's"}
    with running("bash", "-c", f"eval '{MARK}echo ready; read -r _; true'", **env) as pid:
        actor = who.actor(pid)
        assert actor.task is not None and actor.task.id == "claude-1.a"
        assert actor.task.intent is None
    with running("bash", "-c", f"test '{MARK}' && echo ready; read -r _; true", **env) as pid:
        actor = who.actor(pid)
        assert actor.task is not None and actor.task.id == "outer"


def test_a_program_that_is_no_shell_is_not_asked() -> None:
    who = Resolver(Guard(Facts()))
    with running("python3", "-c", "print('x', flush=True); input()", "-c", MARK) as pid:
        assert who.actor(pid).task is None
