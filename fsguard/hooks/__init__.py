"""Agents' hooks: an event of their tool in, our words for the agent out.

One module per tool translates its JSON to a `Call` and an `Outcome` back to its
JSON; they are pure. `engine` asks the daemon in between, `runner` keeps the
promise that a hook never fails, and never holds up, an agent's turn.

`setup`, `jsontext`, `files`, `githook` put the hooks into the tools' own
configuration, and take them out again.

Standard library only: `fsguard hook` runs at every tool call.
"""

from __future__ import annotations

__all__ = ["GIT", "TOOLS"]

TOOLS = ("claude-code", "codex", "gemini", "opencode", "cursor")
"""The agent tools; the module of each has its name, with an underscore."""

GIT = "git-pre-commit"
"""What git's own hook calls."""
