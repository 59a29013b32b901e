"""fsguard mcp: the questions an agent has, as tools of a Model Context Protocol server."""

from __future__ import annotations

import os
import sys
from functools import wraps

from fsguard.cli import terminal
from fsguard.cli.base import Parser, task_id
from fsguard.errors import FsguardError, MissingError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn

__all__ = ["main"]

REQUIREMENT = "mcp>=2,<3"

_INSTRUCTIONS = """\
Several agents work on this directory tree at once. Before you overwrite a file that you read a while ago,
call `check`; after a shell command or an edit, call `warnings`. A warning names the sibling whose work was
overwritten, and the version that holds the lost bytes: `diff` shows it, `restore` brings it back. `lease`
keeps others off some paths while you change them together."""


def main(argv: list[str]) -> int:
    parser = Parser(
        "mcp",
        "Serve check, who, warnings, versions, diff, restore and lease over the Model Context Protocol, on\n"
        "stdin and stdout, for agent tools without hooks. The agent tool starts it; let the agent itself\n"
        "run as the same task: `fsguard run --task A -- AGENT`. Needs the extra fsguard[mcp].",
        [
            "fsguard mcp",
            "fsguard mcp --task A --workspace ~/project",
            '{"mcpServers": {"fsguard": {"command": "fsguard", "args": ["mcp"]}}}   # an agent\'s settings',
        ],
        [(0, "the agent tool has closed the connection"), 2, 5],
    )
    parser.add_argument("--task", metavar="ID", type=task_id, help="the agent's task (default: FSGUARD_TASK)")
    parser.workspace_flag()
    args = parser.parse(argv)
    if args.task is not None and os.environ.get("FSGUARD_TASK") != args.task:
        _again(args.task, argv)
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp_types import ToolAnnotations
    except ImportError as error:
        raise MissingError(
            f"this needs the official Python SDK of the Model Context Protocol ({error})",
            "install fsguard with its extra, `fsguard[mcp]`, or:"
            f" {sys.executable} -m pip install '{REQUIREMENT}'",
        ) from None

    from fsguard import __version__
    from fsguard.cli.mcptools import Tools

    tools = Tools(args.workspace, os.environ.get("FSGUARD_TASK") or None)
    server = MCPServer("fsguard", instructions=_INSTRUCTIONS, version=__version__, log_level="WARNING")
    asking: list[Callable[..., Any]] = [tools.check, tools.who, tools.warnings, tools.versions, tools.diff]
    doing: list[Callable[..., Any]] = [tools.restore, tools.lease]
    for tool in asking + doing:
        # By none of them anything is lost: what a restore replaces is kept before.
        hints = ToolAnnotations(read_only_hint=tool in asking, destructive_hint=False, open_world_hint=False)
        server.add_tool(_reporting(tool, ToolError), annotations=hints)
    server.run("stdio")
    return 0


def _again(task: str, argv: Sequence[str]) -> NoReturn:
    """Start over as the task: what counts is the environment that a process was started with."""
    os.execve(
        sys.executable,
        [sys.executable, "-P", "-m", "fsguard.cli", "mcp", *argv],
        {**os.environ, "FSGUARD_TASK": task},
    )


def _reporting(tool: Callable[..., Any], failure: type[Exception]) -> Callable[..., Any]:
    """The tool, whose errors are told to the model as a sentence with what to do next."""

    @wraps(tool)
    def told(*args: Any, **kwargs: Any) -> Any:
        try:
            return tool(*args, **kwargs)
        except FsguardError as error:
            said = error.message if error.hint is None else f"{error.message} ({error.hint})"
            raise failure(terminal.shown(said, lines=True)) from None

    return told
