"""Task IDs from what the tools call their sessions and subagents.

The same session always gives the same ID, so no state is kept, and two sessions
never give one: only such a part of an identifier is used as tells it from others.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["above", "short", "task_id"]

_HEX = frozenset("0123456789abcdefABCDEF")
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
_LONGEST = 24


def task_id(tool: str, session: str, agent: str = "") -> str:
    """`claude-1f2e3d4c`, and `claude-1f2e3d4c.9a8b7c6d` for a subagent of it."""
    whole = f"{tool}-{short(session)}"
    return f"{whole}.{short(agent)}" if agent else whole


def above(env: Mapping[str, str], task: str) -> str | None:
    """The task that the agent itself runs as, which a session is then a child of."""
    outer = env.get("FSGUARD_TASK") or env.get("FSGUARD_PARENT") or ""
    return outer if outer != task and 0 < len(outer) <= 200 and outer.isprintable() else None


def short(text: str) -> str:
    """A short name for an identifier, made of letters, digits, - and _."""
    if _is_uuid(text):
        if text[14] == "7":  # begins with the time: two sessions of one minute share that
            return text[-8:].lower()
        if text[14] not in "16":  # those hold time and machine only
            return text[:8].lower()
    elif _PLAIN.issuperset(text):
        if text.startswith("ses_") and len(text) >= 28:  # opencode: time, then 14 random letters
            return text[-8:]
        if len(text) >= 16 and _HEX.issuperset(text) and not text.startswith("000"):
            return text[:8]
        if 0 < len(text) <= _LONGEST:
            return text
    return _digest(text)


def _is_uuid(text: str) -> bool:
    dashes = len(text) == 36 and text[8] == text[13] == text[18] == text[23] == "-"
    return dashes and _HEX.issuperset(text.replace("-", ""))


def _digest(text: str) -> str:
    """A short name for what has none of its own."""
    from hashlib import sha256

    readable = "".join(c for c in text[:8] if c in _PLAIN)
    return f"{readable}-{sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"
