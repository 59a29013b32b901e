"""fsguard from a Python program: for orchestrators that run several agents on one tree.

    values     what the answers are made of
    asks       each question to the daemon and how its answer is read: pure
    command    `fsguard run` as a child process, and what it reports
    workspace  the same questions, asked and waited for

`fsguard.trio` asks them without blocking its event loop. The names are had from
`fsguard` itself, which loads this package at the first use: the commands that run
at every tool call import `fsguard`, too.
"""

from __future__ import annotations

from fsguard.api.values import Check, Completed, Footprint, GuardWarning, Lease, TaskInfo, Version
from fsguard.api.workspace import ToolCall, Worker, Workspace, connect

__all__ = [
    "Check",
    "Completed",
    "Footprint",
    "GuardWarning",
    "Lease",
    "TaskInfo",
    "ToolCall",
    "Version",
    "Worker",
    "Workspace",
    "connect",
]
