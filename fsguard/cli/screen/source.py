"""Where the screen gets its facts: the daemon, found again whenever it was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fsguard.cli import diff, kept, terminal
from fsguard.control import registry
from fsguard.control.client import Client
from fsguard.errors import DaemonError, NotMountedError

if TYPE_CHECKING:
    from fsguard.control.registry import Mount

__all__ = ["Source"]


class Source:
    """Asks on behalf of one screen; every method may be called from any thread, one at a time.

    Whatever goes wrong is a FsguardError with a sentence. DaemonError and
    NotMountedError mean that the daemon is lost; the next call looks for it again.
    """

    def __init__(self, mount: Mount, timeout: float = 5.0) -> None:
        self.mount = mount
        self._timeout = timeout

    def _client(self) -> Client:
        mount = registry.find(self.mount.mountpoint)
        if mount is None:
            raise NotMountedError(f"{self.mount.mountpoint} is not mounted any more")
        self.mount = mount
        return Client(mount, timeout=self._timeout)

    def activity(self) -> dict[str, Any]:
        with self._client() as client:
            answer = client.call("activity")
        if not isinstance(answer, dict):
            raise DaemonError("the daemon answered nonsense")
        return answer

    def who(self, path: str) -> dict[str, Any]:
        with self._client() as client:
            answer: dict[str, Any] = client.call("who", path=path)
            return answer

    def diff(self, path: str) -> str:
        """The newest kept version of `path` against what is there now, as a unified diff."""
        with self._client() as client:
            place = kept.Place(self.mount.mountpoint, f"{self.mount.mountpoint}/{path}")
            row, _, old, new = diff.compared(client, place, None, None)
        found = diff.facts(old, new)
        name = terminal.shown(f"{path}@{row['version']}")
        head = f"{name}: {kept.author(row)}'s content, destroyed by {kept.by(row)}"
        if found["identical"]:
            return f"{head}\n\nthe same is there now"
        text = "the two differ, and are no text" if found["binary"] else found["diff"]
        return f"{head}\n\n{terminal.shown(text, lines=True)}"

    def end(self, task: str) -> str:
        """End a task; what was told to its parent."""
        with self._client() as client:
            answer = client.call("task.end", task=task)
        told = [warning["message"] for warning in answer["told"]]
        return "\n".join(
            [f"task {terminal.cut(task)} has ended", *(terminal.shown(x, lines=True) for x in told)]
        )
