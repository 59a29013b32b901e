"""A file exerciser: random calls on a few files, each answer compared with a model in memory.

What to do next comes from a seed alone, so a failure can be had again: it tells the
seed, the number of the operation, the last operations, and where the bytes differ.
Several processes ("hands", see `exerciser_hand`), perhaps of different tasks, take
part; one call at a time, so that there is one right answer.

The model is what POSIX and ext4 do; that it is right shows on a plain directory.
"""

from __future__ import annotations

import errno
import os
import random
import subprocess
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.kit import exerciser_hand
from tests.kit.exerciser_hand import PAGE, receive, send

__all__ = ["HAND", "Difference", "Exerciser"]

HAND = exerciser_hand.__file__
NAMES = ("one", "two", "three", "four", "five")
LARGEST = 1 << 18
HANDLES, MAPPINGS, HISTORY = 10, 6, 60
KEEP_SIZE, PUNCH, ZERO = 1, 2, 16
RESERVING = {"reserve": 0, "reserve beyond the end": KEEP_SIZE}
CLEARING = {"punch": PUNCH | KEEP_SIZE, "zero": ZERO, "zero within": ZERO | KEEP_SIZE}


class Difference(AssertionError):
    """The mount did something else than the model; the text is all that is needed to look into it."""


@dataclass
class File:
    data: bytearray = field(default_factory=bytearray)
    links: int = 1


@dataclass
class Handle:
    id: int
    hand: int
    file: File
    reads: bool
    writes: bool
    appends: bool
    direct: bool
    at: int = 0


@dataclass
class Mapping:
    id: int
    hand: int
    file: File
    start: int
    length: int
    writable: bool

    @property
    def usable(self) -> int:
        """Beyond the end of the file is SIGBUS, or bytes that nobody promises."""
        return max(0, min(self.length, len(self.file.data) - self.start))


