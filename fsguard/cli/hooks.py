"""fsguard hooks: puts our hooks into a tool's own configuration, and takes them out again."""

from __future__ import annotations

import os

from fsguard.cli import terminal, textdiff, where
from fsguard.cli.base import Parser
from fsguard.errors import FsguardError, RefusedError, UsageError
from fsguard.hooks import githook, plugin, setup
from fsguard.hooks.files import File

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["main"]

_TOOLS = [*setup.TOOLS, "opencode", "git"]
_TITLES = {"opencode": "opencode", "git": "git"} | {name: tool.title for name, tool in setup.TOOLS.items()}


def main(argv: list[str]) -> int:
    parser = Parser(
        "hooks",
        "Make an agent tool call fsguard at its tool calls, or a repository at its commits: agents are told\n"
        "before they overwrite what they have not seen, and are told apart by session and subagent. What\n"
        "else is in the file stays as it is: a diff is shown, a backup is kept beside it.",
        [
            "fsguard hooks install claude-code --dry-run",
            "fsguard hooks install codex --project",
            "fsguard hooks install git",
            "fsguard hooks uninstall claude-code",
            "fsguard hooks status --json",
        ],
        [
            (0, "done; for `status TOOL`: its hooks are there"),
            (1, "for `status TOOL`: they are not, or not as they should be"),
            (2, "a wrong flag or name, or a file that cannot be edited (with its line)"),
            (4, "somebody else changed the file meanwhile"),
            6,
        ],
    )
    parser.add_argument("what", choices=["install", "uninstall", "status"])
    parser.add_argument("tool", metavar="TOOL", nargs="?", choices=_TOOLS, help=", ".join(_TOOLS))
    scope = parser.add_mutually_exclusive_group()
    scope.add_argument("--user", action="store_true", help="for all your projects (default)")
    scope.add_argument("--project", action="store_true", help="for the project you stand in (git: always)")
    parser.add_argument("--dry-run", action="store_true", help="only show what would be changed")
    parser.json_flag()
    args = parser.parse(argv)
    if args.what == "status":
        return _status(args)
    if args.tool is None:
        raise UsageError(f"which tool? {', '.join(_TOOLS)}")
    if args.tool == "git" and args.user:
        raise UsageError(
            "git's hooks belong to one repository", "leave out --user, and run it in the work tree"
        )
    _change(args)
    return 0


def _change(args: Any) -> None:
    scope = _scopes(args, args.tool)[0]
    install = args.what == "install"
    file = File(_path(args.tool, scope))
    after = _after(args.tool, file, setup.executable() if install else None)
    unchanged = after == file.before or (after is None and file.before is None)
    before = file.before or b""
    named = terminal.shown(file.path)
    diff = textdiff.unified(before, after or b"", named, named + ("" if after is not None else " (removed)"))
    if not args.json:
        textdiff.show(diff)
    backup = None
    if not unchanged and not args.dry_run:
        backup = file.remove() if after is None else file.replace(after, executable=args.tool == "git")
    notes = _notes(args.tool, scope, after) if install else []
    if args.json:
        terminal.print_json(
            {
                "tool": args.tool,
                "scope": scope,
                "file": file.path,
                "changed": not unchanged and not args.dry_run,
                "backup": backup,
                "diff": b"".join(diff).decode("utf-8", "surrogateescape"),
                "notes": notes,
            }
        )
        return
    print(_done(args, file, unchanged))
    if backup is not None:
        print(f"what was there before: {terminal.shown(backup)}")
    for note in notes if install and not unchanged else ():
        print(f"note: {note}")


def _done(args: Any, file: File, unchanged: bool) -> str:
    place = terminal.shown(file.path) + (f" (a link to {terminal.shown(file.real)})" if file.linked else "")
    title = _TITLES[args.tool]
    if args.what == "install":
        state = "are there already, in" if unchanged else "would be in" if args.dry_run else "are in"
    else:
        state = "are not in" if unchanged else "would be taken out of" if args.dry_run else "are no longer in"
    return f"fsguard's hooks for {title} {state} {place}"


