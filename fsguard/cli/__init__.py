"""The fsguard command: one module per subcommand, imported when it is asked for.

`fsguard check` and `fsguard run` stand at every tool call of an agent, so
nothing is imported here that they could do without.

Whatever goes wrong, the user gets a sentence and a hint on stderr and the exit
code of `fsguard.errors`; FSGUARD_DEBUG=1 adds the traceback of an error in
fsguard itself. 130 is Ctrl-C, 141 a reader that went away (`| head`).
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "mount": "guard a directory: mount it over itself or elsewhere",
    "unmount": "end a mount",
    "restart": "upgrade a running daemon in place: no call fails, nothing is forgotten",
    "status": "tasks, counters and open handles of a mount; without one, all mounts",
    "run": "run a command as a task, then tell what it overwrote",
    "ci": "a CI job: mount, run steps as tasks, report, unmount",
    "warnings": "what was told to the tasks, or waits to be told",
    "log": "who read and wrote, newest first",
    "who": "writers, readers and open handles of one file",
    "versions": "what is kept of a file, newest first",
    "show": "the bytes of a kept version",
    "diff": "a kept version against another, or against what is there now",
    "restore": "bring a kept version back",
    "conflicts": "whose work was destroyed unseen, and how to get it back",
    "resolve": "merge what two tasks wrote, or choose a side",
    "undo": "bring back everything that a task's commands destroyed",
    "report": "what happened: a page with a timeline, JSON, or what CI services show",
    "top": "a live screen: tasks, contended paths, who waits, warnings",
    "metrics": "counters and gauges as Prometheus text, once or by HTTP on the loopback",
    "check": "would a write now overwrite something unseen?",
    "note": "say that a task read or wrote a file outside any process of its own",
    "task": "list, show and end tasks",
    "lease": "keep others off some paths for a while",
    "policy": "warn, block or off: for all, for a pattern or for a task",
    "hooks": "set up the hooks of an agent tool, or of git",
    "hook": "answer an agent tool's event; the hooks call it",
    "mcp": "serve agents without hooks over the Model Context Protocol",
    "demo": "a tour in two minutes: two agents collide on a scratch tree",
    "doctor": "what this machine has and lacks",
    "completion": "what makes a shell complete fsguard's commands and flags",
    "man": "the manual page",
}

_USAGE = """usage: fsguard COMMAND [ARGUMENTS]
       fsguard COMMAND --help
       fsguard --version

Several agents, one directory tree: whoever is about to overwrite a sibling's
work unseen is told by name what it is about to destroy.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code. Never a traceback, never a half-printed error."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _command(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The rest has no reader; without this the interpreter complains at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except SystemExit as error:  # argparse, after --help
        return error.code if isinstance(error.code, int) else 0
    except Exception as error:
        return _failed(error)
    return code


def _command(arguments: list[str]) -> int:
    from fsguard.cli import terminal

    terminal.prepare()
    name = arguments[0] if arguments else ""
    if name in ("-h", "--help", "help", ""):
        if name == "help" and arguments[1:2] and arguments[1] in COMMANDS:
            return _command([arguments[1], "--help"])
        return _help(bool(arguments))
    if name in ("-V", "--version", "version"):
        from fsguard import __version__

        print(f"fsguard {__version__}")
        return 0
    if name in COMMANDS:
        # By name, so that only the module of this one command is loaded.
        module = __import__(f"fsguard.cli.{name}", fromlist=["main"])
        return int(module.main(arguments[1:]))
    return _unknown(name)


def _help(asked: bool) -> int:
    lines = [f"  {name:<10}{summary}" for name, summary in COMMANDS.items()]
    text = _USAGE + "\nCommands:\n" + "\n".join(lines)
    print(text, file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


def _unknown(name: str) -> int:
    import difflib

    from fsguard.errors import UsageError

    near = difflib.get_close_matches(name, COMMANDS, 1)
    hint = f"did you mean `fsguard {near[0]}`?" if near else "`fsguard --help` lists the commands"
    raise UsageError(f"no such command: {name}", hint)


def _failed(error: Exception) -> int:
    from fsguard.cli import terminal
    from fsguard.errors import FsguardError

    if isinstance(error, FsguardError):
        terminal.complain(error)
        return error.exit_code
    if os.environ.get("FSGUARD_DEBUG"):
        import traceback

        traceback.print_exc()
    what = f"{type(error).__name__}: {error}"
    terminal.complain(FsguardError(f"an error of its own: {what}", "FSGUARD_DEBUG=1 shows where"))
    return 1
