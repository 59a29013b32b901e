"""The lines on the control socket: what survives, what is refused, and how."""

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsguard.control.protocol import (
    MAX_DEPTH,
    MAX_REQUEST,
    Event,
    Failure,
    LineBuffer,
    ProtocolError,
    Request,
    Result,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
)

names = st.binary(max_size=80).map(os.fsdecode)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | names,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.integers(0, 2**53 - 1), st.dictionaries(names, values, max_size=4))
def test_a_request_survives_with_any_file_name(number, params):
    line = encode_request(Request(number, "task.list", params))
    assert line.endswith(b"\n") and line.count(b"\n") == 1 and line.isascii()
    back = decode_request(line[:-1])
    assert (back.id, back.method, back.params) == (number, "task.list", params)


@settings(deadline=None)
@given(values)
def test_answers_survive(value):
    result = decode_answer(encode_answer(Result(3, value)))
    assert isinstance(result, Result) and (result.id, result.value) == (3, value)
    event = decode_answer(encode_answer(Event(3, value)))
    assert isinstance(event, Event) and event.value == value


def test_a_failure_survives_with_and_without_a_hint():
    for hint in (None, "try again"):
        back = decode_answer(encode_answer(Failure(9, 4, "busy", hint)))
        assert isinstance(back, Failure)
        assert (back.id, back.code, back.message, back.hint) == (9, 4, "busy", hint)


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_garbage_is_a_protocol_error_and_nothing_else(line):
    for decode in (decode_request, decode_answer):
        try:
            decode(line)
        except ProtocolError as error:
            assert str(error).isprintable()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"", "not a line of JSON"),
        (b"[]", "object"),
        (b"7", "object"),
        (b'{"method": "x"}', "`id`"),
        (b'{"id": true, "method": "x"}', "`id`"),
        (b'{"id": -1, "method": "x"}', "`id`"),
        (b'{"id": 1.5, "method": "x"}', "`id`"),
        (b'{"id": 9007199254740992, "method": "x"}', "`id`"),
        (b'{"id": 1}', "`method`"),
        (b'{"id": 1, "method": 5}', "`method`"),
        (b'{"id": 1, "method": "A B"}', "`method`"),
        (b'{"id": 1, "method": "' + b"x" * 65 + b'"}', "`method`"),
        (b'{"id": 1, "method": "x", "params": []}', "`params`"),
        (b'{"id": 1, "method": "x", "params": {"a": NaN}}', "NaN"),
        (b'{"id": 1, "method": "x", "params": {"a": "\xff"}}', "not a line of JSON"),
        (b'{"id": 1, "method": "x", "params": {"a": "\\ud800"}}', "surrogate"),
        (b'{"id": 1, "method": "x", "params": {"\\udfff": 1}}', "surrogate"),
        (b'{"id": 1, "method": "x", "params": {"a": ' + b"9" * 5000 + b"}}", "not a line of JSON"),
        (b"[" * 200_000, "deep"),
        (b'{"id": 1, "method": "x", "params": {"a": %s%s}}' % (b"[" * MAX_DEPTH, b"]" * MAX_DEPTH), "nested"),
    ],
)
def test_a_bad_request_is_named(line, said):
    with pytest.raises(ProtocolError, match=said):
        decode_request(line)


@pytest.mark.parametrize(
    "line",
    [b'{"id": 1}', b'{"id": 1, "error": 3}', b'{"id": 1, "error": {"code": true, "message": "x"}}', b"[]"],
)
def test_a_bad_answer_is_refused(line):
    with pytest.raises(ProtocolError):
        decode_answer(line)


def test_what_json_cannot_say_is_refused():
    for value in ({1, 2}, float("nan"), b"bytes"):
        with pytest.raises(ProtocolError):
            encode_answer(Result(1, value))
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(ProtocolError):
        encode_answer(Result(1, loop))


def test_a_request_that_no_server_takes_is_refused_at_home():
    with pytest.raises(ProtocolError, match="more than"):
        encode_request(Request(1, "check", {"paths": ["x" * MAX_REQUEST]}))


@settings(deadline=None)
@given(st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"")), max_size=8), st.data())
def test_lines_are_the_same_however_the_stream_is_cut(lines, data):
    stream = b"".join(line + b"\n" for line in lines)
    buffer, out = LineBuffer(30), []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        out.extend(buffer.feed(stream[:cut]))
        stream = stream[cut:]
    assert out == lines and buffer.pending == 0


def test_a_line_beyond_the_limit_is_given_up_before_its_end():
    buffer = LineBuffer(10)
    assert list(buffer.feed(b"0123456789")) == []
    with pytest.raises(ProtocolError):
        list(buffer.feed(b"x"))


def test_strings_beyond_ascii_are_taken_as_utf_8_too():
    line = json.dumps({"id": 1, "method": "who", "params": {"path": "é"}}, ensure_ascii=False).encode()
    assert decode_request(line).params == {"path": "é"}
