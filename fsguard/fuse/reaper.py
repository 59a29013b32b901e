"""Closes descriptors of deleted files in a thread.

The last close(2) of an unlinked file is where the filesystem frees its blocks:
some 0.2 ms on ext4 for a small file, seconds for a huge one. Outside a
passthrough filesystem unlink(2) takes that time in the process that asked for
it; here it would stop everybody.
"""

from __future__ import annotations

import os
import threading
from queue import SimpleQueue

__all__ = ["Reaper"]

# Descriptors that may wait to be closed; beyond that the caller closes by itself.
_BACKLOG = 1000


class Reaper:
    """One daemon thread, started with the first descriptor."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[int | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def close(self, fd: int) -> None:
        """Close `fd` soon. It must be nobody else's any more."""
        if self._queue.qsize() >= _BACKLOG:
            os.close(fd)
            return
        self._queue.put(fd)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="reaper", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while (fd := self._queue.get()) is not None:
            try:
                os.close(fd)
            except OSError:
                pass  # the descriptor is gone all the same (Linux)

    def finish(self) -> None:
        """Wait until everything handed over is closed."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
