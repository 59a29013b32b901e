"""Settings: defaults, then `fsguard.toml`, then flags and environment. Frozen once read.

An unknown key or a bad value is refused with file, line and the nearest valid
name: a typo must not switch a guard off in silence.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from string import Formatter
from typing import Any

from fsguard.errors import ConfigError

__all__ = ["CONFIG_NAME", "CgroupRule", "Settings", "load", "parse"]

CONFIG_NAME = "fsguard.toml"
MAX_CONFIG_BYTES = 1024 * 1024
POLICIES = ("warn", "block", "off")
CACHE_MODES = ("auto", "short", "trust")


@dataclass(frozen=True, slots=True)
class CgroupRule:
    """Maps control groups whose path `pattern` (a regular expression) is found in to `task`."""

    pattern: re.Pattern[str]
    task: str


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that can be set; times in seconds, sizes in bytes."""

    policy: str = "warn"
    policy_paths: tuple[tuple[str, str], ...] = ()
    policy_tasks: tuple[tuple[str, str], ...] = ()
    ignore: tuple[str, ...] | None = None
    ignore_more: tuple[str, ...] = ()
    cgroups: tuple[CgroupRule, ...] = ()
    bulk_files: int = 200
    compare_bytes: int = 16 * 1024 * 1024
    turn_wait: float = 5.0
    turn_lapse: float = 1.0
    max_paths: int = 200_000
    max_tasks: int = 10_000
    max_warnings: int = 10_000
    max_log: int = 50_000
    forget_after: float = 7 * 86400.0
    secrets: tuple[str, ...] | None = None
    keep: bool = True
    keep_file_bytes: int = 64 * 1024 * 1024
    keep_age: float = 30 * 86400.0
    keep_per_path: int = 100
    keep_total_bytes: int = 2 * 1024 * 1024 * 1024
    cache: str = "auto"
    sources: tuple[str, ...] = field(default=())


Setter = Callable[[Any], dict[str, Any]]


def _text(key: str, choices: tuple[str, ...] = ()) -> Setter:
    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, str):
            raise ValueError(f"wants a text, not {_kind(value)}")
        if choices and value not in choices:
            raise ValueError(f"is one of {', '.join(choices)}, not {value!r}{_nearest(value, choices)}")
        return {key: value}

    return read


def _flag(key: str) -> Setter:
    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, bool):
            raise ValueError(f"is true or false, not {_kind(value)}")
        return {key: value}

    return read


def _number(key: str, least: float, most: float, whole: bool = True) -> Setter:
    def read(value: Any) -> dict[str, Any]:
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            raise ValueError(f"wants a {'whole ' if whole else ''}number, not {_kind(value)}")
        if not least <= value <= most:
            seen = f"{value:g}" if -1e18 < value < 1e18 else "what is there"
            raise ValueError(f"must be between {least:g} and {most:g}, not {seen}")
        return {key: value if whole else float(value)}

    return read


def _texts(key: str) -> Setter:
    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, list) or not all(isinstance(v, str) and v for v in value):
            raise ValueError("wants a list of texts")
        return {key: tuple(value)}

    return read


def _policies(key: str) -> Setter:
    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValueError("wants a table of NAME = policy")
        for name, policy in value.items():
            if policy not in POLICIES:
                near = _nearest(str(policy), POLICIES)
                raise ValueError(f"{name!r} is one of {', '.join(POLICIES)}, not {policy!r}{near}")
        return {key: tuple(value.items())}

    return read


def _cgroups(value: Any) -> dict[str, Any]:
    if not isinstance(value, list) or not all(isinstance(v, dict) for v in value):
        raise ValueError("wants [[attribution.cgroup]] tables with pattern and task")
    rules = []
    for entry in value:
        extra = set(entry) - {"pattern", "task"}
        if extra:
            raise ValueError(f"has no {sorted(extra)[0]!r}; it has pattern and task")
        pattern, task = entry.get("pattern"), entry.get("task")
        if not isinstance(pattern, str) or not isinstance(task, str) or not task:
            raise ValueError("wants a pattern and a task, both texts")
        try:
            compiled = re.compile(pattern)
            for _, name, spec, conversion in Formatter().parse(task):
                # Whole groups only: no attributes, no items, no widths.
                if (name and not name.isidentifier() and not name.isdigit()) or spec or conversion:
                    raise ValueError
            task.format("", *[""] * compiled.groups, **dict.fromkeys(compiled.groupindex, ""))
        except (re.error, OverflowError, RecursionError) as e:
            raise ValueError(f"has a bad pattern {pattern!r}: {e}") from None
        except (IndexError, KeyError, ValueError):
            raise ValueError(f"names a group in {task!r} that {pattern!r} does not have") from None
        rules.append(CgroupRule(compiled, task))
    return {"cgroups": tuple(rules)}


