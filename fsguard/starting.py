"""What a daemon is started with, and how it tells its starter what came of it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fsguard import config, mountflags
from fsguard.errors import MissingError, UsageError
from fsguard.fuse._library import interposed
from fsguard.versions import Limits, Store

__all__ = ["Ready", "Spec", "choose_io", "number_from", "open_store", "read_settings"]


@dataclass(frozen=True, slots=True)
class Spec:
    """What `fsguard mount` asks for."""

    workspace: str
    mountpoint: str
    state_dir: str
    socket: str
    registry_file: str
    owner_uids: tuple[int, ...]
    config: str | None = None
    allow_other: bool | None = None
    io: str = "auto"
    cache: str | None = None
    policy: str | None = None
    disabled: bool = False
    foreground: bool = False
    wait: float | None = None
    flags: tuple[str, ...] = ()

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Spec:
        try:
            known = {k: v for k, v in raw.items() if k in cls.__dataclass_fields__}
            known["owner_uids"] = tuple(known.get("owner_uids") or (os.getuid(),))
            known["flags"] = tuple(known.get("flags") or ())
            mountflags.bits(known["flags"])
            return cls(**known)
        except (TypeError, KeyError) as e:
            raise UsageError(f"the daemon was started without what it needs: {e}") from None


class Ready:
    """The pipe on which the starter waits; says one thing, once."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def say(self, what: Mapping[str, Any]) -> bool:
        """False when nobody waits there."""
        if self._fd is None:
            return False
        try:
            os.write(self._fd, json.dumps(what).encode("ascii") + b"\n")
        except OSError:
            pass  # whoever started us has gone; the mount is there all the same
        os.close(self._fd)
        self._fd = None
        return True


def choose_io(asked: str) -> tuple[str, str]:
    """(the mode, why that one). MissingError: the one that was asked for cannot be had."""
    if asked == "daemon":
        return "daemon", "asked for"
    if interposed():
        return "lane", "asked for" if asked == "lane" else "the fastest that can be had here"
    reason = "pyfuse3's calls into libfuse cannot be interposed here"
    if asked == "lane":
        raise MissingError(f"no lane: {reason}", "mount with --io daemon, or leave the choice to auto")
    return "daemon", reason


def read_settings(spec: Spec) -> config.Settings:
    """The configuration that was named, else the workspace's own; read before the mount."""
    own = os.path.join(spec.workspace, config.CONFIG_NAME)
    if spec.config is not None:
        settings = config.load(spec.config)
    else:
        settings = config.load(own) if os.path.lexists(own) else config.Settings()
    return settings if spec.wait is None else replace(settings, turn_wait=spec.wait)


def open_store(spec: Spec, settings: config.Settings) -> Store:
    limits = Limits(
        file_bytes=settings.keep_file_bytes,
        age=settings.keep_age,
        per_path=settings.keep_per_path,
        total_bytes=settings.keep_total_bytes,
    )
    try:
        return Store.open(os.path.join(spec.state_dir, "versions"), limits=limits)
    except OSError as e:
        raise UsageError(
            f"kept versions cannot be stored in {spec.state_dir}: {os.strerror(e.errno or 0)}",
            "Name another place with --state-dir.",
        ) from None


def number_from(name: str) -> int | None:
    value = os.environ.pop(name, "")
    return int(value) if value.isdigit() else None
