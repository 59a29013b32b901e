"""The compiled lane. Nodes are named by the ids that the kernel knows them by.

A node that is "held" stays in the table until it is released as often.
"""

from typing import TypedDict

def start(
    *,
    root_fd: int,
    entry_ns: int,
    attr_ns: int,
    open_flags: int,
    opendir_flags: int,
    watched_ns: int = 0,
) -> None:
    """Set up table and queue for the workspace's descriptor, once in a process. Raises OSError.

    entry_ns, attr_ns: for how many nanoseconds the kernel may believe names and attributes;
    watched_ns: the same where changes from behind are heard of, if that is longer;
    open_flags, opendir_flags: FOPEN_* of the replies.
    """

def serve(
    device: int, threads: int, buffer_size: int, no_opendir: bool = False, first: list[bytes] = ..., /
) -> None:
    """Read requests from the FUSE descriptor; buffer_size: bytes of the largest one.

    no_opendir: the kernel understands that directories need not be opened (FUSE_NO_OPENDIR_SUPPORT).
    first: requests that Python gets before those. After `take_over`, the first time: the kernel is told
    to send again what was read and not answered (FUSE_NOTIFY_RESEND), before anything is read here, since
    what is being handled would come again, too. Raises OSError: it can't do that.
    """

def eventfd() -> int: ...
def wait() -> bool: ...
def hooks() -> tuple[object, object]: ...
def next_request() -> bytes | None: ...
def take_records() -> list[tuple[str, int, tuple[bytes, ...], float, int, int, bool, int]]:
    """(kind, actor, paths, seconds since the epoch, node, handle, written to, number) since the last time.

    looked: opened for reading; made: a file was made, perhaps written, and closed; opened: it was
    made, and Python goes on with the handle; removed, linked: a name that its task was alone with.
    Numbers go on by one. Until `records_told` they are kept for the process that follows.
    """

def records_told() -> None: ...
def making(fh: int, /) -> tuple[int, int, int]:
    """(a new descriptor, flags of open(2), thread) of an `opened` handle. Raises OSError."""

def close_handle(fh: int, /) -> None: ...
def let_make(on: bool, /) -> None:
    """Whether files may be made without asking; False also hands over those that are being made."""

def disown_all() -> None: ...
def pending() -> int: ...
def know(tid: int, actor: int, group: int, seconds: float, /) -> bool:
    """Thread `tid`, which must be blocked in a request, works for `actor` (> 0) until it executes
    another program, ends, or the time is over. False: there is no such thread.

    group: actors of one task have the same (0: of none); they may remove what they alone have made.
    """

def known(tid: int, /) -> int: ...
def forget_threads(expired_only: bool, /) -> None: ...
def lifetimes(id: int, nlink: int, /) -> tuple[float, float]: ...
def watch() -> None:
    """Hear of what others change in the directories that the kernel is told about from now on.

    Raises OSError: EREMOTE on a filesystem that other machines change, EOPNOTSUPP and others where
    fanotify cannot do it. Events are read once `serve` has been called.
    """

def watch_node(id: int, /) -> bool:
    """Whether changes in the directory are heard of from now on."""

def watch_events(events: bytes, /) -> bool: ...
def watch_load() -> dict[str, int]: ...
def pending_changes() -> int: ...
def take_changes(most: int = 1000, /) -> list[tuple[int, bytes | None, bytes | None, int, float]]:
    """(FAN_* bits, path, where a rename has led, process id or 0, seconds since the epoch).

    Bit 62: created and deleted meanwhile, and there. No path: it came from where nobody listens; no
    second one: it went there. FAN_Q_OVERFLOW: some were not heard of. Bit 61: no change, but the name
    of a file in /proc/PID and its text, noted at once when the process was first heard of. More than
    `most`: the event descriptor is readable again.
    """

def expire(parent: int, name: bytes, /) -> None:
    """The kernel shall ask for the name again, whatever it believes."""

def watch_miss(parent: int, name: bytes, /) -> None: ...
def hold(id: int, /) -> tuple[int, int, int] | None: ...
def release(id: int, /) -> None: ...
def names(id: int, /) -> list[tuple[int, bytes]]: ...
def paths(id: int, /) -> tuple[bytes, ...]: ...
def state(id: int, /) -> tuple[int, int, bool, int]: ...
def hand_out(id: int, /) -> None: ...
def forget(id: int, count: int, /) -> None: ...
def enter(parent: int, name: bytes, dev: int, ino: int, mode: int, nlink: int, since: int, /) -> int: ...
def find(dev: int, ino: int, mode: int, /) -> int: ...
def child(parent: int, name: bytes, /) -> int: ...
def add_name(id: int, parent: int, name: bytes, /) -> None: ...
def remove_name(id: int, parent: int, name: bytes, /) -> None: ...
def names_change(begins: bool, /) -> None: ...
def detach(id: int, /) -> None: ...
def pin(id: int, /) -> int: ...
def unpin(id: int, /) -> None: ...
def opened_by(id: int, fd: int, /) -> None:
    """A descriptor through which Python has the node open, -1: it has none."""

