"""opencode's plugin: a file of our own, of which only the name of the command varies."""

from __future__ import annotations

import json
import os

__all__ = ["ours", "path", "source"]

_COMMAND = 'const FSGUARD = "fsguard"\n'
_DIRECTORIES = ("plugins", "plugin")


def path(scope: str, root: str) -> str:
    """Where the plugin is, or is to be: the directory that is there already, else today's name for it."""
    if scope == "project":
        top = os.path.join(root, ".opencode")
    else:
        config = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
        top = os.environ.get("OPENCODE_CONFIG_DIR") or os.path.join(config, "opencode")
    places = [os.path.join(top, directory, "fsguard.js") for directory in _DIRECTORIES]
    for place in places:
        if os.path.lexists(place):
            return place
    return next((place for place in places if os.path.isdir(os.path.dirname(place))), places[0])


def source(fsguard: str) -> str:
    """The plugin's text."""
    with open(os.path.join(os.path.dirname(__file__), "opencode.js"), encoding="utf-8") as file:
        return file.read().replace(_COMMAND, f"const FSGUARD = {json.dumps(fsguard)}\n")


def ours(text: str) -> bool:
    return text.startswith("// fsguard's plugin for opencode")
