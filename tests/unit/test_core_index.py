"""The index of paths by directory: complete, without leftovers, and as cheap as what lies below is small."""

from __future__ import annotations

import random

from fsguard.core.ledger import Ledger
from fsguard.core.names import Names


def test_below_is_what_a_search_through_all_paths_finds() -> None:
    rng = random.Random(1)
    paths: dict[bytes, None] = {}
    names = Names(paths)
    for step in range(5_000):
        path = b"/".join(rng.choices((b"a", b"b", b"c"), k=rng.randint(1, 5)))
        if path in paths:
            del paths[path]
            names.went(path)
        else:
            paths[path] = None
            names.came(path)
        if step % 50 == 0:
            for directory in (b"a", b"a/b", b"b/c/a", b"c/c/c/c"):
                wanted = sorted(p for p in paths if p.startswith(directory + b"/"))
                assert sorted(names.below(directory)) == wanted
    for path in list(paths):
        del paths[path]
        names.went(path)
    assert len(names) == 0


def test_paths_elsewhere_are_not_gone_through() -> None:
    class Counting(dict[bytes, None]):
        asked = 0

        def __contains__(self, path: object) -> bool:
            self.asked += 1
            return super().__contains__(path)

    paths = Counting()
    names = Names(paths)
    for i in range(10_000):
        path = b"big/%d/%d" % (i % 100, i)
        paths[path] = None
        names.came(path)
    paths[b"small/x/y"] = None
    names.came(b"small/x/y")
    paths.asked = 0
    assert list(names.below(b"small")) == [b"small/x/y"] and list(names.below(b"none")) == []
    assert paths.asked <= 2


def test_what_the_ledger_forgets_leaves_no_directory_behind() -> None:
    ledger = Ledger(max_paths=10)
    for i in range(1_000):
        ledger.at(b"d%d/e/f" % i)
    assert len(ledger) == 10 and len(ledger._names) == 21  # two directories each, and the top
    for state in list(ledger):
        ledger.drop(state)
    assert len(ledger._names) == 0
