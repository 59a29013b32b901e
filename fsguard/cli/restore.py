"""fsguard restore: a kept version back where it was, or somewhere else."""

from __future__ import annotations

import os

from fsguard.cli import kept, putback, terminal, where
from fsguard.cli.base import Parser
from fsguard.control.client import Client
from fsguard.errors import FsguardError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fsguard.control.registry import Mount

__all__ = ["main", "remarks", "restored", "settled", "undoing"]


def main(argv: list[str]) -> int:
    parser = Parser(
        "restore",
        "Bring a kept version back: bytes, mode, time, extended attributes, symlinks, and the owner where\n"
        "permitted. It takes the file's place in one step, as a write of yours; what is there now is kept\n"
        "before, and the command that undoes it is printed. Missing directories are made.",
        [
            "fsguard restore src/app.py@812",
            "fsguard restore src/app.py@812 --to src/app.old.py",
            "fsguard restore --version 3 odd@1",
        ],
        [
            (0, "it is back (or was so already)"),
            (1, "it was not kept, or cannot be put there; nothing was changed"),
            (2, "no such version, or a wrong flag"),
            3,
            (4, "the guard refused the write (a lease, or the policy block)"),
            6,
            7,
        ],
    )
    parser.add_argument("what", metavar="PATH@VERSION", help="`fsguard versions PATH` lists the versions")
    parser.add_argument(
        "--to", metavar="FILE", help="put it there instead; outside the workspace only if new"
    )
    kept.version_flag(parser)
    parser.workspace_flag()
    parser.json_flag()
    args = parser.parse(argv)
    path, version = kept.split(args.what, args.version)
    if version is None:
        raise UsageError(f"which version? PATH@VERSION; {kept.command('versions', path)} lists them")
    place = kept.Place(args.workspace, path)
    with Client(place.mount) as client:
        row = kept.find(client, place, version)
        facts, outcome = restored(client, place, row, args.to)
    if args.json:
        terminal.print_json(facts)
        return 0
    name = terminal.shown(facts["restored_to"])
    if outcome["same"]:
        print(f"{name} is as it was in version {row['version']} already")
    else:
        print(f"{name}: version {row['version']} is back ({kept.author(row)}, {kept.size(row['size'])})")
        print(f"  to undo: {facts['undo']}")
    for remark in remarks(outcome):
        terminal.note(f"{name}: {remark}")
    if facts["resolved"] and not row["resolved"]:
        print("  the conflict over it counts as resolved")
    return 0


def restored(
    client: Client, place: kept.Place, row: Any, to: str | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Bring a version back to its place, or `to` another: (what `--json` prints, the outcome)."""
    if to is None:
        top, target, inside = place.mount.mountpoint, place.path, True
    else:
        top, target, inside = _target(place.mount, to, os.path.basename(place.path))
    outcome = putback.bring_back(client, top, row, target, keeps=inside)
    resolved = to is None and settled(client, [row])
    shown = kept.typed(place.mount, target) if inside else target
    before = outcome["before"]
    facts = {
        **row,
        "restored_to": shown,
        "changed": not outcome["same"],
        "before": before["version"] if before else None,
        "unrestored": outcome["unrestored"],
        "resolved": row["resolved"] or resolved,
        "undo": undoing(shown, outcome),
    }
    return facts, outcome


def undoing(shown: str, outcome: dict[str, Any]) -> str | None:
    """The command that takes a restore back; None when it changed nothing."""
    if outcome["same"]:
        return None
    before = outcome["before"]
    if before is None:
        return kept.shell("rm", "--", shown)
    return kept.command("restore", shown, before["version"])


def remarks(outcome: dict[str, Any]) -> list[str]:
    """What else the user should know."""
    found = []
    if outcome["unrestored"]:
        found.append(f"could not be brought back with it: {terminal.shown(', '.join(outcome['unrestored']))}")
    if outcome["names"] > 1 and not outcome["same"]:
        found.append(f"it had {outcome['names']} names (hard links); the others still have the later content")
    return found


def settled(client: Client, rows: list[Any]) -> bool:
    """Say that the conflicts over these versions, now back in their place, are over."""
    ids = [row["id"] for row in rows if row["conflict"] and not row["resolved"]]
    if not ids:
        return False
    try:
        return bool(client.call("versions.resolved", ids=ids)["resolved"])
    except FsguardError as error:  # the bytes are back, that is what counts
        terminal.note(f"the conflict stays on record: {terminal.shown(error.message)}")
        return False


def _target(mount: Mount, given: str, name: str) -> tuple[str, str, bool]:
    """(the directory to start from, path, in the workspace?) for --to."""
    full = os.path.join(where.here(), given)
    if os.path.isdir(full):
        full = os.path.join(full, name)
    directory, last = os.path.split(full)
    if not last:
        raise UsageError(f"--to names a file, or a directory that exists: {given}")
    real = os.path.join(os.path.realpath(directory), last)
    inside = mount.relative(real)
    if inside is not None:
        return mount.mountpoint, inside, True
    if os.path.lexists(real):
        raise UsageError(
            f"{given} exists, and nothing keeps what is outside the workspace", "name a new file"
        )
    return "/", real, False
