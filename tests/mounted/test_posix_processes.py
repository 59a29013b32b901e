"""Programs, locks and watchers: exec, ETXTBSY, flock, fcntl, inotify."""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import signal
import struct
import sys
from collections.abc import Callable

import pytest

from tests.kit.inotify import Watch
from tests.kit.posix import Places, Row, Table, as_user, attempt, elsewhere, get, opened, put

table = Table()

# ---- programs --------------------------------------------------------------------------


def wait(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def started(path: str) -> int:
    """A running copy of sleep(1) at `path`, after its exec."""
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(receive)
        os.set_inheritable(send, False)
        os.execv(path, [path, "30"])
    os.close(send)
    os.read(receive, 1)  # closed by exec
    return pid


@table.row
def program_just_written_runs(d: str) -> object:
    put(d + "/script", b"#!/bin/sh\nexit 3\n", 0o755)
    shutil.copy("/bin/true", d + "/true")
    codes = [os.spawnv(os.P_WAIT, d + "/script", ["script"]), os.spawnv(os.P_WAIT, d + "/true", ["true"])]
    os.unlink(d + "/true")
    return codes


@table.row
def program_rewritten_and_run_again(d: str) -> object:
    codes = []
    for number in range(10):
        put(d + "/script", b"#!/bin/sh\nexit %d\n" % number, 0o755)
        codes.append(os.spawnv(os.P_WAIT, d + "/script", ["script"]))
    return codes


@table.row
def program_replaced_while_it_runs(d: str) -> object:
    shutil.copy("/bin/sleep", d + "/p")
    pid = started(d + "/p")
    shutil.copy("/bin/true", d + "/q")
    os.rename(d + "/q", d + "/p")
    second = os.spawnv(os.P_WAIT, d + "/p", ["p"])
    os.kill(pid, signal.SIGTERM)
    first = wait(pid)
    os.unlink(d + "/p")
    return first, second


@table.row
def running_program_is_text_busy(d: str) -> object:
    shutil.copy("/bin/sleep", d + "/p")
    pid = started(d + "/p")
    seen = [
        attempt(os.open, d + "/p", os.O_WRONLY),
        attempt(os.open, d + "/p", os.O_RDWR | os.O_TRUNC),
        attempt(os.truncate, d + "/p", 0),
        len(get(d + "/p")) > 0,
    ]
    os.kill(pid, signal.SIGKILL)
    seen.append(wait(pid))
    with opened(d + "/p", os.O_WRONLY):
        pass
    os.unlink(d + "/p")
    return seen


@table.row
def program_open_for_writing_is_text_busy(d: str) -> object:
    shutil.copy("/bin/true", d + "/p")
    with opened(d + "/p", os.O_WRONLY):
        pid = os.fork()
        if pid == 0:
            os._exit(0 if attempt(os.execv, d + "/p", ["p"]) == "ETXTBSY" else 1)
        code = wait(pid)
    os.unlink(d + "/p")
    return code


@table.row
def unlinked_program_goes_on(d: str) -> object:
    shutil.copy("/bin/sleep", d + "/p")
    pid = started(d + "/p")
    os.unlink(d + "/p")
    link = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    os.kill(pid, signal.SIGTERM)
    return wait(pid), link


@table.row
def program_by_descriptor(d: str) -> object:
    put(d + "/f", b"#!/bin/sh\nexit 4\n", 0o755)
    shutil.copy("/bin/true", d + "/p")
    pid = os.fork()
    if pid == 0:
        fd = os.open(d + "/p", os.O_PATH)
        os.execve(fd, ["p"], {})
    code = wait(pid)
    os.unlink(d + "/p")
    return code


@table.root_row
def setuid_program_gives_its_owner(d: str) -> object:
    shutil.copy("/usr/bin/id", d + "/id")
    os.chown(d + "/id", 4001, 4001)
    os.chmod(d + "/id", 0o6755)

    def act() -> object:
        receive, send = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.dup2(send, 1)
            os.execv(d + "/id", ["id", "-u"])
        os.close(send)
        wait(pid)
        return os.read(receive, 99)

    result = as_user(4005, act)
    os.unlink(d + "/id")
    return result


@table.row
def module_written_and_imported(d: str) -> object:
    put(d + "/fresh_module.py", b"VALUE = 41 + 1\n")
    sys.path.insert(0, d)
    sys.dont_write_bytecode = True
    return __import__("fresh_module").VALUE


# ---- locks ---------------------------------------------------------------------------------


def try_lock(path: str, how: int) -> object:
    with opened(path, os.O_RDWR) as fd:
        return attempt(fcntl.flock, fd, how | fcntl.LOCK_NB)


def try_record(path: str, kind: int, start: int, length: int) -> object:
    with opened(path, os.O_RDWR) as fd:
        return attempt(fcntl.lockf, fd, kind | fcntl.LOCK_NB, length, start)


@table.row
def flock_excludes_others(d: str) -> object:
    path = put(d + "/f")
    seen = []
    with opened(path, os.O_RDWR) as fd:
        for held in (fcntl.LOCK_EX, fcntl.LOCK_SH, fcntl.LOCK_UN):
            fcntl.flock(fd, held)
            seen += [elsewhere(lambda how=how: try_lock(path, how)) for how in (fcntl.LOCK_EX, fcntl.LOCK_SH)]
    seen.append(try_lock(path, fcntl.LOCK_EX))
    return seen


@table.row
def flock_belongs_to_the_open_file_and_ends_with_its_last_descriptor(d: str) -> object:
    path = put(d + "/f")
    fd = os.open(path, os.O_RDWR)
    other = os.dup(fd)
    fcntl.flock(fd, fcntl.LOCK_EX)
    seen = [try_lock(path, fcntl.LOCK_EX)]
    os.close(fd)
    seen.append(try_lock(path, fcntl.LOCK_EX))
    os.close(other)
    seen.append(try_lock(path, fcntl.LOCK_EX))
    return seen


@table.row
def flock_held_by_a_dead_process_is_free(d: str) -> object:
    path = put(d + "/f")

    def hold() -> None:
        fcntl.flock(os.open(path, os.O_RDWR), fcntl.LOCK_EX)

    elsewhere(hold)
    return try_lock(path, fcntl.LOCK_EX)


@table.row
def flock_waits_for_its_turn(d: str) -> object:
    path = put(d + "/f")
    receive, send = os.pipe()
    with opened(path, os.O_RDWR) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX)
        pid = os.fork()
        if pid == 0:
            with opened(path, os.O_RDWR) as mine:
                os.write(send, b"waiting ")
                fcntl.flock(mine, fcntl.LOCK_EX)
                os.write(send, b"got it")
            os._exit(0)
        first = os.read(receive, 8)
        quiet = not select.select([receive], [], [], 0.1)[0]
        fcntl.flock(fd, fcntl.LOCK_UN)
        return first, quiet, os.read(receive, 99), wait(pid)


