"""Editing JSON as text, so that comments, key order and layout stay as their owner has them.

Reads JSON with // and /* */ comments and trailing commas, since several tools
allow them. An edit changes only the bytes it is about; taking out what was put
in gives the text from before.
"""

from __future__ import annotations

import json

from fsguard.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["JsonError", "Node", "added", "parsed", "removed"]

_SPACE = " \t\r\n\ufeff"


class JsonError(UsageError):
    """Not JSON; the message has line and column."""


class Node:
    """A value in the text, from offset `start` to `end`.

    `items` are the children of an array or object, `keys` the names of an
    object's, `starts` where each child begins (its name, in an object), `commas`
    where the comma after it is, or -1. `last` is the end of the last thing before
    the closing bracket, be it a comment.
    """

    __slots__ = ("commas", "end", "items", "keys", "kind", "last", "start", "starts", "value")

    def __init__(self, kind: str, start: int) -> None:
        self.kind = kind
        self.start = self.end = self.last = start
        self.value: Any = None
        self.items: list[Node] = []
        self.keys: list[str] = []
        self.starts: list[int] = []
        self.commas: list[int] = []

    def get(self, key: str) -> Node | None:
        return self.items[self.keys.index(key)] if key in self.keys else None

    def plain(self) -> Any:
        """The value, as json.loads gives it."""
        if self.kind == "object":
            return dict(zip(self.keys, (item.plain() for item in self.items), strict=True))
        return [item.plain() for item in self.items] if self.kind == "array" else self.value


def parsed(text: str) -> Node:
    """The value of the whole text. An empty text is an empty object."""
    reader = _Reader(text)
    reader.space()
    if reader.at == len(text):
        node = Node("object", len(text))
        node.end = -1  # nothing is there yet
        return node
    node = reader.value()
    reader.space()
    if reader.at < len(text):
        raise reader.error("something after the end of the value")
    return node


def added(text: str, path: list[str], value: Any) -> str:
    """`text` with `value` appended to the array at `path` (keys, from the top).

    Objects and the array are made where they are missing. JsonError: something
    else stands there.
    """
    node = parsed(text)
    if node.end < 0:
        text = text + ("" if not text or text.endswith("\n") else "\n") + "{}\n"
        node = parsed(text)
    for depth, key in enumerate(path):
        _expect(text, node, "object", path[:depth])
        child = node.get(key)
        if child is None:
            new: Any = [value]
            for missing in reversed(path[depth + 1 :]):
                new = {missing: new}
            return _insert(text, node, f"{json.dumps(key)}: ", new, depth + 1)
        node = child
    _expect(text, node, "array", path)
    return _insert(text, node, "", value, len(path) + 1)


def removed(text: str, path: list[str | int]) -> str:
    """`text` without what is at `path`, and without the objects and arrays that it leaves empty."""
    nodes = [parsed(text)]
    for key in path:
        node = nodes[-1]
        nodes.append(node.items[key if isinstance(key, int) else node.keys.index(key)])
    places = [
        key if isinstance(key, int) else node.keys.index(key) for node, key in zip(nodes, path, strict=False)
    ]
    depth = len(path) - 1
    while depth and len(nodes[depth].items) == 1 and not _comments(text, nodes[depth]):
        above, place = nodes[depth - 1], places[depth - 1]
        if "/" in text[above.starts[place] : nodes[depth].start]:
            break  # a comment between a name and its value
        depth -= 1
    return _cut(text, nodes[depth], places[depth])


def _comments(text: str, node: Node) -> bool:
    """Is there anything but space around the only child?"""
    before, after = text[node.start + 1 : node.starts[0]], text[node.items[0].end : node.end - 1]
    return bool((before + after).strip(_SPACE + ","))


def _insert(text: str, node: Node, name: str, value: Any, depth: int) -> str:
    """A new last child. Laid out as the text is: on lines of their own, or all in one."""
    newline = "\r\n" if "\r\n" in text else "\n"
    whole = text.strip(_SPACE)
    inside = text[node.start : node.end]
    if "\n" not in inside and (node.items or ("\n" not in whole and inside != whole)):
        new = name + json.dumps(value, ensure_ascii=False)
        comma = ", " if node.items and node.commas[-1] < 0 else " " if node.items else ""
        return text[: node.last] + comma + new + text[node.last :]
    unit = _unit(text)
    lead = _lead(text, node, unit, depth)
    body = json.dumps(value, ensure_ascii=False, indent=unit).replace("\n", newline + lead)
    new = newline + lead + name + body
    if not node.items and node.last == node.start + 1:
        outer = lead[: len(lead) - len(unit)]
        return text[: node.start + 1] + new + newline + outer + text[node.end - 1 :]
    trailing = bool(node.items) and node.commas[-1] >= 0
    text = text[: node.last] + new + ("," if trailing else "") + text[node.last :]
    if node.items and not trailing:
        end = node.items[-1].end
        text = text[:end] + "," + text[end:]
    return text


