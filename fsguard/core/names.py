"""Which paths lie below a directory, without going through all of them."""

from __future__ import annotations

from collections.abc import Container, Iterator

__all__ = ["Names"]


class Names:
    """An index of paths by directory; a directory with nothing below is forgotten.

    :param paths: the paths themselves, kept by the caller; whatever comes there or
        goes from there is to be told afterwards.
    """

    def __init__(self, paths: Container[bytes]) -> None:
        self._paths = paths
        self._entries: dict[bytes, dict[bytes, None]] = {}

    def __len__(self) -> int:
        """How many directories there are."""
        return len(self._entries)

    def came(self, path: bytes) -> None:
        """`path` is new among the paths."""
        while path:
            directory = path.rpartition(b"/")[0]
            entries = self._entries.get(directory)
            if entries is not None:
                entries[path] = None
                return
            self._entries[directory] = {path: None}
            path = directory

    def went(self, path: bytes) -> None:
        """`path` is not among the paths any more."""
        while path and path not in self._entries and path not in self._paths:
            directory = path.rpartition(b"/")[0]
            entries = self._entries.get(directory, {})
            entries.pop(path, None)
            if entries:
                return
            self._entries.pop(directory, None)
            path = directory

    def below(self, directory: bytes) -> Iterator[bytes]:
        """Every path below, parents first: what was a file once may be a directory now."""
        waiting = list(reversed(self._entries.get(directory, {})))
        while waiting:
            path = waiting.pop()
            if path in self._paths:
                yield path
            waiting += reversed(self._entries.get(path, {}))
