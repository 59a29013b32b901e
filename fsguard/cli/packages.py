"""What the things that fsguard needs are called in each distribution, and how they are installed."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["install_command", "manager"]

# In the order of _NEEDS.
_PACKAGES = {
    "apt-get install": ("fuse3", "libfuse3-dev", "pkg-config", "gcc", "python3-dev"),
    "dnf install": ("fuse3", "fuse3-devel", "pkgconf-pkg-config", "gcc", "python3-devel"),
    "zypper install": ("fuse3", "fuse3-devel", "pkgconf", "gcc", "python3-devel"),
    "pacman -S": ("fuse3", "fuse3", "pkgconf", "gcc", "python"),
    "apk add": ("fuse3", "fuse3-dev", "pkgconf", "gcc musl-dev", "python3-dev"),
}
_NEEDS = ("fuse", "headers", "pkg-config", "cc", "python")

_MANAGERS = {
    "debian": "apt-get install",
    "ubuntu": "apt-get install",
    "fedora": "dnf install",
    "rhel": "dnf install",
    "suse": "zypper install",
    "opensuse": "zypper install",
    "arch": "pacman -S",
    "alpine": "apk add",
}


def manager(release: str) -> str | None:
    """The package manager's install command, by the text of /etc/os-release."""
    fields = dict(line.split("=", 1) for line in release.splitlines() if "=" in line)
    for name in f"{fields.get('ID', '')} {fields.get('ID_LIKE', '')}".replace('"', "").split():
        if name in _MANAGERS:
            return _MANAGERS[name]
    return None


def install_command(needs: Iterable[str], release: str | None = None) -> str:
    """The command that installs `needs` (fuse, headers, pkg-config, cc, python) here.

    "" when nothing is needed, or the distribution is not known.
    """
    wanted = [need for need in _NEEDS if need in set(needs)]
    if release is None:
        try:
            with open("/etc/os-release", encoding="utf-8", errors="replace") as file:
                release = file.read()
        except OSError:
            release = ""
    command = manager(release)
    if command is None or not wanted:
        return ""
    names = dict.fromkeys(_PACKAGES[command][_NEEDS.index(need)] for need in wanted)
    return f"{'' if os.geteuid() == 0 else 'sudo '}{command} {' '.join(names)}"
