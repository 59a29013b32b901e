"""A command in a child process, and a parent that behaves as if it were the command.

The parent stays in the command's process group, so terminals and shells treat
both as one job. All signals are blocked in the parent and taken one by one with
their origin (sigwaitinfo):

* from the kernel (Ctrl-C, Ctrl-Z, a resized or closed terminal): the terminal
  sent it to the whole group, the command has it already;
* from the command itself or a descendant: not passed back (a program that
  sends SIGTSTP to its own group means all of us, once);
* from anybody else: passed on. kill(2) from outside to the whole *group* thus
  reaches the command twice, as under timeout(1) and sudo(8).

When the command stops, the parent stops by the same signal, so that the shell
sees its job stop; SIGCONT wakes both. When the command is killed by a signal,
the parent dies by it too (`die`).
"""

from __future__ import annotations

import errno
import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn, TypeVar

    Value = TypeVar("Value")

__all__ = ["Child", "Interruption", "die"]

_KERNEL_SENT = 0  # si_code above it: the kernel's own doing (SI_KERNEL is 0x80)
_KEPT = {
    signal.SIGKILL,
    signal.SIGSTOP,
    # The parent's own faults must kill the parent.
    *(
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGTRAP,
        signal.SIGSYS,
        signal.SIGABRT,
    ),
    # Its own terminal access from the background must stop it.
    *(signal.SIGTTIN, signal.SIGTTOU, signal.SIGPIPE),
}
_TAKEN = signal.valid_signals() - _KEPT
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Interruption(Exception):
    """A signal that asks to end came while the parent was busy with itself."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Child:
    """The command, forked and waiting for `go`. Made with all signals blocked.

    If the parent dies before it says `go`, the command never starts.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self._was_ignored = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
        # Ignored children leave no status behind (POSIX).
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _TAKEN)
        ready, self._gate = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._become(ready, list(argv), {os.fsencode(name): os.fsencode(env[name]) for name in env})
        os.close(ready)

    def go(self) -> int:
        """Let the command start and wait for it, passing signals on. The wait status."""
        try:
            os.write(self._gate, b"!")
        except BrokenPipeError:
            pass  # it died already; its status says how
        os.close(self._gate)
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                self._take(signal.sigwaitinfo(_TAKEN))
            elif os.WIFSTOPPED(status):
                self._stop(os.WSTOPSIG(status))
            else:
                # What came before its end was for the command.
                while signal.sigtimedwait(_TAKEN, 0):
                    pass
                return status

    def abandon(self) -> None:
        """End it before it started."""
        os.close(self._gate)
        os.waitpid(self.pid, 0)

    def interruptibly(self, work: Callable[[], Value]) -> Value:
        """Do something of our own during which INT, TERM, HUP and QUIT count.

        Interruption if one comes, or came since the command ended.
        """

        def interrupt(number: int, _: object) -> None:
            raise Interruption(number)

        former = {number: signal.getsignal(number) for number in _ENDING}
        heard = [number for number in _ENDING if former[number] is not signal.SIG_IGN]
        try:
            for number in heard:
                signal.signal(number, interrupt)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, heard)
            return work()
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, heard)
            for number in heard:
                signal.signal(number, former[number])

    def _take(self, info: signal.struct_siginfo) -> None:
        number = info.si_signo
        if number == signal.SIGCHLD or info.si_code > _KERNEL_SENT:
            return
        if not _descends(info.si_pid, self.pid):
            os.kill(self.pid, number)  # not reaped yet: the pid is the command's

    def _stop(self, number: int) -> None:
        """Stop as the command did, if our own parent is a shell that watches its jobs.

        Others (a script, an agent's tool) would not wake us with the command, and
        where nobody could, the kernel ignores SIGTSTP anyway (orphaned group).
        """
        parent = os.getppid()
        if os.getsid(parent) != os.getsid(0) or os.getpgid(parent) == os.getpgrp():
            return
        ours = {number} & _TAKEN
        signal.sigtimedwait(ours, 0)  # our own copy of Ctrl-Z: one stop is enough
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ours)
        # The copy may also come only now and have stopped us above; then we have
        # been continued since, and so has the command, or it will be.
        if _state(self.pid) == "T" and signal.SIGCONT not in signal.sigpending():
            os.kill(os.getpid(), number)  # here we stop until we are continued
        signal.pthread_sigmask(signal.SIG_BLOCK, ours)

    def _become(self, ready: int, argv: list[str], env: dict[bytes, bytes]) -> NoReturn:
        try:
            os.close(self._gate)
            if not os.read(ready, 1):
                os._exit(125)  # no go: the parent died, or abandoned us
            # What Python changed at its start; what the caller ignored stays ignored.
            for number in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
            if self._was_ignored:
                signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            _execute(argv, env)
        finally:
            os._exit(125)


def die(number: int) -> int:
    """End as the command did, by signal `number`, but without a core file of our own.

    Returns the shell's code for it, 128 + number, if the signal cannot end us.
    """
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return 128 + number


def _execute(argv: list[str], env: dict[bytes, bytes]) -> NoReturn:
    """Become the command, as execvp(3) does it: 127 not found, 126 not executable."""
    name = os.fsencode(argv[0])
    if b"/" in name:
        places = [name]
    else:
        search = env.get(b"PATH", os.fsencode(os.defpath)).split(b":")
        places = [(directory or b".") + b"/" + name for directory in search]
    failure = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    for place in places:
        try:
            os.execve(place, argv, env)
        except OSError as error:
            if error.errno == errno.ENOEXEC:  # a script without #!
                os.execve("/bin/sh", [b"sh", place, *map(os.fsencode, argv[1:])], env)
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                continue
            failure = error
            if error.errno != errno.EACCES:
                break
    from fsguard.cli.terminal import shown

    found = failure.errno != errno.ENOENT
    reason = failure.strerror if found or b"/" in name else "command not found"
    os.write(2, f"fsguard: {shown(argv[0])}: {reason}\n".encode("utf-8", "backslashreplace"))
    os._exit(126 if found else 127)


def _state(pid: int) -> str:
    return _stat(pid)[0]


def _descends(pid: int, ancestor: int) -> bool:
    """Is the process the ancestor or a descendant of it, as far as it can be seen?"""
    for _ in range(64):
        if pid == ancestor:
            return True
        if pid <= 1:
            return False
        pid = int(_stat(pid)[1])
    return False


def _stat(pid: int) -> list[str]:
    """State and parent of a process; of a vanished one, "X" and 0."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode("ascii").split()
    except (OSError, ValueError):
        return ["X", "0"]
