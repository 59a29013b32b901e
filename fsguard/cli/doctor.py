"""fsguard doctor: what this machine has and lacks, and how to get it.

Runs where nothing is installed yet: standard library only; pyfuse3 and the
rest are tried in another process.
"""

from __future__ import annotations

from fsguard.cli import machine, terminal
from fsguard.cli.base import Parser
from fsguard.cli.packages import install_command
from fsguard.errors import MissingError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fsguard.cli.machine import Finding

__all__ = ["main"]

_COLOURS = {"ok": "green", "missing": "red", "note": "yellow"}


def main(argv: list[str]) -> int:
    parser = Parser(
        "doctor",
        "Looks for all that fsguard needs on this machine, as this user, and says how to get what is\n"
        "missing. What is merely good to have is a note.",
        ["fsguard doctor", "fsguard doctor --json | jq '.[] | select(.state != \"ok\")'"],
        [(0, "the main job can be done"), 2, (MissingError.exit_code, "something needed is missing")],
    )
    parser.json_flag()
    args = parser.parse(argv)
    findings = machine.examine()
    missing = [finding for finding in findings if finding.state == "missing"]
    if args.json:
        terminal.print_json([finding.as_dict() for finding in findings])
    else:
        for finding in findings:
            _print(finding)
        print()
        packages = install_command(name for finding in missing for name in finding.packages)
        if not missing:
            print("Everything needed is here.")
        else:
            print(f"Missing: {', '.join(finding.name for finding in missing)}.")
        if packages:
            print(f"To install: {packages}")
    return MissingError.exit_code if missing else 0


def _print(finding: Finding) -> None:
    state = terminal.paint(f"{finding.state:<8}", _COLOURS[finding.state])
    print(f"{state}{finding.name}: {terminal.shown(finding.detail)}")
    if finding.state != "ok" and finding.hint:
        print(f"        {terminal.shown(finding.hint)}")
