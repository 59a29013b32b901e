"""A repository's pre-commit hook: ours as a block in it, whatever else stands there."""

from __future__ import annotations

import os
import re
import subprocess

from fsguard.errors import UsageError
from fsguard.hooks import GIT
from fsguard.hooks.setup import command_line

__all__ = ["installed", "path", "present", "uninstalled"]

_BEGIN = "# >>> fsguard: tells when a commit would carry or undo unseen work of others >>>"
_END = "# <<< fsguard <<<"
_BLOCK = re.compile(re.escape(_BEGIN) + r"\n.*?" + re.escape(_END) + r"\n?", re.DOTALL)
_SHELL = re.compile(r"#!\s*(/\S*/)?(env\s+(-\S+\s+)*)?(/\S*/)?(sh|bash|dash|ksh|zsh|ash)(\s|$)")


def path(directory: str) -> str:
    """The pre-commit hook of the repository that `directory` is in."""
    done = subprocess.run(
        ["git", "rev-parse", "--path-format=absolute", "--git-path", "hooks/pre-commit"],
        cwd=directory,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        raise UsageError(f"{directory} is not in a git repository", "run it in the repository's work tree")
    found = os.fsdecode(done.stdout).removesuffix("\n")
    # husky makes its own directory anew at each install; people's hooks are beside it.
    above, name = os.path.split(os.path.dirname(found))
    return os.path.join(above, "pre-commit") if (name, os.path.basename(above)) == ("_", ".husky") else found


def present(text: str) -> bool:
    return _BLOCK.search(text) is not None


def installed(text: str, fsguard: str, where: str) -> str:
    """`text` with our block right behind its first line, so that what follows may exit or exec.

    UsageError: the hook that is there is no shell script.
    """
    # In a subshell, for its `exec` and `exit`. 1 is the policy's refusal; any other code is
    # trouble of fsguard's own, which holds nobody up.
    block = f"{_BEGIN}\n( {command_line(fsguard, GIT)} ) || [ $? -ne 1 ] || exit 1\n{_END}\n"
    if present(text):
        return _BLOCK.sub(lambda _: block, text, count=1)
    if not text.strip():
        return f"#!/bin/sh\n{block}"
    first, newline, rest = text.partition("\n")
    if not first.startswith("#!"):
        if os.path.basename(os.path.dirname(where)) == ".husky":
            return block + text
        raise _not_shell(where, "has no #! line")
    if _SHELL.match(first) is None or "\r" in first:
        raise _not_shell(where, f"is run by {first[2:].strip()!r}, not by a shell")
    return first + (newline or "\n") + block + rest


def uninstalled(text: str) -> str:
    """`text` without our block; "" when nothing but ours was in it."""
    left = _BLOCK.sub("", text)
    return "" if left.strip() in ("", "#!/bin/sh") and present(text) else left


def _not_shell(where: str, why: str) -> UsageError:
    return UsageError(
        f"{where} {why}, so nothing can be added to it",
        f"let it run `fsguard hook {GIT}` itself, and end with its exit code",
    )
