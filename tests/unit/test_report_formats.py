"""What `fsguard report` prints, read back as its readers do; hostile names in all of it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
import time
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote_to_bytes
from xml.etree import ElementTree

import pytest

from fsguard.cli.reports import plain
from fsguard.cli.reports.html import page
from fsguard.core.model import Kind
from tests.kit.reported import entry, records, row, task, warning

EVIL = "</script><script>alert(1)//\"'&%\x1b[31m\n::error::x,y:z\u202e\udce9.txt"
VOID = {"meta", "input", "br", "img", "link"}


class Elements(HTMLParser):
    """Every element with its attributes and the text below it; unbalanced markup is an error."""

    OPTIONAL = {"td", "th", "tr"}  # need no end tag

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str]]] = []
        self.text: dict[str, str] = {}
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID | self.OPTIONAL:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.OPTIONAL:
            assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        tag = self.open[-1] if self.open else ""
        self.text[tag] = self.text.get(tag, "") + data

    def all(self, tag: str, kind: str = "") -> list[dict[str, str]]:
        return [a for t, a in self.found if t == tag and (not kind or kind in a.get("class", "").split())]


def scene(path: str = "src/app.py", name: str = "A", other: str = "B") -> Any:
    log = [entry(1, name, "read", path), entry(2, other, "write", path), entry(9, name, "write", path)]
    told = [warning(1, 9, "stale_write", name, path, sibling=other, sibling_command=f"sed {path}")]
    told += [warning(2, 9, "stale_view", other, path, sibling=name)]
    told.append(warning(3, 9, "reverted", name, path, sibling=other))
    told[0]["message"] = f"replaced {path!r}\n--- what you read\n+++ now\n-a\n+b{path}"
    kept = [row(1, 9, path, diff=f"@@ -3 +5 @@\n-{path}\n+x", sibling=other), row(3, 9, path, resolved=True)]
    return records(log, told, kept, [task(name, intent=path), task(other)])


def html(*args: Any, **more: Any) -> Elements:
    return Elements("".join(page(*args, **more)))


def test_a_page_needs_nothing_from_outside_and_runs_no_script_but_its_own() -> None:
    text = "".join(page(scene()))
    found = Elements(text)
    assert not [a for _, a in found.found if {"src", "srcset", "data", "action", "ping"} & set(a)]
    assert [a["href"] for _, a in found.found if "href" in a] == ["#conflicts"]
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|https?://", text)
    (policy,) = [a["content"] for a in found.all("meta") if a.get("http-equiv")]
    digest = base64.b64encode(hashlib.sha256(found.text["script"].encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert not [name for _, a in found.found for name in a if name.startswith("on")]


@pytest.mark.parametrize(
    "evil", [EVIL, "<img src=x onerror=alert(1)>", "a\u2028b\x00", "' onfocus=alert(1) x='"]
)
def test_hostile_names_stay_text_in_every_place(evil: str) -> None:
    tame = re.sub(r"[^\n]", "x", evil)
    plain_page, bad = html(scene(tame, tame + "A", tame + "B")), html(scene(evil, evil + "A", evil + "B"))
    shape = [(tag, sorted(a)) for tag, a in plain_page.found]
    assert [(tag, sorted(a)) for tag, a in bad.found] == shape
    assert plain_page.text["script"] == bad.text["script"]
    text = "".join(page(scene(evil, evil + "A", evil + "B")))
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u2028\u202e\udc80-\udcff]", text)


def test_the_timeline_has_a_bar_for_each_span_with_its_words_and_can_be_reached() -> None:
    found = html(scene())
    bars = found.all("i")
    kinds = [b["class"] for b in bars if b.get("role") == "gridcell"]
    assert sorted(kinds) == sorted(
        ["view", "stale", "view", "write", "mark", "mark", "view", "write", "mark note"]
    )
    stale = next(b for b in bars if b["class"] == "stale" and b.get("role"))
    assert "A had an old picture of src/app.py from" in stale["aria-label"]
    assert "B wrote it at" in stale["aria-label"] and "“write src/app.py”" in stale["aria-label"]
    for bar in bars:
        if bar.get("role"):
            assert bar["tabindex"] == "-1" and bar["aria-label"]
            assert all(0 <= float(n) <= 100 for n in re.findall(r"([\d.]+)%", bar["style"]))
    targets = {a["id"] for _, a in found.found if "id" in a}
    assert {f"w{b['data-w']}" for b in bars if "data-w" in b} <= targets
    ids = [a["id"] for _, a in found.found if "id" in a]
    assert len(ids) == len(set(ids))
    for _, a in found.found:
        for name in ("aria-labelledby", "aria-describedby"):
            assert name not in a or a[name] in targets


def test_conflicts_show_their_differences_and_what_brings_them_back() -> None:
    found = html(scene())
    assert len(found.all("tr", "conflict")) == 2 and len(found.all("tr", "note")) == 1
    assert len(found.all("tr", "resolved")) == 1
    assert "fsguard restore src/app.py@7" in found.text["code"]
    assert found.all("span", "d") and found.all("span", "a")


def test_a_secret_and_what_was_not_kept_show_no_difference() -> None:
    told = [warning(1, 9, "stale_write", "A", ".env"), warning(2, 9, "stale_write", "A", "big")]
    kept = [row(1, 9, ".env", secret=True, diff=None), row(2, 9, "big", kept=False, reason="too <large>")]
    found = html(records([], told, kept))
    assert "looks like a secret" in found.text["p"] and "not kept: too <large>" in found.text["p"]


def test_nothing_happened_is_a_page_too() -> None:
    found = html(records())
    assert "No conflicts." in found.text["p"] and not found.all("i", "mark")
    assert not found.all("div", "time")


def test_ten_thousand_events_make_a_page_of_bounded_size_in_bounded_time() -> None:
    log, told = [], []
    for n in range(10_000):
        path = f"src/m{n % 300 if n % 2 else n % 15}.py"
        log.append(entry(n, f"T{(n * 7 + n // 13) % 12}", "read" if n % 3 else "write", path))
        if n % 11 == 0:
            told.append(warning(n + 1, n, "stale_write", f"T{n % 12}", path))
    began = time.monotonic()
    text = "".join(page(records(log, told, [], [task(f"T{n}") for n in range(12)])))
    assert time.monotonic() - began < 10
    assert len(text) < 8_000_000
    found = Elements(text)
    assert 1_000 < len(found.all("i")) < 12_100
    assert len(found.all("tr", "conflict")) == 400
    assert "400 of 910 conflicts" in found.text["p"]


# ---- for CI services ---------------------------------------------------------------------------


def test_every_kind_is_described_for_programs() -> None:
    assert list(plain.KINDS) == [kind.value for kind in Kind]


def test_github_gets_one_whole_command_a_line_whatever_the_names() -> None:
    lines = "".join(plain.github(scene(EVIL), {"stale_write"})).splitlines()
    assert [line.split(" ")[0] for line in lines] == ["::error", "::notice"]
    for line in lines:
        head, _, data = line[2:].partition("::")
        level, _, properties = head.partition(" ")
        facts = dict(p.split("=", 1) for p in properties.split(","))
        assert set(facts) == {"file", "line", "title"} and level in ("error", "notice")
        assert "%3A%3Aerror%3A%3Ax%2Cy%3Az" in facts["file"] and "\x1b" not in line
        assert re.fullmatch(r"(?:[^%]|%(?:25|0A|0D))*", data)
        assert re.fullmatch(r"(?:[^%:,]|%(?:25|0A|0D|3A|2C))*", facts["file"])
    assert "line=5," in lines[0]


def test_what_fails_the_job_is_an_error_and_what_is_resolved_is_not_shown() -> None:
    told = [
        warning(1, 1, "waited", "A", "n"),
        warning(2, 2, "reverted", "A", "r"),
        warning(3, 3, "stale_write", "A", "s"),
    ]
    kept = [row(2, 2, "r", resolved=True)]
    levels = [line.split()[0] for line in plain.github(records([], told, kept), set())]
    assert levels == ["::warning", "::notice"]
    assert next(plain.github(records([], told, kept), {"note"})).startswith("::error file=n,")


def test_sarif_keeps_the_rules_of_2_1_0() -> None:
    log = json.loads("".join(plain.sarif(scene("a dir/ü%:" + EVIL), {"conflict"})))
    assert log["version"] == "2.1.0" and log["$schema"].endswith("/sarif-schema-2.1.0.json")
    (run,) = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len(set(rules)) == len(rules)
    bases = set(run["originalUriBaseIds"])
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in ("none", "note", "warning", "error") and result["message"]["text"]
        (location,) = result["locations"]
        place = location["physicalLocation"]
        assert place["region"]["startLine"] >= 1 and place["artifactLocation"]["uriBaseId"] in bases
        uri = place["artifactLocation"]["uri"]
        assert re.fullmatch(r"(?:[A-Za-z0-9._~/-]|%[0-9A-F]{2})+", uri)  # RFC 3986, no scheme
        assert unquote_to_bytes(uri) == ("a dir/ü%:" + EVIL).encode("utf-8", "surrogateescape")
    levels = {r["ruleId"]: (r["level"], "suppressions" in r) for r in run["results"]}
    assert levels == {
        "stale_write": ("error", False),
        "stale_view": ("note", False),
        "reverted": ("warning", True),
    }


def test_junit_has_a_case_for_each_file_and_counts_what_failed() -> None:
    root = ElementTree.fromstring("".join(plain.junit(scene(EVIL + "\x00"), set())))
    (suite,) = root
    assert (suite.get("tests"), suite.get("failures"), suite.get("timestamp")) == (
        "1",
        "1",
        records().mount["began"][:19],
    )
    (case,) = suite
    assert case.get("name", "").startswith("</script><script>alert(1)//")
    (failure,) = case.findall("failure")
    assert failure.get("type") == "stale_write" and "--- what you read" in (failure.text or "")
    assert "reverted (resolved)" in (case.findtext("system-out") or "")


def test_junit_without_warnings_has_one_case_that_passes() -> None:
    (suite,) = ElementTree.fromstring("".join(plain.junit(records(), set())))
    assert (suite.get("tests"), suite.get("failures"), len(suite.findall("testcase"))) == ("1", "0", 1)


def test_json_has_everything_and_names_survive() -> None:
    whole = json.loads("".join(plain.as_json(scene(EVIL), {"stale_write"})))
    assert whole["failing"] == [1] and len(whole["log"]) == 3 and whole["contended"][0]["path"] == EVIL
    assert whole["warnings"][0]["kept"][0]["version"] == 7 and whole["warnings"][2]["resolved"] is True


# ---- the command -------------------------------------------------------------------------------


def fsguard(tmp_path: Any, *argv: str) -> subprocess.CompletedProcess[str]:
    env = {"FSGUARD_RUNTIME_DIR": str(tmp_path / "run"), "XDG_STATE_HOME": str(tmp_path), "PATH": ""}
    command = [sys.executable, "-m", "fsguard.cli", "report", *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, env=env)


def test_broken_and_missing_records_are_named(tmp_path: Any) -> None:
    gone = fsguard(tmp_path, str(tmp_path))
    assert gone.returncode == 3 and "no earlier mount left records" in gone.stderr
    for text in ("", '{"mount": {"began": null}}\n', "nonsense\n", "[1]\n", "[" * 100_000):
        (tmp_path / "records.jsonl").write_text(text)
        bad = fsguard(tmp_path, str(tmp_path), "--state-dir", str(tmp_path))
        assert bad.returncode == 1 and "records in" in bad.stderr and "Traceback" not in bad.stderr


def test_wrong_kinds_are_answered_with_the_nearest(tmp_path: Any) -> None:
    bad = fsguard(tmp_path, "--fail-on", "stale_wirte")
    assert bad.returncode == 2 and "did you mean stale_write?" in bad.stderr
