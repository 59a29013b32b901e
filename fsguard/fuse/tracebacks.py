"""Tracebacks without source lines.

The daemon's own source may lie under its mount (a workspace that holds the
virtual environment). Reading it there while no request is being answered would
hang the daemon on itself, and `traceback`, `linecache` and the interpreter's
last words all do that. So here nothing ever opens a source file.
"""

from __future__ import annotations

import linecache
import sys
import threading
import traceback
from types import TracebackType
from typing import Any

__all__ = ["describe", "install"]


def describe(error: BaseException) -> str:
    """The traceback of `error` and what caused it, one frame a line."""
    lines: list[str] = []
    seen: set[int] = set()
    todo: list[BaseException] = [error]
    while todo:
        e = todo.pop(0)
        if id(e) in seen:
            continue
        seen.add(id(e))
        lines.append(f"{type(e).__qualname__}: {e}")
        for frame, number in traceback.walk_tb(e.__traceback__):
            code = frame.f_code
            lines.append(f"  {code.co_filename}:{number} {code.co_qualname}")
        if isinstance(e, BaseExceptionGroup):
            todo.extend(e.exceptions)
        if e.__cause__ is not None:
            todo.append(e.__cause__)
        elif e.__context__ is not None and not e.__suppress_context__:
            todo.append(e.__context__)
    return "\n".join(lines)


def _print(error: BaseException | None) -> None:
    if error is not None and sys.stderr is not None:
        print(describe(error), file=sys.stderr)


def _hook(kind: type[BaseException], error: BaseException, tb: TracebackType | None) -> None:
    _print(error)


def _thread_hook(args: threading.ExceptHookArgs) -> None:
    _print(args.exc_value)


def _unraisable_hook(args: Any) -> None:
    _print(args.exc_value)


def _no_source(filename: str, module_globals: object = None) -> list[str]:
    return []


def install() -> None:
    """Make the whole process so, for good; called before the first request is answered."""
    linecache.clearcache()
    linecache.updatecache = _no_source
    sys.excepthook = _hook
    threading.excepthook = _thread_hook
    sys.unraisablehook = _unraisable_hook
