"""fsguard run with real processes: the command is untouched, and on record before it starts."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fsguard.errors import RefusedError
from tests.adapter.fake_daemon import FakeDaemon

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for cgroups and mounts")


@pytest.fixture
def daemon(tmp_path):
    with FakeDaemon(tmp_path) as fake:
        yield fake


def run(daemon, *command, task="A", flags=(), **options):
    return daemon.fsguard("run", "--task", task, *flags, "--", *command, **options)


def python(program):
    return [sys.executable, "-S", "-c", program]


def gone(pid):
    return not os.path.exists(f"/proc/{pid}")


def test_input_output_and_exit_code_pass_through(daemon):
    done = run(daemon, "sh", "-c", "cat; echo err >&2; exit 7", input="some\nwords")
    assert (done.returncode, done.stdout, done.stderr) == (7, "some\nwords", "err\n")


def test_the_daemon_knows_the_run_before_the_command_starts_and_after_it_ended(daemon):
    mark = daemon.workspace / "mark"

    def begin(params):
        assert not mark.exists() and os.path.exists(f"/proc/{params['pid']}")
        return {"task": "A", "parent": "P"}

    def end(params):
        assert mark.exists() and gone(daemon.params("run.begin")["pid"])
        return {"warnings": [], "footprint": None, "waited_ms": 0}

    daemon.answers |= {"run.begin": begin, "run.end": end}
    done = run(daemon, "sh", "-c", "echo $$ > mark; exit 3", flags=["--parent", "P", "--name", "the name"])
    assert done.returncode == 3, done.stderr
    begun, ended = daemon.params("run.begin"), daemon.params("run.end")
    assert begun["pid"] == int(mark.read_text())
    assert (begun["task"], begun["parent"], begun["name"]) == ("A", "P", "the name")
    assert begun["argv"] == ["sh", "-c", "echo $$ > mark; exit 3"]
    assert begun["footprint"] is False and begun["disabled"] is False
    assert len(begun["token"]) == 12 and ended == {"token": begun["token"], "code": 3}


def test_the_environment_names_task_and_run_and_the_parent_only_if_given(daemon):
    program = python("import os; print({k: v for k, v in os.environ.items() if k.startswith('FSGUARD_')})")
    outer = daemon.env | {"FSGUARD_TASK": "O", "FSGUARD_RUN": "1" * 12, "FSGUARD_PARENT": "OP"}
    said = eval(run(daemon, *program, env=outer).stdout)
    token = daemon.calls[0][1]["token"]
    runtime = {"FSGUARD_RUNTIME_DIR": daemon.env["FSGUARD_RUNTIME_DIR"]}
    assert said == {"FSGUARD_TASK": "A", "FSGUARD_RUN": token} | runtime
    said = eval(
        run(daemon, *program, flags=["--parent", "P"], env=daemon.env | {"FSGUARD_DISABLE": "1"}).stdout
    )
    assert said["FSGUARD_PARENT"] == "P" and said["FSGUARD_DISABLE"] == "1"
    assert daemon.calls[2][1]["disabled"] is True


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["run", "--task", "A", "echo", "-n", "x"], ["echo", "-n", "x"]),
        (["run", "--task", "A", "--", "echo", "--", "x"], ["echo", "--", "x"]),
        (["run", "--task=A", "echo", "--task", "B", "--", "x"], ["echo", "--task", "B", "--", "x"]),
    ],
)
def test_only_the_first_double_dash_is_ours(daemon, words, command):
    daemon.fsguard(*words)
    assert daemon.params("run.begin")["argv"] == command


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--task", "A"], "no command"),
        (["run", "--task", "A", "--"], "no command"),
        (["run", "--", "true"], "--task"),
        (["run", "--task", "", "--", "true"], "task ID"),
        (["run", "--task", "a\nb", "--", "true"], "task ID"),
        (["run", "--task", "A", "--workspace", "/", "--", "true"], "not in a guarded workspace"),
        (["run", "--task", "A", "--report", "/no/such/dir/r", "--", "true"], "report"),
    ],
)
def test_what_is_wrong_before_the_start_is_125_with_a_sentence(daemon, words, said):
    done = daemon.fsguard(*words)
    assert done.returncode == 125
    assert done.stderr.startswith("fsguard: ") and said in done.stderr
    assert daemon.calls == []


def test_a_refused_run_never_starts(daemon):
    def refuse(params):
        raise RefusedError("not for you", "ask somebody")

    daemon.answers["run.begin"] = refuse
    done = run(daemon, "touch", "mark")
    assert (done.returncode, done.stderr) == (125, "fsguard: not for you\n  ask somebody\n")
    assert not (daemon.workspace / "mark").exists()
    assert gone(daemon.params("run.begin")["pid"])


def test_commands_that_cannot_be_executed(daemon):
    (daemon.workspace / "data").write_text("x")
    for name, code, said in (
        ("no-such-command", 127, "no-such-command: command not found"),
        ("./absent", 127, "./absent: No such file"),
        ("./data", 126, "./data: Permission denied"),
        (".", 126, ".: "),
    ):
        done = run(daemon, name)
        assert done.returncode == code, name
        assert done.stderr.startswith("fsguard: ") and said in done.stderr


def test_a_script_without_an_interpreter_line_is_a_shell_script(daemon):
    script = daemon.workspace / "script"
    script.write_text('echo "$1"; exit 5\n')
    script.chmod(0o755)
    done = run(daemon, "./script", "arg")
    assert (done.returncode, done.stdout) == (5, "arg\n")


def test_any_bytes_pass_as_arguments(daemon):
    word = os.fsdecode(b"\xff\xfe\n")
    done = run(daemon, "printf", "%s", word)
    assert done.stdout == word
    assert daemon.params("run.begin")["argv"][2] == word


def test_a_command_longer_than_a_request_runs(daemon):
    words = ["x" * 100_000] * 15
    done = run(daemon, *python("import sys; print(sum(map(len, sys.argv[1:])))"), *words)
    assert done.stdout == "1500000\n", done.stderr


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGSEGV, signal.SIGUSR2]
)
def test_killed_by_a_signal_is_killed_by_that_signal(daemon, number):
    done = run(daemon, "sh", "-c", f"kill -{int(number)} $$")
    assert done.returncode == -number
    assert daemon.params("run.end")["code"] == 128 + number


LISTEN = """
import os, signal, sys
got = []
def note(number, frame):
    got.append(signal.Signals(number).name)
    os.write(1, f"{got[-1]}\\n".encode())
