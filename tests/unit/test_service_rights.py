"""What the socket lets a process that works for a task say about others."""

import os
import subprocess
from collections.abc import Iterator

import pytest
import trio

from fsguard.attribution.resolver import Resolver
from fsguard.control.server import Peer
from fsguard.errors import RefusedError
from fsguard.service import Service
from tests.kit.oracle_world import World


@pytest.fixture
def w() -> World:
    return World()


@pytest.fixture
def service(w) -> Service:
    resolver = Resolver(w.guard)
    return Service(w.dispatch, resolver, dict, None, -1)


@pytest.fixture
def evil() -> Iterator[Peer]:
    """A process of task "evil"."""
    script = "sleep 60 & echo started; trap 'kill $!; exit' TERM; wait"
    env = {**os.environ, "FSGUARD_TASK": "evil"}
    with subprocess.Popen(["sh", "-c", script], env=env, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"started\n"
        yield Peer(child.pid, os.getuid(), os.getgid())
        child.terminate()


OUTSIDE = Peer(os.getpid(), os.getuid(), os.getgid())


def ask(service: Service, peer: Peer, method: str, **params):
    async def call():
        return await service.handlers()[method](peer, params)  # type: ignore[misc]

    return trio.run(call)


def test_only_the_announcing_task_ends_a_tool_call_and_takes_its_warnings(w, service, evil):
    w.run("B").write("f", "b")
    call = {"what": "write", "path": "f", "task": "T", "tool_use_id": "u"}
    assert ask(service, OUTSIDE, "tool.begin", **call)["stale"]
    w.run("T").write("f", "t")
    with pytest.raises(RefusedError):
        ask(service, evil, "tool.end", tool_use_id="u")
    assert [x["kind"] for x in ask(service, OUTSIDE, "tool.end", tool_use_id="u")["warnings"]] == [
        "stale_write"
    ]


def test_a_run_is_not_made_a_child_of_a_sibling(w, service, evil):
    w.run("victim")
    with open(f"/proc/{evil.pid}/task/{evil.pid}/children") as f:
        child = int(f.read().split()[0])
    run = {"token": "t", "task": "evil", "pid": child, "argv": ["sleep"]}
    with pytest.raises(RefusedError, match="cannot speak for 'victim'"):
        ask(service, evil, "run.begin", **run, parent="victim")
    assert w.task("evil").parent is None
    assert ask(service, evil, "run.begin", **run) == {"task": "evil", "parent": None}


def test_somebody_elses_lease_takes_force(w, service):
    leases = w.dispatch.waiting.leases
    assert leases.ask(w.task("L"), ["api/"], 60.0, "", w.now).lease is not None
    with pytest.raises(RefusedError, match="belongs to task"):
        ask(service, OUTSIDE, "lease.release", id=1)
    assert ask(service, OUTSIDE, "lease.release", id=1, force=True) == {"released": [1]}


def test_a_question_makes_no_task(w, service):
    w.run("B").write("f", "b")
    assert ask(service, OUTSIDE, "check", task="who", paths=["f"])[0]["stale"]
    assert w.guard.tasks.find("who") is None


def test_the_list_of_tasks_asks_the_outbox_once(w, service, monkeypatch):
    w.run("B").write("f", "b")
    w.run("A").write("f", "a")
    calls = []
    pending = w.guard.outbox.pending
    monkeypatch.setattr(w.guard.outbox, "pending", lambda task=None: calls.append(task) or pending(task))
    found = {t["task"]: t["pending"] for t in ask(service, OUTSIDE, "task.list")}
    assert found == {"A": 1, "B": 0} and len(calls) == 1


def test_a_process_stays_itself_when_many_others_came(w, monkeypatch):
    monkeypatch.setattr("fsguard.attribution.resolver.MAX_PROCESSES", 4)
    resolver = Resolver(w.guard)
    parent = resolver.actor(os.getpid()).process
    children = [subprocess.Popen(["sleep", "60"]) for _ in range(12)]
    try:
        for child in children:
            process = resolver.actor(child.pid).process
            assert process.below(parent), "a child of another object of the same process"
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_every_method_says_what_it_takes(service: Service) -> None:
    silent = [method for method, handler in service.handlers().items() if not handler.__doc__]
    assert silent == []


CLAIMS = {
    "run.begin": {"token": "t", "argv": ["sleep"], "pid": os.getpid()},
    "note": {"path": "f", "what": "write"},
    "tool.begin": {"path": "f", "what": "write", "tool_use_id": "u"},
    "task.start": {"intent": "what the victim never said"},
    "task.end": {},
    "warnings": {"ack": True},
    "warnings.follow": {"ack": True},
    "lease.acquire": {"patterns": ["f"], "ttl": 60.0},
    "lease.release": {},
    "lease.request": {"patterns": ["f"]},
    "policy.set": {"policy": "off"},
}


@pytest.mark.parametrize("method", CLAIMS)
def test_who_works_for_a_task_claims_to_be_another_in_vain(w, service, evil, method):
    """Whatever it says of somebody else's task, nothing of that changes."""
    w.run("evil").write("f", "e")
    victim = w.run("victim")
    victim.write("f", "v")
    w.dispatch.waiting.leases.ask(w.task("victim"), ["kept/"], 60.0, "", w.now)

    def state():
        told = [x["id"] for x in ask(service, OUTSIDE, "warnings", task="victim")]
        listed = ask(service, OUTSIDE, "lease.list")
        leases = [(x["id"], x["task"], x["patterns"], x["requests"]) for x in listed["leases"]]
        shown = ask(service, OUTSIDE, "task.show", task="victim")
        return told, leases, listed["waiting"], shown, ask(service, OUTSIDE, "policy.get")

    before = state()
    assert before[0]

    async def claim():
        answer = service.handlers()[method](evil, {**CLAIMS[method], "task": "victim"})
        if hasattr(answer, "__aiter__"):
            with trio.fail_after(5):
                return [item async for item in answer]
        return await answer

    with pytest.raises(RefusedError):
        trio.run(claim)
    assert state() == before


def test_every_method_that_takes_a_task_is_known_to_the_test_before(service: Service) -> None:
    """Those that only read take one, too; whoever adds a method decides what it is."""
    reading = {"log", "check", "task.show", "versions.list", "versions.conflicts", "versions.undo_plan"}
    takes = {name for name, handler in service.handlers().items() if "`task`" in (handler.__doc__ or "")}
    assert takes <= reading | set(CLAIMS), takes - reading - set(CLAIMS)
