"""A random schedule of real commands by several tasks on one mount, judged by the oracle.

Commands run one after the other; what overlaps are Python programs that read a
file, hold what they have read while others act, and write it back when told. So
the truth is the same at every run of a seed, whatever the machine does.

Contents are rows of marks of eight bytes (``A000012\\n``), each written once.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from fsguard.control import registry
from fsguard.control.client import Client
from tests.kit.agents import Agent
from tests.kit.mounting import Workspace
from tests.kit.oracle_model import Finding, Oracle, Who, kind_class

__all__ = ["PARENTS", "TASKS", "Schedule"]

TASKS = ("A", "B", "C", "D", "E", "F")
PARENTS = {"F": "E"}  # the others are strangers to each other
TRACKED = 8
FILES = 20
MAX_MARKS = 40

HOLD = """
import os, sys
path, mark, way = sys.argv[1:]
try:
    with open(path) as file:
        text = file.read()
except FileNotFoundError:
    text = ""
with open(os.environ["SEEN"], "w") as out:
    out.write(text)
stop("has read")
text = text[:320] + mark
if way == "replace":
    with open(path + ".tmp", "w") as file:
        file.write(text)
    os.replace(path + ".tmp", path)
elif way == "in place":
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    os.pwrite(fd, text.encode(), 0)
    os.close(fd)
else:
    with open(path, "w") as file:
        file.write(text)
