"""The log that outlives a process: what counts after a SIGKILL, and what says that it does not."""

from __future__ import annotations

import errno
import marshal
import os
import random
import signal

import pytest

from fsguard.tape import ASK_BYTES, DoubtError, Script, Tape


def read(tape: Tape, mark: int = 0) -> list[object]:
    return list(tape.entries(mark))


def put(tape: Tape, *values: object) -> None:
    for value in values:
        tape.append(marshal.dumps(value))


def test_what_was_written_is_there_after_a_kill() -> None:
    memory = os.memfd_create("tape")
    mine = Tape(memory)
    pid = os.fork()
    if not pid:
        put(mine, "one", ("two", b"\xff", 2.5))
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    assert read(Tape(memory)) == ["one", ("two", b"\xff", 2.5)]
    os.close(memory)


def test_what_is_cut_belongs_to_the_next_checkpoint() -> None:
    tape = Tape(size=4096)
    put(tape, 1, 2)
    first = tape.cut()
    put(tape, 3)
    second = tape.cut()
    put(tape, 4)
    assert read(tape, first) == [3, 4] and read(tape, second) == [4]
    tape.forget(second)
    with pytest.raises(DoubtError, match="does not belong"):
        read(tape, first)
    assert read(tape, second) == [4] and len(tape) < 20
    tape.forget(first)  # an older one was slower
    assert read(tape, second) == [4]


@pytest.mark.parametrize("seed", range(20))
def test_round_and_round(seed: int) -> None:
    """Entries of all sizes, at every offset; the newest checkpoint always has all that it needs."""
    rng, tape = random.Random(seed), Tape(size=8192)
    mark, since = tape.cut(), []
    for i in range(2000):
        value = (i, bytes(rng.randrange(rng.choice((1, 60, 1500)))))
        put(tape, value)
        since.append(value)
        if sum(len(v[1]) + 30 for v in since) > 5000 or rng.random() < 0.05:
            new = tape.cut()
            assert read(tape, mark) == since
            tape.forget(new)
            mark, since = new, []
    assert read(tape, mark) == since


def test_one_that_is_full_says_so_until_it_is_cut() -> None:
    tape = Tape(size=4096)
    asked: list[int] = []
    tape.full = lambda: asked.append(len(tape))
    mark = tape.cut()
    put(tape, b"x" * 3000, b"y" * 3000, b"z")
    with pytest.raises(DoubtError, match="full"):
        read(tape, mark)
    assert len(asked) == 1, "a checkpoint is asked for"
    new = tape.cut()
    tape.forget(new)
    put(tape, b"again")
    assert read(tape, new) == [b"again"]


def test_a_checkpoint_is_asked_for_in_time() -> None:
    tape = Tape()
    asked: list[int] = []
    tape.full = lambda: asked.append(len(tape))
    for _ in range(2):
        tape.cut()
        for _ in range(3 * ASK_BYTES // (1 << 20)):
            put(tape, bytes(1 << 20))
    assert len(asked) == 2 and asked[0] > ASK_BYTES


def test_what_was_not_finished_was_not_begun() -> None:
    """Wherever the header stands that moves last: whole entries, as many as fit."""
    memory = os.memfd_create("tape")
    tape = Tape(memory, 4096)
    ends = []
    for i in range(30):
        put(tape, ("entry", i, b"x" * i))
        ends.append(tape.cut())
    for head in range(ends[-1] + 1):
        tape._header[2] = head
        assert len(read(Tape(memory))) == sum(end <= head for end in ends)
    os.close(memory)


@pytest.mark.parametrize("seed", range(200))
def test_a_damaged_memory_is_doubtful(seed: int) -> None:
    rng, memory = random.Random(seed), os.memfd_create("tape")
    tape = Tape(memory, 4096)
    for i in range(30):
        put(tape, ("entry", i, {"a": (1.5, b"x" * i)}))
    for _ in range(rng.randrange(1, 20)):
        os.pwrite(memory, rng.randbytes(rng.randrange(1, 9)), rng.randrange(8192))
    try:
        read(Tape(memory))
    except (DoubtError, ValueError):
        pass  # what else comes out is for who plays it back
    os.close(memory)


def test_another_memory_is_no_tape() -> None:
    memory = os.memfd_create("other")
    os.ftruncate(memory, 8192)
    with pytest.raises(ValueError, match="not a tape"):
        Tape(memory)
    os.close(memory)


def test_answers_come_back_in_order_and_are_counted() -> None:
    def fail() -> int:
        raise FileNotFoundError(errno.ENOENT, "gone")

    def late() -> int:
        raise TimeoutError

    tape = Tape()
    one, missing, slow = tape.port(lambda x: x + 1), tape.port(fail), tape.port(late)
    pair = tape.port(lambda: {1, 2}, sorted, set)
    assert one(1) == 2
    tape.items = items = []
    assert one(2) == 3 and pair() == {1, 2}
    with pytest.raises(FileNotFoundError):
        missing()
    with pytest.raises(TimeoutError):
        slow()
    tape.items = script = Script(marshal.loads(marshal.dumps(items)))
    assert one(99) == 3 and pair() == {1, 2}
    with pytest.raises(FileNotFoundError, match="gone"):
        missing()
    with pytest.raises(DoubtError, match="less"):
        script.finish()
    with pytest.raises(TimeoutError):
        slow()
    script.finish()
    with pytest.raises(DoubtError, match="more"):
        one(1)
    tape.items = None
    assert one(1) == 2


def test_an_entry_that_cannot_be_written_makes_the_tape_doubtful() -> None:
    tape = Tape()
    failed: list[Exception] = []
    tape.failed = failed.append
    tape.end(None, ("call", object()))
    assert failed
    with pytest.raises(DoubtError):
        read(tape)
