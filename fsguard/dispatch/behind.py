"""Leases where it comes to opening and changing: who waits behind one, and who is refused."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable

from fsguard.core.guard import Guard
from fsguard.core.leases import Lease, Leases, Writing, as_path
from fsguard.core.model import Actor
from fsguard.dispatch.waits import Wait, Waits, as_queue
from fsguard.observer import FileView

__all__ = ["BehindLeases"]

# Leases end by release, which wakes who waits for them, but also with their task.
LEASE_POLL_SECONDS = 0.2


class BehindLeases:
    """:param writing: says which other task is writing a matching path right now.
    :param now: the clock of waits (monotonic seconds); `clock`: the time of day.
    """

    def __init__(
        self,
        guard: Guard,
        waits: Waits,
        writing: Writing,
        now: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self._guard = guard
        self._waits = waits
        self._now = now
        self._clock = clock
        self.leases = Leases(writing, self._ended)
        self._lines: dict[FileView, dict[Wait, None]] = {}

    def __len__(self) -> int:
        return len(self._lines)

    def clear(self) -> None:
        """Nobody waits any more."""
        self._lines.clear()

    async def go(self, wait: Wait) -> bool:
        """Wait, first come, first served, until no other task has a lease on the file.

        Returns whether that took any time.
        """
        file, paths, actor = wait.file, wait.paths, wait.actor
        line = self._lines.get(file, {})
        if wait not in line:
            if self.over(paths, actor) is None:
                return False
            line = self._lines.setdefault(file, {})
            line[wait] = None
        try:
            while True:
                first = next(iter(line)) is wait
                lease = self.over(paths, actor)
                if lease is None and first:
                    break
                if self._waits.told_to_stop(wait):
                    raise OSError(errno.EINTR, "interrupted while waiting for a lease")
                now = self._now()
                if now >= wait.end:
                    if lease is None:
                        break
                    raise self._refusal(paths[0], actor, lease, wait.end - wait.since)
                pause = wait.end - now
                if first and lease is not None:
                    pause = min(pause, LEASE_POLL_SECONDS, max(lease.until - now, 0.0) + 0.001)
                await self._waits.pause(wait, pause)
        finally:
            del line[wait]
            if line:
                next(iter(line)).event.set()
            else:
                del self._lines[file]
        return True

    def _ended(self) -> None:
        for line in self._lines.values():
            next(iter(line)).event.set()

    def over(self, paths: Iterable[bytes], actor: Actor) -> Lease | None:
        """Another task's lease that covers the file, where leases matter to `actor`."""
        if not self.leases.held or actor.task is None or actor.disabled:
            return None
        now = self._now()
        for path in paths:
            lease = self.leases.over(path, actor.task, now)
            if lease is None or self._guard.policies.of(path, actor.task.id) == "off":
                continue
            if self._guard.ignored(path) and not any(
                self._guard.ignored(as_path(line)) for line in lease.patterns.lines
            ):
                continue  # a lease on everything is not meant to stop `git status`
            return lease
        return None

    def _refusal(self, path: bytes, actor: Actor, lease: Lease, waited: float) -> OSError:
        now = self._clock()
        ahead = now - self._now()
        warning = self._guard.tell.leased(
            actor, path, lease, lease.since + ahead, lease.until + ahead, waited, now
        )
        return OSError(errno.EBUSY, warning.message)

    def check(self, path: bytes, actor: Actor) -> None:
        """For what never waits. :raises OSError: EBUSY under another task's lease."""
        if not self.leases.held:
            return
        lease = self.over((path,), actor)
        if lease is not None:
            raise self._refusal(path, actor, lease, 0.0)
        self.leases.wrote((path,), actor.task, self._now())

    def check_below(self, directory: bytes, actor: Actor) -> None:
        """The same for a directory that moves with all that is in it."""
        if not self.leases.held or actor.task is None or actor.disabled:
            return
        lease = self.leases.below(directory, actor.task, self._now())
        if lease is not None and self._guard.policies.of(directory, actor.task.id) != "off":
            raise self._refusal(directory, actor, lease, 0.0)

    def queues(self, now: float) -> list[dict[str, object]]:
        """Who waits behind which lease, for every file that somebody waits to open."""
        return [self._queue(file, waiting, now) for file, waiting in self._lines.items()]

    def _queue(self, file: FileView, waiting: dict[Wait, None], now: float) -> dict[str, object]:
        lease = self.over(file.paths(), next(iter(waiting)).actor)
        return {
            "path": shown(file),
            "lease": lease.id if lease is not None else None,
            "holder": [lease.task.id] if lease is not None else [],
            "command": None,
            "since": round(now - lease.since, 3) if lease is not None else None,
            "queue": as_queue(waiting, now),
        }


def shown(file: FileView) -> str:
    """A file's first name, as JSON has it."""
    return min(file.paths(), default=b"").decode("utf-8", "surrogateescape")
