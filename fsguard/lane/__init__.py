"""The lane: requests that need no decision are answered in C, by threads without the GIL.

`_lane` holds the node table and answers lookups, attributes, listings, reading, and the making of
what only its maker has to do with; whatever else changes content or names goes on to the Python
filesystem, which asks for nodes here. See `lane.h`.
"""

from __future__ import annotations

from . import _lane as engine

__all__ = ["OPCODES", "engine"]

# include/uapi/linux/fuse.h; what `engine.counts()` counts by.
OPCODES = {
    1: "lookup",
    2: "forget",
    3: "getattr",
    4: "setattr",
    5: "readlink",
    9: "mkdir",
    10: "unlink",
    11: "rmdir",
    13: "link",
    14: "open",
    15: "read",
    16: "write",
    17: "statfs",
    18: "release",
    20: "fsync",
    21: "setxattr",
    22: "getxattr",
    23: "listxattr",
    24: "removexattr",
    25: "flush",
    27: "opendir",
    28: "readdir",
    29: "releasedir",
    30: "fsyncdir",
    34: "access",
    35: "create",
    39: "ioctl",
    40: "poll",
    42: "forget",
    43: "fallocate",
    44: "readdir",
    46: "lseek",
    47: "copy_file_range",
}
