"""The report for programs: everything as JSON, and what CI services show beside a change.

* json    all records, one object.
* github  workflow commands, a line each; GitHub shows them at the file.
  https://docs.github.com/actions/reference/workflow-commands-for-github-actions
* sarif   SARIF 2.1.0, https://docs.oasis-open.org/sarif/sarif/v2.1.0/
* junit   XML as JUnit writes it: a test case for each file that a warning names.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

from fsguard import __version__
from fsguard.cli import terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsguard.cli.reports.records import Records

__all__ = ["KINDS", "as_json", "github", "junit", "sarif"]

KINDS = {
    "stale_write": "overwrote or deleted another task's version that it had not seen",
    "lost_update": "wrote from a copy that it read before somebody else wrote",
    "concurrent_write": "two tasks wrote one file at once",
    "resurrected": "made a file again that another task had deleted",
    "reverted": "another task put back an earlier content, or deleted the work",
    "external_write": "overwrote what a process of no task had written since",
    "stale_view": "nothing is lost, but the task's picture of the file is old",
    "stale_read": "a child changed what its parent had read",
    "partial_view": "rewrote a file as a whole after reading a part of it",
    "waited": "a write waited for another task's turn, or was kept off by a lease",
}
_HUNK = re.compile(r"^@@ -\d+(?:,\d+)? \+(\d+)", re.MULTILINE)
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def as_json(records: Records, fail_on: set[str]) -> Iterator[str]:
    """Names that are not UTF-8 as \\udcXX, as everywhere in our JSON."""
    from fsguard.cli.reports.timeline import contended

    files = [
        {
            "path": file.path,
            "tasks": [lane for lane in file.lanes if lane is not None],
            "external": None in file.lanes,
            "reads": sum(lane.reads for lane in file.lanes.values()),
            "writes": sum(lane.writes for lane in file.lanes.values()),
            "conflicts": file.conflicts,
            "notes": file.notes,
        }
        for file in contended(records.log, records.warnings)
    ]
    whole = {
        **records.mount,
        "live": records.live,
        "failing": [w["id"] for w in records.warnings if _fails(w, fail_on)],
        "tasks": records.tasks,
        "warnings": records.warnings,
        "contended": files,
        "log": records.log,
    }
    yield json.dumps(whole, ensure_ascii=True) + "\n"


def _fails(warning: dict[str, Any], fail_on: set[str]) -> bool:
    return not warning["resolved"] and bool(fail_on & {warning["kind"], warning["severity"]})


def _line(warning: dict[str, Any]) -> int:
    """The first line that differs between what was destroyed and what is there; else 1."""
    for row in warning["kept"]:
        found = _HUNK.search(row.get("diff") or "")
        if found and row["path"] == warning["path"]:
            return max(1, int(found[1]))
    return 1


def _said(warning: dict[str, Any], lines: bool = True) -> str:
    """The sentence; what did not print is spelled out already, but for line ends."""
    text = warning["message"] if lines else warning["message"].partition("\n")[0]
    return terminal.shown(text, lines=True)


# ---- GitHub ------------------------------------------------------------------------------------


def github(records: Records, fail_on: set[str]) -> Iterator[str]:
    """`error` for what fails the job, else `warning` for conflicts and `notice` for notes.

    GitHub shows the first ten of each kind and step; those that fail come first.
    """
    found = [w for w in records.warnings if not w["resolved"]]
    found.sort(key=lambda w: (not _fails(w, fail_on), w["severity"] != "conflict"))
    for w in found:
        level = "error" if _fails(w, fail_on) else "warning" if w["severity"] == "conflict" else "notice"
        facts = {
            "file": terminal.shown(w["path"]),
            "line": _line(w),
            "title": f"fsguard: {w['kind']}, {w['task']}",
        }
        properties = ",".join(f"{name}={_property(terminal.shown(value))}" for name, value in facts.items())
        yield f"::{level} {properties}::{_data(_said(w))}\n"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


# ---- SARIF -------------------------------------------------------------------------------------


def sarif(records: Records, fail_on: set[str]) -> Iterator[str]:
    kinds = list(KINDS)
    rules = [
        {
            "id": kind,
            "name": "".join(word.capitalize() for word in kind.split("_")),
            "shortDescription": {"text": text[0].upper() + text[1:] + "."},
            "defaultConfiguration": {"level": "note" if kinds.index(kind) > 5 else "warning"},
        }
        for kind, text in KINDS.items()
    ]
    run = {
        "tool": {
            "driver": {
                "name": "fsguard",
                "version": __version__,
                "semanticVersion": __version__,
                "rules": rules,
            }
        },
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {"WORKSPACE": {"description": {"text": "The guarded workspace."}}},
        "results": [_result(w, kinds, fail_on) for w in records.warnings],
    }
    whole = {
        "$schema": "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json",
        "version": "2.1.0",
        "runs": [run],
    }
    yield json.dumps(whole, indent=1, ensure_ascii=True) + "\n"


def _result(w: dict[str, Any], kinds: list[str], fail_on: set[str]) -> dict[str, Any]:
    level = "error" if _fails(w, fail_on) else "warning" if w["severity"] == "conflict" else "note"
    result: dict[str, Any] = {
        "ruleId": w["kind"],
        "level": level,
        "message": {"text": _said(w)},
        "locations": [
            _place(path, _line(w) if path == w["path"] else 1) for path in w["paths"][:1] or [w["path"]]
        ],
        "relatedLocations": [_place(path, 1) for path in w["paths"][1:100]],
        "partialFingerprints": {
            "warning/v1": f"{w['kind']}:{w['task']}:{quote(_bytes(w['path']))}:{w['time']}"
        },
        "properties": {
            name: terminal.shown(w[name]) if isinstance(w[name], str) else w[name]
            for name in (
                "task",
                "command",
                "sibling",
                "sibling_command",
                "time",
                "sibling_time",
                "read_time",
                "count",
            )
        },
    }
    if w["kind"] in kinds:
        result["ruleIndex"] = kinds.index(w["kind"])
    if w["resolved"]:
        result["suppressions"] = [
            {"kind": "external", "justification": "what was destroyed was brought back"}
        ]
    return result


def _place(path: str, line: int) -> dict[str, Any]:
    uri = quote(_bytes(path))
    artifact = {"uri": f"./{uri}" if ":" in uri.split("/")[0] else uri, "uriBaseId": "WORKSPACE"}
    return {"physicalLocation": {"artifactLocation": artifact, "region": {"startLine": line}}}


def _bytes(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


# ---- JUnit -------------------------------------------------------------------------------------


def junit(records: Records, fail_on: set[str]) -> Iterator[str]:
    """A failure is what --fail-on asks for; without it every conflict is one. The rest is output."""
    cases: dict[str, list[dict[str, Any]]] = {}
    for w in records.warnings:
        cases.setdefault(w["path"], []).append(w)
    wanted = fail_on or {"conflict"}
    failed = sum(any(_fails(w, wanted) for w in some) for some in cases.values())
    total = max(1, len(cases))
    counts = f'tests="{total}" failures="{failed}" errors="0"'
    yield f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites name="fsguard" {counts}>\n'
    yield f' <testsuite name="fsguard" {counts} skipped="0" time="0"'
    if records.mount.get("began"):
        yield f" timestamp={_attribute(records.mount['began'][:19])}"
    yield ">\n"
    if not cases:
        yield '  <testcase classname="fsguard" name="no warnings" time="0"/>\n'
    for path, warnings in cases.items():
        yield f'  <testcase classname="fsguard" name={_attribute(terminal.shown(path))} time="0">\n'
        # One <failure> a case, as the readers of this format expect.
        bad = [w for w in warnings if _fails(w, wanted)]
        if bad:
            said = "\n\n".join(_said(w) for w in bad)
            head = _attribute(_said(bad[0], lines=False))
            yield f"   <failure type={_attribute(bad[0]['kind'])} message={head}>{_xml(said)}</failure>\n"
        rest = [
            f"{w['kind']}{' (resolved)' if w['resolved'] else ''}: {_said(w)}"
            for w in warnings
            if w not in bad
        ]
        if rest:
            yield f"   <system-out>{_xml(chr(10).join(rest))}</system-out>\n"
        yield "  </testcase>\n"
    yield " </testsuite>\n</testsuites>\n"


def _xml(text: str) -> str:
    return escape(_NOT_XML.sub("?", text))


def _attribute(text: str) -> str:
    return quoteattr(_NOT_XML.sub("?", text), {"\n": "&#10;", "\t": "&#9;", "\r": "&#13;"})
