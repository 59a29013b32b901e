"""Shell completion and the manual page, made from the commands' own parsers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fsguard import cli
from fsguard.cli import candidates, man
from fsguard.cli.base import parser_of
from tests.kit.abilities import need_tools
from tests.kit.mounting import shim


@pytest.fixture(autouse=True)
def nothing_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FSGUARD_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.chdir(tmp_path)


def words(*typed: str) -> list[str]:
    return [word for word, _ in candidates.at(typed)]


def test_commands() -> None:
    assert set(cli.COMMANDS) <= set(words(""))
    assert words("wa") == ["warnings"]
    assert words("help", "wa") == ["warnings"]
    assert words("nonsense", "") == [] and words() == words("")


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_flag_of_every_command(name: str) -> None:
    parser = parser_of(name)
    flags = {flag for flag in parser._option_string_actions if flag.startswith("--")}
    assert set(words(name, "--")) == flags
    for flag, action in parser._option_string_actions.items():
        if flag.startswith("--") and flag != "--help":
            offered = words(name, flag, "--") if action.nargs == 0 else None
            assert offered is None or flag not in offered, "once is enough"
            if action.choices is not None:
                assert words(name, flag, "") == [str(choice) for choice in action.choices]
                assert words(name, f"{flag}=") == [f"{flag}={choice}" for choice in action.choices]
                assert words(name, flag, "=", "") == words(name, flag, "="), "bash cuts words at ="


def test_arguments_in_their_places() -> None:
    assert words("hooks", "") == ["install", "uninstall", "status"]
    assert words("hooks", "install", "--dry-run", "c") == ["claude-code", "codex", "cursor"]
    assert words("hooks", "install", "codex", "") == []
    assert words("policy", "b") == ["block"]
    assert words("restore", "src/") == words("restore", "--json", "") == [":files"]
    assert words("check", "--task", "A", "x", "") == [":files"]
    assert words("check", "--task", "") == [], "no daemon, no tasks"
    assert words("status", "") == words("mount", "") == [":directories"]
    assert words("run", "--report", "/") == [":files"]


@pytest.mark.parametrize(
    ("typed", "before"), [("run --task A -- ls", 5), ("run --task=A -- ls -l", 4), ("run --task A l", 4)]
)
def test_a_command_to_run_is_the_shells_to_complete(typed: str, before: int) -> None:
    assert candidates.at(typed.split()) == [(":command", str(before))]
    assert ("fsguard " + typed).split()[before][0] == "l"


# ---- in real shells ---------------------------------------------------------------------------------

BASH = """
eval "$(fsguard completion bash)"
complete -p fsguard >/dev/null
compopt() { :; }  # there is no line being completed
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_fsguard fsguard "${!#}" ""
printf '%s\\n' "${COMPREPLY[@]}"
"""
ZSH = """
autoload -Uz compinit && compinit -u -D
eval "$(fsguard completion zsh)"
[[ $_comps[fsguard] == _fsguard ]] || exit 9
_describe() { print -rl -- ${${(P)argv[-1]}%%:*}; }
_files() { print -rl -- FILES "$@"; }
_normal() { print -r -- COMMAND $words[1] $CURRENT; }
words=("$@") CURRENT=$#
_fsguard
"""
FISH = "fsguard completion fish | source; complete -C (string join ' ' -- $argv)"


def complete(shell: str, tmp_path: Path, *line: str) -> list[str]:
    need_tools(shell)
    env = {**os.environ, "PATH": f"{shim(tmp_path / 'bin')}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    command = {
        "bash": ["bash", "--norc", "-c", BASH, "bash", *line],
        "zsh": ["zsh", "-f", "-c", ZSH, "zsh", *line],
        "fish": ["fish", "--no-config", "-c", FISH, *line],
    }[shell]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done
    return [line.split("\t")[0] for line in done.stdout.splitlines()]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_in_the_shell(shell: str, tmp_path: Path) -> None:
    assert complete(shell, tmp_path, "fsguard", "wa") == ["warnings"]
    assert set(complete(shell, tmp_path, "fsguard", "hooks", "install", "c")) == {
        "claude-code",
        "codex",
        "cursor",
    }
    assert "--task" in complete(shell, tmp_path, "fsguard", "run", "--ta")
    assert complete(shell, tmp_path, "fsguard", "mount", "--policy", "b") == ["block"]
    (tmp_path / "some file").write_text("")
    files = complete(shell, tmp_path, "fsguard", "who", "som")
    assert files == (["FILES"] if shell == "zsh" else [files[0]]) and files
    assert shell == "zsh" or "some" in files[0]
    command = complete(shell, tmp_path, "fsguard", "run", "--task", "A", "--", "mkfif")
    assert set(command) == ({"COMMAND mkfif 1"} if shell == "zsh" else {"mkfifo"})


def test_the_script_is_for_a_shell_that_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", "tcsh"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and "tcsh" in said.err and "'fish'" in said.err


# ---- the manual page ---------------------------------------------------------------------------------


def test_the_page_holds_every_command_flag_example_and_exit_code() -> None:
    need_tools("groff")
    source = man.page()
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-rLL=200n", "-P-c"],
        input=source.encode(),
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    text = re.sub(".\b|\x1b\\[[0-9;]*m", "", done.stdout.decode())
    squeezed = " ".join(text.split())
    for name, summary in cli.COMMANDS.items():
        parser = parser_of(name)
        assert f"{name} - {summary}" in squeezed
        for flag in set(parser._option_string_actions) - {"--help"}:
            assert flag in squeezed
        for example in parser.examples:
            assert example in text, "as it is typed"
        for meaning in parser.exits.values():
            assert " ".join(meaning.split()) in squeezed
    for character in ("-", "'", "`", "~", '"'):
        assert character in text, "plain ones, to be copied"


def test_what_is_no_ascii_is_spelled_out() -> None:
    assert man.page().isascii()
    assert man._text("a-b 'c' \\ .d") == "a\\-b \\(aqc\\(aq \\e .d"
    assert man._text(".x\n'y") == "\\&.x\n\\(aqy"


def test_printed_where_there_is_no_terminal() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "fsguard.cli", "man"], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith(".TH FSGUARD 1 ") and done.stderr == ""
