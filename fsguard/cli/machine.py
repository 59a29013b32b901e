"""Examining this machine, one fact at a time, for `fsguard doctor`.

Every check returns a `Finding`; none raises, none changes anything that stays.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import subprocess
import sys
import sysconfig

from fsguard.cli import cgroup, detach
from fsguard.cli.packages import install_command
from fsguard.cli.site import user_allow_other
from fsguard.control import mountinfo, places
from fsguard.errors import FsguardError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Finding", "examine"]

_MODULES = ("pyfuse3", "trio", "psutil", "pathspec", "fsguard.fuse._request")


class Finding:
    """One fact: `state` is ok, missing (the main job can't be done) or note.

    `packages` are keys of what to install, for `install_command`.
    """

    def __init__(
        self, name: str, state: str, detail: str, hint: str | None = None, packages: Sequence[str] = ()
    ) -> None:
        self.name = name
        self.state = state
        self.detail = detail
        self.hint = hint
        self.packages = list(packages)

    def as_dict(self) -> dict[str, object]:
        hint = self.hint or install_command(self.packages)
        return {"name": self.name, "state": self.state, "detail": self.detail, "hint": hint or None}


def examine() -> list[Finding]:
    """All facts, the ones that everything depends on first."""
    modules = python_modules()
    built = modules.state == "ok"
    return [
        kernel(os.uname().release),
        device(),
        fusermount(),
        mount_right(),
        library(),
        python(),
        modules,
        *build_tools(needed=not built),
        control_groups(),
        allow_other(),
        syscall_view(),
        runtime_directory(),
        state_directory(),
        open_files(),
        behind(),
        container(),
    ]


def kernel(release: str) -> Finding:
    """Passthrough and resend came with 6.9; without them all works, more slowly."""
    numbers = re.match(r"(\d+)\.(\d+)", release)
    version = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    if version < (4, 20):
        hint = "FUSE of this age was never tried; use a newer kernel"
        return Finding("kernel", "note", f"Linux {release}", hint)
    if version < (6, 9):
        hint = "from 6.9 on, data can flow in the kernel and a dead daemon can be replaced"
        return Finding("kernel", "note", f"Linux {release}: no FUSE passthrough, no resend", hint)
    return Finding("kernel", "ok", f"Linux {release}, with FUSE passthrough and resend")


def behind(directory: str = ".") -> Finding:
    """Where changes behind the mount are heard of, the kernel may keep what it knows for long."""
    from fsguard.caching import why_not
    from fsguard.fuse.fanotify import Group

    where = os.path.abspath(directory)
    try:
        group = Group()
        try:
            fd = os.open(directory, os.O_PATH | os.O_CLOEXEC)
            try:
                group.mark(fd)
            finally:
                os.close(fd)
        finally:
            group.close()
    except OSError as error:
        hint = "so the kernel keeps names and contents for a second only; --cache trust, if nobody makes any"
        return Finding(
            "behind", "note", f"changes behind a mount of {where}: {why_not(error.errno or 0)}", hint
        )
    return Finding("behind", "ok", f"changes behind a mount of {where} are heard of at once")


def device(path: str = "/dev/fuse") -> Finding:
    """fusermount3 opens it with the rights of the user, so the user needs them."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        hints = {
            errno.ENOENT: "`modprobe fuse` makes it; in a container: --device /dev/fuse",
            errno.ENODEV: "the kernel has no FUSE: `modprobe fuse`",
            errno.EACCES: f"udev makes it 0666 on distributions; here root can: `chmod 666 {path}`",
            errno.EPERM: "this container may not open it: --device /dev/fuse",
        }
        mode = ""
        if error.errno == errno.EACCES:
            mode = f" (mode {stat.S_IMODE(os.stat(path).st_mode):04o})"
        detail = f"{path}: {os.strerror(error.errno or 0)}{mode}"
        return Finding("device", "missing", detail, hints.get(error.errno or 0))
    return Finding("device", "ok", f"{path} can be opened")


