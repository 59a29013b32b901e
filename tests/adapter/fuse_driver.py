"""Drives the request handlers as the kernel would, without a mount: names in, replies out.

`Driver` keeps what a kernel keeps (node ids by path, handles by open file) so
that a test reads like a program. `Recorder` is an observer that writes down the
calls of the seam, and refuses when it is told to.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace

import pyfuse3
import trio

from fsguard.fuse.operations import Operations, Settings

ME = SimpleNamespace(pid=4711, uid=os.geteuid(), gid=os.getegid(), umask=0o022)
WRITE_CACHE = 1


class Peek:
    """The raw request's fields, as `_request` has them."""

    def __init__(self):
        self.values = {"tid": 4711, "flags": 0, "file_flags": 0, "unique": 0}

    def tid(self):
        return self.values["tid"]

    def flags(self):
        return self.values["flags"]

    def file_flags(self):
        return self.values["file_flags"]

    def unique(self):
        return self.values["unique"]


class RecordedSession:
    def __init__(self, recorder, paths):
        self.recorder = recorder
        self.paths = paths

    def _note(self, *event):
        self.recorder.events.append((*event, self.paths))

    def opened(self, file):
        self._note("opened", file.paths(), file.size())
        if "opened" in self.recorder.breaks:
            raise RuntimeError("broken observer")

    def aborted(self):
        self._note("aborted")

    def reading(self, tid):
        self._note("reading", tid)

    def writing(self, tid, offset, data):
        self._note("writing", tid, offset, bytes(data))
        if "writing" in self.recorder.refuses:
            raise OSError(self.recorder.refuses["writing"], "refused")

    def wrote(self, offset, size):
        self._note("wrote", offset, size)

    def released(self):
        self._note("released")


class Recorder:
    """`events` in order; `refuses` maps a call or a change's class name to an errno."""

    def __init__(self):
        self.events = []
        self.refuses = {}
        self.breaks = set()
        self.before_open = None

    def kinds(self):
        return [event[0] for event in self.events]

    def _judge(self, name):
        if name in self.refuses:
            raise OSError(self.refuses[name], "refused")
        if name in self.breaks:
            raise RuntimeError("broken observer")

    def missed(self, caller, path):
        self.events.append(("missed", path))
        self._judge("missed")

    def readlink(self, caller, file):
        self.events.append(("readlink", file.paths()))

    async def open(self, caller, file, flags):
        self.events.append(("open", file.paths(), flags))
        if self.before_open is not None:
            await self.before_open()
        self._judge("open")
        return RecordedSession(self, file.paths())

    async def create(self, caller, path, flags):
        self.events.append(("create", path, flags))
        if self.before_open is not None:
            await self.before_open()
        self._judge("create")
        return RecordedSession(self, (path,))

    def attribute(self, caller, file, name):
        self.events.append(("attribute", file.paths(), name))
        return b"the guard's" if name == "known" else None

    def interrupted(self, unique):
        self.events.append(("interrupted", unique))

    @contextmanager
    def changing(self, caller, change):
        name = type(change).__name__
        self.events.append((name, change))
        self._judge(name)
        try:
            yield
        except BaseException:
            self.events.append(("abandoned", name))
            raise
        self.events.append(("confirmed", name))


class Driver:
    def __init__(self, top, settings=None, observer=None):
        self.top = top
        self.root_fd = os.open(top, os.O_PATH | os.O_DIRECTORY)
        self.observer = observer or Recorder()
        self.peek = Peek()
        self.ops = Operations(self.root_fd, self.observer, settings or Settings(), peek=self.peek)
        self.lookups = Counter()

    def close(self):
        """Everything given back, nothing may be left."""
        for fh in list(self.ops.handles.files):
            self.call("release", fh)
        for id_, count in list(self.lookups.items()):
            self.call("forget", [(id_, count)])
        left = len(self.ops.nodes)
        self.ops.backing.close_all()
        os.close(self.root_fd)
        assert left == 1, f"{left} nodes are held although the kernel knows only the root"

    def call(self, name, *args, **peek):
        """One request; an errno comes back as OSError."""
        self.peek.values.update({"flags": 0, "file_flags": 0, **peek})

        async def ask():
            return await getattr(self.ops, name)(*args)

        try:
            return trio.run(ask)
        except pyfuse3.FUSEError as error:
            raise OSError(error.errno, name) from None

    def entry(self, reply):
        """A reply that hands a node out: (node id, reply)."""
        self.lookups[reply.generation] += 1
        return reply.generation

    def id(self, path):
        """Walk as the kernel does, one LOOKUP a component."""
        id_ = pyfuse3.ROOT_INODE
        for name in os.fsencode(path).split(b"/"):
            if name:
                id_ = self.entry(self.call("lookup", id_, name, ME))
        return id_

    def node(self, path):
        return self.ops.nodes[self.id(path)]

    def split(self, path):
        above, _, name = path.rpartition("/")
        return self.id(above), os.fsencode(name)

    def stat(self, path):
        return self.call("getattr", self.id(path), ME)

    def open(self, path, flags=os.O_RDONLY, **peek):
        return self.call("open", self.id(path), flags, ME, **peek).fh

    def create(self, path, flags=os.O_WRONLY, mode=0o644, ctx=ME):
        info, entry = self.call("create", *self.split(path), mode, os.O_CREAT | flags, ctx)
        self.entry(entry)
        return info.fh

    def write(self, fh, offset, data, flags=0, **peek):
        return self.call("write", fh, offset, data, file_flags=flags, **peek)

    def rename(self, old, new, flags=0):
        self.call("rename", *self.split(old), *self.split(new), flags, ME)

    def make(self, kind, path, *args):
        return self.entry(self.call(kind, *self.split(path), *args, ME))

    def remove(self, path, kind="unlink"):
        self.call(kind, *self.split(path), ME)

    def link(self, old, new):
        self.entry(self.call("link", self.id(old), *self.split(new), ME))