"""


class Holder:
    """A program that has read a file and not written it yet."""

    def __init__(self, agent: Agent, who: Who, path: str, mark: str, way: str, text: str) -> None:
        self.agent, self.who, self.path, self.mark, self.way, self.text = agent, who, path, mark, way, text


class Schedule:
    """Runs `steps` commands on `workspace` and compares what was told after each of them.

    `told` counts the conflicts that had to be told and were.
    """

    def __init__(self, workspace: Workspace, seed: int) -> None:
        self.workspace = workspace
        self.random = random.Random(seed)
        self.seed = seed
        self.oracle = Oracle(PARENTS, watched=False)
        self.marks = 0
        self.processes = 0
        self.holders: list[Holder] = []
        self.seen: set[tuple[int, str]] = set()
        self.told = 0
        self.notes = 0
        self.log: list[str] = []
        self.committed: dict[str, bytes] = {}
        self.paths = [f"t{i}" for i in range(TRACKED)] + [f"d/u{i}" for i in range(FILES - TRACKED)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FSGUARD_RUNTIME_DIR", workspace.env["FSGUARD_RUNTIME_DIR"])
            mount = registry.find(str(workspace.root))
        assert mount is not None
        self.client = Client(mount)

    # -- the beginning --------------------------------------------------------------

    def prepare(self) -> None:
        """Files that were there before: some committed, some not, some only names."""
        root = self.workspace.root
        (root / "d").mkdir()
        for path in self.paths[: FILES - 4]:
            content = self.mark("-") + self.mark("-")
            (root / path).write_text(content)
            self.oracle.file(path, content.encode())
        tracked = self.paths[:TRACKED]
        git = " && git config user.email t@e && git config user.name t && git add -- "
        script = "git init -q ." + git + " ".join(tracked) + " && git commit -qm one"
        self.workspace.plain("sh", "-ec", script).ok()
        self.index_is_newer()
        self.committed = {p: self.oracle.files[p][0] for p in tracked}
        self.compare("the beginning")

    def mark(self, task: str) -> str:
        self.marks += 1
        return f"{task}{self.marks:06d}\n"

    def new(self, task: str | None) -> Who:
        self.processes += 1
        return Who(task, self.processes, self.processes)

    # -- steps ------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
        while self.holders:
            self.finish(self.holders[0])

    def step(self) -> None:
        rng = self.random
        if self.holders and rng.random() < 0.25:
            self.finish(rng.choice(self.holders))
            return
        task = rng.choice([*TASKS, *TASKS, None])
        # A few files get most of the traffic: conflicts are what this is about.
        path = rng.choice(self.paths[: rng.choice((3, 6, FILES))] if rng.random() < 0.5 else self.paths[-6:])
        name, act = rng.choice(self.acts())
        act(task, path)
        del name

    def acts(self) -> list[tuple[str, Callable[[str | None, str], None]]]:
        weighed = (
            (6, self.cat),
            (3, self.redirect),
            (3, self.append),
            (3, self.sed),
            (3, self.hold),
            (2, self.edit),
            (2, self.move),
            (2, self.copy),
            (2, self.copy_in),
            (2, self.remove),
            (2, self.checkout),
            (2, self.tee),
            (1, self.truncate),
            (2, self.dd),
            (2, self.look_and_restore),
            (1, self.same),
        )
        return [(act.__name__, act) for weight, act in weighed for _ in range(weight)]

    def command(self, task: str | None, *argv: str, code: int = 0, **more: Any) -> str:
        """Run it to its end; what it printed."""
        if task is None:
            result = self.workspace.plain(*argv, **more)
        else:
            options = ("--parent", PARENTS[task]) if task in PARENTS else ()
            result = self.workspace.run(task, *argv, options=options, **more)
        assert result.code == code, f"{self.where()}: {argv} ended with {result.code}: {result.err}"
        return result.out

    def where(self) -> str:
        return f"seed {self.seed}, step {len(self.log)}:\n" + "\n".join(self.log[-60:])

    def done(self, who: Who, what: str) -> None:
        self.oracle.end(who.command)
        self.log.append(f"{who.task or 'a person'}: {what}")
        self.compare(what)

    def compare(self, what: str) -> None:
        """Everything that is newly on record is what the oracle says, no more and no less."""
        conflicts: set[Finding] = set()
        notes: set[Finding] = set()
        for warning in self.client.call("warnings", all=True):
            for path in warning["paths"]:
                if (warning["id"], path) in self.seen:
                    continue
                self.seen.add((warning["id"], path))
                found = Finding(warning["task"], path, kind_class(warning["kind"]), warning["sibling"])
                if warning["kind"] == "stale_read":
                    continue  # a child's end reminds its parent: another test's business
                (conflicts if warning["severity"] == "conflict" else notes).add(found)
        must, may, want_notes = self.oracle.take()
        assert must <= conflicts, f"{self.where()}\nnot told: {must - conflicts}\ntold: {conflicts}"
        assert conflicts <= must | may, f"{self.where()}\ntold without need: {conflicts - must - may}"
        assert want_notes <= notes <= want_notes | may, (
            f"{self.where()}\nnotes: {notes}\nwanted: {want_notes}"
        )
        self.told += len(must)
        self.notes += len(notes)
        for path in self.paths:
            content = self.oracle.content(path)
            file = self.workspace.root / path
            assert (file.read_bytes() if file.exists() else None) == content, f"{self.where()}\n{path}"

    # -- reading ----------------------------------------------------------------------

    def cat(self, task: str | None, path: str) -> None:
        who, content = self.new(task), self.oracle.content(path)
        out = self.command(task, "cat", path, code=0 if content is not None else 1)
        assert out.encode() == (content or b""), self.where()
        self.oracle.look(who, path)
        self.done(who, f"cat {path}")

    # -- whole contents -----------------------------------------------------------------

    def picture(self, who: Who, path: str, task: str | None) -> str:
        """What an agent would write: what it knows of the file, and a mark of its own."""
        if self.random.random() < 0.3:
            return self.mark(task or "-")
        known = self.oracle.known_content(who, path)[: 8 * MAX_MARKS]
        return known.decode() + self.mark(task or "-")

    def put(self, task: str | None, path: str, script: str, what: str) -> None:
        who = self.new(task)
        text = self.picture(who, path, task)
        self.command(task, "sh", "-c", script.replace("FILE", path), input=text)
        self.oracle.write(who, path, text.encode())
        self.done(who, what.replace("FILE", path))

    def redirect(self, task: str | None, path: str) -> None:
        self.put(task, path, "cat > FILE", "cat > FILE")

    def tee(self, task: str | None, path: str) -> None:
        self.put(task, path, "tee FILE > /dev/null", "tee FILE")

    def copy_in(self, task: str | None, path: str) -> None:
        """cp, or an atomic save, of something that was written elsewhere."""
        who = self.new(task)
        text = self.picture(who, path, task)
        outside = self.workspace.top / "draft"
        outside.write_text(text)
        if self.random.random() < 0.5:
            self.command(task, "cp", str(outside), path)
            self.oracle.write(who, path, text.encode())
            self.done(who, f"cp … {path}")
        else:
            temp = f"{path}.new"
            self.command(task, "sh", "-c", f"cp {outside} {temp} && mv {temp} {path}")
            self.oracle.write(who, temp, text.encode())
            # mv is another process than cp; neither has read the file it replaces.
            self.oracle.rename(who, temp, path)
            self.done(who, f"cp … {temp} && mv {temp} {path}")

    def copy(self, task: str | None, path: str) -> None:
        source = self.random.choice(self.paths)
        content = self.oracle.content(source)
        if content is None or source == path:
            return
        who = self.new(task)
        self.command(task, "cp", source, path)
        self.oracle.look(who, source)
        self.oracle.write(who, path, content)
        self.done(who, f"cp {source} {path}")

    def look_and_restore(self, task: str | None, path: str) -> None:
        """Put back an earlier content, with or without a look at what is there."""
        contents = [c for _, c in self.oracle.name(path).contents if c][-4:]
        if not contents:
            return
        who, text, look = self.new(task), self.random.choice(contents), self.random.random() < 0.6
        script = f"cat {path} > /dev/null 2>&1; cat > {path}" if look else f"cat > {path}"
        self.command(task, "sh", "-c", script, input=text.decode())
        if look:
            reader = Who(task, who.command, -who.process, (who.process,))
            self.oracle.look(reader, path)
        self.oracle.write(who, path, text)
        self.done(who, f"{'cat FILE; ' if look else ''}cat earlier > {path}".replace("FILE", path))

    def same(self, task: str | None, path: str) -> None:
        """The bytes that are there, again."""
        content = self.oracle.content(path)
        if not content:
            return
        who = self.new(task)
        self.command(task, "sh", "-c", f"cat > {path}", input=content.decode())
        self.oracle.write(who, path, content)
        self.done(who, f"the same > {path}")

    # -- edits ------------------------------------------------------------------------------

    def edit(self, task: str | None, path: str) -> None:
        """A formatter: one process reads all and writes all."""
        who, content = self.new(task), self.oracle.content(path)
        if content is None:
            return
        mark = self.mark(task or "-")
        script = "import sys; p, m = sys.argv[1:]; t = open(p).read(); open(p, 'w').write(t[:320] + m)"
        self.command(task, sys.executable, "-c", script, path, mark)
        self.oracle.look(who, path)
        self.oracle.write(who, path, content[: 8 * MAX_MARKS] + mark.encode())
        self.done(who, f"edit {path}")

    def sed(self, task: str | None, path: str) -> None:
        content = self.oracle.content(path)
        if not content:
            return
        who, mark = self.new(task), self.mark(task or "-")
        self.command(task, "sed", "-i", f"$a {mark.strip()}", path)
        temp = f"{os.path.dirname(path)}/sed" if "/" in path else "sed"
        self.oracle.look(who, path)
        self.oracle.write(who, temp, content + mark.encode())
        self.oracle.rename(who, temp, path)
        self.oracle.names.pop(temp, None)  # the next one has another name
        self.oracle.pending.pop(temp, None)
        self.done(who, f"sed -i {path}")

    def hold(self, task: str | None, path: str) -> None:
        """Read now, write later."""
        if len(self.holders) >= 4:
            return
        who, mark = self.new(task), self.mark(task or "-")
        way = self.random.choice(("write", "replace", "in place"))
        seen = self.workspace.top / f"seen-{who.process}"
        more: dict[str, Any] = {"env": {"SEEN": str(seen)}}
        if task in PARENTS:
            more["options"] = ("--parent", PARENTS[task])
        agent = Agent(self.workspace, task, HOLD, path, mark, way, **more)
        agent.until("has read")
        text = seen.read_text()
        assert text.encode() == (self.oracle.content(path) or b""), self.where()
        self.oracle.look(who, path)
        self.holders.append(Holder(agent, who, path, mark, way, text))
        self.log.append(f"{task or 'a person'}: reads {path} and holds it")
        self.compare("hold")

    def finish(self, holder: Holder) -> None:
        self.holders.remove(holder)
        who, path = holder.who, holder.path
        with holder.agent as agent:
            agent.finish().ok()
        content = holder.text[:320].encode() + holder.mark.encode()
        if holder.way == "replace":
            self.oracle.write(who, f"{path}.tmp", content)
            self.oracle.rename(who, f"{path}.tmp", path)
        elif holder.way == "in place" and path in self.oracle.files:
            rest = self.oracle.files[path][0][len(content) :]
            self.oracle.patch(who, path, content + rest)
        else:
            self.oracle.write(who, path, content)
        self.done(who, f"writes {path} ({holder.way}) from what it held")

    def append(self, task: str | None, path: str) -> None:
        who, mark = self.new(task), self.mark(task or "-")
        self.command(task, "sh", "-c", f"cat >> {path}", input=mark)
        self.oracle.append(who, path, mark.encode())
        self.done(who, f"cat >> {path}")

    def dd(self, task: str | None, path: str) -> None:
        content = self.oracle.content(path)
        if content is None:
            return
        who, mark = self.new(task), self.mark(task or "-")
        slot = self.random.randint(0, min(3, len(content) // 8))
        self.command(
            task, "dd", f"of={path}", "bs=8", f"seek={slot}", "conv=notrunc", "status=none", input=mark
        )
        at = slot * 8
        self.oracle.patch(who, path, content[:at] + mark.encode() + content[at + 8 :])
        self.done(who, f"dd of={path} seek={slot} conv=notrunc")

    def truncate(self, task: str | None, path: str) -> None:
        content = self.oracle.content(path)
        if not content:
            return
        who, slots = self.new(task), self.random.randint(0, len(content) // 8)
        self.command(task, "truncate", "-s", str(slots * 8), path)
        self.oracle.patch(who, path, content[: slots * 8])
        self.done(who, f"truncate -s {slots * 8} {path}")

    # -- names ---------------------------------------------------------------------------------

    def remove(self, task: str | None, path: str) -> None:
        if path not in self.oracle.files:
            return
        who = self.new(task)
        self.command(task, "rm", path)
        self.oracle.delete(who, path)
        self.done(who, f"rm {path}")

    def move(self, task: str | None, path: str) -> None:
        target = self.random.choice(self.paths)
        if path not in self.oracle.files or path == target:
            return
        who = self.new(task)
        self.command(task, "mv", path, target)
        self.oracle.rename(who, path, target)
        self.done(who, f"mv {path} {target}")

    def checkout(self, task: str | None, path: str) -> None:
        """git unlinks and makes anew what differs from the index, and reads nothing of it."""
        path = self.random.choice(self.paths[:TRACKED])
        content = self.committed[path]
        if self.oracle.content(path) == content:
            return
        who = self.new(task)
        git = (
            ["git", "restore", path] if self.random.random() < 0.5 else ["git", "checkout", "-q", "--", path]
        )
        self.command(task, *git)
        if path in self.oracle.files:
            self.oracle.delete(who, path)
        self.oracle.write(who, path, content)
        self.index_is_newer()
        self.done(who, " ".join(git))

    def index_is_newer(self) -> None:
        """Keep git from reading, by chance, files of the same clock tick as its index."""
        later = time.time() + 3600
        os.utime(self.workspace.root / ".git" / "index", (later, later))

    def close(self) -> None:
        """End the programs that still hold something, also when the schedule failed."""
        for holder in self.holders:
            holder.agent.kill()
            holder.agent.close()
        self.client.close()
