"""The pre-commit hook: beside whatever stands there, and what it tells."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsguard import cli
from fsguard.hooks import githook
from fsguard.hooks.precommit import policy_of
from tests.adapter.fake_daemon import FakeDaemon
from tests.kit.abilities import need_tools

B_WROTE = {"task": "B", "time": "2026-01-31T14:00:00+00:00", "command": "sed -i s/a/b/ f", "pid": 1}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    need_tools("git")
    top = tmp_path / "repo"
    top.mkdir()
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.chdir(top)
    git("init", "-q", ".")
    git("config", "user.email", "t@e")
    git("config", "user.name", "t")
    fake = tmp_path / "bin" / "fsguard"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\necho "fsguard $*" >> "$LOG"\nexit "${CODE:-0}"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    return top


def git(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", *words], capture_output=True, text=True, check=False, env={**os.environ, **env}
    )


def commit(**env: str) -> subprocess.CompletedProcess[str]:
    return git("commit", "-q", "--allow-empty", "-m", "x", **env)


def hook(top: Path) -> Path:
    return top / ".git/hooks/pre-commit"


def theirs(top: Path, text: str, mode: int = 0o755) -> None:
    hook(top).write_bytes(text.encode())
    hook(top).chmod(mode)


def test_alone(repository: Path, tmp_path: Path) -> None:
    assert cli.main(["hooks", "install", "git"]) == 0
    assert os.access(hook(repository), os.X_OK)
    assert commit().returncode == 0
    assert (tmp_path / "log").read_text() == "fsguard hook git-pre-commit\n"
    assert commit(CODE="1").returncode == 1, "the policy forbids it"
    for code in ("2", "126", "70"):
        assert commit(CODE=code).returncode == 0, "trouble of fsguard's own holds nobody up"
    assert commit(PATH="/usr/bin:/bin").returncode == 0
    assert cli.main(["hooks", "status", "git"]) == 0
    assert cli.main(["hooks", "uninstall", "git"]) == 0
    assert not hook(repository).exists()
    assert cli.main(["hooks", "status", "git"]) == 1


@pytest.mark.parametrize(
    "text",
    [
        "#!/bin/sh\necho theirs >> $LOG\nexit 0\n",
        "#!/usr/bin/env bash\nset -eu\nexec sh -c 'echo theirs >> $LOG'",
        "#!/bin/bash -e\necho theirs >> $LOG\n",
    ],
)
def test_beside_another(repository: Path, tmp_path: Path, text: str) -> None:
    theirs(repository, text)
    for _ in "12":
        assert cli.main(["hooks", "install", "git"]) == 0
    assert commit().returncode == 0
    assert (tmp_path / "log").read_text() == "fsguard hook git-pre-commit\ntheirs\n"
    assert commit(CODE="1").returncode == 1
    cli.main(["hooks", "uninstall", "git"])
    assert hook(repository).read_text() == text
    assert os.access(hook(repository), os.X_OK)


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        ("#!/usr/bin/env python3\nprint(1)\n", 0o755, "is run by '/usr/bin/env python3'"),
        ("\x7fELF", 0o755, "has no #! line"),
        ("#!/bin/sh\r\nexit 0\r\n", 0o755, "not by a shell"),
        ("#!/bin/sh\nexit 1\n", 0o644, "is not executable"),
    ],
)
def test_what_it_cannot_stand_beside(
    repository: Path, capsys: pytest.CaptureFixture[str], text: str, mode: int, said: str
) -> None:
    theirs(repository, text, mode)
    capsys.readouterr()
    assert cli.main(["hooks", "install", "git"]) == 2
    assert said in capsys.readouterr().err
    assert hook(repository).read_bytes() == text.encode()


def test_where_git_looks_for_hooks(repository: Path) -> None:
    git("config", "core.hooksPath", "tools/hooks")
    assert githook.path(".") == str(repository / "tools/hooks/pre-commit")
    (repository / ".husky/_").mkdir(parents=True)
    git("config", "core.hooksPath", ".husky/_")
    assert githook.path(".") == str(repository / ".husky/pre-commit")
    (repository / ".husky/pre-commit").write_text("npm test\n")
    (repository / ".husky/pre-commit").chmod(0o755)
    assert cli.main(["hooks", "install", "git"]) == 0
    assert (repository / ".husky/pre-commit").read_text().endswith("<<<\nnpm test\n")
    commit()
    git("config", "--unset", "core.hooksPath")
    git("worktree", "add", "-q", "../other")
    assert githook.path("../other") == str(hook(repository)), "one for all work trees"


# ---- what it tells --------------------------------------------------------------------------------


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    need_tools("git")
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    answers: dict[str, Any] = {
        "check": lambda params: [
            {"path": path, "stale": path == "stale", "message": "B changed stale"} for path in params["paths"]
        ],
        "versions.conflicts": [],
        "who": lambda params: {"writers": [B_WROTE] if params["path"].startswith("f") else []},
        "log": [],
        "task.list": [
            {"task": "A", "parent": "P"},
            {"task": "P", "parent": None},
            {"task": "A.1", "parent": "A"},
            {"task": "B", "parent": None},
        ],
        "policy.get": {"default": "warn", "paths": [], "tasks": {}},
    }
    with FakeDaemon(tmp_path, answers) as daemon:
        daemon.env |= {"FSGUARD_TASK": "A", "GIT_CONFIG_GLOBAL": "/dev/null"}
        subprocess.run(["git", "init", "-q", "."], cwd=daemon.workspace, check=True)
        yield daemon


def stage(daemon: FakeDaemon, *names: str) -> None:
    for name in names:
        (daemon.workspace / name).parent.mkdir(exist_ok=True)
        (daemon.workspace / name).write_text("x")
    subprocess.run(["git", "add", "-A"], cwd=daemon.workspace, check=True)


def checked(daemon: FakeDaemon, code: int = 0, cwd: Path | None = None, **env: str) -> str:
    done = daemon.fsguard("hook", "git-pre-commit", env=daemon.env | env, cwd=cwd)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    return done.stderr


def test_it_tells_what_the_task_has_not_seen(daemon: FakeDaemon) -> None:
    stage(daemon, "stale", "f", "mine", "d/other")
    said = checked(daemon, cwd=daemon.workspace / "d")
    assert "  stale: B changed stale\n" in said
    assert '  f: task "B" changed it last, with "sed -i s/a/b/ f", and you have not looked' in said
    assert "  mine:" not in said and "d/other" not in said
    assert daemon.params("check") == {"task": "A", "paths": ["d/other", "f", "mine", "stale"]}


@pytest.mark.parametrize(
    ("command", "time", "told"),
    [
        ("git add -A", "2026-01-31T15:00:00+00:00", True),
        ("/usr/bin/git commit -a", "2026-01-31T15:00:00+00:00", True),
        ("cat f", "2026-01-31T15:00:00+00:00", False),
        ("read f", "2026-01-31T15:00:00+00:00", False),
        ("cat f", "2026-01-31T13:00:00+00:00", True),
    ],
)
def test_reading_by_git_is_no_look(daemon: FakeDaemon, command: str, time: str, told: bool) -> None:
    stage(daemon, "f")
    daemon.answers["log"] = [{"time": time, "op": "read", "path": "f", "task": "A", "command": command}]
    assert ("f: task" in checked(daemon)) is told


@pytest.mark.parametrize("writer", ["A", "P", "A.1", None])
def test_own_work_and_that_of_no_task_is_not_told(daemon: FakeDaemon, writer: str | None) -> None:
    stage(daemon, "f")
    daemon.answers["who"] = {"writers": [{**B_WROTE, "task": writer}]}
    assert checked(daemon) == ""


def test_it_tells_what_the_commit_makes_final(daemon: FakeDaemon) -> None:
    stage(daemon, "mine")
    row = {
        "path": "mine",
        "task": "A",
        "sibling": "B",
        "time": B_WROTE["time"],
        "message": "you overwrote it.",
    }
    daemon.answers["versions.conflicts"] = [row, {**row, "path": "f", "task": "B"}]
    assert "  mine: you overwrote it. This commit makes that final.\n" in checked(daemon)


def test_only_the_policy_block_stops_it(daemon: FakeDaemon) -> None:
    stage(daemon, "stale")
    daemon.answers["policy.get"] = {"default": "block", "paths": [], "tasks": {}}
    assert "refused by the policy" in checked(daemon, code=1)
    daemon.answers["policy.get"] = {"default": "block", "paths": [], "tasks": {"A": "warn"}}
    assert "stale" in checked(daemon)
    stage(daemon, "mine")
    (daemon.workspace / "stale").unlink()
    stage(daemon)
    assert checked(daemon) == "", "nothing to tell, nothing to stop"


def test_it_holds_nobody_up_without_a_task_a_repository_or_a_daemon(
    daemon: FakeDaemon, tmp_path: Path
) -> None:
    stage(daemon, "stale", "f")
    assert checked(daemon, FSGUARD_TASK="") == ""
    assert checked(daemon, FSGUARD_DISABLE="1") == ""
    assert checked(daemon, cwd=tmp_path) == ""
    daemon.answers["check"] = "nonsense"
    assert checked(daemon) == ""
    daemon.stop()
    assert "the commit was not checked" in checked(daemon)


def test_others_words_and_names_are_harmless(daemon: FakeDaemon) -> None:
    evil = "f\x1b[2J\nfsguard: all is well"
    stage(daemon, evil)
    daemon.answers["who"] = {"writers": [{**B_WROTE, "command": "x\x1b]0;y\x07\nfsguard: z"}]}
    said = checked(daemon)
    assert "\x1b" not in said and "\x07" not in said
    assert said.count("\n") == 2 and "\nfsguard:" not in said


@pytest.mark.parametrize(
    ("path", "policy"),
    [
        ("src/api/x.py", "block"),
        ("src/apiary/x.py", "warn"),
        ("db/migrations/1.sql", "block"),
        ("a.lock", "off"),
        ("deep/a.lock", "off"),
        ("docs/a.md", "block"),
        ("more/docs/a.md", "warn"),
    ],
)
def test_which_policy_holds(path: str, policy: str) -> None:
    paths = [
        {"pattern": "src/api/", "policy": "block"},
        {"pattern": "migrations/", "policy": "block"},
        {"pattern": "/docs/*.md", "policy": "block"},
        {"pattern": "*.lock", "policy": "off"},
    ]
    assert policy_of({"default": "warn", "paths": paths, "tasks": {}}, path, "A") == policy
    assert policy_of({"default": "warn", "paths": paths, "tasks": {"A": "block"}}, path, "A") == "block"
