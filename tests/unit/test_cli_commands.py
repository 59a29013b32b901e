"""The command line as a whole: help, errors, exit codes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fsguard import __version__, cli

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def fsguard(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("FSGUARD_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)

    def call(*argv):
        code = cli.main(argv)
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_help_with_examples_and_exit_codes(fsguard, name):
    code, out, err = fsguard(name, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: fsguard {name}")
    examples = out.partition("examples:\n")[2].partition("\n\n")[0].splitlines()
    assert examples[0].startswith(f"  fsguard {name}")
    assert "\nexit codes:\n  0 " in out
    assert fsguard("help", name)[1] == out


def test_help_and_version(fsguard):
    code, out, _ = fsguard("--help")
    assert code == 0 and all(name in out for name in cli.COMMANDS)
    code, out, err = fsguard()
    assert code == 2 and out == "" and "usage: fsguard" in err
    assert fsguard("--version") == (0, f"fsguard {__version__}\n", "")


@pytest.mark.parametrize(
    ("argv", "code", "said", "hint"),
    [
        (["wanrings"], 2, "no such command: wanrings", "did you mean `fsguard warnings`?"),
        (["\x1b[2J"], 2, "no such command: \\x1b[2J", "`fsguard --help`"),
        (["status", "--jsn"], 2, "unknown argument: --jsn", "did you mean --json?"),
        (["who"], 2, "PATH", "see `fsguard who --help`"),
        (["policy", "wran"], 2, "wran", "see `fsguard policy --help`"),
        (["policy", "--path", "x"], 2, "which policy", "fsguard policy"),
        (["task", "show"], 2, "needs a task ID", ""),
        (["task", "list", "w", "A"], 2, "takes no task", "task show"),
        (["task", "list", "."], 3, "not in a guarded workspace", "fsguard mount"),
        (["task", "end", "a\tb"], 2, "task ID", "task --help"),
        (["conflicts", "."], 3, "not in a guarded workspace", "fsguard mount"),
        (["check", "--task", "a\tb", "f"], 2, "task ID", ""),
        (["check", "f"], 2, "which task", "check --help"),
        (["check", "--task", "A"], 2, "PATH", "check --help"),
        (["check", "--task", "A", "--staged", "f"], 2, "--staged", "check --help"),
        (["log", "--limit", "x"], 2, "--limit", ""),
        (["warnings", "--all", "--follow"], 2, "--follow", ""),
        (["status", "here", "--workspace", "there"], 2, "two workspaces", ""),
        (["status", "."], 3, "not in a guarded workspace", "fsguard mount"),
        (["warnings"], 3, "not in a guarded workspace", "fsguard mount"),
        (["unmount", "."], 3, "not in a guarded workspace", ""),
        (["run", "--tsak", "A"], 125, "--task", ""),
    ],
)
def test_mistakes_are_answered_with_a_sentence_and_a_hint(fsguard, argv, code, said, hint):
    found, out, err = fsguard(*argv)
    first, _, rest = err.partition("\n")
    assert (found, out) == (code, "")
    assert first.startswith("fsguard: ") and said in first
    assert hint in rest and "Traceback" not in err


def test_outside_of_any_mount_status_lists_all(fsguard):
    assert fsguard("status") == (0, "nothing is mounted\n", "")
    assert fsguard("status", "--json") == (0, "[]\n", "")


def test_an_error_of_our_own_is_a_sentence(fsguard, monkeypatch):
    monkeypatch.setattr("fsguard.control.registry.live", lambda: 1 / 0)
    code, out, err = fsguard("status")
    assert (code, out) == (1, "")
    assert err.startswith("fsguard: an error of its own: ZeroDivisionError") and "Traceback" not in err
    monkeypatch.setenv("FSGUARD_DEBUG", "1")
    assert "Traceback" in fsguard("status")[2]


def test_ctrl_c_is_130(fsguard, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr("fsguard.control.registry.live", interrupt)
    assert fsguard("status") == (130, "", "")


def test_a_reader_that_goes_away_is_no_error():
    command = [sys.executable, "-P", "-m", "fsguard.cli", "--help"]
    read, write = os.pipe()
    os.close(read)
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, env=env, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


HEAVY = [
    "trio",
    "pyfuse3",
    "psutil",
    "pathspec",
    "typing",
    "socket",
    "subprocess",
    "dataclasses",
    "inspect",
]


@pytest.mark.parametrize("name", ["check", "run", "note", "warnings", "status"])
def test_what_runs_at_every_tool_call_imports_little(name):
    program = (
        f"import sys; from fsguard import cli; cli.main(['{name}', '--help']);"
        f"sys.exit(' '.join(sorted(set({HEAVY}) & set(sys.modules))) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
