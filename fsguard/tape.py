"""What has happened since the last checkpoint, in a memory that outlives the process.

`Tape` is an append-only log in a shared mapping (memfd): what was written before a SIGKILL is
there after it. An entry counts once the header says so, by one store of eight bytes, so that
one which was begun and not finished is not there. The checkpointer cuts it: what comes after
`cut` belongs to the next checkpoint, what came before is dropped by `forget` once that is
complete. A tape with no room left loses entries until the next cut, and says so to who reads it.

A *recording* is what goes onto it: during one call that enters (an announcement, a timer, a
request on the control socket) the answers of the outside, in order, as `port` notes them. Played
back, the same call on the same state gets the same answers, and so comes to the same state.
"""

from __future__ import annotations

import marshal
import mmap
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

__all__ = ["ERROR", "FAULT", "NESTED", "DoubtError", "Script", "Tape"]

# Singletons of marshal's that no port gives.
ERROR = Ellipsis
"""Before (name of the exception, errno, text) where a port has raised."""
NESTED = StopIteration
"""Before a call that entered while another one was under way."""
FAULT = "a fault of ours"
"""At the end of a call that has failed for no good reason."""

SIZE = 64 << 20
ASK_BYTES = 16 << 20
_PAGE = mmap.PAGESIZE
_MAGIC = 0x65706174_64677366  # "fsgdtape"
_MAGIC_AT, _SIZE_AT, _HEAD_AT, _FLOOR_AT, _LOST_AT = range(5)
_END = (1 << 32) - 1  # in place of a length: the next entry is at the beginning of the memory

T = TypeVar("T")


class DoubtError(Exception):
    """What is on the tape can't be played back: it was cut short, or does not fit."""


class Script:
    """The answers of one recorded call, as its replay asks for them."""

    __slots__ = ("_at", "_items")

    def __init__(self, items: list[Any]) -> None:
        self._items = items
        self._at = 0

    def take(self) -> Any:
        """The next answer. Raises what the port has raised; DoubtError: there is none."""
        at = self._at
        if at >= len(self._items):
            raise DoubtError("the replay asks for more than was answered")
        self._at = at + 1
        value = self._items[at]
        if value == FAULT and at + 1 == len(self._items):  # what was asked has failed
            self._at = at
            raise RuntimeError(FAULT)
        if value is ERROR:
            self._at = at + 2
            name, number, text = self._items[at + 1]
            raise TimeoutError if name == "TimeoutError" else OSError(number, text)
        if value is NESTED:
            raise DoubtError("the replay asks where something else had happened")
        return value

    def nested(self) -> Any | None:
        """The call that entered at this point; None: there was none."""
        at = self._at
        if at >= len(self._items) or self._items[at] is not NESTED:
            return None
        self._at = at + 2
        return self._items[at + 1]

    def failed(self) -> bool:
        """Whether the call has ended here by a fault."""
        return self._items[self._at :] == [FAULT]

    def skip(self) -> None:
        """One answer further."""
        self._at += 1

    def finish(self) -> None:
        """Raises DoubtError when something was not asked for."""
        if self._at != len(self._items):
            raise DoubtError("the replay asks for less than was answered")


