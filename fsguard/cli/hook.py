"""fsguard hook: answers one event of an agent tool. The tools' hooks call it, at every tool call."""

from __future__ import annotations

from fsguard.hooks import GIT, TOOLS

__all__ = ["main"]


def main(argv: list[str]) -> int:
    if len(argv) == 1 and argv[0] in TOOLS:  # no parser: it takes as long as the answer
        from fsguard.hooks import runner

        runner.run(argv[0])
    if argv == [GIT]:
        from fsguard.hooks import precommit

        return precommit.run()
    return _explained(argv)


def _explained(argv: list[str]) -> int:
    from fsguard.cli import terminal
    from fsguard.cli.base import Parser
    from fsguard.errors import UsageError

    parser = Parser(
        "hook",
        "Answer an event of an agent tool: JSON on stdin, that tool's JSON on stdout, nothing at all when\n"
        "there is nothing to say. `fsguard hooks install TOOL` makes the tool call it. It never fails an\n"
        "agent's turn: no workspace, no daemon, nonsense on stdin or more than 1.5 s are exit code 0\n"
        f"without a word. {GIT} is what a repository's pre-commit hook calls.",
        ["fsguard hook claude-code < event.json", f"FSGUARD_TASK=A fsguard hook {GIT}"],
        [
            (0, "the answer, or nothing to say"),
            (1, f"a wrong tool (2 would stop the agent's turn); for {GIT}: the policy blocks this commit"),
        ],
    )
    parser.add_argument("tool", metavar="TOOL", choices=[*TOOLS, GIT], help=", ".join([*TOOLS, GIT]))
    try:
        parser.parse(argv)
    except UsageError as error:
        terminal.complain(error)
    return 1
