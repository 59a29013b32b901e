"""What the guard is told afterwards: it has happened, whatever has been decided since."""

from __future__ import annotations

from tests.kit.oracle_world import World


def test_what_has_happened_is_not_called_refused() -> None:
    world = World()
    world.file("f")
    a, b = world.run("A"), world.run("B")
    a.read("f")
    b.write("f", "b")
    world.guard.policies.set("block")
    world.dispatch.removed(a.actor, b"f", world.step())
    assert [(w.refused, w.sibling) for w in world.warnings("A")] == [(False, "B")]
