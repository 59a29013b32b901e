"""The shell scripts of the project, as shellcheck sees them; the machine of vagrant/, as Vagrant does."""

import os
import subprocess

from tests.kit.abilities import need_tools
from tests.kit.mounting import ROOT

PLACES = (".ci", "mount", "vagrant")
SHEBANGS = ("#!/bin/sh", "#!/usr/bin/env bash", "#!/bin/bash")


def scripts():
    found = []
    for place in PLACES:
        for path in sorted((ROOT / place).rglob("*")):
            if path.is_file() and path.stat().st_size < 1 << 20:
                with open(path, "rb") as file:
                    if file.readline().decode("utf-8", "replace").strip() in SHEBANGS:
                        found.append(path)
    return found


def test_shellcheck_has_nothing_to_say():
    need_tools("shellcheck")
    files = scripts()
    assert len(files) >= 6, f"the scripts were not found: {files}"
    done = subprocess.run(
        ["shellcheck", "--shell=bash", *map(str, files)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_vagrant_accepts_the_vagrantfile(tmp_path):
    need_tools("vagrant")
    env = {
        **os.environ,
        "VAGRANT_CWD": str(ROOT / "vagrant"),
        "VAGRANT_HOME": str(tmp_path / "home"),
        "VAGRANT_DOTFILE_PATH": str(tmp_path / "dotfiles"),
        "VAGRANT_CHECKPOINT_DISABLE": "1",
    }
    for choice in ({}, {"FSGUARD_BOX": "local", "FSGUARD_BOX_OLD": "local", "FSGUARD_DRIVER": "qemu"}):
        done = subprocess.run(
            ["vagrant", "validate", "--ignore-provider"],
            env={**env, **choice},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