for number in (1, 2, 3, 10, 12, 15, 18, 28, signal.SIGALRM, signal.SIGRTMIN):
    signal.signal(number, note)
os.write(1, b"ready\\n")
while "SIGQUIT" not in got:
    signal.pause()
"""


def test_signals_sent_to_run_reach_the_command_once_each(daemon):
    process = daemon.popen("run", "--task", "A", "--", *python(LISTEN))
    assert process.stdout.readline() == "ready\n"
    sent = ["SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGINT", "SIGALRM", "SIGRTMIN", "SIGQUIT"]
    for name in sent:
        process.send_signal(getattr(signal, name))
        assert process.stdout.readline() == f"{name}\n"
    assert process.communicate(timeout=10)[0] == ""
    assert process.returncode == 0


def test_signals_that_the_command_sends_to_its_own_group_come_back_once(daemon):
    program = (
        "import os, signal; got = []\n"
        "signal.signal(signal.SIGUSR1, lambda n, f: got.append(n))\n"
        "os.kill(0, signal.SIGUSR1); os.kill(os.getppid(), 0)\n"
        "import subprocess; subprocess.run(['true']); print(len(got))"
    )
    done = run(daemon, *python(program), start_new_session=True)
    assert (done.returncode, done.stdout) == (0, "1\n")


def status_of(command, **options):
    out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, **options).stdout
    fields = dict(line.split(":\t", 1) for line in out.splitlines() if line.startswith("Sig"))
    return {name: fields[name] for name in ("SigBlk", "SigIgn", "SigCgt")}


def test_masks_and_dispositions_are_those_of_the_caller(daemon):
    def ignore_some():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})

    for before in (None, ignore_some):
        direct = status_of(["cat", "/proc/self/status"], preexec_fn=before)
        command = daemon.command("run", "--task", "A", "--", "cat", "/proc/self/status")
        guarded = status_of(command, cwd=daemon.workspace, env=daemon.env, preexec_fn=before)
        assert guarded == direct


def test_descriptors_pass_and_none_of_ours_leaks(daemon):
    read, write = os.pipe()
    program = python("import os; print(*sorted(map(int, os.listdir('/proc/self/fd'))))")
    done = run(daemon, *program, pass_fds=[write])
    os.close(read), os.close(write)
    # The fourth is the listing's own.
    assert set(done.stdout.split()) == {"0", "1", "2", "3" if write != 3 else "4", str(write)}


def test_it_runs_although_children_were_ignored(daemon):
    done = run(daemon, "sh", "-c", "exit 9", preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
    assert done.returncode == 9


def test_a_stop_and_a_continue_of_the_command_alone_harm_nobody(daemon):
    """As an agent's tool might do it: nobody would wake `run`, so it must not stop too."""
    process = daemon.popen("run", "--task", "A", "--", *python(LISTEN), start_new_session=True)
    assert process.stdout.readline() == "ready\n"
    pid = daemon.params("run.begin")["pid"]
    os.kill(pid, signal.SIGSTOP)
    process.send_signal(signal.SIGCONT)
    assert process.stdout.readline() == "SIGCONT\n"
    process.send_signal(signal.SIGQUIT)
    process.communicate(timeout=10)
    assert process.returncode == 0


