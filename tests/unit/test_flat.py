"""Objects as bytes: what comes back is what went, with its shape, also in another version of its classes."""

from __future__ import annotations

import dataclasses
import sys
from collections import OrderedDict
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsguard import flat

SOURCE = """
from __future__ import annotations
import dataclasses
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")

class Colour(Enum):
    RED = 1

class Pair(NamedTuple):
    left: Any
    right: Any = None

@dataclasses.dataclass(slots=True, eq=False)
class Node:
    name: Any
    next: Any = None
    more: dict = dataclasses.field(default_factory=dict)

@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    value: Any

@dataclasses.dataclass(slots=True, eq=False)
class Box(Generic[T]):
    inside: T

class Base:
    __slots__ = ("base", "never")

class Plain(Base):
    def __init__(self): self.base, self.own = 1, 2
"""


@pytest.fixture
def version(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a module of that source; the next one takes its place, as the next program's does."""

    def make(source: str = SOURCE) -> Any:
        module = ModuleType("fsguard.some_version")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(source, module.__dict__)
        return module

    return make


def there_and_back(root: object, **named: object) -> Any:
    names = {id(part): name for name, part in named.items()}
    return flat.load(flat.dump(root, lambda obj: names.get(id(obj))), lambda name: named[name])


def test_whatever_the_depth(version: Any) -> None:
    m = version()
    chain = None
    for i in range(50_000):
        chain = m.Node(i, chain)
    back = there_and_back(chain)
    for i in reversed(range(50_000)):
        assert back.name == i
        back = back.next
    assert back is None


def test_circles_and_what_is_shared(version: Any) -> None:
    m = version()
    one, other = m.Node("one"), m.Node("other")
    one.next, other.next = other, one
    shared: dict[str, int] = {}
    one.more, other.more = {one: shared, (other, 1): 2}, {m.Box(one): one}
    back, twice = there_and_back([one, one])
    assert back is twice and back.next.next is back
    assert back.more[back] == {} and back.more[back.next, 1] == 2
    ((box, inside),) = back.next.more.items()
    assert box.inside is inside is back


def test_every_kind_of_object(version: Any) -> None:
    m = version()
    plain = m.Plain()
    back = there_and_back({"f": m.Frozen((1, m.Colour.RED)), "p": plain, "b": m.Box(m.Pair(1, m.Node(2)))})
    assert back["f"] == m.Frozen((1, m.Colour.RED)) and back["f"].value[1] is m.Colour.RED
    assert (back["p"].base, back["p"].own) == (1, 2) and not hasattr(back["p"], "never")
    assert type(back["b"].inside) is m.Pair and back["b"].inside.right.name == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        back["f"].value = 2


def test_what_has_a_name_is_there_already(version: Any) -> None:
    m = version()
    part = m.Node("a part", object)
    back = there_and_back(m.Node("root", part), part=part)
    assert back.next is part


def test_fields_come_and_go(version: Any) -> None:
    m = version()
    data = flat.dump([m.Node("n", m.Frozen(7), {"k": 1}), m.Plain(), m.Box(3)], lambda _: None)
    m = version(
        SOURCE.replace("next: Any = None", "fresh: list = dataclasses.field(default_factory=list)")
        .replace("value: Any", "value: Any\n    late: int = 9")
        .replace("inside: T", "other: int = 5")
        .replace('"base", "never"', '"base"')
    )
    node, plain, box = flat.load(data, lambda name: name)
    assert (node.name, node.fresh, node.more, hasattr(node, "next")) == ("n", [], {"k": 1}, False)
    assert (plain.base, plain.own, box.other) == (1, 2, 5)
    assert flat.load(flat.dump(m.Frozen(1), lambda _: None), lambda name: name) == m.Frozen(1, 9)


def test_fields_of_named_tuples_come_and_go(version: Any) -> None:
    m = version()
    data = flat.dump([m.Pair(1, 2), {m.Pair(3): 4}, m.Node("n", m.Pair("x", m.Colour.RED))], lambda _: None)
    m = version(SOURCE.replace("    right: Any = None\n\n", "    right: Any = None\n    new: int = 6\n\n"))
    pair, keys, node = flat.load(data, lambda name: name)
    assert pair == m.Pair(1, 2, 6) and keys == {m.Pair(3, None, 6): 4} and node.next.right is m.Colour.RED
    m = version(
        SOURCE.replace("    left: Any\n    right: Any = None\n", "    before: int = 0\n    right: Any = 1\n")
    )
    pair, keys, node = flat.load(data, lambda name: name)
    assert pair == m.Pair(0, 2) and keys == {m.Pair(0, None): 4}


def test_what_cannot_be_written_says_so(version: Any) -> None:
    m = version()
    for thing in (lambda: 0, sys, (x for x in ())):
        with pytest.raises(Exception, match="pickle"):
            flat.dump(m.Node(thing), lambda _: None)


def test_what_is_damaged_or_has_moved_is_an_error(version: Any) -> None:
    m = version()
    data = flat.dump([m.Node(i) for i in range(5)], lambda _: None)
    for cut in (0, 1, len(data) // 2, len(data) - 1):
        with pytest.raises(Exception, match=r".*"):
            flat.load(data[:cut], lambda name: name)
    version(SOURCE.replace("class Node", "class Renamed"))
    with pytest.raises(AttributeError):
        flat.load(data, lambda name: name)


values = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False) | st.binary() | st.text() | st.booleans(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers() | st.binary(), inner)
        | st.dictionaries(st.integers(), inner).map(OrderedDict)
        | st.frozensets(st.integers() | st.text())
        | st.sets(st.binary())
    ),
)


@given(values)
def test_any_value(value: Any) -> None:
    back = there_and_back([value])[0]
    assert back == value and type(back) is type(value)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()), max_size=40))
def test_any_graph(edges: list[tuple[int, int, bool]]) -> None:
    """Each object once, and every arrow, as a field's value or as a key, from where to where it was."""
    objects = [Vertex(i) for i in range(10)]
    for source, target, as_key in edges:
        if as_key:
            objects[source].keys[objects[target]] = target
        else:
            objects[source].out.append(objects[target])
    back = there_and_back(objects)
    assert len(set(map(id, back))) == 10
    for before, after in zip(objects, back, strict=True):
        assert after.number == before.number
        assert [back.index(v) for v in after.out] == [objects.index(v) for v in before.out]
        assert [(back.index(k), v) for k, v in after.keys.items()] == [
            (objects.index(k), v) for k, v in before.keys.items()
        ]


class Vertex:
    __slots__ = ("keys", "number", "out")
    __module__ = "fsguard.vertices"

    def __init__(self, number: int) -> None:
        self.number = number
        self.out: list[Vertex] = []
        self.keys: dict[Vertex, int] = {}


_vertices = ModuleType("fsguard.vertices")
_vertices.Vertex = Vertex  # type: ignore[attr-defined]
sys.modules[_vertices.__name__] = _vertices
