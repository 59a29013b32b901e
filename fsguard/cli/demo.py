"""fsguard demo: a tour in two minutes. Two agents collide on a scratch tree, by real commands."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time

from fsguard.cli import terminal
from fsguard.cli.base import Parser
from fsguard.cli.demoacts import ACTS, CONFIG, FILES, Act, Step
from fsguard.errors import BusyError, DaemonError, FsguardError, MissingError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fsguard.control.registry import Mount

__all__ = ["main"]

_WORDS_A_SECOND = 9.0
_SHELL = ";|&<>$*"
_PATIENCE = 60.0
_ENDS_WITHIN = 10.0
_WIDTH = 78
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(argv: list[str]) -> int:
    parser = Parser(
        "demo",
        "A tour in two minutes: mounts a scratch tree of its own below the temporary directory, lets two\n"
        "agents collide there by real commands, shows each kind of warning and says what it means, brings\n"
        "work back, and takes everything away again, also after Ctrl-C. Nothing of yours is touched.",
        ["fsguard demo", "fsguard demo --fast", "fsguard demo --json | jq .kinds"],
        [0, (1, "a warning that was expected did not come"), 2, 4, 5, 6, 7, (130, "ended by Ctrl-C")],
    )
    parser.add_argument("--fast", action="store_true", help="no pauses for reading (as without a terminal)")
    parser.add_argument("--json", action="store_true", help="at the end one object: the warnings of each act")
    args = parser.parse(argv)
    pauses = not args.fast and not args.json and sys.stdout.isatty()
    for number in _ENDING:
        signal.signal(number, _interrupt)
    with _Stage(pauses, silent=args.json) as stage:
        return stage.play(args.json)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


class _Later:
    """Ctrl-C and its like wait for the end of the block. Children do not inherit that."""

    def __enter__(self) -> None:
        self._came = False
        self._before = {number: signal.signal(number, self._note) for number in _ENDING}

    def _note(self, number: int, frame: object) -> None:
        self._came = True

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._came:
            raise KeyboardInterrupt


class _Stage:
    """The scratch tree, its mount, and everything that runs on it; gone when the block is left."""

    def __init__(self, pauses: bool, silent: bool) -> None:
        self._pauses = pauses
        self._silent = silent
        self._held: list[subprocess.Popen[str]] = []
        self._seen = 0

    def __enter__(self) -> _Stage:
        import tempfile

        try:
            self.top = os.path.realpath(tempfile.mkdtemp(prefix="fsguard-demo-"))
        except OSError as error:
            raise MissingError(f"no temporary directory: {error.strerror}", "set TMPDIR") from None
        self.tree = f"{self.top}/tree"
        # Of the caller's own fsguard nothing is to be seen, whether it is a task or has mounts.
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("FSGUARD_")}
        self.env |= {"FSGUARD_RUNTIME_DIR": f"{self.top}/run", "XDG_STATE_HOME": f"{self.top}/state"}
        self.env |= {"NO_COLOR": "1", "COLUMNS": "100"}
        try:
            self._make()
        except BaseException:
            self._clear()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def _make(self) -> None:
        for directory in (self.tree, f"{self.top}/run", f"{self.top}/state"):
            os.mkdir(directory, 0o700)
        for name, text in FILES.items():
            with open(f"{self.tree}/{name}", "w", encoding="utf-8") as file:
                file.write(text)
        with open(f"{self.top}/demo.toml", "w", encoding="utf-8") as file:
            file.write(CONFIG)
        with _Later():  # half a mount could not be taken away again
            done = self._fsguard("mount", "--config", f"{self.top}/demo.toml", self.tree, cwd=self.top)
        if done.returncode:
            raise _said(done)

    def _clear(self) -> None:
        """Nothing is left: processes, mount, directory. A second Ctrl-C does not stop that."""
        import shutil

        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)
        for process in self._held:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        daemon = self._daemon()
        if os.path.ismount(self.tree):
            end = time.monotonic() + _ENDS_WITHIN
            while (done := self._fsguard("unmount", self.tree, cwd="/")).returncode == BusyError.exit_code:
                if time.monotonic() > end:
                    break
                time.sleep(0.05)  # what was killed with its parent may need a moment to be gone
            if done.returncode == DaemonError.exit_code and daemon is not None:
                # A namespace made meanwhile has a copy of the mount, for which it would go on.
                os.kill(daemon, signal.SIGKILL)
            elif done.returncode:
                raise _said(done)
        shutil.rmtree(self.top, ignore_errors=True)

    def _daemon(self) -> int | None:
        try:
            return self._mount().pid
        except (OSError, ValueError, TypeError):
            return None

    # ---- the tour -------------------------------------------------------------------

    def play(self, as_json: bool) -> int:
        began = time.monotonic()
        self._say(
            f"A scratch tree is guarded at {self.tree}.\n"
            "Two agents, agent-A and agent-B, work in it and do not know of each other. Each command below\n"
            "is run as it stands there."
        )
        told: dict[str, list[dict[str, Any]]] = {}
        for number, act in enumerate(ACTS, 1):
            told[act.kind] = self._act(number, act)
        self._ending()
        missing = [
            a.kind for a in ACTS if (a.kind, a.to) not in {(w["kind"], w["task"]) for w in told[a.kind]}
        ]
        if as_json:
            seconds = round(time.monotonic() - began, 1)
            terminal.print_json({"kinds": told, "missing": missing, "seconds": seconds})
        if missing:
            raise FsguardError(
                f"no warning came of kind {', '.join(missing)}",
                "see `fsguard doctor`; this is not as it should be",
            )
        return 0

    def _act(self, number: int, act: Act) -> list[dict[str, Any]]:
        self._title(f"{number} of {len(ACTS)}  {act.kind}")
        self._say(act.before)
        for step in act.steps:
            self._step(step)
        found = [w for w in self._warnings() if w["id"] > self._seen]
        self._seen = max([self._seen, *(w["id"] for w in found)])
        self._json("warnings", "--ack", "--json")  # shown below; not once more with a later command
        for warning in found:
            if (warning["kind"], warning["task"]) == (act.kind, act.to):
                head = f"{warning['severity']} {warning['kind']}, told to {warning['task']}:"
                body = terminal.shown(warning["message"], lines=True)
                self._show(_indent(f"{head}\n{body}", "    "), "yellow")
        self._say(act.after, len(act.before.split()) + 40)
        return found

    def _ending(self) -> None:
        self._title("And the way back")
        self._say("What was destroyed is kept, outside of the tree. `fsguard conflicts` lists it:")
        rows = [row for row in self._json("conflicts", "--json") if row["kept"]]
        lost = next((row for row in rows if row["path"] == "settings.py"), None)
        if lost is not None:
            self._command("", "fsguard conflicts --task agent-A | head -3")
            shown = self._fsguard("conflicts", "--task", "agent-A").stdout.splitlines()[:3]
            self._show(_indent("\n".join(shown), "    "))
            self._run("diff", f"settings.py@{lost['version']}")
            self._run("restore", f"settings.py@{lost['version']}")
        self._say("With the policy `block`, a write over something unseen is refused before a byte changes:")
        self._run("policy", "block", "--path", "settings.py")
        self._step(Step("agent-A", "echo HOST = None > settings.py"))
        self._say(
            "That is all. On your own tree: `fsguard mount TREE`, then `fsguard hooks install TOOL`, or run\n"
            "agents with `fsguard run --task ID`. `fsguard top` and `fsguard report` show what goes on."
        )

    # ---- steps ----------------------------------------------------------------------

    def _step(self, step: Step) -> None:
        argv = self._argv(step)
        if argv is not None:
            shown = f"python3 -c {_quoted(step.python)}" if step.python else step.script
            if step.plain:
                shown = f"fsguard {step.script}"
            self._command(step.task or "a person", shown)
            process = self._start(argv, step.holds)
            if step.holds:
                self._until_it_asks(process)
                return
            if step.queued:
                self._until_it_waits()
                self._let_go()
            out, err = process.communicate(timeout=_PATIENCE)
            self._held = [held for held in self._held if held is not process]
            self._show(_indent(out.rstrip("\n"), "    "), "dim")
            if "refused" in err or (step.plain and process.returncode):
                self._show(_indent(terminal.shown(err.rstrip("\n"), lines=True), "    "), "yellow")
        if step.lets_go:
            self._let_go()

    def _argv(self, step: Step) -> list[str] | None:
        if not (step.script or step.python):
            return None
        if step.plain:
            return [*_FSGUARD, *step.script.split()]
        if step.python:
            command = [sys.executable, "-c", step.python]
        elif any(mark in step.script for mark in _SHELL):
            command = ["sh", "-c", step.script]
        else:
            command = shlex.split(step.script)
        if step.task is None:
            return command
        parent = ["--parent", step.parent] if step.parent else []
        return [*_FSGUARD, "run", "--task", step.task, *parent, "--", *command]

    def _start(self, argv: list[str], holds: bool) -> subprocess.Popen[str]:
        """In a session of its own: Ctrl-C is for us, who clear up, whenever it comes."""
        with _Later():
            process = subprocess.Popen(
                argv,
                cwd=self.tree,
                env={**self.env, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.PIPE if holds else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="backslashreplace",
                start_new_session=True,
            )
            self._held.append(process)
        return process

    def _until_it_asks(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        said = ""
        while not said.endswith("… "):
            piece = process.stdout.read(1)
            if not piece:
                raise FsguardError(f"a command of the demo ended early: {process.communicate()[1].strip()}")
            said += piece
        self._show(_indent(said.strip(), "    "), "dim")

    def _let_go(self) -> None:
        for process in self._held:
            if process.stdin is not None:  # it stops at its input()
                process.communicate("\n", timeout=_PATIENCE)
        self._held = [process for process in self._held if process.poll() is None]

    def _until_it_waits(self) -> None:
        from fsguard.control.client import Client

        end = time.monotonic() + _PATIENCE
        with Client(self._mount()) as client:
            while not any(queue["queue"] for queue in client.call("status")["queues"]):
                if time.monotonic() > end:
                    raise DaemonError("nobody came to wait for a turn")
                time.sleep(0.02)
            time.sleep(0.2)  # so that there is something to be told

    def _mount(self) -> Mount:
        import json

        from fsguard.control.registry import Mount

        directory = f"{self.top}/run"
        (name,) = [name for name in os.listdir(directory) if name.endswith(".json")]
        with open(f"{directory}/{name}", encoding="utf-8") as file:
            return Mount(**json.load(file))

    # ---- fsguard itself ---------------------------------------------------------------

    def _fsguard(self, *args: str, cwd: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*_FSGUARD, *args],
            cwd=cwd or self.tree,
            env=self.env,
            capture_output=True,
            text=True,
            errors="backslashreplace",
            stdin=subprocess.DEVNULL,
            check=False,
            start_new_session=True,
        )

    def _json(self, *args: str) -> list[Any]:
        import json

        done = self._fsguard(*args)
        if done.returncode:
            raise _said(done)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def _warnings(self) -> list[Any]:
        return self._json("warnings", "--all", "--json")

    def _run(self, *args: str) -> None:
        self._command("", " ".join(["fsguard", *args]))
        done = self._fsguard(*args)
        if done.returncode:
            raise _said(done)
        self._show(_indent((done.stdout + done.stderr).rstrip("\n"), "    "))
        self._pause(12)

    # ---- words ------------------------------------------------------------------------

    def _title(self, text: str) -> None:
        self._show("\n" + f"── {text} ".ljust(_WIDTH, "─"), "bold")

    def _command(self, who: str, command: str) -> None:
        self._show(f"  {who} $ {command}".replace("  $", "$"), "green")
        self._pause(6)

    def _say(self, text: str, words: int = 0) -> None:
        self._show("\n" + text + "\n")
        self._pause(max(words, len(text.split())))

    def _show(self, text: str, colour: str | None = None) -> None:
        if self._silent or not text:
            return
        lines = [terminal.paint(line, colour) if colour and line else line for line in text.split("\n")]
        print("\n".join(lines), flush=True)

    def _pause(self, words: int) -> None:
        if self._pauses:
            time.sleep(words / _WORDS_A_SECOND)


_FSGUARD = [sys.executable, "-P", "-m", "fsguard.cli"]


def _said(done: subprocess.CompletedProcess[str]) -> FsguardError:
    """What a command of ours complained about, as our own error."""
    from fsguard import errors

    first, _, rest = done.stderr.strip().removeprefix("fsguard: ").partition("\n")
    kind = errors.BY_CODE.get(done.returncode, FsguardError)
    return kind(first or f"{done.args[3:]} ended with {done.returncode}", rest.strip() or None)


def _indent(text: str, by: str) -> str:
    return by + text.replace("\n", "\n" + by) if text else ""


def _quoted(code: str) -> str:
    return shlex.quote(code) if "'" not in code else f'"{code}"'
