"""The report as one HTML file: no network, nothing beside it, readable without scripts.

Everything that is drawn is drawn here; the script only adds tooltips, zooming
and a filter. File names, commands and task names come from others: `words.text`
spells out what does not print and escapes the rest, and the page's content
policy allows no request and no script but this one (by its hash).
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, Any

from fsguard.cli import kept
from fsguard.cli.reports.chart import Chart
from fsguard.cli.reports.timeline import contended
from fsguard.cli.reports.words import lines, more, text, when

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsguard.cli.reports.records import Records

__all__ = ["page"]

MOST_ROWS = 400
"""In each table."""
COLOURS = 8

_TASKS = """<div class="wide"><table>
<thead><tr><th scope="col">Task<th scope="col">What it is about<th scope="col">State<th scope="col">From
<th scope="col">To<th scope="col" class="n">Reads<th scope="col" class="n">Writes
<th scope="col" class="n">Conflicts told<th scope="col" class="n">With its work</tr></thead>
<tbody>
"""
_WARNINGS = """<div class="wide"><table class="warned">
<thead><tr><th scope="col">When<th scope="col">Kind<th scope="col">Told<th scope="col">File
<th scope="col">Other side<th scope="col">State</tr></thead>
<tbody>
"""
_FILES = """<section aria-labelledby="h-files">
<h2 id="h-files">Contended files</h2>
<div class="wide"><table>
<thead><tr><th scope="col">File<th scope="col">Read and written by<th scope="col" class="n">Conflicts
<th scope="col" class="n">Notes</tr></thead>
<tbody>
"""
_END = "</tbody></table></div>\n"


def page(records: Records) -> Iterator[str]:
    """The file, in pieces."""
    script, style = _read("page.js"), _read("page.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    workspace = text(os.path.basename(records.mount.get("workspace") or "") or "workspace")
    yield (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>fsguard: {workspace}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#conflicts">Skip to the table of conflicts</a>\n'
    )
    report = _Page(records)
    yield report.head(workspace)
    yield "<main>\n"
    yield from report.timeline()
    yield from report.table("conflicts", "Conflicts", "conflict")
    yield from report.table("notes", "Notes", "note")
    yield from report.tasks()
    yield from report.files()
    yield '</main>\n<div id="tip" role="tooltip" hidden></div>\n'
    yield f"<script>{script}</script>\n</body>\n</html>\n"


class _Page:
    def __init__(self, records: Records) -> None:
        self._records = records
        self._files = contended(records.log, records.warnings)
        self._by = {
            severity: [w for w in records.warnings if w["severity"] == severity]
            for severity in ("conflict", "note")
        }
        names = [task["task"] for task in records.tasks]
        seen = {w["task"] for w in records.warnings} | {t for f in self._files for t in f.lanes if t}
        names += sorted(seen - set(names))
        self._colours = {name: number % COLOURS for number, name in enumerate(names)}

    def head(self, workspace: str) -> str:
        mount, conflicts = self._records.mount, self._by["conflict"]
        zone = datetime.now().astimezone().tzname() or ""
        times = f"{when(mount.get('began'))} to {when(mount.get('now'))} {text(zone)}"
        state = "still mounted then" if self._records.live else "as the ended mount left it"
        left = sum(1 for w in conflicts if not w["resolved"])
        figures = [
            (left, "conflict" if left == 1 else "conflicts"),
            (len(conflicts) - left, "resolved"),
            (len(self._by["note"]), "notes"),
            (len(self._records.tasks), "tasks"),
            (len(self._files), "contended files"),
            (len({entry["path"] for entry in self._records.log}), "files touched"),
        ]
        items = "".join(
            f"<li{' class=bad' if n == 0 and left else ''}><b>{number:,}</b>{name}</li>"
            for n, (number, name) in enumerate(figures)
        )
        return (
            f'<header>\n<h1>fsguard report: {workspace}</h1>\n<p class="soft"><span class="path">'
            f"{text(mount.get('workspace') or '?', 1000)}</span>, {times}, {state}</p>\n"
            f'<ul class="figures">{items}</ul>\n</header>\n'
        )

    def timeline(self) -> Iterator[str]:
        yield '<section aria-labelledby="h-time">\n<h2 id="h-time">Timeline</h2>\n'
        if self._files:
            listed = {w["id"] for some in self._by.values() for w in some[:MOST_ROWS]}
            yield from Chart(self._files, self._colours, listed).html()
        else:
            yield "<p>No file was touched by two of them.</p>\n"
        yield "</section>\n"

    def table(self, name: str, title: str, severity: str) -> Iterator[str]:
        found = self._by[severity]
        yield f'<section aria-labelledby="{name}">\n<h2 id="{name}">{title}</h2>\n'
        if found:
            yield _WARNINGS
            for warning in found[:MOST_ROWS]:
                yield self._warning(warning)
            yield _END + more(len(found), MOST_ROWS, name)
        else:
            yield f"<p>No {name}.</p>\n"
        yield "</section>\n"

    def _warning(self, w: dict[str, Any]) -> str:
        others = f' <span class="soft">and {w["count"] - 1:,} more</span>' if w["count"] > 1 else ""
        sibling = f"{self._chip(w['sibling'])}{text(w['sibling'], 80)}" if w["sibling"] else "no task"
        if w["sibling_command"]:
            sibling += f" <code>{text(w['sibling_command'], 90)}</code>"
        conflict = w["severity"] == "conflict"
        state = "resolved" if w["resolved"] else "unresolved" if conflict else ""
        kind = f"{w['severity']}{' resolved' if w['resolved'] else ''}"
        body, _, rest = w["message"].partition("\n")
        parts = [f"<p>{text(body, 3000)}</p>"]
        if rest:
            parts.append(_details("What the task had read, against what was there", rest))
        parts += map(_kept, w["kept"][:20])
        if w["count"] > 1:
            items = "".join(f'<li class="path">{text(path, 400)}</li>' for path in w["paths"][:200])
            parts.append(f"<details><summary>{w['count']:,} files</summary><ul>{items}</ul></details>")
        return (
            f'<tr class="head {kind}" id="w{w["id"]}" tabindex="-1"><td class="when">{when(w["time"])}'
            f'<td class="kind">{text(w["kind"])}<td class="task">{self._chip(w["task"])}{text(w["task"], 40)}'
            f'<td class="path"><bdi>{text(w["path"], 400)}</bdi>{others}<td>{sibling}'
            f'<td class="state">{state}</tr>\n<tr class="more"><td><td colspan="5">{"".join(parts)}</tr>\n'
        )

    def tasks(self) -> Iterator[str]:
        tasks = self._records.tasks
        yield '<section aria-labelledby="h-tasks">\n<h2 id="h-tasks">Tasks</h2>\n'
        if not tasks:
            yield "<p>No task was seen.</p>\n</section>\n"
            return
        told = Counter(w["task"] for w in self._by["conflict"])
        did = Counter(w["sibling"] for w in self._by["conflict"])
        yield _TASKS
        for task in tasks[:MOST_ROWS]:
            name = task["task"]
            about = ": ".join(text(task[k], 200) for k in ("name", "intent") if task.get(k))
            above = f' <span class="soft">of {text(task["parent"], 80)}</span>' if task.get("parent") else ""
            yield (
                f"<tr><td>{self._chip(name)}{text(name, 80)}{above}<td>{about}<td>{text(task['state'])}"
                f'<td class="when">{when(task["started"])}'
                f'<td class="when">{when(task["ended"] or task["last_seen"])}'
                f'<td class="n">{task["reads"]:,}<td class="n">{task["writes"]:,}'
                f'<td class="n">{told[name]:,}<td class="n">{did[name]:,}</tr>\n'
            )
        yield _END + more(len(tasks), MOST_ROWS, "tasks") + "</section>\n"

    def files(self) -> Iterator[str]:
        if not self._files:
            return
        yield _FILES
        for file in self._files[:MOST_ROWS]:
            who = ", ".join(
                f"{text(lane.task, 60) if lane.task is not None else 'no task'}"
                f' <span class="soft">({lane.reads:,} r, {lane.writes:,} w)</span>'
                for lane in list(file.lanes.values())[:12]
            )
            yield (
                f'<tr><td class="path"><bdi>{text(file.path, 400)}</bdi><td>{who}'
                f'<td class="n">{file.conflicts:,}<td class="n">{file.notes:,}</tr>\n'
            )
        yield _END + more(len(self._files), MOST_ROWS, "files") + "</section>\n"

    def _chip(self, task: str | None) -> str:
        if task not in self._colours:
            return ""
        return f'<span class="chip" style="--c:var(--t{self._colours[task]})"></span>'


def _kept(row: dict[str, Any]) -> str:
    """What is kept of what a conflict destroyed, and how it differs from what is there now."""
    whose = text(row["sibling"], 60) if row["sibling"] else "no task"
    if not row["kept"]:
        reason = text(row["reason"] or "no reason is on record")
        return f"<p>What {whose} had written is not kept: {reason}.</p>"
    name = text(f"{row['path']}@{row['version']}", 500)
    back = text(kept.command("restore", row["path"], row["version"]), 600)
    state = " (resolved)" if row["resolved"] else ""
    head = f"<p>Kept: <code>{name}</code>{state}, {row['size']:,} bytes by {whose}. <code>{back}</code></p>"
    if row.get("secret"):
        return head + '<p class="soft">It looks like a secret: no difference is shown.</p>'
    if row.get("diff"):
        return head + _details(
            "What was destroyed, against what was there at the time of this report", row["diff"]
        )
    same = row.get("diff") == ""
    why = "No line differs from what is there." if same else "Too large, or too many: no difference is shown."
    return f'{head}<p class="soft">{why}</p>'


def _details(title: str, diff: str) -> str:
    parts = []
    for line in diff.split("\n")[:400]:
        kind = "h" if line.startswith(("--- ", "+++ ", "@")) else {"+": "a", "-": "d"}.get(line[:1], "")
        parts.append(f'<span class="{kind}">{lines(line)}</span>')
    return f'<details><summary>{title}</summary><pre class="diff">{"".join(parts)}</pre></details>'


def _read(name: str) -> str:
    with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
        return file.read()
