"""`fsguard metrics`, read by Prometheus' own parser, once and over HTTP."""

from __future__ import annotations

import http.client
import os
import signal
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.kit.mounting import Workspace

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parsed(text: str) -> Samples:
    """By name and labels but the workspace; every family has a HELP and a fitting TYPE."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation and family.type in ("counter", "gauge"), family
        assert family.samples
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter"), sample.name
            labels = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "workspace"))
            assert (sample.name, labels) not in found
            found[sample.name, labels] = sample.value
    return found


def collide(w: Workspace) -> None:
    w.plain("sh", "-c", "echo one > f").ok()
    w.run("A", "cat", "f").ok()
    w.run("B", "sh", "-c", "echo two > f").ok()
    w.run("A", "sh", "-c", "echo three > f").ok()


def test_what_happened_is_counted_and_counters_never_go_down(workspace: Workspace) -> None:
    before = parsed(workspace.fsguard("metrics").ok().out)
    assert before["fsguard_up", ()] == 1
    assert before["fsguard_warnings_total", (("kind", "stale_write"),)] == 0
    collide(workspace)
    # The same bytes again: what was said is withdrawn.
    workspace.run("B", "sh", "-c", "echo three > f").ok()
    after = parsed(workspace.fsguard("metrics").ok().out)
    assert set(before) <= set(after)
    assert after["fsguard_warnings_total", (("kind", "stale_write"),)] == 2
    assert after["fsguard_warnings_withdrawn_total", (("kind", "stale_write"),)] == 1
    assert after["fsguard_tasks", (("state", "idle"),)] == 2
    assert after["fsguard_kept_versions", ()] >= 1 and after["fsguard_kept_bytes", ()] >= 4
    assert after["fsguard_requests_total", (("operation", "open"),)] > 0
    assert after["fsguard_known_paths", ()] >= 1 and after["fsguard_guard_faults_total", ()] == 0
    for key, value in before.items():
        assert not key[0].endswith("_total") or after[key] >= value, key


@pytest.fixture
def listener(workspace: Workspace) -> Iterator[tuple[Workspace, str, int]]:
    process = workspace.start(None, "fsguard", "metrics", "--listen", "127.0.0.1:0")
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line.startswith("http://127.0.0.1:") and line.endswith("/metrics"), line
    yield workspace, "127.0.0.1", int(line.split(":")[2].partition("/")[0])
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(10) == 130
    assert process.stderr is not None and process.stderr.read() == ""


def get(host: str, port: int, path: str = "/metrics", **headers: str) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection(host, port, timeout=10)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers.get("Content-Type", ""), answer.read().decode()
    finally:
        connection.close()


def test_the_listener_answers_its_own_host_only(listener: tuple[Workspace, str, int]) -> None:
    workspace, host, port = listener
    status, kind, text = get(host, port)
    assert status == 200 and kind.startswith("text/plain; version=0.0.4")
    assert parsed(text)["fsguard_up", ()] == 1
    assert get(host, port, Host=f"localhost:{port}")[0] == 200
    assert get(host, port, Host="evil.example")[0] == 403
    assert get(host, port, "/")[0] == 404
    # Only the loopback is bound.
    with open("/proc/net/tcp") as file:
        bound = [line.split()[1] for line in file.readlines()[1:] if line.split()[3] == "0A"]
    assert [a for a in bound if a.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]
    workspace.unmount()  # it does not stand in the workspace
    assert parsed(get(host, port)[2])["fsguard_up", ()] == 0
    workspace.mount()
    assert parsed(get(host, port)[2])["fsguard_up", ()] == 1


def test_only_the_loopback_can_be_named(workspace: Workspace) -> None:
    for place in ("0.0.0.0:9797", "192.0.2.1:9797", "[::]:9797", "example.org:80"):
        result = workspace.fsguard("metrics", "--listen", place)
        assert result.code == 2 and "only the loopback" in result.err
    for place in ("127.0.0.1:", "127.0.0.1:70000", "x"):
        assert workspace.fsguard("metrics", "--listen", place).code == 2


def test_a_port_in_use_is_said(listener: tuple[Workspace, str, int]) -> None:
    workspace, host, port = listener
    result = workspace.fsguard("metrics", "--listen", f"{host}:{port}")
    assert result.code == 4 and "is in use" in result.err
