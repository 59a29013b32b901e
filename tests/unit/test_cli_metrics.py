"""Prometheus text about daemons that are of another age, or gone, with names that mean harm."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from fsguard.cli.metrics import exposition
from fsguard.control.registry import Mount

EVIL = '/w"\\\n# TYPE x counter\x1b\udce9'


def mount(workspace: str) -> Mount:
    return Mount(workspace, workspace, "/s", 1, 0, 0)


def test_names_cannot_forge_a_line() -> None:
    text = exposition([(mount(EVIL), {"requests": {'op"\n': 1}, "pending": 3})])
    families = {f.name: f for f in text_string_to_metric_families(text)}
    assert "x" not in families and text.isascii()
    assert families["fsguard_warnings_pending"].samples[0].labels["workspace"].startswith('/w"\\')
    assert len(text.splitlines()) == text.count("\n")


def test_a_daemon_that_does_not_answer_is_down_and_one_that_says_less_is_up() -> None:
    text = exposition([(mount("/a"), None), (mount("/b"), {"pending": 1, "kept": None})])
    up = next(f for f in text_string_to_metric_families(text) if f.name == "fsguard_up")
    assert {s.labels["workspace"]: s.value for s in up.samples} == {"/a": 0, "/b": 1}
    assert "fsguard_kept" not in text


def test_no_mount_at_all_is_still_an_answer() -> None:
    assert [f.name for f in text_string_to_metric_families(exposition([]))] == ["fsguard_build_info"]
