"""A filesystem on a bad disk, to be the directory behind a mount: what is asked of a file named after an
operation fails with EIO.

    python -m tests.kit.faulty DIRECTORY

In its directory `top`, `fails-OPERATION` is there from the start, and so is `fine`; OPERATION is one of
`FAILING`, and those that make something have no such file. Names that are made there fail in the same way.
It ends when it is unmounted. Nothing is cached, so that all is asked.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EEXIST, EIO, ENOENT, ENOTEMPTY
from pathlib import Path

__all__ = ["FAILING", "bad_disk"]

MAKING = ("create", "mkdir")
FAILING = ("open", "read", "write", "truncate", "chmod", "fsync", "unlink", "rename", "link", *MAKING)


@contextmanager
def bad_disk(directory: Path) -> Iterator[None]:
    """It is mounted there; unmounted afterwards (root)."""
    server = subprocess.Popen([sys.executable, "-m", "tests.kit.faulty", str(directory)])
    try:
        end = time.monotonic() + 15
        while not os.path.ismount(directory):
            assert server.poll() is None and time.monotonic() < end, "the faulty filesystem is not mounted"
            time.sleep(0.02)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=False, capture_output=True)
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
            raise


def main() -> None:
    import pyfuse3
    import trio

    class File:
        def __init__(self, id_: int, mode: int) -> None:
            self.id, self.mode, self.data, self.links = id_, mode, bytearray(), 1
            self.children: dict[bytes, File] = {}

    class Faulty(pyfuse3.Operations):
        def __init__(self) -> None:
            super().__init__()
            self.files: dict[int, File] = {}
            self.failing: dict[int, bytes] = {}
            root = self.add(self.new(stat.S_IFDIR | 0o755), b"top", self.new(stat.S_IFDIR | 0o755))
            for name in ("fine", *(f"fails-{operation}" for operation in FAILING if operation not in MAKING)):
                self.add(root, name.encode(), self.new(stat.S_IFREG | 0o644)).data[:] = b"content\n"

        def new(self, mode: int) -> File:
            file = File(len(self.files) + 1, mode)
            self.files[file.id] = file
            return file

        def add(self, parent: File, name: bytes, file: File) -> File:
            parent.children[name] = file
            if name.startswith(b"fails-"):
                self.failing[file.id] = name[6:]
            return file

        def may(self, operation: str, id_: int, name: bytes = b"") -> File:
            if self.failing.get(id_) == operation.encode() or name == b"fails-" + operation.encode():
                raise pyfuse3.FUSEError(EIO)
            return self.files[id_]

        def attributes(self, file: File) -> pyfuse3.EntryAttributes:
            entry = pyfuse3.EntryAttributes()
            entry.st_ino, entry.st_mode, entry.st_nlink = file.id, file.mode, file.links
            entry.st_size, entry.st_blksize, entry.st_blocks = len(file.data), 4096, len(file.data) // 512 + 1
            entry.entry_timeout = entry.attr_timeout = 0
            return entry

        async def lookup(self, parent: int, name: bytes, ctx: object) -> pyfuse3.EntryAttributes:
            file = self.files[parent].children.get(name)
            if file is None:
                raise pyfuse3.FUSEError(ENOENT)
            return self.attributes(file)

        async def getattr(self, id_: int, ctx: object) -> pyfuse3.EntryAttributes:
            return self.attributes(self.files[id_])

        async def setattr(self, id_: int, attr: object, fields: object, fh: object, ctx: object) -> object:
            if fields.update_size:  # type: ignore[attr-defined]
                data = self.may("truncate", id_).data
                size = attr.st_size  # type: ignore[attr-defined]
                del data[size:]
                data.extend(bytes(size - len(data)))
            if fields.update_mode:  # type: ignore[attr-defined]
                file = self.may("chmod", id_)
                file.mode = attr.st_mode  # type: ignore[attr-defined]
            return self.attributes(self.files[id_])

        async def opendir(self, id_: int, ctx: object) -> int:
            return id_

        async def readdir(self, id_: int, start: int, token: object) -> None:
            children = list(self.files[id_].children.items())
            for number, (name, file) in enumerate(children[start:], start + 1):
                if not pyfuse3.readdir_reply(token, name, self.attributes(file), number):
                    break

        async def open(self, id_: int, flags: int, ctx: object) -> pyfuse3.FileInfo:
            file = self.may("open", id_)
            if flags & os.O_TRUNC:
                self.may("truncate", id_)
                file.data.clear()
            return pyfuse3.FileInfo(fh=id_, direct_io=True)

        async def create(self, parent: int, name: bytes, mode: int, flags: int, ctx: object) -> tuple:
            self.may("create", parent, name)
            file = self.add(self.files[parent], name, self.new(stat.S_IFREG | mode & 0o7777))
            return pyfuse3.FileInfo(fh=file.id, direct_io=True), self.attributes(file)

        async def mkdir(self, parent: int, name: bytes, mode: int, ctx: object) -> object:
            self.may("mkdir", parent, name)
            return self.attributes(self.add(self.files[parent], name, self.new(stat.S_IFDIR | mode)))

        async def read(self, fh: int, offset: int, size: int) -> bytes:
            return bytes(self.may("read", fh).data[offset : offset + size])

        async def write(self, fh: int, offset: int, data: bytes) -> int:
            file = self.may("write", fh)
            file.data.extend(bytes(max(0, offset - len(file.data))))
            file.data[offset : offset + len(data)] = data
            return len(data)

        async def fsync(self, fh: int, datasync: bool) -> None:
            self.may("fsync", fh)

        async def unlink(self, parent: int, name: bytes, ctx: object) -> None:
            self.may("unlink", parent, name)
            self.files[parent].children.pop(name).links -= 1

        async def rmdir(self, parent: int, name: bytes, ctx: object) -> None:
            if self.files[parent].children[name].children:
                raise pyfuse3.FUSEError(ENOTEMPTY)
            del self.files[parent].children[name]

        async def link(self, id_: int, parent: int, name: bytes, ctx: object) -> object:
            file = self.may("link", id_, name)
            if name in self.files[parent].children:
                raise pyfuse3.FUSEError(EEXIST)
            file.links += 1
            return self.attributes(self.add(self.files[parent], name, file))

        async def rename(self, old: int, name: bytes, new: int, to: bytes, flags: int, ctx: object) -> None:
            self.may("rename", old, name)
            self.files[new].children[to] = self.files[old].children.pop(name)

        async def statfs(self, ctx: object) -> object:
            return pyfuse3.StatvfsData()

    directory = sys.argv[1]
    pyfuse3.init(Faulty(), directory, {*pyfuse3.default_options, "fsname=faulty", "allow_other"})
    try:
        trio.run(pyfuse3.main)
    finally:
        pyfuse3.close(unmount=False)


if __name__ == "__main__":
    main()