def _after(tool: str, file: File, fsguard: str | None) -> bytes | None:
    """What the file should hold; None: nothing, it should not be there. `fsguard`: None to uninstall."""
    text = file.text()
    if tool == "opencode":
        if file.before is not None and not plugin.ours(text):
            raise UsageError(f"{file.path} is not a plugin of fsguard's", "move it away, then try again")
        return plugin.source(fsguard).encode() if fsguard is not None else None
    if tool == "git":
        if fsguard is None:
            left = githook.uninstalled(text)
            return left.encode() if left else None if githook.present(text) else file.before
        if file.before is not None and not os.access(file.real, os.X_OK):
            raise UsageError(
                f"{file.path} is not executable: git does not run it",
                f"ours would switch it on. `chmod +x {file.path}` or move it away, then try again",
            )
        return githook.installed(text, fsguard, file.path).encode()
    try:
        if fsguard is not None:
            return setup.TOOLS[tool].installed(text, fsguard).encode()
        return setup.TOOLS[tool].uninstalled(text).encode() if file.before is not None else None
    except UsageError as error:
        raise UsageError(
            f"{file.path}, {error.message}", "mend it, then try again; nothing was changed"
        ) from None


def _scopes(args: Any, tool: str) -> list[str]:
    if tool == "git" or args.project:
        return ["project"]
    return ["user"] if args.user or args.what != "status" else ["user", "project"]


def _path(tool: str, scope: str) -> str:
    if tool == "git":
        return githook.path(where.here())
    root = _project()
    return plugin.path(scope, root) if tool == "opencode" else setup.TOOLS[tool].path(scope, root)


def _project() -> str:
    """The work tree that we stand in, else the directory."""
    here = where.here()
    above = here
    while not os.path.lexists(os.path.join(above, ".git")):
        if above == os.path.dirname(above):
            return here
        above = os.path.dirname(above)
    return above


def _notes(tool: str, scope: str, after: bytes | None) -> list[str]:
    notes = list(setup.TOOLS[tool].notes) if tool in setup.TOOLS else []
    fsguard = setup.executable()
    if fsguard != "fsguard" and scope == "project" and tool != "git":
        notes.append(f"the hooks call {fsguard}; where that is not, they do nothing")
    if tool in setup.TOOLS:
        off = setup.TOOLS[tool].switched_off((after or b"").decode())
        if off is not None:
            notes.append(f"`{off}` in this file turns all hooks off")
    return notes


def _status(args: Any) -> int:
    states = []
    for tool in [args.tool] if args.tool else _TOOLS:
        for scope in _scopes(args, tool):
            state, path = _state(tool, scope)
            states.append(state)
            if args.json:
                terminal.print_json({"tool": tool, "scope": scope, "state": state, "file": path})
            else:
                print(
                    f"{tool:<12} {scope:<8} {terminal.shown(state):<14} {terminal.shown(path or '')}".rstrip()
                )
    return 0 if args.tool is None or "installed" in states else 1


def _state(tool: str, scope: str) -> tuple[str, str | None]:
    """(installed, incomplete, no, switched off, unreadable), and the file."""
    path = None
    try:
        path = _path(tool, scope)
        file = File(path)
        text = file.text()
        if tool == "git":
            return "installed" if githook.present(text) and os.access(file.real, os.X_OK) else "no", path
        if tool == "opencode":
            current = text in {plugin.source(name) for name in (setup.executable(), "fsguard")}
            return "installed" if current else "incomplete" if plugin.ours(text) else "no", path
        known = setup.TOOLS[tool]
        if not known.present(text):
            return "no", path
        if known.switched_off(text) is not None:
            return "switched off", path
        missing = all(known.missing(text, name) for name in {setup.executable(), "fsguard"})
        return "incomplete" if missing else "installed", path
    except RefusedError:
        return "unreadable", path
    except FsguardError:
        return ("no" if tool == "git" else "unreadable"), path