@table.row
def record_locks_by_range(d: str) -> object:
    path = put(d + "/f", b"x" * 100)
    with opened(path, os.O_RDWR) as fd:
        fcntl.lockf(fd, fcntl.LOCK_EX, 10, 20)
        fcntl.lockf(fd, fcntl.LOCK_SH, 10, 40)
        outcomes = {}
        for start, length in ((0, 20), (15, 10), (20, 10), (30, 10), (40, 5), (0, 0)):
            for kind in (fcntl.LOCK_EX, fcntl.LOCK_SH):
                outcomes[start, length, kind] = elsewhere(
                    lambda s=start, n=length, k=kind: try_record(path, k, s, n)
                )
        return outcomes


@table.row
def record_locks_fall_with_any_close(d: str) -> object:
    path = put(d + "/f")
    with opened(path, os.O_RDWR) as fd:
        fcntl.lockf(fd, fcntl.LOCK_EX)
        seen = [elsewhere(lambda: try_record(path, fcntl.LOCK_EX, 0, 0))]
        os.close(os.open(path, os.O_RDONLY))
        seen.append(elsewhere(lambda: try_record(path, fcntl.LOCK_EX, 0, 0)))
        return seen


@table.row
def who_holds_a_record_lock(d: str) -> object:
    path = put(d + "/f", b"x" * 100)
    with opened(path, os.O_RDWR) as fd:
        fcntl.lockf(fd, fcntl.LOCK_EX, 10, 20)

        def ask() -> object:
            asked = struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0)
            with opened(path, os.O_RDWR) as mine:
                kind, _, start, length, pid = struct.unpack(
                    "hhqqi", fcntl.fcntl(mine, fcntl.F_GETLK, asked)[:28]
                )
            return kind, start, length, pid == os.getppid()

        return elsewhere(ask)


