"""Who is who on the tape: everybody whom the filesystem has heard of from us has a number."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from fsguard.core.model import Actor
from fsguard.tape import DoubtError, Script, Tape

__all__ = ["Cast"]

MAX_CAST = 200_000


class Cast:
    """The part of the recorder that numbers processes."""

    tape: Tape
    numbers: int
    actors: dict[int, Actor]
    cast: dict[Actor, int]
    play_nested: Callable[[Script], None]

    def number(self) -> int:
        """One that is not used yet."""
        self.numbers += 1
        return self.numbers

    def call(
        self, kind: str, unique: int, args: tuple[Any, ...], key: int, fn: Callable[..., Any], *real: Any
    ) -> Any:
        raise NotImplementedError

    def who(self, actor: Hashable | None) -> int:
        """Its number in the cast; 0: none that was ever named."""
        return self.cast.get(actor, 0) if isinstance(actor, Actor) else 0

    def name(self, actor: Actor) -> int:
        """The same, given now if it has none."""
        number = self.cast.get(actor)
        if number is None:
            number = self.number()
            self.cast[actor] = number
            self.actors[number] = actor
            if len(self.actors) > MAX_CAST:
                oldest = next(iter(self.actors))
                del self.cast[self.actors.pop(oldest)]
        return number

    def agree(self, number: int) -> None:
        """Note it; played back, it must be the same."""
        items = self.tape.items
        if type(items) is list:
            items.append(number)
        elif type(items) is Script and items.take() != number:
            raise DoubtError("somebody else was meant")

    def learns(self, learn: Callable[[int, Actor], object]) -> Callable[[int, Actor], object]:
        """`learn`, by which the filesystem hears who is who."""

        def learning(tid: int, actor: Actor) -> object:
            self.agree(self.name(actor))
            if type(self.tape.items) is Script:
                self.play_nested(self.tape.items)
                self.tape.items.take()
                return None
            learned = learn(tid, actor)
            if type(self.tape.items) is list:
                self.tape.items.append(0)  # see `Recorder.takes`
            return learned

        return learning

    def recalls(self, recall: Callable[[int], object]) -> Callable[[int], object]:
        """`recall`, by which the filesystem says who is who."""

        def known(number: int) -> object:
            if number < 0:
                raise DoubtError("somebody was meant who is not remembered")
            return self.actors[number] if number else None

        def named(actor: object) -> int:
            if not isinstance(actor, Actor):
                return 0
            return self.who(actor) or -self.name(actor)  # from the next checkpoint on it is remembered

        return self.tape.port(recall, named, known)

    def numbered(self, number: int, actor: Hashable) -> None:
        """The filesystem calls somebody by a number of its own from now on."""
        who = self.who(actor)
        if who:
            self.call("numbered", 0, (number, who), 0, lambda: None)
