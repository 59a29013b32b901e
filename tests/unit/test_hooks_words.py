"""Task IDs, quoting, what patches name, and how much an agent is told at once."""

from __future__ import annotations

import shutil
import string
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsguard.hooks import engine, identity, shell
from fsguard.hooks.call import Event, first_line
from fsguard.hooks.patch import patched

SHELLS = [name for name in ("sh", "bash", "dash", "zsh", "ksh") if shutil.which(name)]
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40) | st.text(
    "'\"\\$`!;\n\t #*{}()&|<>=~", max_size=20
)


# ---- who is it -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "short"),
    [
        ("5e1f2a3b-1111-4222-8333-444455556666", "5e1f2a3b"),
        ("5E1F2A3B-1111-4222-8333-444455556666", "5e1f2a3b"),
        ("aaaaaaaa-1111-2222-3333-444444444444", "aaaaaaaa"),
        ("019a2b3c-4d5e-7f00-8123-456789abcdef", "89abcdef"),  # version 7: begins with the time
        ("abc123", "abc123"),
        ("agent-a1b2c3", "agent-a1b2c3"),
        ("a7f3b2c9d0e1f2a3b", "a7f3b2c9"),
        ("ses_4c9f00ba1ffeXyZ0123456789A", "23456789A"[-8:]),
    ],
)
def test_short_names_of_sessions(given: str, short: str) -> None:
    assert identity.short(given) == short
    assert identity.task_id("claude", given) == f"claude-{short}"
    assert identity.task_id("claude", given, "x1") == f"claude-{short}.x1"


def test_sessions_that_look_alike_stay_two() -> None:
    alike = [
        ("session-of-the-day-number-000001", "session-of-the-day-number-000002"),
        ("019a2b3c-4d5e-7f00-8123-456789abcdef", "019a2b3c-4d5f-7f00-8123-0123456789ab"),
        ("1f2e3d4c-0000-11ee-8123-456789abcdef", "1f2e3d4c-0001-11ee-8123-456789abcdef"),
        ("00000000000000000001", "00000000000000000002"),
        ("conversation:1", "conversation:2"),
        ("ses_" + "a" * 12 + "0123456789abcd", "ses_" + "a" * 12 + "0123456789abce"),
    ]
    for one, other in alike:
        assert identity.short(one) != identity.short(other)


@given(st.text(max_size=300))
def test_any_identifier_gives_a_name_that_a_shell_and_the_daemon_take(text: str) -> None:
    name = identity.task_id("claude", text, text)
    assert set(name) <= set(string.ascii_letters + string.digits + "-_.") and len(name) < 100
    assert name == identity.task_id("claude", text, text)


def test_a_session_is_a_child_of_the_task_that_its_agent_runs_as() -> None:
    assert identity.above({"FSGUARD_TASK": "A"}, "claude-1") == "A"
    assert identity.above({"FSGUARD_PARENT": "P"}, "claude-1") == "P"
    for env in ({}, {"FSGUARD_TASK": ""}, {"FSGUARD_TASK": "claude-1"}, {"FSGUARD_TASK": "a\nb"}):
        assert identity.above(env, "claude-1") is None


# ---- quoting -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHELLS)
@given(task=WORDS, parent=WORDS)
def test_quoting_is_exact_in_every_shell(name: str, task: str, parent: str) -> None:
    variables = {"FSGUARD_TASK": task, "FSGUARD_PARENT": parent}
    command = shell.belongs_to(variables, r"""printf '%s\n%s\n' "$FSGUARD_TASK" "$FSGUARD_PARENT" """)
    done = subprocess.run([name, "-c", command], capture_output=True, check=True)
    assert done.stdout.decode() == f"{task}\n{parent}\n"