class Tape:
    """:param memory: a memfd: an empty one is set up, another one is gone on with; None: one of its own.
    :param size: bytes that entries may take at most, for a memory that is set up.
    Raises ValueError: the memory is not a tape.
    """

    def __init__(self, memory: int | None = None, size: int = SIZE) -> None:
        own = memory is None
        fd = os.memfd_create("fsguard-tape", os.MFD_CLOEXEC) if memory is None else memory
        try:
            fresh = os.fstat(fd).st_size == 0
            if fresh:
                os.ftruncate(fd, _PAGE + -(-size // _PAGE) * _PAGE)
            self._map = mmap.mmap(fd, 0)
        finally:
            if own:
                os.close(fd)
        self._header = memoryview(self._map)[:_PAGE].cast("Q")
        if fresh:
            self._header[_SIZE_AT] = len(self._map) - _PAGE
            self._header[_MAGIC_AT] = _MAGIC
        self._size = self._header[_SIZE_AT]
        if self._header[_MAGIC_AT] != _MAGIC or self._size != len(self._map) - _PAGE:
            raise ValueError("not a tape")
        self._asked = self._losing = False
        self.full: Callable[[], object] = lambda: None
        """Called once after each cut, when a checkpoint would be a good thing."""
        self.items: list[Any] | Script | None = None
        """Of the call under way: a list, its answers are noted in it; a script, they are read from it."""
        self.failed: Callable[[Exception], object] = lambda error: None
        """Told why an entry could not be written; until the next cut the tape is of no use then."""

    # -- the log ------------------------------------------------------------------

    def __len__(self) -> int:
        """Bytes that are not forgotten."""
        return self._header[_HEAD_AT] - self._header[_FLOOR_AT]

    def append(self, data: bytes) -> None:
        if self._losing:
            return
        header, size = self._header, self._size
        at, need = header[_HEAD_AT], len(data) + 4
        offset = at % size
        if offset + need > size:
            if size - offset >= 4:
                self._map[_PAGE + offset : _PAGE + offset + 4] = _END.to_bytes(4, "little")
            at += size - offset
            offset = 0
        if at + need - header[_FLOOR_AT] > size:
            self.lose()
            return
        offset += _PAGE
        self._map[offset : offset + need] = len(data).to_bytes(4, "little") + data
        header[_HEAD_AT] = at + need
        if at + need - header[_FLOOR_AT] > ASK_BYTES and not self._asked:
            self._asked = True
            self.full()

    def lose(self) -> None:
        """Something is missing here: whoever reads what comes before the next cut hears of it."""
        self._losing = True
        self._header[_LOST_AT] = self._header[_HEAD_AT] + 1
        if not self._asked:
            self._asked = True
            self.full()

    def cut(self) -> int:
        """A checkpoint is taken at this very moment; where the tape begins that belongs to it."""
        if self._losing:
            self._header[_HEAD_AT] += 8  # past what is lost
        self._asked = self._losing = False
        return self._header[_HEAD_AT]

    def forget(self, mark: int) -> None:
        """The checkpoint that was cut at `mark` is complete: what came before is of no use any more."""
        floor = self._header[_FLOOR_AT]
        if not floor < mark <= self._header[_HEAD_AT]:
            return
        self._header[_FLOOR_AT] = mark
        first, last = -(-floor // _PAGE) * _PAGE, mark // _PAGE * _PAGE
        while first < last:  # give the memory back
            offset = first % self._size
            length = min(last - first, self._size - offset)
            self._map.madvise(mmap.MADV_REMOVE, _PAGE + offset, length)
            first += length

    def entries(self, mark: int) -> Iterator[Any]:
        """Everything since `mark`, oldest first. Raises DoubtError: something is missing."""
        head, size = self._header[_HEAD_AT], self._size
        if not self._header[_FLOOR_AT] <= mark <= head:
            raise DoubtError("the tape does not belong to this checkpoint")
        if self._header[_LOST_AT] > mark:
            raise DoubtError("the tape was full")
        at = mark
        while at < head:
            offset = at % size
            length = (
                int.from_bytes(self._map[_PAGE + offset : _PAGE + offset + 4], "little")
                if size - offset >= 4
                else _END
            )
            if length == _END:
                at += size - offset
                continue
            at += length + 4
            if at > head or offset + 4 + length > size:
                return  # torn: as if it had not been begun
            start = _PAGE + offset + 4
            try:
                yield marshal.loads(self._map[start : start + length])
            except (ValueError, EOFError, TypeError) as error:
                raise DoubtError(f"not to be read: {error}") from None

    # -- what goes onto it -----------------------------------------------------------

    def end(self, outer: list[Any] | Script | None, entry: tuple[Any, ...]) -> None:
        """A call has ended, which `outer` (see `items`) was around: write `entry`, its answers among it."""
        self.items = outer
        if outer is None:
            try:
                self.append(marshal.dumps(entry))
            except ValueError as error:
                self.lose()
                self.failed(error)
        elif type(outer) is list:
            outer += (NESTED, entry)

    def port(
        self,
        ask: Callable[..., T],
        encode: Callable[[T], Any] | None = None,
        decode: Callable[[Any], T] | None = None,
        asks: bool = False,
    ) -> Callable[..., T]:
        """`ask`, noted and played back while a call is under way.

        What it gives must be of marshal's types; else `encode` makes that of it, and `decode` what it was.
        Raising OSError is noted as well. `asks`: it may ask other ports, which then are not noted.
        """

        def asked(*args: Any) -> T:
            items = self.items
            if items is None:
                return ask(*args)
            if type(items) is Script:
                value = items.take()
                return decode(value) if decode is not None else value
            try:
                if asks:
                    self.items = None
                result = ask(*args)
            except OSError as error:
                items += (ERROR, (type(error).__name__, error.errno, error.strerror))  # type: ignore[operator]
                raise
            finally:
                self.items = items
            items.append(result if encode is None else encode(result))  # type: ignore[union-attr]
            return result

        return asked

    def view(self, kind: Any) -> Any:
        """A kind of file (`observer.FileView`) whose answers are noted, and played back."""
        # What dispatch asks; the rest is for who puts bytes by.
        plain = ("paths", "is_regular", "size", "digest", "head", "pread")
        methods: dict[str, Any] = {name: self.port(getattr(kind, name)) for name in plain}
        methods["stat"] = self.port(
            kind.stat, lambda st: st.st_mode, lambda mode: os.stat_result((mode, *(0,) * 9))
        )
        return type(kind.__name__, (kind,), {"__slots__": (), "__module__": kind.__module__, **methods})
