"""Reading a request's parameters: the right type, or a UsageError that names it.

For the handlers behind the socket. A caller may send anything; what passes here
is of the type that was asked for, and nothing unknown goes unnoticed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fsguard.errors import UsageError

__all__ = ["flag", "known", "number", "optional_text", "text", "texts"]


def known(params: Mapping[str, Any], names: Collection[str]) -> None:
    """UsageError when a parameter is not one of `names` (a newer client, a slip)."""
    for name in params:
        if name not in names:
            raise UsageError(f"unknown parameter `{name[:64]}`", f"known: {', '.join(sorted(names))}")


def text(params: Mapping[str, Any], name: str) -> str:
    """A string that must be there and not be empty."""
    value = optional_text(params, name)
    if not value:
        raise UsageError(f"`{name}` is missing")
    return value


def optional_text(params: Mapping[str, Any], name: str) -> str | None:
    """A string, or None when absent or null."""
    value = params.get(name)
    if value is not None and not isinstance(value, str):
        raise UsageError(f"`{name}` must be text")
    if value and "\0" in value:
        raise UsageError(f"`{name}` must not contain a zero byte")
    return value


def texts(params: Mapping[str, Any], name: str) -> list[str]:
    """A list of strings; absent or null is the empty list."""
    value = params.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, str) and "\0" not in item for item in value):
        raise UsageError(f"`{name}` must be a list of texts")
    return value


def flag(params: Mapping[str, Any], name: str) -> bool:
    """A boolean; absent or null is False."""
    value = params.get(name)
    if value is not None and not isinstance(value, bool):
        raise UsageError(f"`{name}` must be true or false")
    return bool(value)


def number(
    params: Mapping[str, Any], name: str, default: int | None = None, *, low: int = 0, high: int = 1 << 53
) -> int:
    """A whole number between `low` and `high`; without a default it must be there."""
    value = params.get(name, default)
    if value is None:
        value = default
    if type(value) is not int or not low <= value <= high:
        raise UsageError(f"`{name}` must be a whole number from {low} to {high}")
    return value