def fusermount() -> Finding:
    """Users mount and unmount through it; root does not need it."""
    lacking = "note" if os.geteuid() == 0 else "missing"
    program = detach.find_program("fusermount3")
    if program is None:
        return Finding("fusermount3", lacking, "not installed: only root can mount", packages=["fuse"])
    about = os.stat(program)
    if not about.st_mode & stat.S_ISUID or about.st_uid != 0:
        hint = f"`chmod u+s {program}` as root, or install it anew"
        return Finding("fusermount3", lacking, f"{program} is not setuid root: only root can mount", hint)
    return Finding("fusermount3", "ok", program)


def mount_right() -> Finding:
    """Root in a container may lack CAP_SYS_ADMIN, which mount(2) wants."""
    if os.geteuid() != 0:
        return Finding("right to mount", "ok", "through fusermount3")
    if capabilities() & 1 << 21:
        return Finding("right to mount", "ok", "root with CAP_SYS_ADMIN")
    hint = "docker run --cap-add SYS_ADMIN --device /dev/fuse --security-opt apparmor=unconfined"
    return Finding("right to mount", "missing", "root without CAP_SYS_ADMIN", hint)


def library() -> Finding:
    import ctypes

    for name in ("libfuse3.so.4", "libfuse3.so.3"):  # 3.17 counted up
        try:
            version = ctypes.CDLL(name).fuse_version()
        except (OSError, AttributeError):
            continue
        return Finding("libfuse3", "ok", f"{name}, version {version // 100}.{version % 100}")
    return Finding("libfuse3", "missing", "the library is not installed", packages=["fuse", "headers"])


def python() -> Finding:
    numbers = tuple(sys.version_info[:3])
    version = ".".join(map(str, numbers))
    if numbers < (3, 11):
        return Finding("Python", "missing", version, "fsguard needs 3.11 or newer")
    return Finding("Python", "ok", f"{version}, {sys.executable}")


def python_modules(executable: str = sys.executable) -> Finding:
    """What the daemon imports, tried in another process."""
    program = (
        "import sys\n"
        f"sys.path[:0] = {[os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))]!r}\n"
        f"for name in {_MODULES!r}:\n"
        "    try: __import__(name)\n"
        "    except Exception as error: print(f'{name}: {type(error).__name__}: {error}')\n"
    )
    done = subprocess.run(
        [executable, "-P", "-c", program], capture_output=True, text=True, errors="replace", check=False
    )
    problems = done.stdout.split("\n")[:-1]
    if done.returncode != 0:
        problems.append("importing them ends the interpreter")
    if problems:
        hint = (
            "install fsguard again (pipx install, uv tool install, pip install .), after what is missing here"
        )
        return Finding("Python modules", "missing", "; ".join(problems), hint)
    return Finding("Python modules", "ok", ", ".join(_MODULES))


def build_tools(needed: bool) -> list[Finding]:
    """What pip needs to build pyfuse3. Once that is there, they may be gone."""
    lacking = "missing" if needed else "note"
    why = "" if needed else " (only needed to build pyfuse3, which is there)"
    tool = detach.find_program("pkg-config") or detach.find_program("pkgconf")
    compiler = next(filter(None, map(detach.find_program, ("cc", "gcc", "clang"))), None)
    headers = next((d for d in ("/usr/include/fuse3", "/usr/local/include/fuse3") if os.path.isdir(d)), None)
    if headers is None and tool is not None:
        asked = subprocess.run([tool, "--exists", "fuse3"], capture_output=True, check=False)
        headers = "known to pkg-config" if asked.returncode == 0 else None
    python_h = os.path.join(sysconfig.get_path("include"), "Python.h")
    facts = [
        ("libfuse3 headers", headers, "headers"),
        ("pkg-config", tool, "pkg-config"),
        ("C compiler", compiler, "cc"),
        ("Python headers", python_h if os.path.exists(python_h) else None, "python"),
    ]
    return [
        Finding(name, "ok", found)
        if found
        else Finding(name, lacking, f"not installed{why}", packages=[need])
        for name, found, need in facts
    ]