WARNING = {
    "id": 1,
    "kind": "stale_write",
    "severity": "conflict",
    "task": "A",
    "path": "f",
    "message": "lost:\n-x\n+\x1b[2J",
}


def test_warnings_are_printed_harmless_and_reported(daemon, tmp_path):
    footprint = {
        "read": ["a"],
        "written": [os.fsdecode(b"\xe9")],
        "created": [],
        "deleted": [],
        "renamed": [],
    }
    daemon.answers["run.end"] = {"warnings": [WARNING], "footprint": footprint, "waited_ms": 1}
    report = tmp_path / "report.json"
    done = run(daemon, "sh", "-c", "exit 4", flags=["--report", str(report)])
    assert (done.returncode, done.stderr) == (4, "fsguard: lost:\n-x\n+\\x1b[2J\n")
    assert json.loads(report.read_text()) == {
        "task": "A",
        "command": ["sh", "-c", "exit 4"],
        "exit_code": 4,
        "signal": None,
        "warnings": [WARNING],
        "footprint": footprint,
    }
    assert daemon.params("run.begin")["footprint"] is True


def test_a_report_that_cannot_be_written_leaves_the_exit_code(daemon, tmp_path):
    done = run(daemon, "sh", "-c", f"mkdir {tmp_path}/r; exit 4", flags=["--report", f"{tmp_path}/r"])
    assert done.returncode == 4 and "cannot write the report" in done.stderr


def test_a_daemon_that_vanished_is_a_sentence_and_no_more(daemon):
    process = daemon.popen(
        "run", "--task", "A", "--", "sh", "-c", "echo go; read x; exit 6", stdin=subprocess.PIPE
    )
    assert process.stdout.readline() == "go\n"
    daemon.stop()
    _, err = process.communicate("x\n", timeout=10)
    assert process.returncode == 6
    assert err.startswith("fsguard: the command ended, but not on record: the daemon of")


def test_ctrl_c_ends_the_wait_for_the_record_but_not_the_exit_code(daemon):
    asked, never = threading.Event(), threading.Event()

    def end(params):
        asked.set()
        never.wait(20)
        return {"warnings": [WARNING], "footprint": None, "waited_ms": 0}

    daemon.answers["run.end"] = end
    process = daemon.popen("run", "--task", "A", "--", "sh", "-c", "exit 5")
    assert asked.wait(10)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=10)
    never.set()
    assert (process.returncode, out, err) == (5, "", "")


def test_ctrl_c_before_the_start_starts_nothing(daemon):
    asked, never = threading.Event(), threading.Event()

    def begin(params):
        asked.set()
        never.wait(20)
        return {"task": "A", "parent": None}

    daemon.answers["run.begin"] = begin
    process = daemon.popen("run", "--task", "A", "--", "touch", "mark")
    assert asked.wait(10)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    never.set()
    assert process.returncode == -signal.SIGINT
    assert not (daemon.workspace / "mark").exists()
    assert gone(daemon.params("run.begin")["pid"])


