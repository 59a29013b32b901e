"""The Debian package: built, examined by lintian, installed and used in a clean root directory."""

import os
import subprocess

import pytest

from tests.kit.abilities import need, need_mount, need_root, need_tools
from tests.kit.mounting import ROOT


def release():
    with open("/etc/os-release", encoding="utf-8") as file:
        fields = dict(line.rstrip("\n").split("=", 1) for line in file if "=" in line)
    return fields.get("ID", ""), fields.get("VERSION_CODENAME", "")


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    need(release()[0] in ("debian", "ubuntu"), "needs Debian or Ubuntu")
    need_tools("dpkg-deb", "dpkg-shlibdeps", "cc")
    out = tmp_path_factory.mktemp("deb")
    done = subprocess.run(
        ["make", "deb", f"OUT={out}"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


def test_lintian_accepts_it(package):
    need_tools("lintian")
    done = subprocess.run(
        ["lintian", "--fail-on=error,warning", "--allow-root", package],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_installs_works_and_goes_in_a_clean_root(package, tmp_path):
    need_root()
    need_mount()
    need_tools("mmdebstrap", "unshare", "chroot")
    root = tmp_path / "root"
    inside = """
        set -eu
        apt-get -qq update
        apt-get -qq -y --no-install-recommends install /fsguard.deb >/dev/null
        fsguard --version
        mkdir /srv/ws
        mount -t fsguard /srv/ws /srv/ws -o policy=block
        cd /srv/ws
        fsguard run --task A -- sh -c 'echo a >f'
        fsguard run --task B -- sh -c 'echo b >f' && exit 1
        cat f
        cd /
        umount /srv/ws
        apt-get -qq -y purge fsguard >/dev/null
        test ! -e /usr/lib/fsguard
    """
    (tmp_path / "inside").write_text(inside)
    made = subprocess.run(
        ["mmdebstrap", "--mode=root", "--variant=minbase", "--include=fuse3", release()[1], str(root)],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=600,
    )
    assert made.returncode == 0, made.stderr
    script = f"""
        set -eu
        cp '{package}' '{root}/fsguard.deb'
        cp /etc/resolv.conf '{root}/etc/resolv.conf'
        mount --bind '{root}' '{root}'
        mount -t proc proc '{root}/proc'
        mount --rbind /dev '{root}/dev'
        set -- PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive
        chroot '{root}' env -i "$@" sh -s <'{tmp_path}/inside'
    """
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "a" and lines[0].startswith("fsguard "), done.stdout
    assert 'task "A"' in done.stderr, done.stderr
