"""Whatever is asked over the control socket: an answer, or a refusal that is meant as one."""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Iterator

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fsguard.attribution.resolver import Resolver
from fsguard.control.server import Peer
from fsguard.errors import FsguardError
from fsguard.keeping import StoreKeeper
from fsguard.service import Service
from fsguard.versions import Limits, Store
from fsguard.versions.secrets import Secrets
from tests.kit.oracle_world import World

EXAMPLES = int(os.environ.get("FSGUARD_FUZZ", "400"))
ME = Peer(os.getpid(), os.getuid(), os.getgid())


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    top = tmp_path_factory.mktemp("any")
    root = os.open(top, os.O_PATH | os.O_DIRECTORY)
    (top / "f").write_text("one\n")
    world = World()
    world.run("A").write("f", "a")
    world.run("B").write("f", "b")
    world.dispatch.waiting.leases.ask(world.task("A"), ["kept/"], 60.0, "", world.now)
    store = Store.open(top / "versions", limits=Limits(free_bytes=0))
    yield Service(world.dispatch, Resolver(world.guard), dict, StoreKeeper(store, Secrets(())), root)
    store.close()
    os.close(root)


def ask(service: Service, method: str, params: dict[str, object]) -> object:
    """What came of it; a stream is listened to for a while."""

    async def call() -> object:
        with trio.move_on_after(1000):
            answer = service.handlers()[method](ME, params)
            if hasattr(answer, "__aiter__"):
                return [item async for item in answer]
            return await answer
        return None

    return trio.run(call, clock=trio.testing.MockClock(autojump_threshold=0.01))


@pytest.fixture(scope="module")
def takes(service: Service) -> dict[str, list[str]]:
    """What each method may look at: the names that stand in the class it belongs to."""
    found = {}
    for method, handler in service.handlers().items():
        source = inspect.getsource(type(handler.__self__))  # type: ignore[attr-defined]
        found[method] = sorted(set(re.findall(r'params(?:, |\.get\()"(\w+)"', source)))
    assert sum(len(names) for names in found.values()) > 60
    return found


NAMES = ["A", "B", "A/c", "f", "kept/", "d/../f", "/etc/passwd", "*", "", "\x1b[31m"]
WORDS = [*NAMES, "read", "write", "warn", "block"]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 5),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=12),
    st.text(max_size=4).map(lambda text: text + "\0\udc80\ud800"),
    st.sampled_from([*WORDS, "é" * 5000, str(os.getpid()), "f@1", "2h"]),
    st.just(os.getpid()),
)
VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=4),
    st.lists(st.sampled_from(WORDS), max_size=3),
    st.dictionaries(st.text(max_size=4), SCALARS, max_size=3),
)


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_any_question(service: Service, takes: dict[str, list[str]], data: st.DataObject) -> None:
    method = data.draw(st.sampled_from(sorted(takes)))
    params = data.draw(st.fixed_dictionaries({}, optional=dict.fromkeys(takes[method], VALUES)))
    try:
        answer = ask(service, method, params)
    except FsguardError as refusal:
        assert str(refusal)
        return
    json.dumps(answer)
