"""The Debian package on each release that it is for: built, examined by lintian, installed and used.

For this machine's own release this machine builds it, for others a fresh system in a directory,
where `make deb` finds nothing but make. It is installed in another, clean one.
"""

import os
import shlex
import shutil
import subprocess

import pytest

from tests.kit.abilities import need, need_mount, need_root, need_tools
from tests.kit.mounting import ROOT

MINUTES = 60
DEBIAN = ("bookworm", "trixie")


def release():
    with open("/etc/os-release", encoding="utf-8") as file:
        fields = dict(line.rstrip("\n").split("=", 1) for line in file if "=" in line)
    return fields.get("ID", ""), fields.get("VERSION_CODENAME", "")


def suites():
    """Those of Debian can be had on each other; Ubuntu's only there."""
    system, suite = release()
    return sorted({*DEBIAN, suite}) if system == "debian" else [suite]


def run(*command, minutes, **more):
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=minutes * MINUTES,
        **more,
    )


def make_root(suite, root, *packages):
    """A minimal system of that release."""
    need_root()
    need_tools("mmdebstrap", "unshare", "findmnt", "chroot")
    command = ["mmdebstrap", "--mode=root", "--variant=minbase", f"--include={','.join(packages)}"]
    made = run(str(ROOT / "vagrant/apart"), str(root), "--", *command, suite, str(root), minutes=15)
    assert made.returncode == 0, made.stderr
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    # pip and apt in there trust whom this machine trusts.
    bundle = os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE")
    if bundle:
        shutil.copy(bundle, root / "ca.pem")


def in_root(root, script, *, minutes):
    """Run a shell script in there, in a mount namespace that ends with it."""
    (root / "script").write_text(script)
    settings = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive"]
    if (root / "ca.pem").exists():
        settings.append("PIP_CERT=/ca.pem")
    place = shlex.quote(str(root))
    enter = f"""
        set -eu
        mount --bind {place} {place}
        mount -t proc proc {place}/proc
        mount --rbind /dev {place}/dev
        exec chroot {place} env -i HOME=/root {shlex.join(settings)} sh -eu /script
    """
    return run(str(ROOT / "vagrant/apart"), str(root), "--", "sh", "-c", enter, minutes=minutes)


@pytest.fixture(scope="module", params=suites())
def suite(request):
    need(release()[0] in ("debian", "ubuntu"), "needs Debian or Ubuntu")
    return request.param


@pytest.fixture(scope="module")
def package(suite, tmp_path_factory):
    """The package; `make deb` has shown it to lintian and would have failed."""
    if suite == release()[1]:
        need_tools("dpkg-deb", "dpkg-shlibdeps", "cc")
        out = tmp_path_factory.mktemp("deb")
        done = run("make", "deb", f"OUT={out}", cwd=ROOT, minutes=10)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()[-1]
    root = tmp_path_factory.mktemp("builder") / "root"
    make_root(suite, root, "make")
    skip = shutil.ignore_patterns(".git", ".venv", "build", "dist", "__pycache__", "*.so", ".*_cache")
    shutil.copytree(ROOT, root / "source", ignore=skip, symlinks=True)
    done = in_root(root, "cd /source && make deb", minutes=20)
    assert done.returncode == 0, done.stdout + done.stderr
    return str(root / "source" / done.stdout.splitlines()[-1].lstrip("/").removeprefix("source/"))


def test_lintian_accepts_it(package, suite):
    """With the lintian of this machine, whatever release the package is of."""
    need_tools("lintian")
    done = run(
        "lintian",
        "--fail-on=error,warning",
        "--allow-root",
        package,
        minutes=5,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_installs_works_and_goes_in_a_clean_root(package, suite, tmp_path):
    need_mount()
    root = tmp_path / "root"
    make_root(suite, root, "fuse3")
    shutil.copy(package, root / "fsguard.deb")
    inside = """
        apt-get -qq update
        apt-get -qq -y --no-install-recommends install /fsguard.deb >/dev/null
        fsguard --version
        mkdir /srv/ws
        mount -t fsguard /srv/ws /srv/ws -o policy=block
        cd /srv/ws
        fsguard status --json | grep -o '"io": *"[a-z]*"'
        fsguard run --task A -- sh -c 'echo a >f'
        fsguard run --task B -- sh -c 'echo b >f' && exit 1
        cat f
        cd /
        umount /srv/ws
        apt-get -qq -y purge fsguard >/dev/null
        test ! -e /usr/lib/fsguard
    """
    done = in_root(root, inside, minutes=10)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "a" and lines[0].startswith("fsguard "), done.stdout
    # The lane came along, and is what serves.
    assert lines[1].split(":")[1].strip() == '"lane"', done.stdout
    assert 'task "A"' in done.stderr, done.stderr
