"""The report's page in a real browser: bars where they belong, tooltips, keys, zoom, and no complaint.

A copy of the page without its content policy gets a script at its end that acts as
a user would, and leaves what it found as JSON in the document that Chromium prints.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from fsguard.cli.reports.html import page
from fsguard.cli.reports.records import Records
from tests.kit.abilities import need
from tests.kit.reported import entry, records, task, warning

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

PROBE = """
const found = {errors: []};
addEventListener("error", (e) => found.errors.push(e.message));
const grid = document.getElementById("grid"), tip = document.getElementById("tip");
const box = (bar) => { const r = bar.getBoundingClientRect(); return [r.left, r.top, r.width, r.height]; };
const shown = () => getComputedStyle(tip).display !== "none" && tip.getBoundingClientRect().width > 0;
const key = (k) => document.activeElement.dispatchEvent(
  new KeyboardEvent("keydown", {key: k, bubbles: true, cancelable: true}));
found.bars = [...grid.querySelectorAll(".lane")].map((lane) => ({
  track: box(lane.querySelector(".track")),
  name: lane.querySelector(".name").textContent,
  bars: [...lane.querySelectorAll("i")].map((bar) => [bar.className, ...box(bar)]),
}));
const stale = grid.querySelector("i.stale");
stale.dispatchEvent(new PointerEvent("pointerover", {bubbles: true}));
const t = tip.getBoundingClientRect();
found.hover = {text: tip.textContent, shown: shown(),
  inside: t.left >= 0 && t.right <= innerWidth && t.top >= 0 && t.bottom <= innerHeight};
stale.dispatchEvent(new PointerEvent("pointerout", {bubbles: true}));
found.left = shown();
found.stops = grid.querySelectorAll('i[tabindex="0"]').length;
grid.querySelector('i[tabindex="0"]').focus();
found.walk = [];
for (const k of ["ArrowRight", "ArrowDown", "End", "Home", "ArrowUp"]) {
  key(k);
  found.walk.push([document.activeElement.getAttribute("aria-label") === tip.textContent, shown()]);
}
key("Escape");
found.escaped = !shown();
grid.querySelector("i.mark").focus();
key("Enter");
found.row = document.activeElement.id;
const wide = () => grid.querySelector(".lane .track").offsetWidth;
const before = wide(), began = performance.now();
document.getElementById("in").click();
found.zoom = [wide() / before, performance.now() - began, document.getElementById("range").textContent];
document.getElementById("fit").click();
const find = document.getElementById("find");
find.value = "src/b"; find.dispatchEvent(new Event("input"));
found.filtered = [...grid.querySelectorAll(".file")]
  .filter((f) => f.offsetParent).map((f) => f.querySelector("bdi").textContent);
const out = document.createElement("pre");
out.id = "found"; out.textContent = JSON.stringify(found);
document.body.append(out);
"""


@pytest.fixture
def chromium(tmp_path: Path) -> Any:
    need(CHROMIUM is not None, "no Chromium here: apt-get install chromium")

    def run(some: Records, *, policy: bool = False) -> tuple[str, str]:
        """(the document after all scripts ran, what the browser's console said)."""
        text = "".join(page(some))
        if not policy:
            head, _, rest = text.partition('<meta http-equiv="Content-Security-Policy"')
            text = head + rest.partition(">\n")[2].replace("</body>", f"<script>{PROBE}</script></body>")
        file = tmp_path / "report.html"
        file.write_text(text)
        flags = ["--headless=new", "--disable-gpu", "--no-sandbox", f"--user-data-dir={tmp_path}/profile"]
        flags += ["--window-size=1400,1000", "--enable-logging=stderr", "--v=0", "--dump-dom"]
        result = subprocess.run(
            [str(CHROMIUM), *flags, file.as_uri()], capture_output=True, text=True, timeout=120, check=True
        )
        console = [line for line in result.stderr.splitlines() if "CONSOLE" in line]
        return result.stdout, "\n".join(console)

    return run


def scene() -> Records:
    log = [entry(0, "A", "read", "src/a"), entry(0, "C", "read", "src/b")]
    log += [
        entry(50, "B", "write", "src/a"),
        entry(100, "A", "write", "src/a"),
        entry(100, "A", "write", "src/b"),
    ]
    told = [warning(1, 100, "stale_write", "A", "src/a")]
    return records(log, told, [], [task("A"), task("B"), task("C")])


def test_bars_tooltips_and_keys(chromium: Any) -> None:
    document, console = chromium(scene())
    assert console == ""
    found = json.loads(unescape(document.partition('<pre id="found">')[2].partition("</pre>")[0]))
    assert found["errors"] == []
    lane = next(x for x in found["bars"] if x["name"] == "A")
    left, top, width, height = lane["track"]
    bars = {bar[0]: bar[1:] for bar in lane["bars"]}
    assert set(bars) == {"view", "stale", "write", "mark"}
    # From the middle of the time to its end, and inside of its lane.
    assert abs(bars["stale"][0] - (left + width / 2)) < 2 and abs(bars["stale"][2] - width / 2) < 4
    for x, y, wide, high in bars.values():
        assert wide >= 4 and y >= top - 1 and y + high <= top + height + 1 and x >= left - 8
    assert found["hover"]["shown"] and found["hover"]["inside"] and not found["left"]
    assert found["hover"]["text"].startswith("A had an old picture of src/a from")
    assert found["stops"] == 1 and found["escaped"]
    assert all(same and seen for same, seen in found["walk"])
    assert found["row"] == "w1"
    assert 1.9 < found["zoom"][0] < 2.1 and " to " in found["zoom"][2]
    assert found["filtered"] == ["src/b"]


def test_the_page_as_it_is_keeps_its_own_policy(chromium: Any) -> None:
    document, console = chromium(scene(), policy=True)
    assert console == "" and '<div class="tools">' in document  # its script ran: it shows the tools


def test_ten_thousand_events_stay_usable(chromium: Any) -> None:
    log = [
        entry(n, f"T{(n * 7 + n // 13) % 12}", "write" if n % 3 == 0 else "read", f"src/{n % 97}")
        for n in range(10_000)
    ]
    told = [warning(n, n * 20.0, "stale_write", f"T{n % 12}", f"src/{n % 97}") for n in range(1, 500)]
    document, console = chromium(records(log, told, [], []))
    found = json.loads(unescape(document.partition('<pre id="found">')[2].partition("</pre>")[0]))
    assert console == "" and found["errors"] == []
    assert sum(len(lane["bars"]) for lane in found["bars"]) > 5_000
    assert found["hover"]["shown"] and found["zoom"][1] < 2_000