COMMANDS = [
    "exit 7",
    "false",
    "cd / && pwd",
    "cat <<'EOF'\n$HOME `x` 'y'\nEOF",
    "cat <<EOF | tr a-z A-Z\nabc\nEOF",
    "set -e\nfalse\necho not here",
    "sleep 0.01 & wait; echo done",
    "# a comment only",
    "\n\necho after empty lines",
    "f() { return 3; }; f",
    "echo $(echo nested \"$(echo 'deep')\")",
    "trap 'echo bye' EXIT; exit 4",
    "for i in 1 2; do echo $i; done",
    "( exit 5 )",
    "echo one; echo two >&2; exit 1",
    "! true",
    "printf '%s|' a 'b c' \"d'e\"",
    "echo 'unfinished",
]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", SHELLS)
def test_a_command_does_the_same_with_its_task_before_it(name: str, command: str) -> None:
    marked = shell.belongs_to({"FSGUARD_TASK": "claude-1.a", "FSGUARD_PARENT": "it's; $(rm)"}, command)
    one, two = (
        subprocess.run([name, "-c", text], capture_output=True, cwd="/usr", check=False)
        for text in (command, marked)
    )
    assert (one.returncode, one.stdout) == (two.returncode, two.stdout)
    if one.returncode != 2 and "syntax" not in one.stderr.decode():
        assert one.stderr == two.stderr


def test_task_ids_need_no_quotation_marks_and_once_is_enough() -> None:
    variables = {"FSGUARD_TASK": "claude-1.a", "FSGUARD_PARENT": "claude-1", "FSGUARD_INTENT": "it's this"}
    marked = shell.belongs_to(variables, "ls")
    assert marked == "export FSGUARD_TASK=claude-1.a FSGUARD_PARENT=claude-1; ls"
    assert shell.belongs_to(variables, marked) == marked
    assert shell.belongs_to({}, "ls") == "ls"


# ---- what comes from outside --------------------------------------------------------------------


def test_patches_name_their_files() -> None:
    text = """*** Begin Patch
*** Add File: new.py
+*** Delete File: no.py
*** Update File: dir/with space.py
*** Move to: moved.py
@@
- *** Add File: no.py
 *** Add File: no.py
*** Delete File: gone.py
*** Update File: new.py
*** End Patch"""
    assert patched(text) == [
        ("new.py", True),
        ("dir/with space.py", True),
        ("moved.py", True),
        ("gone.py", False),
    ]
    assert patched("") == patched("*** Add File: ") == []


def test_fields_are_of_the_type_that_is_asked_for_or_missing() -> None:
    event = Event(
        {"a": 1, "b": "", "c": "text", "d": ["x", 2, ""], "e": '{"f": "inner"}', "g": "{broken", "h": {}}
    )
    assert event.text("a", "b", "c") == "text" and event.text("d") == ""
    assert event.texts("c", "d") == ["x"] and event.texts("a") == []
    assert event.part("e").text("f") == "inner"
    assert event.part("a", "g", "h").data == {} == Event([1]).data == Event(None).data
    assert event.has("a") and not event.has("b", "z")


def test_the_first_line_of_a_prompt() -> None:
    assert first_line("\n \n  Fix\tthe   \x1b[31mtests\u202e now \nand more") == "Fix the [31mtests now"
    assert len(first_line("x" * 900)) == 200
    assert first_line(" \n") == ""


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6000), max_size=8))
def test_an_agent_is_told_whole_sentences_up_to_its_limit(messages: list[str]) -> None:
    said = engine.said(messages, "claude-1")
    assert len(said.encode("utf-16-le")) // 2 <= engine.CAP
    parts = [f"fsguard: {message}" for message in messages]
    if sum(len(part.encode("utf-16-le")) // 2 + 2 for part in parts) < engine.CAP - 200:
        assert said == "\n\n".join(parts)
    elif messages:
        assert said.startswith(parts[0][:500]) and ("more: `fsguard warnings" in said or "…" in said)


def test_one_sentence_too_long_is_cut_and_the_rest_counted() -> None:
    said = engine.said(["\U0001f600" * 9000, "second", "third"], "it's")
    assert len(said.encode("utf-16-le")) // 2 <= engine.CAP
    assert said.endswith("…\n\nfsguard: 2 more: `fsguard warnings --all --task 'it'\\''s'`")
