"""make install, make uninstall: what is put where, that it works from there, and that it goes away again."""

import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.kit.abilities import need, need_mount, need_tools
from tests.kit.mounting import ROOT

FILES = [
    "bin/fsguard",
    "lib/systemd/system/fsguard@.service",
    "lib/systemd/user/fsguard@.service",
    "lib/tmpfiles.d/fsguard.conf",
    "share/bash-completion/completions/fsguard",
    "share/fish/vendor_completions.d/fsguard.fish",
    "share/man/man1/fsguard.1",
    "share/man/man8/mount.fsguard.8",
    "share/zsh/site-functions/_fsguard",
]


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """What `pip install --target` would give: the locked packages, from the environment of this test."""
    target = tmp_path_factory.mktemp("packages")
    lock = (ROOT / "requirements.lock").read_bytes()
    for name in re.findall(r"^([a-z0-9_.-]+)==", lock.decode(), re.MULTILINE):
        for file in importlib.metadata.distribution(name).files or ():
            source = Path(str(file.locate()))
            if ".." not in file.parts and source.is_file() and source.suffix != ".pyc":
                place = target / str(file)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, place)
    (target / ".lock").write_text(hashlib.sha256(lock).hexdigest() + "\n")
    return target


def make(target, source=ROOT, **variables):
    words = [f"{name}={value}" for name, value in variables.items()]
    return subprocess.run(
        ["make", target, f"PYTHON={sys.executable}", *words],
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def listing(top):
    return sorted(str(p.relative_to(top)) for p in top.rglob("*") if not p.is_dir())


@pytest.fixture(scope="module")
def installed(packages, tmp_path_factory):
    need_tools("make", "cc")
    # DESTDIR is empty: what is installed is run.
    top = tmp_path_factory.mktemp("installed")
    done = make("install", PREFIX=top, SBINDIR=top / "sbin", DEPS=packages)
    assert done.returncode == 0, done.stdout + done.stderr
    return top


def test_all_is_in_its_place_and_nothing_else(installed):
    found = [f for f in listing(installed) if not f.startswith("lib/fsguard/")]
    assert found == sorted([*FILES, "sbin/mount.fsguard", "sbin/mount.fuse.fsguard"])
    assert os.access(installed / "bin/fsguard", os.X_OK) and os.access(
        installed / "sbin/mount.fsguard", os.X_OK
    )
    for unit in ("lib/systemd/system/fsguard@.service", "lib/systemd/user/fsguard@.service"):
        text = (installed / unit).read_text()
        assert f"ExecStart={installed}/bin/fsguard mount" in text and "@BINDIR@" not in text


def test_every_module_and_file_of_the_package_is_there(installed):
    """Whatever is added to the package later: code, data, what is compiled."""
    library = installed / "lib/fsguard"
    for path in (ROOT / "fsguard").rglob("*"):
        name = path.relative_to(ROOT)
        if path.is_dir() or "__pycache__" in name.parts or path.suffix in (".c", ".h", ".md", ".so"):
            continue
        assert (library / name).read_bytes() == path.read_bytes(), name
    with open(ROOT / "pyproject.toml", "rb") as file:
        modules = tomllib.load(file)["tool"]["setuptools"]["ext-modules"]
    for module in modules:
        done = subprocess.run(
            [
                sys.executable,
                "-IS",
                "-c",
                f"import sys; sys.path[:0] = [{str(library)!r}]; import {module['name']}",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def test_what_is_installed_works(installed, make_workspace):
    need_mount()
    ws = make_workspace(mount=False)
    fsguard = str(installed / "bin/fsguard")
    ws.plain(fsguard, "mount", str(ws.directory), cwd="/").ok()
    try:
        ws.plain(fsguard, "run", "--task", "A", "--", "sh", "-c", "echo a >f").ok()
        assert ws.plain(fsguard, "log", "--json").lines()[0]["task"] == "A"
    finally:
        ws.plain(fsguard, "unmount", str(ws.directory), cwd="/").ok()
    # Found by nothing that lies in the directory where it is called.
    (ws.directory / "fsguard").mkdir()
    (ws.directory / "fsguard" / "__init__.py").write_text("raise SystemExit('from the workspace')\n")
    assert ws.plain(fsguard, "--version").ok().out.startswith("fsguard ")
    assert ws.plain(str(installed / "sbin/mount.fsguard"), "-V").ok().out.startswith("mount.fsguard ")


def test_systemd_accepts_the_units(installed):
    need_tools("systemd-analyze")
    system, user = installed / "lib/systemd/system", installed / "lib/systemd/user"
    for words in ([system / "fsguard@.service"], ["--user", user / "fsguard@.service"]):
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", *map(str, words)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "XDG_RUNTIME_DIR": "/tmp"},
        )
        assert done.returncode == 0 and "fsguard" not in done.stderr, done.stderr


def test_tmpfiles_accepts_its_lines(installed, tmp_path):
    need_tools("systemd-tmpfiles")
    need(os.geteuid() == 0, "needs root to give directories to root")
    lines = str(installed / "lib/tmpfiles.d/fsguard.conf")
    subprocess.run(["systemd-tmpfiles", "--create", f"--root={tmp_path}", lines], check=True)
    assert (tmp_path / "run/fsguard").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "var/lib/fsguard").stat().st_mode & 0o777 == 0o700


def test_completion_and_manual_page_are_those_of_the_installed_command(installed):
    said = {
        "share/bash-completion/completions/fsguard": ["completion", "bash"],
        "share/zsh/site-functions/_fsguard": ["completion", "zsh"],
        "share/fish/vendor_completions.d/fsguard.fish": ["completion", "fish"],
        "share/man/man1/fsguard.1": ["man"],
    }
    for name, words in said.items():
        done = subprocess.run([installed / "bin/fsguard", *words], capture_output=True, text=True, check=True)
        assert (installed / name).read_text() == done.stdout and len(done.stdout) > 200, name


NEWER = "99.0"


@pytest.fixture(scope="module")
def newer(tmp_path_factory):
    """The source of a later version."""
    top = tmp_path_factory.mktemp("newer") / "source"
    skip = shutil.ignore_patterns(
        ".git", ".venv", "build", "dist", ".vagrant", "__pycache__", "*.so", ".*_cache"
    )
    shutil.copytree(ROOT, top, ignore=skip, symlinks=True)
    init = top / "fsguard/__init__.py"
    text, changed = re.subn(r'(?m)^__version__ = ".*"$', f'__version__ = "{NEWER}"', init.read_text())
    assert changed == 1
    init.write_text(text)
    return top


# Whatever asks the daemon, in words that any version must understand.
ASKING = [
    ["status", "--json"],
    ["task", "list", "--json"],
    ["warnings", "--all", "--json"],
    ["log", "--json"],
    ["who", "f", "--json"],
    ["policy", "--json"],
    ["lease", "list", "--json"],
    ["versions", "f", "--json"],
    ["conflicts", "--json"],
    ["report", "--format", "json"],
    ["metrics"],
    ["top", "--once", "--json"],
]


def test_an_install_that_fails_leaves_what_was_there(installed, packages, newer):
    before = listing(installed)
    place = {"PREFIX": installed, "SBINDIR": installed / "sbin"}
    done = make("install", source=newer, **place, DEPS=packages, CC="false")
    assert done.returncode != 0
    assert listing(installed) == before
    said = subprocess.run(
        [installed / "bin/fsguard", "--version"], capture_output=True, text=True, check=True
    )
    assert said.stdout.startswith("fsguard ") and NEWER not in said.stdout


def test_a_newer_version_under_a_running_daemon(installed, packages, newer, make_workspace):
    """The daemon has no need of the files that it was started from; the new commands speak with it.

    The last test of `installed`, which is a newer one afterwards.
    """
    need_mount()
    fsguard = str(installed / "bin/fsguard")
    old = subprocess.run([fsguard, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    ws = make_workspace(mount=False)

    def call(*words, **more):
        return ws.plain(fsguard, *words, **more)

    def task(name, script):
        return call("run", "--task", name, "--", "sh", "-c", script)

    def conflicts(name):
        told = call("warnings", "--all", "--json", "--task", name).lines()
        return [(w["path"], w["sibling"]) for w in told if w["severity"] == "conflict"]

    call("mount", *ws.options, str(ws.directory), cwd="/").ok()
    ws.mounted = True
    task("A", "echo a >f").ok()
    task("B", "echo b >f").ok()
    kept = call("versions", "f", "--json").lines()
    assert kept and conflicts("B") == [("f", "A")]
    daemon = call("status", "--json").json()["pid"]
    script = "exec 3<f 4>>held; echo in; read x; cat <&3 >&4; echo last >&4"
    holder = ws.start(None, "sh", "-c", script, stdin=subprocess.PIPE)
    assert holder.stdout.readline() == "in\n"

    place = {"PREFIX": installed, "SBINDIR": installed / "sbin"}
    done = make("install", source=newer, **place, DEPS=packages, NO_COMPILE=1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert call("--version").ok().out == f"fsguard {NEWER}\n"
    status = call("status", "--json").json()
    assert (status["version"], status["pid"]) == (old, daemon)
    # What it loads late would be of another version: so it shall load nothing, and needs no files.
    library, hidden = installed / "lib/fsguard", installed / "lib/hidden"
    library.rename(hidden)
    try:
        for words in ASKING:
            ws.fsguard(*words).ok()
        ws.sh("A", "cat f >/dev/null; echo a2 >g; mkdir -p d; mv g d/g; ln -s f l; rm l").ok()
        ws.sh("B", "echo b2 >d/g").ok()
        ws.sh("C", "echo c >f").ok()
        ws.fsguard("policy", "block", "--path", "d/").ok()
        assert ws.sh("C", "echo c >d/g").code != 0
        ws.fsguard("policy", "warn", "--path", "d/").ok()
        ws.fsguard("lease", "acquire", "d/", "--task", "A").ok()
        lease = ws.fsguard("lease", "list", "--json").json()["leases"][0]
        ws.fsguard("lease", "release", str(lease["id"]), "--task", "A").ok()
    finally:
        hidden.rename(library)
    assert ("d/g", "A") in conflicts("B") and ("f", "B") in conflicts("C")
    call("show", f"f@{kept[0]['version']}").ok()
    if "daemon" not in ws.options:
        gone_on = call("restart", "--json", str(ws.directory), cwd="/").json()
        assert (gone_on["from"], gone_on["to"], gone_on["pid"]) == (old, NEWER, daemon)
        assert ("f", "B") in conflicts("C"), "what was told before is on record"
        task("D", "echo d >d/g").ok()
        assert ("d/g", "B") in conflicts("D")
    holder.communicate("x\n", timeout=30)
    assert (ws.directory / "held").read_text() == "c\nlast\n"

    call("unmount", str(ws.directory), cwd="/").ok()
    left = call("report", "--format", "json").json()
    assert ("B", "f") in [(w["task"], w["path"]) for w in left["warnings"]]
    call("mount", *ws.options, str(ws.directory), cwd="/").ok()
    assert call("status", "--json").json()["version"] == NEWER
    after = call("versions", "f", "--json").lines()
    assert kept[0]["version"] in [v["version"] for v in after]
    assert call("show", f"f@{kept[0]['version']}").ok().out == "a\n"
    call("unmount", str(ws.directory), cwd="/").ok()
    ws.mounted = False


def test_uninstall_takes_away_what_install_put_there_and_nothing_else(packages, tmp_path):
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/other").write_text("somebody else's")
    (tmp_path / "etc/fsguard").mkdir(parents=True)
    (tmp_path / "etc/fsguard/ws.env").write_text("FSGUARD_MOUNT_OPTIONS=\n")
    before = listing(tmp_path)
    done = make("install", DESTDIR=tmp_path, PREFIX="/usr", DEPS=packages, NO_COMPILE=1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "sbin/mount.fsguard").read_text().startswith(f"#!{sys.executable} -IS\n")
    assert str(tmp_path) not in (tmp_path / "usr/bin/fsguard").read_text(), "DESTDIR is in what is installed"
    again = make("install", DESTDIR=tmp_path, PREFIX="/usr", DEPS=packages, NO_COMPILE=1)
    assert again.returncode == 0, again.stderr
    done = make("uninstall", DESTDIR=tmp_path, PREFIX="/usr")
    assert done.returncode == 0 and "is yours" in done.stdout, done.stdout + done.stderr
    assert listing(tmp_path) == before


def test_packages_of_another_lock_file_are_refused(tmp_path):
    (tmp_path / ".lock").write_text("0" * 64)
    done = make("install", DESTDIR=tmp_path / "root", PREFIX="/usr", DEPS=tmp_path)
    assert done.returncode != 0 and "does not hold what requirements.lock names" in done.stderr
