"""inotify(7), as file watchers use it."""

from __future__ import annotations

import ctypes
import os
import select
import struct

from tests.kit.posix import check, libc

__all__ = ["Watch"]

MASKS = {
    0x1: "ACCESS",
    0x2: "MODIFY",
    0x4: "ATTRIB",
    0x8: "CLOSE_WRITE",
    0x10: "CLOSE_NOWRITE",
    0x20: "OPEN",
    0x40: "MOVED_FROM",
    0x80: "MOVED_TO",
    0x100: "CREATE",
    0x200: "DELETE",
    0x400: "DELETE_SELF",
    0x800: "MOVE_SELF",
    0x8000: "IGNORED",
}


class Watch:
    def __init__(self, *paths: str, mask: int = 0xFFF) -> None:
        self.fd = check(libc.inotify_init1(os.O_NONBLOCK))
        for path in paths:
            check(libc.inotify_add_watch(self.fd, os.fsencode(path), ctypes.c_uint32(mask)))

    def events(self, patience: float = 0.02) -> list[tuple[str, str]]:
        """What happened, as (kinds, name); until nothing more comes for `patience` seconds."""
        seen = []
        while select.select([self.fd], [], [], patience)[0]:
            data = os.read(self.fd, 65536)
            while data:
                _, mask, _, size = struct.unpack_from("iIII", data)
                name = data[16 : 16 + size].rstrip(b"\0").decode()
                kinds = "+".join(text for bit, text in MASKS.items() if mask & bit)
                seen.append((kinds, name))
                data = data[16 + size :]
        return seen

    def close(self) -> None:
        os.close(self.fd)