def test_the_command_never_starts_when_run_is_killed_before_it(daemon):
    asked, never = threading.Event(), threading.Event()

    def begin(params):
        asked.set()
        never.wait(20)
        return {"task": "A", "parent": None}

    daemon.answers["run.begin"] = begin
    process = daemon.popen("run", "--task", "A", "--", "touch", "mark")
    assert asked.wait(10)
    child = os.pidfd_open(daemon.params("run.begin")["pid"])
    process.kill()
    assert select.select([child], [], [], 10)[0]
    os.close(child)
    process.communicate()
    never.set()
    assert not (daemon.workspace / "mark").exists()


@ROOT_ONLY
def test_the_run_has_a_cgroup_below_the_callers_which_is_gone_afterwards(daemon):
    done = run(daemon, "cat", "/proc/self/cgroup")
    begun = daemon.params("run.begin")
    directory = begun["cgroup"]
    assert os.path.basename(directory) == f"fsguard-{begun['token']}"
    own = {line.rpartition(":")[2] for line in Path("/proc/self/cgroup").read_text().splitlines()}
    inner = [
        line.rpartition(":")[2] for line in done.stdout.splitlines() if f"/fsguard-{begun['token']}" in line
    ]
    assert len(inner) == 1 and (os.path.dirname(inner[0]) or "/") in own
    assert not os.path.exists(directory)


@ROOT_ONLY
def test_a_nested_run_lies_below_the_outer_one(daemon):
    inner = daemon.command("run", "--task", "B", "--", "cat", "/proc/self/cgroup")
    done = run(daemon, *inner)
    tokens = [params["token"] for name, params in daemon.calls if name == "run.begin"]
    assert f"/fsguard-{tokens[0]}/fsguard-{tokens[1]}" in done.stdout
    ended = [params["token"] for name, params in daemon.calls if name == "run.end"]
    assert ended == tokens[::-1]
    assert not any(os.path.exists(params["cgroup"]) for name, params in daemon.calls if name == "run.begin")


@ROOT_ONLY
def test_a_background_process_keeps_the_cgroup(daemon):
    done = run(daemon, "sh", "-c", "exec >/dev/null 2>&1; sleep 60 & ")
    directory = Path(daemon.params("run.begin")["cgroup"])
    (left,) = map(int, (directory / "cgroup.procs").read_text().split())
    assert done.returncode == 0
    end = os.pidfd_open(left)
    os.kill(left, signal.SIGKILL)
    select.select([end], [], [], 10)
    os.close(end)


@ROOT_ONLY
def test_a_cwd_older_than_the_mount_is_entered_again_by_path(daemon, tmp_path):
    (tmp_path / "over").mkdir()
    (tmp_path / "over" / "f").write_text("the mount")
    (daemon.workspace / "f").write_text("the covered directory")
    command = (
        f'cd {daemon.workspace} && mount --bind {tmp_path}/over {daemon.workspace} && cat f && exec "$@"'
    )
    guarded = daemon.command("run", "--task", "A", "--", "cat", "f")
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", command, "sh", *guarded],
        env=daemon.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "the covered directorythe mount", done.stderr


class Terminal:
    """An interactive shell with job control on a terminal of its own."""

    def __init__(self, daemon):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(daemon.workspace)
            env = daemon.env | {"PS1": "$ ", "TERM": "dumb"}
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "--noediting", "-i"], env)
        self.seen = ""
        self.fsguard = " ".join(f"'{word}'" for word in daemon.command())
        self.until("$ ")
        self.type("stty -echo; echo quiet\n")  # what we type must not pass for an answer
        self.until("quiet\r\n$ ")

    def type(self, text):
        os.write(self.fd, text.encode())

    def suspend(self):
        """Ctrl-Z, which flushes the terminal's input, and so may eat the next byte typed.

        (Or itself be eaten: measured with plain bash, two of a thousand.)
        """
        for _ in range(3):
            self.type("\x1a")
            if select.select([self.fd], [], [], 5)[0]:
                break
        self.until("Stopped")

    def until(self, mark):
        """Read on to `mark`; what came before it."""
        while mark not in self.seen:
            ready, _, _ = select.select([self.fd], [], [], 20)
            assert ready, f"waited for {mark!r}, saw {self.seen!r}"
            try:
                self.seen += os.read(self.fd, 4096).decode(errors="replace")
            except OSError:
                raise AssertionError(f"the shell ended; saw {self.seen!r}") from None
        before, _, self.seen = self.seen.partition(mark)
        return before

    def close(self):
        os.kill(self.pid, signal.SIGKILL)
        os.close(self.fd)
        os.waitpid(self.pid, 0)


