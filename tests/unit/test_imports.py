"""What importing may import: `fsguard run` and `fsguard hook` start at every tool call."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import fsguard

ROOT = Path(__file__).resolve().parents[2]
SCREEN = {"textual", "rich"}
ENGINE = {"trio", "pyfuse3", "psutil", "pathspec", "sqlite3", "asyncio", "multiprocessing", "concurrent"}
LIGHT = [
    "fsguard.cli",
    "fsguard.cli.run",
    "fsguard.control.client",
    "fsguard.control.protocol",
    "fsguard.control.registry",
]


PROBE = """
import importlib, os, sys
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2].split():
    importlib.import_module(name)
for name in sys.argv[3:]:
    pid = os.fork()
    if pid == 0:
        before = set(sys.modules)
        importlib.import_module(name)
        print(name, *sorted({module.split(".")[0] for module in set(sys.modules) - before}), flush=True)
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        sys.exit(f"{name} cannot be imported first")
"""


def loaded_by(*names: str, loaded: str = "") -> dict[str, set[str]]:
    """For each module: the top packages that importing it first brings in, besides what is `loaded`."""
    result = subprocess.run(
        [sys.executable, "-c", PROBE, str(ROOT), loaded, *names],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd="/",
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return {line.split()[0]: set(line.split()[1:]) for line in result.stdout.splitlines()}


def modules(prefix: str = "fsguard.") -> list[str]:
    found = [module.name for module in pkgutil.walk_packages(fsguard.__path__, "fsguard.")]
    return [name for name in found if name.startswith(prefix) and not name.endswith("__main__")]


def test_what_runs_at_every_tool_call_starts_without_the_engine() -> None:
    found = loaded_by(*LIGHT)
    assert {name: brought & (ENGINE | SCREEN) for name, brought in found.items()} == {
        name: set() for name in LIGHT
    }


def test_importing_the_package_brings_nothing_and_the_api_no_engine() -> None:
    found = loaded_by("fsguard", "fsguard.api")
    assert found["fsguard"] == {"fsguard"}
    assert found["fsguard.api"] & ENGINE == set()


def test_the_core_is_pure() -> None:
    names = modules("fsguard.core")
    impure = ENGINE - {"pathspec"} | {"socket", "subprocess", "logging"}
    found = loaded_by(*names)
    assert {name: brought & impure for name, brought in found.items()} == {name: set() for name in names}


def test_every_module_can_be_imported_first() -> None:
    """None needs another to have been imported before it, and none prints or acts on import."""
    found = loaded_by(*modules(), loaded="trio pyfuse3 psutil pathspec asyncio logging")
    assert set(found) == set(modules())
    assert {name for name, brought in found.items() if brought & SCREEN} == {"fsguard.cli.screen.app"}
