"""`fsguard hooks install|uninstall|status`: a tool's own configuration, edited and put back."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fsguard import cli
from fsguard.hooks import files, setup

FILES = {
    "claude-code": ".claude/settings.json",
    "codex": ".codex/hooks.json",
    "gemini": ".gemini/settings.json",
    "cursor": ".cursor/hooks.json",
    "opencode": ".config/opencode/plugins/fsguard.js",
}
JSON_TOOLS = ["claude-code", "codex", "gemini", "cursor"]
MINE = {
    "claude-code": {"PreToolUse": [{"matcher": "Bash", "hooks": [{"type": "command", "command": "mine"}]}]},
    "codex": {"PreToolUse": [{"hooks": [{"type": "command", "command": "mine hook codex"}]}]},
    "gemini": {"BeforeTool": [{"matcher": "x", "hooks": [{"type": "command", "command": "mine"}]}]},
    "cursor": {"preToolUse": [{"command": "mine"}], "stop": [{"command": "./fsguard-like hook cursor"}]},
}


class Hooks:
    def __init__(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.home, self.capsys = home, capsys

    def __call__(self, *words: str, code: int = 0) -> str:
        """Its stdout; where it fails, what it says."""
        found = cli.main(["hooks", *words])
        out, err = self.capsys.readouterr()
        assert found == code, out + err
        return out if code in (0, 1) else err

    def backups(self, file: Path) -> list[Path]:
        return sorted(file.parent.glob(f"{file.name}.before-fsguard-*"))


@pytest.fixture
def hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Hooks:
    home, bin_ = tmp_path / "home", tmp_path / "bin"
    for directory in (home, bin_, tmp_path / "project" / "sub"):
        directory.mkdir(parents=True)
    (bin_ / "fsguard").write_text("#!/bin/sh\n")
    (bin_ / "fsguard").chmod(0o755)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    for name in ("XDG_CONFIG_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "OPENCODE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path / "project")
    return Hooks(home, capsys)


def commands(file: Path) -> list[str]:
    """Every command in a file of hooks."""
    found: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            found.extend([value["command"]] if "command" in value else [])
            value = list(value.values())
        for item in value if isinstance(value, list) else ():
            walk(item)

    walk(json.loads(file.read_text())["hooks"])
    return found


@pytest.mark.parametrize("tool", FILES)
def test_in_twice_and_out_again(hooks: Hooks, tool: str) -> None:
    file = hooks.home / FILES[tool]
    assert "would be in" in hooks("install", tool, "--dry-run") and not file.exists()
    out = hooks("install", tool)
    assert f"+++ {file}" in out and "are in" in out
    text = file.read_text()
    if tool in JSON_TOOLS:
        assert len(set(commands(file))) == 1 and commands(file)[0].endswith(f"exec fsguard hook {tool}")
    again = hooks("install", tool)
    assert "are there already" in again and "+++" not in again and file.read_text() == text
    assert hooks.backups(file) == []
    assert "installed" in hooks("status", tool)
    assert "no longer in" in hooks("uninstall", tool)
    assert not file.exists() if tool == "opencode" else "fsguard" not in file.read_text()
    assert len(hooks.backups(file)) == 1
    assert "installed" not in hooks("status", tool, code=1)
    assert "are not in" in hooks("uninstall", tool)


@pytest.mark.parametrize("tool", JSON_TOOLS)
def test_what_is_there_stays(hooks: Hooks, tool: str) -> None:
    file = hooks.home / FILES[tool]
    file.parent.mkdir(parents=True)
    before = (
        "{\n    // mine\n" + json.dumps({"zebra": 1, "hooks": MINE[tool], "apple": [1]}, indent=4)[2:] + "\n"
    )
    file.write_text(before)
    file.chmod(0o600)
    hooks("install", tool)
    (backup,) = hooks.backups(file)
    assert backup.read_text() == before and stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    text = file.read_text()
    assert "// mine" in text and text.index("zebra") < text.index('"hooks"') < text.index("apple")
    assert text.count("mine") == before.count("mine")
    hooks("uninstall", tool)
    assert file.read_text() == before, "byte for byte"


def test_ours_are_renewed_where_they_are_and_others_of_the_group_stay(hooks: Hooks) -> None:
    file = hooks.home / FILES["claude-code"]
    file.parent.mkdir()
    old = {"type": "command", "command": "/old/place/fsguard hook claude-code", "timeout": 60}
    args = {"type": "command", "command": "fsguard", "args": ["hook", "claude-code"]}
    mine = {"type": "command", "command": "lint && fsguard hook claude-code"}
    config = {
        "hooks": {
            "PreToolUse": [{"matcher": "Bash", "hooks": [mine, old]}],
            "PostToolUse": [{"matcher": "Edit", "hooks": [args]}],
            "PreCompact": [{"hooks": [old]}],
        }
    }
    file.write_text(json.dumps(config, indent=2))
    assert "incomplete" in hooks("status", "claude-code", code=1)
    hooks("install", "claude-code")
    after = json.loads(file.read_text())["hooks"]
    assert after["PreToolUse"][0] == {"matcher": "Bash", "hooks": [mine]}
    assert len(after["PreToolUse"]) == 2 and len(after["PostToolUse"]) == 1 and "PreCompact" not in after
    hooks("uninstall", "claude-code")
    assert json.loads(file.read_text()) == {"hooks": {"PreToolUse": [{"matcher": "Bash", "hooks": [mine]}]}}


def test_a_link_is_followed_and_stays(hooks: Hooks) -> None:
    real = hooks.home / "dotfiles" / "claude.json"
    real.parent.mkdir()
    real.write_text('{"model": "x"}\n')
    file = hooks.home / FILES["claude-code"]
    file.parent.mkdir()
    file.symlink_to(real)
    assert "a link to" in hooks("install", "claude-code")
    assert file.is_symlink() and "fsguard" in real.read_text() and len(hooks.backups(real)) == 1
    hooks("uninstall", "claude-code")
    assert file.is_symlink() and real.read_text() == '{"model": "x"}\n'


def test_a_link_to_nowhere_and_a_directory_linked(hooks: Hooks) -> None:
    (hooks.home / ".codex").mkdir()
    (hooks.home / ".codex/hooks.json").symlink_to(hooks.home / "later.json")
    hooks("install", "codex")
    assert "fsguard" in (hooks.home / "later.json").read_text()
    (hooks.home / "gem").mkdir()
    (hooks.home / ".gemini").symlink_to("gem")
    hooks("install", "gemini")
    assert "fsguard" in (hooks.home / "gem/settings.json").read_text()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{\n  "a": 1\n  "b": 2\n}', "settings.json, line 3, column 3: a comma or } is missing"),
        (b'{"hooks": "none"}', "settings.json, line 1: `hooks` should be an object"),
        (b'{"hooks": {"PreToolUse": {}}}', "`hooks.PreToolUse` should be an array"),
        (b"[]", "the whole should be an object"),
        (b'{\n"a": "\xff"}', "settings.json, line 2: not UTF-8"),
    ],
)
def test_what_cannot_be_edited_is_left_alone(hooks: Hooks, content: bytes, said: str) -> None:
    file = hooks.home / FILES["claude-code"]
    file.parent.mkdir()
    file.write_bytes(content)
    for what in ("install",) if b"hooks" in content or content == b"[]" else ("install", "uninstall"):
        assert said in hooks(what, "claude-code", code=2)
    assert file.read_bytes() == content and hooks.backups(file) == []


def test_a_file_that_may_not_be_written(hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("fsguard.hooks.files._write", refuse)
    file = hooks.home / FILES["claude-code"]
    file.parent.mkdir()
    file.write_text("{}")
    assert "cannot be changed: Read-only file system" in hooks("install", "claude-code", code=6)
    assert file.read_text() == "{}"


def test_what_is_changed_by_somebody_else_meanwhile(hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    file = hooks.home / FILES["claude-code"]
    file.parent.mkdir()
    file.write_text("{}")
    write = files._write

    def slowly(path: str, *more: Any) -> None:
        write(path, *more)
        file.write_text('{"theirs": 1}')

    monkeypatch.setattr("fsguard.hooks.files._write", slowly)
    assert "changed by somebody else" in hooks("install", "claude-code", code=4)
    assert file.read_text() == '{"theirs": 1}'
    assert [name.name for name in file.parent.iterdir() if "before" not in name.name] == ["settings.json"]


def test_a_directory_in_its_place(hooks: Hooks) -> None:
    (hooks.home / FILES["codex"]).mkdir(parents=True)
    assert cli.main(["hooks", "install", "codex"]) == 1
    assert "Is a directory" in hooks.capsys.readouterr().err


def test_for_a_project_from_anywhere_in_it(hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Path.cwd()
    (project / ".git").mkdir()
    monkeypatch.chdir(project / "sub")
    hooks("install", "claude-code", "--project")
    hooks("install", "opencode", "--project")
    assert (project / ".claude/settings.json").exists() and not (hooks.home / ".claude").exists()
    assert (project / ".opencode/plugins/fsguard.js").exists()
    states = {
        (state["tool"], state["scope"]): state["state"]
        for state in map(json.loads, hooks("status", "--json").splitlines())
    }
    assert states["claude-code", "project"] == "installed" and states["claude-code", "user"] == "no"
    assert states["opencode", "project"] == "installed" and states["git", "project"] == "no"


def test_as_json(hooks: Hooks) -> None:
    said = json.loads(hooks("install", "cursor", "--json"))
    file = hooks.home / FILES["cursor"]
    assert (said["tool"], said["scope"], said["file"], said["changed"]) == ("cursor", "user", str(file), True)
    assert said["backup"] is None and "+++" in said["diff"]
    assert json.loads(file.read_text())["version"] == 1
    assert json.loads(hooks("install", "cursor", "--json"))["changed"] is False
    dry = json.loads(hooks("uninstall", "cursor", "--json", "--dry-run"))
    assert dry["changed"] is False and dry["diff"] and dry["backup"] is None


def test_the_places_that_tools_can_be_told(
    hooks: Hooks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "c"))
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "x"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    (tmp_path / "xdg/opencode/plugin").mkdir(parents=True)
    for tool in ("claude-code", "codex", "opencode"):
        hooks("install", tool)
    for made in ("c/settings.json", "x/hooks.json", "xdg/opencode/plugin/fsguard.js"):
        assert (tmp_path / made).exists()


def test_hooks_that_are_switched_off_are_said_to_be(hooks: Hooks) -> None:
    file = hooks.home / FILES["claude-code"]
    file.parent.mkdir()
    file.write_text('{"disableAllHooks": true}')
    assert "`disableAllHooks` in this file turns all hooks off" in hooks("install", "claude-code")
    assert "switched off" in hooks("status", "claude-code", code=1)


def test_a_foreign_plugin_of_our_name_is_left_alone(hooks: Hooks) -> None:
    file = hooks.home / FILES["opencode"]
    file.parent.mkdir(parents=True)
    file.write_text("export const Other = 1\n")
    for what in ("install", "uninstall"):
        assert "is not a plugin of fsguard's" in hooks(what, "opencode", code=2)
    assert file.read_text() == "export const Other = 1\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["install"], "which tool?"),
        (["install", "vim"], "vim"),
        (["install", "git", "--user"], "one repository"),
        (["install", "codex", "--user", "--project"], "not allowed with"),
        (["install", "git"], "not in a git repository"),
        (["install", "codex", "--dryrun"], "--dry-run"),
    ],
)
def test_mistakes(hooks: Hooks, words: list[str], said: str) -> None:
    assert said in hooks(*words, code=2)


def test_where_fsguard_is_not_in_path(hooks: Hooks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    ours = tmp_path / "my tools" / "fsguard"
    ours.parent.mkdir()
    ours.write_text("#!/bin/sh\necho called with $*\n")
    ours.chmod(0o755)
    monkeypatch.setattr("sys.argv", [str(ours)])
    hooks("install", "codex")
    command = commands(hooks.home / FILES["codex"])[0]
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout == "called with hook codex\n"
    assert "installed" in hooks("status", "codex")
    ours.unlink()
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", ""), "nothing, and no error"
    monkeypatch.setattr("sys.argv", ["x"])
    monkeypatch.setattr("sys.executable", "/usr/bin/python3")
    assert "no `fsguard` command" in hooks("install", "gemini", code=2)


def test_every_event_has_a_known_shape() -> None:
    for tool in setup.TOOLS.values():
        text = tool.installed("", "fsguard")
        assert tool.missing(text, "fsguard") == [] and tool.present(text)
        assert json.loads(tool.uninstalled(text)) == tool.top