def acquire_dir(id: int, /) -> int: ...
def release_dir(id: int, /) -> None: ...
def pinned_fd(id: int, /) -> int: ...
def add_handle(id: int, fd: int, actor: int, group: int, /) -> int: ...
def reading() -> list[tuple[int, tuple[bytes, ...]]]: ...
def grant(id: int, fh: int, fd: int, tid: int, append: bool, seconds: float, /) -> None:
    """Writes by thread `tid` through the handle `fh` go to `fd` without Python, until anything else
    concerns the node, or so many seconds have passed."""

def revoke(id: int, /) -> float: ...
def revoke_all() -> None: ...
def inode(dev: int, ino: int, /) -> int: ...
def next_id() -> int: ...
def watch_before(pid: int) -> None: ...
def watch_hold() -> None: ...
def watch_let_go(child: int, /) -> None: ...
def pause(seconds: float, /) -> bool: ...
def dump() -> tuple[bytes, list[int]]: ...
def load_state(state: bytes, /) -> None: ...
def share(memfd: int, /) -> None:
    """Before `start`: what is known shall lie in this memory (empty), which outlives the process.

    The descriptor is used as long as the process lives. Raises OSError (EEXIST: it is not empty).
    """

class Left(TypedDict):
    """What another process has left (`take_over`).

    handles: Python's, as they were noted, and those that it had been handed and not noted yet: (number,
    node, descriptor, flags, readable, thread, CLOCK_MONOTONIC ns of the last write by a grant or 0).
    fds: every descriptor that is still in use. started: (unique, opcode, CLOCK_REALTIME ns, inode, size)
    of the requests that may have been done without an answer; see `past`.
    """

    handles: list[tuple[int, int, int, int, bool, int, int]]
    fds: list[int]
    started: list[tuple[int, int, int, int, int]]

def take_over(memfd: int, /) -> Left:
    """After `start`, in the process that follows: go on with what the one before had in this memory.

    That process must have ended, and its descriptors must be here under the same numbers (CLONE_FILES).
    Nothing that was open is closed here: all that is not in `fds` is the caller's to close, before
    anything else is opened. Actors, groups and threads keep their numbers, so new ones must be given others.
    What the kernel believes is taken back once `serve` is called, and a lookup that finds nothing is Python's
    until `misses_known`. ValueError: not such a memory, or damaged; nothing has changed then.
    """

def note_handle(fh: int, id: int, fd: int, flags: int, readable: bool, tid: int, /) -> bool:
    """A handle of Python's, which is to survive this process; False: there is no memory for that.

    Nothing happens if it is known already. It holds the node until `unnote_handle`.
    """

def unnote_handle(fh: int, /) -> None:
    """Before its descriptor is closed."""

def began(
    unique: int, opcode: int, ino: int = 0, size: int = 0, node: int = 0, /
) -> tuple[int, int, int, int] | None:
    """This thread is about to change something for the request (its number as it came).

    ino: of what it concerns; size: of a file that is appended to; node: of what it concerns, if that may
    have no name afterwards. What the thread has begun before must have been answered. Returns what `past`
    does.
    """

def answered() -> None:
    """What this thread `began` last is answered."""

def past(unique: int, /) -> tuple[int, int, int, int] | None:
    """(opcode, CLOCK_REALTIME ns, inode, size) of a request that comes again, and that the process before
    had begun; None: it had not, or the request does not come again (bit 63 of its number)."""

def past_node(unique: int, /) -> int:
    """The node that `began` was told; 0: none, as in all that the lane did: there is a record of that."""

def made(unique: int, directory: int, name: bytes, mode: int, /) -> bool:
    """Whether what the name leads to, of the type in `mode`, was made for the request by a process before."""

def asked(unique: int, /) -> int:
    """The handle that a request which comes again has led to, before a process died; 0: none."""

def die_at(point: int, nth: int = 1, /) -> None:
    """For tests: SIGKILL when a change comes there the nth time. 1: it is about to be made; 2: it was made;
    3: the table says so; 4: it was answered."""

def misses_known() -> None:
    """`watch_miss` was told every name whose absence matters."""

def load() -> dict[str, int]: ...
def counts() -> dict[int, int]: ...
