"""The words on the control socket: one JSON object a line, pure functions only.

A request is ``{"id": int, "method": str, "params": {...}}``. Its answer is any
number of ``{"id", "event"}`` lines, then exactly one ``{"id", "result"}`` or
``{"id", "error": {"code", "message", "hint"}}``, `code` being an exit code of
`fsguard.errors`.

Lines are ASCII. A file name that is not UTF-8 travels as Python's surrogate
escapes (PEP 383): the byte 0xE9 is ``\\udce9``, so every name survives both
ways. Other lone surrogates stand for no byte and are refused.

Whatever comes in, the only exception that leaves this module is `ProtocolError`.
Nothing is imported but json: `fsguard check` runs at every tool call.
"""

from __future__ import annotations

import json

from fsguard.errors import DaemonError

TYPE_CHECKING = False  # typing itself costs a third of the start of `fsguard check`
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

__all__ = [
    "MAX_ANSWER",
    "MAX_DEPTH",
    "MAX_REQUEST",
    "Event",
    "Failure",
    "LineBuffer",
    "ProtocolError",
    "Request",
    "Result",
    "decode_answer",
    "decode_request",
    "encode_answer",
    "encode_request",
]

MAX_REQUEST = 1 << 20
"""Bytes in one request line: 1 MiB, some thousand paths of the greatest length."""

MAX_ANSWER = 256 << 20
"""Bytes in one answer line that a client takes: a log of a million entries."""

MAX_DEPTH = 32
"""Levels of nesting in a request; ours need four."""

_MAX_ID = 1 << 53  # what every JSON reader keeps exact
_METHOD = frozenset("abcdefghijklmnopqrstuvwxyz0123456789._-")


class ProtocolError(DaemonError):
    """The other side sent something that is not of this protocol."""


class Request:
    """A call: `id` is the caller's own number, repeated in every answer line."""

    __slots__ = ("id", "method", "params")

    def __init__(self, id: int, method: str, params: dict[str, Any]) -> None:
        self.id = id
        self.method = method
        self.params = params


class Result:
    """The last line of a call that went well."""

    __slots__ = ("id", "value")

    def __init__(self, id: int, value: Any) -> None:
        self.id = id
        self.value = value


class Event:
    """One item of a stream; more lines follow."""

    __slots__ = ("id", "value")

    def __init__(self, id: int, value: Any) -> None:
        self.id = id
        self.value = value


class Failure:
    """The last line of a call that was refused or failed.

    `code` is the exit code of the matching class in `fsguard.errors`.
    """

    __slots__ = ("code", "hint", "id", "message")

    def __init__(self, id: int, code: int, message: str, hint: str | None = None) -> None:
        self.id = id
        self.code = code
        self.message = message
        self.hint = hint


class LineBuffer:
    """Cuts a byte stream into lines, and gives up on a line beyond `limit` bytes.

    It never holds more than `limit` bytes plus what one `feed` brought.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    @property
    def pending(self) -> int:
        """Bytes of the line begun but not ended."""
        return self._size

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The lines that `data` completes, without their newline."""
        *ended, rest = data.split(b"\n")
        for line in ended:
            self._grow(line)
            whole = b"".join(self._parts)
            self._parts, self._size = [], 0
            yield whole
        if rest:
            self._grow(rest)

    def _grow(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._limit:
            raise ProtocolError(f"a line of more than {self._limit} bytes")
        self._parts.append(part)


def encode_request(request: Request) -> bytes:
    """One line with its newline. ProtocolError: not JSON, or too long to be taken."""
    line = _encode({"id": request.id, "method": request.method, "params": request.params})
    if len(line) > MAX_REQUEST:
        raise ProtocolError(f"a request of more than {MAX_REQUEST} bytes", "name fewer paths at once")
    return line


def decode_request(line: bytes) -> Request:
    """Read one request line; a wrong type anywhere in the envelope is named."""
    data = _decode(line)
    _check(data, MAX_DEPTH)
    if not isinstance(data, dict):
        raise ProtocolError("a request is a JSON object")
    number = _number(data)
    method = data.get("method")
    if not isinstance(method, str) or not method or len(method) > 64 or not _METHOD.issuperset(method):
        raise ProtocolError("`method` must be a short name like task.list")
    params = data.get("params", {})
    if not isinstance(params, dict):
        raise ProtocolError("`params` must be an object")
    return Request(number, method, params)


def encode_answer(answer: Result | Event | Failure) -> bytes:
    """One line with its newline. ProtocolError: the value is not JSON."""
    if isinstance(answer, Result):
        return _encode({"id": answer.id, "result": answer.value})
    if isinstance(answer, Event):
        return _encode({"id": answer.id, "event": answer.value})
    error = {"code": answer.code, "message": answer.message, "hint": answer.hint}
    return _encode({"id": answer.id, "error": error})


def decode_answer(line: bytes) -> Result | Event | Failure:
    """Read one answer line, as a client does."""
    data = _decode(line)
    if not isinstance(data, dict):
        raise ProtocolError("an answer is a JSON object")
    number = _number(data)
    if "result" in data:
        return Result(number, data["result"])
    if "event" in data:
        return Event(number, data["event"])
    error = data.get("error")
    if not isinstance(error, dict):
        raise ProtocolError("an answer has a result, an event or an error")
    code, message, hint = error.get("code"), error.get("message"), error.get("hint")
    if type(code) is not int or not isinstance(message, str) or not (hint is None or isinstance(hint, str)):
        raise ProtocolError("an error has a code, a message and a hint")
    return Failure(number, code, message, hint)


def _encode(data: object) -> bytes:
    try:
        text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"not to be said in JSON: {error}") from None
    return text.encode("ascii") + b"\n"


def _decode(line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8"), parse_constant=_no_constant)
    except RecursionError:
        raise ProtocolError("JSON nested too deep") from None
    except ValueError as error:  # bad UTF-8, bad JSON, a number of five thousand digits
        reason = " ".join(str(error).split())[:100]
        raise ProtocolError(f"not a line of JSON: {reason}") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _number(data: dict[str, Any]) -> int:
    number = data.get("id")
    if type(number) is not int or not 0 <= number < _MAX_ID:  # bool is no number here
        raise ProtocolError("`id` must be a whole number, zero or more")
    return number


def _check(value: object, depth: int) -> None:
    """Refuse deep nesting, and text that stands for no bytes."""
    if isinstance(value, str):
        try:
            value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise ProtocolError("a lone surrogate that is no escaped byte (\\udc80 to \\udcff)") from None
    elif isinstance(value, list | dict):
        if depth == 0:
            raise ProtocolError(f"JSON nested deeper than {MAX_DEPTH} levels")
        items = [*value, *value.values()] if isinstance(value, dict) else value
        for item in items:
            _check(item, depth - 1)