class Exerciser:
    """`hands`: the command line of each process; the directory must be empty."""

    def __init__(self, directory: Path, seed: int, hands: Sequence[Sequence[str]], **settings: Any) -> None:
        self.seed, self.rng = seed, random.Random(seed)
        self.names: dict[str, File] = {}
        self.handles: list[Handle] = []
        self.mappings: list[Mapping] = []
        self.last: deque[tuple[int, int, str, tuple[Any, ...], Any]] = deque(maxlen=HISTORY)
        self.counts: Counter[str] = Counter()
        self.number = self._ids = 0
        self.able = set(RESERVING) | set(CLEARING) | {"direct"}
        self.processes = [
            subprocess.Popen(
                [*hand, str(directory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=directory,
                **settings,
            )
            for hand in hands
        ]
        weights: dict[Callable[[], bool], int] = {
            self.pread: 14, self.pwrite: 14, self.read: 8, self.write: 8, self.vectors: 4, self.seek: 3,
            self.direct: 4, self.load: 8, self.store: 8, self.map: 4, self.unmap: 3, self.msync: 1,
            self.open: 9, self.close: 7, self.ftruncate: 5, self.truncate: 2, self.fstat: 4, self.sync: 2,
            self.reserve: 2, self.clear: 3, self.copy: 4, self.holes: 3, self.rename: 3, self.exchange: 1,
            self.link: 2, self.unlink: 3, self.stat: 4, self.list: 1, self.content: 2,
        }  # fmt: skip
        self._choices, self._weights = list(weights), list(weights.values())

    def __enter__(self) -> Exerciser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes:
            if kind is not None:
                process.kill()
            assert process.stdin and process.stdout
            try:
                process.stdin.close()
            except BrokenPipeError:
                pass
            process.stdout.close()
            process.wait(30)

    def run(self, operations: int) -> None:
        """So many operations, then a look at everything; `Difference` if anything is not as it should be."""
        self._find_out()
        while self.number < operations:
            choice = self.rng.choices(self._choices, self._weights)[0]
            if choice():
                self.counts[choice.__name__] += 1
        for name in sorted(self.names):
            self.whole(name)
        while self.mappings:
            self.unmap()
        for handle in list(self.handles):
            self._close(handle)
        for name in sorted(self.names):
            self.whole(name)
        self.list()

    def _find_out(self) -> None:
        """What this filesystem refuses altogether is left out: that is told by an errno of its own."""
        refused = errno.EOPNOTSUPP
        self._call(0, "open", 0, "probe", os.O_RDWR | os.O_CREAT)
        for name, mode in {**RESERVING, **CLEARING}.items():
            if self._call(0, "fallocate", 0, mode, 0, PAGE) == ("errno", refused):
                self.able.discard(name)
        self._call(0, "close", 0)
        if self._call(0, "open", 0, "probe", os.O_RDWR | os.O_DIRECT) == ("errno", errno.EINVAL):
            self.able.discard("direct")
        else:
            self._call(0, "close", 0)
        self._call(0, "unlink", "probe")

    # ---- asking, and comparing ----

    def _call(self, hand: int, name: str, *args: Any) -> tuple[str, Any]:
        process = self.processes[hand]
        assert process.stdin and process.stdout
        entry = (self.number, hand, name, args, None)
        self.last.append(entry)
        try:
            send(process.stdin, (name, *args))
            seen = receive(process.stdout)
        except BrokenPipeError:
            seen = None
        if seen is None:
            raise Difference(self._report(f"the process ended with {process.wait(30)}"))
        self.last[-1] = (*entry[:4], seen)
        return tuple(seen)  # type: ignore[return-value]

    def _expect(self, expected: Any, hand: int, name: str, *args: Any) -> None:
        self.number += 1
        kind, seen = self._call(hand, name, *args)
        if kind == "errno" or seen != expected:
            self._differs(kind, seen, expected)

    def _count(self, most: int, hand: int, name: str, *args: Any) -> int:
        """For calls that may do less than was asked: how much they did, at least a byte if there is one."""
        self.number += 1
        kind, seen = self._call(hand, name, *args)
        if kind == "errno" or not (seen == most or 0 < seen < most):
            self._differs(kind, seen, most)
        return int(seen)

    def _refused(self, number: int, hand: int, name: str, *args: Any) -> None:
        self.number += 1
        kind, seen = self._call(hand, name, *args)
        if (kind, seen) != ("errno", number):
            self._differs(kind, seen, errno.errorcode[number])

    def _differs(self, kind: str, seen: Any, expected: Any) -> None:
        if kind == "errno":
            seen = errno.errorcode.get(seen, seen)
        if isinstance(seen, bytes) and isinstance(expected, bytes | bytearray):
            at = next(
                (i for i, (a, b) in enumerate(zip(seen, expected, strict=False)) if a != b),
                min(len(seen), len(expected)),
            )
            more = (
                f"{len(seen)} bytes, and {len(expected)} expected; the first that differs is byte {at}:\n"
                f"  seen     {seen[at : at + 32].hex(' ')}\n  expected {expected[at : at + 32].hex(' ')}"
            )
        else:
            more = f"seen {seen!r}, expected {_short(expected)}"
        raise Difference(self._report(more))

    def _report(self, what: str) -> str:
        lines = [f"seed {self.seed}, operation {self.number}: {what}", "the last operations:"]
        for number, hand, name, args, seen in self.last:
            words = ", ".join(map(_short, args))
            lines.append(f"  {number} hand {hand}: {name}({words}) -> {_short(seen)}")
        return "\n".join(lines)

    # ---- choosing ----

    def _id(self) -> int:
        self._ids += 1
        return self._ids

    def _hand(self) -> int:
        return self.rng.randrange(len(self.processes))

    def _name(self, exists: bool = True) -> str | None:
        names = [name for name in NAMES if (name in self.names) == exists]
        return self.rng.choice(names) if names else None

    def _handle(self, wanted: Callable[[Handle], bool]) -> Handle | None:
        found = [handle for handle in self.handles if wanted(handle)]
        return self.rng.choice(found) if found else None

    def _length(self, most: int = 1 << 16) -> int:
        return min(most, int(2 ** self.rng.uniform(0, 16.01)))

    def _offset(self, size: int) -> int:
        """Anywhere up to somewhat beyond the end, often at the end or where a page begins."""
        at = {
            0: lambda: size,
            1: lambda: self.rng.randrange(0, LARGEST, PAGE),
            2: lambda: max(0, size - self.rng.randrange(1, 2 * PAGE)),
            3: lambda: size + self.rng.randrange(3 * PAGE),
        }.get(self.rng.randrange(8), lambda: self.rng.randrange(size + 1))()
        return min(at, LARGEST - 1)

    def _write(self, file: File, at: int, data: bytes) -> None:
        if len(file.data) < at:
            file.data.extend(bytes(at - len(file.data)))
        file.data[at : at + len(data)] = data

    def _resize(self, file: File, size: int) -> None:
        del file.data[size:]
        file.data.extend(bytes(size - len(file.data)))

    # ---- operations: True when there was something to do ----

    def open(self) -> bool:
        if len(self.handles) >= HANDLES:
            return False
        name, hand = self.rng.choice(NAMES), self._hand()
        file = self.names.get(name)
        access = self.rng.choice([os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR])
        flags, r = access, self.rng.random()
        writes = access != os.O_RDONLY
        append = writes and self.rng.random() < 0.2
        direct = "direct" in self.able and not append and self.rng.random() < 0.15
        flags |= (os.O_APPEND if append else 0) | (os.O_DIRECT if direct else 0)
        if r < 0.5 or (file is None and r < 0.9):
            flags |= os.O_CREAT
        if self.rng.random() < 0.1:
            flags |= os.O_CREAT | os.O_EXCL
        elif writes and self.rng.random() < 0.15:
            flags |= os.O_TRUNC
        id_ = self._id()
        if file is None and not flags & os.O_CREAT:
            self._refused(errno.ENOENT, hand, "open", id_, name, flags)
            return True
        if file is not None and flags & os.O_EXCL:
            self._refused(errno.EEXIST, hand, "open", id_, name, flags)
            return True
        self._expect(None, hand, "open", id_, name, flags)
        if file is None:
            file = self.names[name] = File()
        if flags & os.O_TRUNC:
            self._resize(file, 0)
        self.handles.append(Handle(id_, hand, file, access != os.O_WRONLY, writes, append, direct))
        return True

    def close(self) -> bool:
        handle = self._handle(lambda h: True)
        if handle is None:
            return False
        self._close(handle)
        return True

    def _close(self, handle: Handle) -> None:
        self.handles.remove(handle)
        self._expect(None, handle.hand, "close", handle.id)

    def pread(self) -> bool:
        h = self._handle(lambda h: h.reads and not h.direct)
        if h is None:
            return False
        at, length = self._offset(len(h.file.data)), self._length()
        self._expect(bytes(h.file.data[at : at + length]), h.hand, "pread", h.id, at, length)
        return True

    def pwrite(self) -> bool:
        h = self._handle(lambda h: h.writes and not h.direct)
        if h is None:
            return False
        at = self._offset(len(h.file.data))
        data = self.rng.randbytes(self._length(LARGEST - at))
        if h.appends:  # pwrite(2) on Linux: the offset does not count then
            at = len(h.file.data)
            if at + len(data) > LARGEST:
                return False
        self._expect(len(data), h.hand, "pwrite", h.id, at, data)
        self._write(h.file, at, data)
        return True

    def vectors(self) -> bool:
        h = self._handle(lambda h: not h.direct and not h.appends)
        if h is None:
            return False
        at = self._offset(len(h.file.data))
        lengths = [self._length((LARGEST - at) // 3 or 1) for _ in range(self.rng.randrange(1, 4))]
        if h.reads and (not h.writes or self.rng.random() < 0.5):
            self._expect(bytes(h.file.data[at : at + sum(lengths)]), h.hand, "preadv", h.id, at, lengths)
        elif at + sum(lengths) <= LARGEST:
            parts = [self.rng.randbytes(length) for length in lengths]
            self._expect(sum(lengths), h.hand, "pwritev", h.id, at, parts)
            self._write(h.file, at, b"".join(parts))
        else:
            return False
        return True

    def read(self) -> bool:
        h = self._handle(lambda h: h.reads and not h.direct)
        if h is None:
            return False
        data = bytes(h.file.data[h.at : h.at + (length := self._length())])
        self._expect(data, h.hand, "read", h.id, length)
        h.at += len(data)
        return True

    def write(self) -> bool:
        h = self._handle(lambda h: h.writes and not h.direct)
        if h is None:
            return False
        at = len(h.file.data) if h.appends else h.at
        if at >= LARGEST:
            return False
        data = self.rng.randbytes(self._length(LARGEST - at))
        self._expect(len(data), h.hand, "write", h.id, data)
        self._write(h.file, at, data)
        h.at = at + len(data)
        return True

    def direct(self) -> bool:
        """Only of files that nobody has mapped: nobody promises how direct I/O and mappings go together."""
        mapped = [id(m.file) for m in self.mappings]
        h = self._handle(lambda h: h.direct and id(h.file) not in mapped)
        if h is None:
            return False
        at = self._offset(len(h.file.data)) // PAGE * PAGE
        length = max(PAGE, self._length(LARGEST - at) // PAGE * PAGE)
        if h.reads and (not h.writes or self.rng.random() < 0.5):
            self._expect(bytes(h.file.data[at : at + length]), h.hand, "direct_read", h.id, at, length)
        elif h.writes:
            data = self.rng.randbytes(length)
            self._expect(length, h.hand, "direct_write", h.id, at, data)
            self._write(h.file, at, data)
        return True

    def seek(self) -> bool:
        h = self._handle(lambda h: not h.direct)
        if h is None:
            return False
        whence = self.rng.choice([os.SEEK_SET, os.SEEK_CUR, os.SEEK_END])
        base = {os.SEEK_SET: 0, os.SEEK_CUR: h.at, os.SEEK_END: len(h.file.data)}[whence]
        h.at = self._offset(len(h.file.data))
        self._expect(h.at, h.hand, "seek", h.id, h.at - base, whence)
        return True

    def holes(self) -> bool:
        """Where holes are is the filesystem's business; that they read as zeros, and end, is not."""
        h = self._handle(lambda h: not h.direct)
        if h is None or not h.file.data:
            return False
        size, hole = len(h.file.data), self.rng.random() < 0.5
        at = self.rng.randrange(size)
        self.number += 1
        kind, seen = self._call(h.hand, "seek", h.id, at, os.SEEK_HOLE if hole else os.SEEK_DATA)
        if hole:
            right = kind == "is" and at <= seen <= size
        elif kind == "errno":
            right = seen == errno.ENXIO and not any(h.file.data[at:])
        else:
            right = at <= seen < size and not any(h.file.data[at:seen])
        if not right:
            self._differs(kind, seen, "a hole" if hole else "data")
        self._expect(h.at, h.hand, "seek", h.id, h.at, os.SEEK_SET)
        return True

    def ftruncate(self) -> bool:
        h = self._handle(lambda h: h.writes)
        if h is None:
            return False
        size = self._offset(len(h.file.data))
        self._expect(None, h.hand, "ftruncate", h.id, size)
        self._resize(h.file, size)
        return True

    def truncate(self) -> bool:
        if (name := self._name()) is None:
            return False
        file = self.names[name]
        size = self._offset(len(file.data))
        self._expect(None, self._hand(), "truncate", name, size)
        self._resize(file, size)
        return True

    def reserve(self) -> bool:
        ways = sorted(self.able & set(RESERVING))
        h = self._handle(lambda h: h.writes)
        if h is None or not ways:
            return False
        way, at = self.rng.choice(ways), self._offset(len(h.file.data))
        length = self._length(LARGEST - at)
        self._expect(None, h.hand, "fallocate", h.id, RESERVING[way], at, length)
        if way == "reserve" and at + length > len(h.file.data):
            self._resize(h.file, at + length)
        return True

    def clear(self) -> bool:
        ways = sorted(self.able & set(CLEARING))
        h = self._handle(lambda h: h.writes and not h.appends)
        if h is None or not ways:
            return False
        way, at = self.rng.choice(ways), self._offset(len(h.file.data))
        length = self._length(LARGEST - at)
        self._expect(None, h.hand, "fallocate", h.id, CLEARING[way], at, length)
        end = at + length if way == "zero" else min(at + length, len(h.file.data))
        if end > at:
            self._write(h.file, at, bytes(end - at))
        return True

    def copy(self) -> bool:
        """From file to file in the kernel: copy_file_range, sendfile, splice."""
        how = self.rng.choice(["copy_range", "sendfile", "splice"])
        source = self._handle(lambda h: h.reads and not h.direct and bool(h.file.data))
        if source is None:
            return False
        target = self._handle(
            lambda h: (
                h.writes
                and h.hand == source.hand
                and not (h.appends or h.direct)
                and h.file is not source.file
            )
        )
        if target is None:
            return False
        at = self.rng.randrange(len(source.file.data))
        to = target.at if how == "sendfile" else self._offset(len(target.file.data))
        length = self._length(LARGEST - to) if to < LARGEST else 0
        most = min(length, len(source.file.data) - at)
        if not most:
            return False
        where = (at, target.id) if how == "sendfile" else (at, target.id, to)
        done = self._count(most, source.hand, how, source.id, *where, most)
        self._write(target.file, to, bytes(source.file.data[at : at + done]))
        if how == "sendfile":
            target.at = to + done
        return True

    def map(self) -> bool:
        h = self._handle(lambda h: h.reads and not h.direct and bool(h.file.data))
        if h is None or len(self.mappings) >= MAPPINGS:
            return False
        start = self.rng.randrange(0, len(h.file.data), PAGE)
        length = self._length(len(h.file.data) - start)
        writable = h.writes and self.rng.random() < 0.8
        mapping = Mapping(self._id(), h.hand, h.file, start, length, writable)
        self._expect(None, h.hand, "map", mapping.id, h.id, start, length, writable)
        self.mappings.append(mapping)
        return True

    def unmap(self) -> bool:
        if not self.mappings:
            return False
        mapping = self.mappings.pop(self.rng.randrange(len(self.mappings)))
        self._expect(None, mapping.hand, "unmap", mapping.id)
        return True

    def load(self) -> bool:
        usable = [m for m in self.mappings if m.usable]
        if not usable:
            return False
        m = self.rng.choice(usable)
        at = self.rng.randrange(m.usable)
        length = self._length(m.usable - at)
        expected = bytes(m.file.data[m.start + at : m.start + at + length])
        self._expect(expected, m.hand, "load", m.id, at, length)
        return True

    def store(self) -> bool:
        usable = [m for m in self.mappings if m.usable and m.writable]
        if not usable:
            return False
        m = self.rng.choice(usable)
        at = self.rng.randrange(m.usable)
        data = self.rng.randbytes(self._length(m.usable - at))
        self._expect(None, m.hand, "store", m.id, at, data)
        self._write(m.file, m.start + at, data)
        return True

    def msync(self) -> bool:
        if not self.mappings:
            return False
        m = self.rng.choice(self.mappings)
        self._expect(None, m.hand, "msync", m.id)
        return True

    def sync(self) -> bool:
        h = self._handle(lambda h: True)
        if h is None:
            return False
        self._expect(None, h.hand, self.rng.choice(["fsync", "fdatasync"]), h.id)
        return True

    def fstat(self) -> bool:
        h = self._handle(lambda h: True)
        if h is None:
            return False
        self._expect((len(h.file.data), h.file.links), h.hand, "fstat", h.id)
        return True

    def stat(self) -> bool:
        name, hand = self.rng.choice(NAMES), self._hand()
        file = self.names.get(name)
        if file is None:
            self._refused(errno.ENOENT, hand, "stat", name)
        else:
            self._expect((len(file.data), file.links), hand, "stat", name)
        return True

    def rename(self) -> bool:
        if (old := self._name()) is None:
            return False
        new = self.rng.choice(NAMES)
        self._expect(None, self._hand(), "rename", old, new)
        file, replaced = self.names[old], self.names.get(new)
        if replaced is not file:  # two names of one file: nothing happens
            del self.names[old]
            self.names[new] = file
            if replaced is not None:
                replaced.links -= 1
        return True

    def exchange(self) -> bool:
        one, other = self._name(), self._name()
        if one is None or other is None or one == other:
            return False
        self._expect(None, self._hand(), "exchange", one, other)
        self.names[one], self.names[other] = self.names[other], self.names[one]
        return True

    def link(self) -> bool:
        old, new = self._name(), self._name(exists=False)
        if old is None or new is None:
            return False
        self._expect(None, self._hand(), "link", old, new)
        self.names[new] = self.names[old]
        self.names[new].links += 1
        return True

    def unlink(self) -> bool:
        if (name := self._name()) is None:
            return False
        self._expect(None, self._hand(), "unlink", name)
        self.names.pop(name).links -= 1
        return True

    def list(self) -> bool:
        self._expect(sorted(self.names), self._hand(), "list")
        return True

    def content(self) -> bool:
        if (name := self._name()) is None:
            return False
        self.whole(name)
        return True

    def whole(self, name: str) -> None:
        self._expect(bytes(self.names[name].data), self._hand(), "content", name)


def _short(value: Any) -> str:
    if isinstance(value, bytes | bytearray):
        return f"<{len(value)} bytes {value[:8].hex(' ')}…>" if len(value) > 12 else f"<{value.hex(' ')}>"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_short, value))}]"
    return repr(value)
