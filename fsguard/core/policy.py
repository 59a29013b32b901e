"""Which policy holds for a path and a task, and which paths are not watched."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from pathspec import GitIgnoreSpec

__all__ = ["DEFAULT_IGNORE", "POLICIES", "Patterns", "Policies"]

POLICIES = ("warn", "block", "off")

DEFAULT_IGNORE = (
    ".git/",
    "node_modules/",
    "__pycache__/",
    "target/",
    ".venv/",
    "*~",
    ".*.sw[a-p]",
    ".*.swpx",
    ".#*",
    "\\#*#",
    "4913",
    ".goutputstream-*",
    "*.kate-swp",
)


class Patterns:
    """Path patterns with the syntax and meaning of .gitignore lines."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self.lines = tuple(patterns)
        self._spec = GitIgnoreSpec.from_lines(self.lines)
        self._any = _union(self._spec)
        self._cache: dict[bytes, bool] = {}

    def __reduce__(self) -> tuple[type[Patterns], tuple[tuple[str, ...]]]:
        return Patterns, (self.lines,)

    def __call__(self, path: bytes) -> bool:
        known = self._cache.get(path)
        if known is None:
            if len(self._cache) > 50_000:
                self._cache.clear()
            text = path.decode("utf-8", "surrogateescape")
            known = self._any.match(text) is not None if self._any else self._spec.match_file(text)
            self._cache[path] = known
        return known


def _union(spec: GitIgnoreSpec) -> re.Pattern[str] | None:
    """One expression in place of a dozen, where no pattern takes back what another says."""
    expressions = []
    for pattern in spec.patterns:
        if pattern.include is None:  # a comment
            continue
        regex = getattr(pattern, "regex", None)
        if not pattern.include or not isinstance(regex, re.Pattern):
            return None
        expressions.append(re.sub(r"\(\?P<\w+>", "(?:", regex.pattern))
    return re.compile("|".join(f"(?:{e})" for e in expressions)) if expressions else None


@dataclass(slots=True)
class Policies:
    """``warn``, ``block`` or ``off``: for a task, else for a path, else for all.

    Where several path patterns match, the one set last wins.
    """

    default: str = "warn"
    paths: dict[str, str] = field(default_factory=dict)
    tasks: dict[str, str] = field(default_factory=dict)
    _compiled: dict[str, Patterns] = field(default_factory=dict)

    def set(self, policy: str, path: str | None = None, task: str | None = None) -> None:
        if path is not None:
            self._compiled[path] = Patterns([path])
            self.paths.pop(path, None)
            self.paths[path] = policy
        if task is not None:
            self.tasks[task] = policy
        if path is None and task is None:
            self.default = policy

    def blocking(self) -> bool:
        """Whether anything may be refused."""
        return "block" in (self.default, *self.paths.values(), *self.tasks.values())

    def of(self, path: bytes, task: str | None) -> str:
        if task is not None and task in self.tasks:
            return self.tasks[task]
        if self.paths:
            for pattern in reversed(self.paths):
                compiled = self._compiled.get(pattern)
                if compiled is None:
                    compiled = self._compiled[pattern] = Patterns([pattern])
                if compiled(path):
                    return self.paths[pattern]
        return self.default