def control_groups() -> Finding:
    """A run's own cgroup: made and removed here, for the trial."""
    kinds = {entry.fstype for entry in mountinfo.read()} & {"cgroup", "cgroup2"}
    form = {1: "v1" if "cgroup" in kinds else "v2", 2: "v1 and v2"}.get(len(kinds), "none mounted")
    directory = cgroup.make(os.urandom(6).hex())
    if directory is None:
        hint = (
            "tasks are then told apart by descent and FSGUARD_TASK; where systemd runs: "
            "`systemd-run --user --scope -p Delegate=yes …` gives a writable one"
        )
        return Finding("cgroups", "note", f"{form}; none can be made below our own", hint)
    cgroup.remove(directory)
    return Finding("cgroups", "ok", f"{form}; can be made below {os.path.dirname(directory)}")


def allow_other() -> Finding:
    if os.geteuid() == 0:
        return Finding("allow_other", "ok", "root may let other users in")
    if user_allow_other():
        return Finding("allow_other", "ok", "user_allow_other is in /etc/fuse.conf")
    hint = "for mounts that other users shall see: root adds a line `user_allow_other` to /etc/fuse.conf"
    return Finding("allow_other", "note", "not for users", hint)


def syscall_view() -> Finding:
    try:
        with open("/proc/self/syscall", "rb") as file:
            file.read()
    except OSError as error:
        return Finding("/proc/PID/syscall", "note", f"not readable: {os.strerror(error.errno or 0)}")
    return Finding("/proc/PID/syscall", "ok", "readable")


def runtime_directory() -> Finding:
    try:
        return Finding("runtime directory", "ok", places.runtime_dir())
    except FsguardError as error:
        return Finding("runtime directory", "missing", error.message, error.hint)


def state_directory() -> Finding:
    """Where state would lie by default: the nearest directory that exists must be writable."""
    home = os.environ.get("XDG_STATE_HOME", "")
    path = home if os.path.isabs(home) else os.path.expanduser("~/.local/state")
    nearest = path
    while not os.path.isdir(nearest) and nearest != "/":
        nearest = os.path.dirname(nearest)
    if os.access(nearest, os.W_OK | os.X_OK):
        return Finding("state directory", "ok", f"{path}/fsguard")
    hint = "set XDG_STATE_HOME, or `fsguard mount --state-dir DIR`"
    return Finding("state directory", "missing", f"cannot write to {nearest}", hint)


def open_files() -> Finding:
    """The daemon holds a descriptor for each file that is open below the mount."""
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if capabilities() & 1 << 24:  # CAP_SYS_RESOURCE: the daemon raises its own limit
        hard = resource.RLIM_INFINITY
    if hard == resource.RLIM_INFINITY or hard >= 16384:
        return Finding("open files", "ok", f"up to {'any number' if hard < 0 else hard}")
    hint = "raise it: `ulimit -Hn 65536` as root, LimitNOFILE= in a unit, --ulimit nofile=65536 for docker"
    return Finding("open files", "note", f"at most {hard} at once, in the whole workspace", hint)


def container() -> Finding:
    marks = [path for path in ("/.dockerenv", "/run/.containerenv") if os.path.exists(path)]
    try:
        here = os.path.realpath(os.getcwd())
    except OSError:
        here = "/"
    entries = [entry for entry in mountinfo.read() if mountinfo.inside(here, entry.path)]
    fstype = max(entries, key=lambda entry: len(entry.path)).fstype if entries else "?"
    if fstype == "overlay":
        hint = "a workspace on a volume or bind mount can have passthrough, one on overlayfs can't (ELOOP)"
        return Finding("workspace here", "note", f"on overlayfs, as in containers: {here}", hint)
    place = f"in a container ({marks[0]})" if marks else "not in a container that we know of"
    return Finding("workspace here", "ok", f"on {fstype}, {place}")


def capabilities() -> int:
    """The effective capabilities of this process, as bits."""
    try:
        with open("/proc/self/status", "rb") as file:
            for line in file:
                if line.startswith(b"CapEff:"):
                    return int(line[7:], 16)
    except (OSError, ValueError):
        pass
    return 0
