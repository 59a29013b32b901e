"""The acts of `fsguard demo`: real commands, and what each of them is to teach.

Written as data, so that the tour can be read here in one piece. The commands run in
the guarded tree; `../draft` lies outside of it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ACTS", "CONFIG", "FILES", "Act", "Step"]


class Step:
    """One command: by `task` (None: by nobody's), words for sh, or Python code.

    `parent`: the task that started this one. `plain`: a command of fsguard's own that
    is not run as a task. `holds`: it is started, and stops at its `input()` until a
    later step `lets_go`: when that has ended, or, `queued`, waits for its turn.
    """

    def __init__(
        self,
        task: str | None,
        script: str = "",
        *,
        python: str = "",
        parent: str | None = None,
        holds: bool = False,
        lets_go: bool = False,
        queued: bool = False,
        plain: bool = False,
    ) -> None:
        self.task = task
        self.script = script
        self.python = python
        self.parent = parent
        self.holds = holds
        self.lets_go = lets_go
        self.queued = queued
        self.plain = plain


class Act:
    """`kind` is what is told to `to`; `before` and `after` are said around the steps."""

    def __init__(self, kind: str, to: str, before: str, steps: Sequence[Step], after: str) -> None:
        self.kind = kind
        self.to = to
        self.before = before
        self.steps = steps
        self.after = after


CONFIG = "[turns]\nwait = 2.5\nlapse = 60.0\n"
"""A turn is waited for long enough to be seen, and short enough for a tour."""

FILES = {
    "settings.py": "HOST = 'localhost'\nPORT = 8080\nDEBUG = True\n",
    "notes.md": "# Notes\n",
    "api.py": "def get():\n    return 1\n",
    "old_api.py": "def legacy():\n    return 0\n",
    "limits.toml": "rate = 10\n",
    "guide.md": "# Guide\n\nOne.\nTwo.\nThree.\n",
    "build.log": "",
    "result.txt": "",
    "schema.sql": "create table t (a int);\n",
}

ACTS = (
    Act(
        "stale_write",
        "agent-A",
        "Agent A reads a file and thinks. Meanwhile agent B changes it. Then A writes what it has in mind.",
        [
            Step("agent-A", "cat settings.py; sed s/True/False/ settings.py > ../draft"),
            Step("agent-B", "sed -i s/8080/9090/ settings.py"),
            Step("agent-A", "cp ../draft settings.py"),
        ],
        "B's new port is gone, and neither would have known. A is told before the write lands: who, with\n"
        "what, when, and the command that brings B's bytes back.",
    ),
    Act(
        "stale_view",
        "agent-A",
        "Not every old picture does harm: `sed -i` reads the file itself, so nothing of B's is lost.",
        [
            Step("agent-A", "cat api.py"),
            Step("agent-B", "sed -i 's/return 1/return 2/' api.py"),
            Step("agent-A", "sed -i s/get/fetch/ api.py"),
        ],
        "Both changes are there. But what A remembers of the file is old, and it will build on that: a note.",
    ),
    Act(
        "lost_update",
        "agent-A",
        "One program reads, works for a while, and writes all of it back. B appends a line in between.",
        [
            Step(
                "agent-A",
                python="text = open('notes.md').read(); input('has read, thinks… ');"
                " open('notes.md', 'w').write(text + '- by A\\n')",
                holds=True,
            ),
            Step("agent-B", "echo '- by B' >> notes.md", lets_go=True),
        ],
        "The classic lost update: this very process wrote from the copy it had read before B wrote.",
    ),
    Act(
        "resurrected",
        "agent-A",
        "B deletes a file that A knows; A, who does not know that, writes it again.",
        [
            Step("agent-A", "cat old_api.py > ../draft; cat old_api.py"),
            Step("agent-B", "rm old_api.py"),
            Step("agent-A", "cp ../draft old_api.py"),
        ],
        "What B took away on purpose is back, and B's change is half undone.",
    ),
    Act(
        "reverted",
        "agent-B",
        "B raises a limit. A looks at the file, does not like it, and puts the old content back.",
        [
            Step("agent-A", "cat limits.toml > ../draft; cat limits.toml"),
            Step("agent-B", "sed -i s/10/500/ limits.toml"),
            Step("agent-A", "cat limits.toml; cp ../draft limits.toml"),
        ],
        "A knew what it did, so A is told nothing. B is: its work is gone, and it should look before it\n"
        "goes on. `git checkout` and `git stash` are seen in the same way.",
    ),
    Act(
        "external_write",
        "agent-A",
        "People edit, too: somebody of no task changes a file that A has read.",
        [
            Step("agent-A", "cat schema.sql"),
            Step(None, "echo '-- reviewed by a person' >> schema.sql"),
            Step("agent-A", "echo 'create table t (a text);' > schema.sql"),
        ],
        "Who belongs to no task is named by command and process.",
    ),
    Act(
        "waited",
        "agent-A",
        "Writers of one file take turns: while B writes, A's open waits. Readers never wait.",
        [
            Step(
                "agent-B",
                python="f = open('build.log', 'w'); f.write('B\\n'); f.flush(); input('is writing… ')",
                holds=True,
            ),
            Step("agent-A", "cat build.log; echo A > build.log", lets_go=True, queued=True),
        ],
        "A waited until B was done, and is told for whom and how long.",
    ),
    Act(
        "concurrent_write",
        "agent-A",
        "No wait lasts for ever: when it runs out, A goes on, and both are told.",
        [
            Step(
                "agent-B",
                python="f = open('result.txt', 'w'); f.write('B\\n'); f.flush(); input('goes on writing… ')",
                holds=True,
            ),
            Step("agent-A", "cat result.txt; echo A > result.txt"),
            Step(None, lets_go=True),
        ],
        "The two may be mixed now. With `fsguard policy block` A's open would have failed with EAGAIN.",
    ),
    Act(
        "partial_view",
        "agent-A",
        "An agent's own file tool says through its hook that it read some lines only. Then it writes the\n"
        "whole file.",
        [
            Step("agent-A", "note read --task agent-A --partial guide.md", plain=True),
            Step("agent-A", "echo '# A new guide' > guide.md"),
        ],
        "What A never saw is gone with the rest.",
    ),
    Act(
        "stale_read",
        "agent-A",
        "Agent A starts a helper, which changes what A has read. When the helper ends, A is reminded.",
        [
            Step("agent-A", "cat api.py"),
            Step("helper", "echo '# by the helper' >> api.py", parent="agent-A"),
            Step("agent-A", "task end helper", plain=True),
        ],
        "A helper's writes are its parent's own work, so nothing was said while it worked.",
    ),
)
