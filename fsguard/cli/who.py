"""fsguard who: writers, readers and open handles of one file."""

from __future__ import annotations

from fsguard.cli import kept, terminal
from fsguard.cli.base import Parser
from fsguard.cli.warnings import clock
from fsguard.control.client import Client

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["main", "text"]


def main(argv: list[str]) -> int:
    parser = Parser(
        "who",
        "Who wrote PATH, who has seen which of its versions, and who has it open now.",
        ["fsguard who src/app.py", "fsguard who --json src/app.py"],
        [0, 2, 3, 6, 7],
    )
    parser.add_argument("path", metavar="PATH")
    parser.workspace_flag()
    parser.json_flag()
    args = parser.parse(argv)
    place = kept.Place(args.workspace, args.path)
    with Client(place.mount) as client:
        answer = client.call("who", path=place.path)
        other = place.from_top()
        if other is not None and not _known(answer):
            # So it stands in warnings, also in those that are read further down in the tree.
            above = client.call("who", path=other)
            if _known(above):
                terminal.note(f"{terminal.shown(place.given)} is taken from the workspace's top")
                answer = above
    if args.json:
        terminal.print_json(answer)
    else:
        _print(answer)
    return 0


def _known(answer: dict[str, Any]) -> bool:
    return any(answer[key] for key in ("version", "writers", "readers", "open"))


def _print(answer: dict[str, Any]) -> None:
    print(text(answer, lambda title: terminal.paint(title, "bold")))


def text(answer: dict[str, Any], title: Callable[[str], str] = str) -> str:
    """The answer in lines; `title` dresses the headings."""
    found = [f"{terminal.shown(answer['path'])}, version {answer['version']}"]
    sections = (("written by", "writers", _writer), ("read by", "readers", _reader), ("open", "open", _open))
    for name, key, say in sections:
        lines = [say(item) for item in answer[key]]
        found.append(title(f"{name}:") + ("" if lines else " nobody that we know of"))
        found += ["  " + line for line in lines]
    return "\n".join(found)


def _writer(item: dict[str, Any]) -> str:
    ended = ", ended" if item.get("ended") else ""
    return f"{_task(item)}{ended} at {clock(item['time'])}, version {item['version']}: {_command(item)}"


def _reader(item: dict[str, Any]) -> str:
    seen = "as it is now" if item["current"] else "changed since"
    partly = ", in part" if item["partial"] else ""
    return f"{_task(item)} at {clock(item['time'])}, version {item['version']}{partly}: {seen}"


def _open(item: dict[str, Any]) -> str:
    return f"{_task(item)} for {terminal.shown(item['mode'])}: {_command(item)}"


def _task(item: dict[str, Any]) -> str:
    return terminal.cut(item["task"] or "external")


def _command(item: dict[str, Any]) -> str:
    return f"{terminal.quoted(item['command'] or '?')} (pid {item['pid']})"