@table.row
def open_file_description_locks(d: str) -> object:
    path = put(d + "/f")
    write_lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
    set_lock = 37  # F_OFD_SETLK
    first, second = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
    return (
        isinstance(attempt(fcntl.fcntl, first, set_lock, write_lock), bytes),
        attempt(fcntl.fcntl, second, set_lock, write_lock),
        os.close(first),
        isinstance(attempt(fcntl.fcntl, second, set_lock, write_lock), bytes),
    )


@table.row
def exclusive_record_lock_needs_a_writable_descriptor(d: str) -> object:
    path = put(d + "/f")
    with opened(path) as fd:
        return attempt(fcntl.lockf, fd, fcntl.LOCK_EX | fcntl.LOCK_NB), attempt(
            fcntl.lockf, fd, fcntl.LOCK_SH
        )


@table.row
def record_locks_deadlock_is_found(d: str) -> object:
    path = put(d + "/f", b"ab")
    to_child, from_child = os.pipe(), os.pipe()
    with opened(path, os.O_RDWR) as fd:
        fcntl.lockf(fd, fcntl.LOCK_EX, 1, 0)
        pid = os.fork()
        if pid == 0:
            with opened(path, os.O_RDWR) as mine:
                fcntl.lockf(mine, fcntl.LOCK_EX, 1, 1)
                os.write(from_child[1], b"x")
                fcntl.lockf(mine, fcntl.LOCK_EX, 1, 0)
            os._exit(0)
        os.read(from_child[0], 1)
        for _ in range(200):  # until the child waits
            with open("/proc/locks") as locks:
                if any(f" {pid} " in line and "->" in line for line in locks):
                    break
            select.select([], [], [], 0.01)
        outcome = attempt(fcntl.lockf, fd, fcntl.LOCK_EX, 1, 1)
        fcntl.lockf(fd, fcntl.LOCK_UN, 1, 0)
        return outcome, wait(pid), to_child is not None


# ---- watchers ----------------------------------------------------------------------------------


def watch_row(act: str) -> Callable[[str], object]:
    def row(d: str) -> object:
        put(d + "/f", b"content")
        put(d + "/g", b"other")
        os.mkdir(d + "/dir")
        watch = Watch(d, d + "/f")

        def change() -> None:
            match act:
                case "write":
                    with opened(d + "/f", os.O_WRONLY) as fd:
                        os.write(fd, b"x")
                case "truncate_at_open":
                    put(d + "/f", b"new")
                case "append":
                    with opened(d + "/f", os.O_WRONLY | os.O_APPEND) as fd:
                        os.write(fd, b"x")
                case "read":
                    get(d + "/f")
                case "create":
                    put(d + "/new")
                case "unlink":
                    os.unlink(d + "/f")
                case "rename":
                    os.rename(d + "/f", d + "/h")
                case "rename_over":
                    os.rename(d + "/g", d + "/f")
                case "rename_into":
                    os.rename(d + "/f", d + "/dir/f")
                case "mkdir_rmdir":
                    os.mkdir(d + "/new")
                    os.rmdir(d + "/new")
                case "chmod":
                    os.chmod(d + "/f", 0o600)
                case "utime":
                    os.utime(d + "/f", (1, 1))
                case "link":
                    os.link(d + "/f", d + "/l")
                case "symlink":
                    os.symlink("f", d + "/s")
                case "setxattr":
                    os.setxattr(d + "/f", "user.x", b"1")
                case "truncate":
                    os.truncate(d + "/f", 2)
                case _:
                    raise AssertionError(act)

        elsewhere(change)  # a sibling's process, not the watcher's
        return watch.events()

    return row


for act in (
    *("write", "truncate_at_open", "append", "read", "create", "unlink", "rename", "rename_over"),
    *("rename_into", "mkdir_rmdir", "chmod", "utime", "link", "symlink", "setxattr", "truncate"),
):
    table.add(f"watcher_sees_{act}", watch_row(act))


@table.row
def watcher_of_an_unlinked_open_file(d: str) -> object:
    put(d + "/f")
    with opened(d + "/f", os.O_WRONLY) as fd:
        watch = Watch(d + "/f", mask=0x402 | 0x4)
        os.unlink(d + "/f")
        os.write(fd, b"x")
        return watch.events()


@pytest.mark.parametrize("row", table.rows, ids=lambda row: row.name)
def test_processes_as_on_a_plain_directory(row: Row, places: Places) -> None:
    places.compare(table, row)