#: Every key there is, as `table.key`.
KEYS: Mapping[str, Setter] = {
    "policy.default": _text("policy", POLICIES),
    "policy.paths": _policies("policy_paths"),
    "policy.tasks": _policies("policy_tasks"),
    "watch.ignore": _texts("ignore"),
    "watch.ignore_more": _texts("ignore_more"),
    "watch.bulk_files": _number("bulk_files", 1, 1_000_000),
    "watch.cache": _text("cache", CACHE_MODES),
    "watch.compare_bytes": _number("compare_bytes", 0, 1 << 40),
    "attribution.cgroup": _cgroups,
    "turns.wait": _number("turn_wait", 0, 600, whole=False),
    "turns.lapse": _number("turn_lapse", 0.05, 600, whole=False),
    "keep.enabled": _flag("keep"),
    "keep.file_bytes": _number("keep_file_bytes", 0, 1 << 40),
    "keep.age": _number("keep_age", 60, 10 * 365 * 86400, whole=False),
    "keep.per_path": _number("keep_per_path", 1, 1_000_000),
    "keep.total_bytes": _number("keep_total_bytes", 0, 1 << 50),
    "keep.secrets": _texts("secrets"),
    "retention.paths": _number("max_paths", 100, 100_000_000),
    "retention.tasks": _number("max_tasks", 10, 1_000_000),
    "retention.warnings": _number("max_warnings", 10, 10_000_000),
    "retention.log": _number("max_log", 0, 10_000_000),
    "retention.forget_after": _number("forget_after", 60, 10 * 365 * 86400, whole=False),
}

TABLES = tuple(dict.fromkeys(k.partition(".")[0] for k in KEYS))


def parse(text: str, name: str = CONFIG_NAME, base: Settings | None = None) -> Settings:
    """Settings from the text of a configuration file called `name`.

    :raises ConfigError: what is wrong, as ``FILE:LINE: …``.
    """
    settings = base or Settings()
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        found = re.search(r"at line (\d+)", str(e))
        line = int(found[1]) if found else text.count("\n") + 1
        what = re.sub(r" \(at .*\)$", "", str(e))
        raise ConfigError(f"{name}:{line}: {what}", "The file is TOML: see https://toml.io") from None
    except ValueError:  # Python's own limit
        raise ConfigError(f"{name}:1: a number in it has too many digits") from None
    except RecursionError:
        raise ConfigError(f"{name}:1: tables and lists in it are nested too deep") from None
    for table, content in data.items():
        if table not in TABLES:
            raise _error(text, name, table, None, f"there is no table [{table}]", _nearest(table, TABLES))
        if not isinstance(content, dict):
            raise _error(text, name, table, None, f"[{table}] is a table", "")
        for key, value in content.items():
            setter = KEYS.get(f"{table}.{key}")
            if setter is None:
                known = tuple(k.partition(".")[2] for k in KEYS if k.startswith(table + "."))
                what = f"[{table}] has no key {key!r}"
                raise _error(text, name, table, key, what, _nearest(key, known))
            try:
                settings = replace(settings, **setter(value))
            except ValueError as e:
                raise _error(text, name, table, key, f"{table}.{key} {e}", "") from None
    return replace(settings, sources=(*settings.sources, name))


def load(path: str, base: Settings | None = None) -> Settings:
    """Settings from the file at `path`, which must be a regular file of sane size.

    :raises ConfigError: it can't be read, or says something wrong.
    """
    try:
        # O_NONBLOCK: a fifo of that name must not hang the mount.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as e:
        raise ConfigError(f"{path}: cannot be read: {os.strerror(e.errno or 0)}") from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ConfigError(f"{path}: is not a regular file")
        with open(fd, "rb", closefd=False) as f:
            raw = f.read(MAX_CONFIG_BYTES + 1)
    except OSError as e:
        raise ConfigError(f"{path}: cannot be read: {os.strerror(e.errno or 0)}") from None
    finally:
        os.close(fd)
    if len(raw) > MAX_CONFIG_BYTES:
        raise ConfigError(f"{path}: is larger than {MAX_CONFIG_BYTES} bytes")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as e:
        line = raw.count(b"\n", 0, e.start) + 1
        raise ConfigError(f"{path}:{line}: is not UTF-8 text") from None
    return parse(text, path, base)


def _error(text: str, name: str, table: str, key: str | None, what: str, near: str) -> ConfigError:
    return ConfigError(f"{name}:{_line(text, table, key)}: {what}{near}")


def _line(text: str, table: str, key: str | None) -> int:
    """Where `key` of `table` stands; where the table begins when that can't be said."""
    start, inside = 1, False
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if re.match(rf"\[\[?\s*[\"']?{re.escape(table)}[\"']?\s*[.\]]", stripped) or re.match(
            rf"[\"']?{re.escape(table)}[\"']?\s*[.=]", stripped
        ):
            if not inside:
                start = number
            inside = True
            if key is None or re.match(
                rf"\[+\s*{re.escape(table)}\s*\.\s*[\"']?{re.escape(key)}\b", stripped
            ):
                return number
        elif stripped.startswith("["):
            inside = False
        if inside and key is not None and re.match(rf"[\"']?{re.escape(key)}[\"']?\s*[.=]", stripped):
            return number
    return start


def _nearest(word: str, choices: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(word, choices, 1, 0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; there are: {', '.join(choices)}"


def _kind(value: Any) -> str:
    names: dict[type, str] = {bool: "true/false", int: "a number", float: "a number", str: "a text"}
    names |= {list: "a list", dict: "a table"}
    return names.get(type(value), type(value).__name__)