@pytest.fixture
def terminal(daemon):
    shell = Terminal(daemon)
    yield shell
    shell.close()


def test_on_a_terminal_a_job_is_stopped_continued_and_fed(terminal):
    terminal.type(f"{terminal.fsguard} run --task A -- sh -c 'echo up; sed -u s/^/got:/'\n")
    terminal.until("up")
    terminal.type("one\n")
    terminal.until("got:one\r\n")
    terminal.suspend()
    terminal.type("\nfg\ntwo\n")
    terminal.until("got:two\r\n")
    terminal.suspend()
    terminal.type("\nfg\nthree\n")
    terminal.until("got:three")
    terminal.type("\x04")
    terminal.until("$ ")
    terminal.type("echo code=$?=\n")
    terminal.until("code=0=")


def test_on_a_terminal_ctrl_c_reaches_the_command_once(terminal):
    program = terminal_program("listen.py", LISTEN)
    terminal.type(f"{terminal.fsguard} run --task A -- {sys.executable} {program}\n")
    terminal.until("ready")
    terminal.type("\x03")
    terminal.until("SIGINT")
    terminal.type("\x1c")
    seen = terminal.until("$ ")
    assert "SIGINT" not in seen and seen.count("SIGQUIT") == 1
    terminal.type(f"{terminal.fsguard} run --task A -- sh -c 'echo up; exec sleep 60'\n")
    terminal.until("up")
    terminal.type("\x03")
    terminal.until("$ ")
    terminal.type("echo code=$?=\n")
    terminal.until("code=130=")


EDITOR = """
import os, signal, sys, termios, tty
fd = os.open("/dev/tty", os.O_RDWR)
was = termios.tcgetattr(fd)
def suspend(number, frame):
    os.write(fd, b"suspending ")
    termios.tcsetattr(fd, termios.TCSADRAIN, was)
    signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    os.kill(0, signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, suspend)
    tty.setcbreak(fd)
    os.write(fd, b"resumed ")
signal.signal(signal.SIGTSTP, suspend)
tty.setcbreak(fd)
os.write(fd, b"editing ")
while (key := os.read(fd, 1)) != b"q":
    os.write(fd, b"<" + key + b">")
termios.tcsetattr(fd, termios.TCSADRAIN, was)
"""


def terminal_program(name, text):
    path = Path(os.environ["PYTEST_PROGRAMS"]) / name
    path.write_text(text)
    return path


@pytest.fixture(autouse=True)
def programs(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTEST_PROGRAMS", str(tmp_path))


def test_on_a_terminal_an_editor_suspends_itself_and_comes_back(terminal):
    program = terminal_program("editor.py", EDITOR)
    terminal.type(f"{terminal.fsguard} run --task A -- {sys.executable} {program}\n")
    terminal.until("editing ")
    terminal.type("a")
    terminal.until("<a>")
    terminal.type("\x1a")
    terminal.until("suspending ")
    terminal.until("Stopped")
    terminal.type("fg\n")
    terminal.until("resumed ")
    terminal.type("b")
    assert "suspending" not in terminal.until("<b>")
    terminal.type("q")
    terminal.until("$ ")
    terminal.type("echo code=$?=\n")
    terminal.until("code=0=")


def test_in_the_background_a_read_from_the_terminal_stops_the_job(terminal):
    terminal.type(f"{terminal.fsguard} run --task A -- cat &\n")
    terminal.until("$ ")
    terminal.type("wait -n; jobs\n")  # bash tells when it stops
    terminal.until("Stopped")
    terminal.type("fg\nwords\n")
    terminal.until("words")
    terminal.type("\x04")
    terminal.until("$ ")