def _cut(text: str, node: Node, index: int) -> str:
    """Without one child, the comma that it no longer needs, and the space before it."""
    if len(node.items) == 1 and not _comments(text, node):
        return text[: node.start + 1] + text[node.end - 1 :]
    start, end = node.starts[index], node.items[index].end
    comma = node.commas[index]
    between = text[end:comma] if comma >= 0 and text[end:comma].strip(_SPACE) else ""  # a comment
    rest = between + text[max(comma, end - 1) + 1 :]
    whole = len(text[:start].rstrip(_SPACE))
    line = text[text.rfind("\n", 0, whole) + 1 : whole]
    # A comment up to the end of a line must not swallow what follows.
    safe = "//" not in line or rest.lstrip(" \t")[:1] in ("\r", "\n")
    start = whole if safe else len(text[:start].rstrip(" \t"))
    text = text[:start] + rest
    before = node.commas[index - 1] if index and comma < 0 else -1
    return text[:before] + text[before + 1 :] if before >= 0 else text


def _unit(text: str) -> str:
    """One step of indentation, as the text has it."""
    for line in text.split("\n"):
        space = line[: len(line) - len(line.lstrip(" \t"))]
        if space and line.strip() and line.strip()[0] in '"{[':
            return "\t" if space[0] == "\t" else space
    return "  "


def _lead(text: str, node: Node, unit: str, depth: int) -> str:
    """The indentation of a new child: that of its brothers, else one step more than its parent's line."""
    for start in reversed(node.starts):
        line = text[text.rfind("\n", 0, start) + 1 : start]
        if not line.strip(_SPACE):
            return line.strip("\ufeff\r")
    line = text[text.rfind("\n", 0, node.start) + 1 : node.start].lstrip("\ufeff")
    return line[: len(line) - len(line.lstrip(" \t"))] + unit


def _expect(text: str, node: Node, kind: str, path: list[str]) -> None:
    if node.kind != kind:
        where = f"`{'.'.join(path)}`" if path else "the whole"
        line = text.count("\n", 0, node.start) + 1
        article = "an" if kind[0] in "ao" else "a"
        raise JsonError(f"line {line}: {where} should be {article} {kind}, and is not")


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0

    def error(self, what: str) -> JsonError:
        line = self.text.count("\n", 0, self.at) + 1
        column = self.at - self.text.rfind("\n", 0, self.at)
        return JsonError(f"line {line}, column {column}: {what}")

    def space(self) -> int:
        """Skip space and comments; the end of the last comment, or where it began."""
        last = self.at
        while self.at < len(self.text):
            if self.text[self.at] in _SPACE:
                self.at += 1
            elif self.text.startswith("//", self.at):
                end = self.text.find("\n", self.at)
                self.at = last = len(self.text) if end < 0 else end - (self.text[end - 1] == "\r")
            elif self.text.startswith("/*", self.at):
                end = self.text.find("*/", self.at + 2)
                if end < 0:
                    raise self.error("a comment that does not end")
                self.at = last = end + 2
            else:
                break
        return last

    def value(self) -> Node:
        here = self.text[self.at : self.at + 1]
        if here in ("{", "["):
            return self.container(here)
        node = Node("string" if here == '"' else "scalar", self.at)
        try:
            node.value, self.at = _DECODER.raw_decode(self.text, self.at)
        except (ValueError, RecursionError):
            raise self.error(f"not JSON: {self.text[self.at : self.at + 20]!r}") from None
        node.end = node.last = self.at
        return node

    def container(self, bracket: str) -> Node:
        node = Node("object" if bracket == "{" else "array", self.at)
        close = "}" if bracket == "{" else "]"
        self.depth += 1
        if self.depth > 100:
            raise self.error("nested too deep")
        self.at += 1
        node.last = self.space()
        while not self.text.startswith(close, self.at):
            if node.items and node.commas[-1] < 0:
                raise self.error(f"a comma or {close} is missing")
            node.starts.append(self.at)
            if bracket == "{":
                self.key(node)
            node.items.append(self.value())
            node.commas.append(-1)
            node.last = self.space_after(node)
        self.at += 1
        node.end = self.at
        self.depth -= 1
        return node

    def key(self, node: Node) -> None:
        if not self.text.startswith('"', self.at):
            raise self.error("a name in quotation marks is missing")
        name = self.value().value
        if name in node.keys:
            raise self.error(f"{name!r} is there twice")
        node.keys.append(name)
        self.space()
        if not self.text.startswith(":", self.at):
            raise self.error("a : is missing")
        self.at += 1
        self.space()

    def space_after(self, node: Node) -> int:
        last = self.space()
        if self.text.startswith(",", self.at):
            node.commas[-1] = self.at
            self.at += 1
            last = self.at
            after = self.space()
            last = max(last, after)
        return last


_DECODER = json.JSONDecoder()
