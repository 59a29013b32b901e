"""What all commands share: a parser that speaks like the rest, and `--json`."""

from __future__ import annotations

import argparse

from fsguard.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

__all__ = ["EXITS", "Collected", "Parser", "parser_of", "task_id"]

EXITS = {
    0: "done",
    2: "a wrong flag, name or value",
    3: "no guarded workspace here",
    4: "still in use, or already mounted",
    5: "something the machine lacks (see `fsguard doctor`)",
    6: "the caller may not do that",
    7: "the daemon does not answer",
}


class Collected(Exception):
    """Instead of parsing: the parser, complete."""

    def __init__(self, parser: Parser) -> None:
        super().__init__(parser.prog)
        self.parser = parser


class Parser(argparse.ArgumentParser):
    """argparse with examples and exit codes in the help, and errors as UsageError.

    `exits` are the codes that the command can end with, of `EXITS` or with a
    meaning of their own.
    """

    collecting = False
    """While it is set, parsing raises `Collected`."""

    def __init__(
        self, name: str, description: str, examples: Sequence[str], exits: Sequence[int | tuple[int, str]]
    ) -> None:
        self.examples = list(examples)
        self.exits = dict((code, EXITS[code]) if isinstance(code, int) else code for code in exits)
        lines = ["examples:", *(f"  {example}" for example in examples), "", "exit codes:"]
        lines += [f"  {code:<4}{meaning}" for code, meaning in self.exits.items()]
        super().__init__(
            prog=f"fsguard {name}",
            description=description,
            epilog="\n".join(lines),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def parse_known_args(self, *args: Any, **kwargs: Any) -> Any:
        if Parser.collecting:
            raise Collected(self)
        return super().parse_known_args(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, f"see `{self.prog} --help`")

    def parse(self, argv: list[str]) -> Any:
        """The arguments; what is unknown is answered with the nearest known flag."""
        known, extra = self.parse_known_args(argv)
        if extra:
            import difflib

            near = difflib.get_close_matches(extra[0].split("=")[0], self._option_string_actions, 1)
            hint = f"did you mean {near[0]}?" if near else f"see `{self.prog} --help`"
            raise UsageError(f"unknown argument: {extra[0]}", hint)
        return known

    def workspace_flag(self) -> None:
        self.add_argument(
            "--workspace",
            metavar="W",
            help="the guarded workspace: its mountpoint, or any path inside (default: where you stand)",
        )

    def workspace_argument(self) -> None:
        """WORKSPACE, or the same as a flag."""
        self.add_argument(
            "place",
            metavar="WORKSPACE",
            nargs="?",
            help="the guarded workspace: its mountpoint, or any path inside (default: where you stand)",
        )
        self.add_argument("--workspace", metavar="W", help="the same")

    def json_flag(self) -> None:
        self.add_argument(
            "--json", action="store_true", help="for programs; names that are not UTF-8 as \\udcXX"
        )


def parser_of(command: str) -> Parser:
    """The parser of a command: each makes its own when it runs, so it is run up to there."""
    module = __import__(f"fsguard.cli.{command}", fromlist=["main"])
    Parser.collecting = True
    try:
        module.main(["--help"])
    except Collected as found:
        return found.parser
    finally:
        Parser.collecting = False
    raise AssertionError(f"fsguard {command} has no parser")


def task_id(text: str) -> str:
    """A task ID as given on a command line: not empty, one line, printable, at most 200."""
    if not text or len(text) > 200 or not text.isprintable():
        raise argparse.ArgumentTypeError("a task ID is 1 to 200 printable characters")
    return text
