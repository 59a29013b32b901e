"""Package managers and builds on the mount, without a network."""

from __future__ import annotations

import json
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from tests.kit.abilities import need_tools
from tests.kit.mounting import Workspace


def make_wheel(directory: Path) -> Path:
    path = directory / "greeting-1.0-py3-none-any.whl"
    info = "greeting-1.0.dist-info"
    files = {
        "greeting/__init__.py": "def main():\n    print('hello from the wheel')\n",
        **{f"greeting/part{n}.py": f"VALUE = {n}\n" for n in range(30)},
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\ngreet = greeting:main\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return path


def test_venv_and_pip(workspace: Workspace) -> None:
    wheel = make_wheel(workspace.top)
    script = f"""
    set -e
    "{sys.executable}" -m venv --without-pip env
    pip() {{ "{sys.executable}" -m pip --python env/bin/python --disable-pip-version-check -q "$@"; }}
    pip install --no-index --no-deps "{wheel}"
    env/bin/greet
    pip install --no-index --no-deps --force-reinstall "{wheel}"
    env/bin/python -c 'import greeting.part7; print(greeting.part7.VALUE, greeting.__file__)'
    pip uninstall -y greeting
    env/bin/python -c 'import greeting' 2>/dev/null || echo gone
    """
    result = workspace.sh("alice", script, env={"PYTHONPATH": ""}).ok()
    installed = next((workspace.root / "env/lib").glob("python*")) / "site-packages/greeting/__init__.py"
    assert result.out.splitlines() == ["hello from the wheel", f"7 {installed}", "gone"]
    assert workspace.conflicts() == []


def test_python_modules_are_compiled_and_found_again(workspace: Workspace) -> None:
    script = """
    set -e
    mkdir p && for n in 1 2 3 4 5; do echo "V = $n" >p/m$n.py; done && touch p/__init__.py
    python3 -c 'from p import m1, m2, m3, m4, m5; print(m5.V)'
    echo "V = 50 + 1" >p/m5.py
    python3 -c 'from p import m5; print(m5.V)'
    ls p/__pycache__ | wc -l
    """
    result = workspace.sh("alice", script, env={"PYTHONDONTWRITEBYTECODE": ""}).ok()
    assert result.out.split() == ["5", "51", "6"]


def test_npm_installs_local_packages(workspace: Workspace) -> None:
    need_tools("npm", "node")
    for name, needs in (("one", {}), ("two", {"one": "file:../one"})):
        package = workspace.top / name
        (package / "lib").mkdir(parents=True)
        for n in range(20):
            (package / f"lib/{n}.js").write_text(f"module.exports = {n};\n")
        (package / "index.js").write_text("module.exports = require('./lib/7.js');\n")
        (package / "cli.js").write_text("#!/usr/bin/env node\nconsole.log(require('./index.js'));\n")
        facts = {"name": name, "version": "1.0.0", "dependencies": needs, "bin": {f"run-{name}": "cli.js"}}
        (package / "package.json").write_text(json.dumps(facts))
    script = """
    set -e
    npm pack --silent --offline ../one >/dev/null
    echo '{"name": "app", "version": "1.0.0"}' >package.json
    npm install --silent --offline --install-links ./one-1.0.0.tgz
    npm install --silent --offline --install-links ../two
    node -e 'console.log(require("one") + require("two"))'
    ./node_modules/.bin/run-one
    npm uninstall --silent --offline two
    npm install --silent --offline
    ls node_modules
    """
    npm = {"npm_config_audit": "false", "npm_config_fund": "false", "npm_config_update_notifier": "false"}
    result = workspace.sh("alice", script, env=npm, timeout=120).ok()
    assert result.out.split() == ["14", "7", "one"]
    assert workspace.conflicts() == []


def test_make_builds_once_and_again_after_a_change(workspace: Workspace) -> None:
    need_tools("make", "cc")
    (workspace.root / "Makefile").write_text(
        "OBJS = a.o b.o main.o\n"
        "prog: $(OBJS)\n\t@echo link\n\t@cc -o $@ $(OBJS)\n"
        "%.o: %.c all.h\n\t@echo $<\n\t@cc -c -o $@ $<\n"
    )
    script = """
    set -e
    echo 'int a(void); int b(void);' >all.h
    printf '#include "all.h"\\nint a(void) { return 40; }\\n' >a.c
    printf '#include "all.h"\\nint b(void) { return 2; }\\n' >b.c
    printf '#include "all.h"\\nint main(void) { return a() + b(); }\\n' >main.c
    make -s -j2 | sort && { ./prog || echo $?; }
    make -s
    sleep 0.02; sed -i 's/ 2;/ 3;/' b.c
    make -s && { ./prog || echo $?; }
    """
    out = workspace.run("alice", "bash", "-c", script).ok().out.split()
    assert out == ["a.c", "b.c", "link", "main.c", "42", "b.c", "link", "43"]
    assert workspace.conflicts() == []


def test_cargo_builds_without_a_network(workspace: Workspace) -> None:
    if shutil.which("cargo") is None:
        pytest.skip("cargo is not installed (nothing else depends on it)")
    script = """
    set -e
    cargo new -q --vcs none hello && cd hello
    cargo run -q --offline
    sed -i 's/Hello, world!/changed/' src/main.rs
    cargo run -q --offline
    """
    home = {
        name: str(Path.home() / name[:-5].lower().join((".", ""))) for name in ("CARGO_HOME", "RUSTUP_HOME")
    }
    result = workspace.sh("alice", script, env=home, timeout=120).ok()
    assert result.out.splitlines() == ["Hello, world!", "changed"]
    assert workspace.conflicts() == []
