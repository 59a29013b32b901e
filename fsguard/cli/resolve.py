"""fsguard resolve: one conflict, by a three-way merge or by choosing a side.

base is what the task had read, theirs what the sibling wrote (the kept version),
ours what the task wrote: the file as it is now. The daemon merges; what is to be
written is written here, as a write of the caller's.
"""

from __future__ import annotations

from fsguard.cli import kept, putback, terminal, textdiff
from fsguard.cli.base import Parser
from fsguard.cli.restore import remarks, undoing
from fsguard.control.client import Client
from fsguard.errors import BusyError, FsguardError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["main"]


class Plan:
    """What would be in the file. `ours` was there when it was looked at. `data` None:
    the kept version itself, with its attributes. `conflicts` is how many places
    have markers; `merged` is False where a side was taken as a whole."""

    def __init__(self, ours: bytes, data: bytes | None, conflicts: int = 0, merged: bool = False) -> None:
        self.ours = ours
        self.data = data
        self.conflicts = conflicts
        self.merged = merged


def main(argv: list[str]) -> int:
    parser = Parser(
        "resolve",
        "Settle a conflict over PATH (the newest one, unless a version is named): merge what the sibling\n"
        "wrote (theirs, the kept version) with what is there now (ours), on what the task had read (base).\n"
        "Without --apply it is shown what would be written; on a terminal, a merge without conflicts is\n"
        "asked about. What is there now is kept before, and the command that undoes it is printed.",
        [
            "fsguard resolve src/app.py",
            "fsguard resolve --apply src/app.py",
            "fsguard resolve src/app.py@812 --theirs --apply",
            "fsguard resolve src/app.py --stdout > merged.py",
        ],
        [
            (0, "merged, or the side was taken (and written, with --apply)"),
            (1, "there are conflict markers, or it cannot be merged: choose a side"),
            (2, "no such conflict, or a wrong flag"),
            3,
            (4, "the file was changed meanwhile, or the guard refused the write"),
            6,
            7,
        ],
    )
    parser.add_argument("what", metavar="PATH[@VERSION]")
    side = parser.add_mutually_exclusive_group()
    for name, text in (
        ("ours", "where both changed it, what is there now"),
        ("theirs", "where both changed it, what the sibling wrote"),
        ("union", "where both changed it, both"),
    ):
        side.add_argument(f"--{name}", dest="mode", action="store_const", const=name, help=text)
    parser.add_argument("--apply", action="store_true", help="write it, conflict markers included")
    parser.add_argument("--stdout", action="store_true", help="the merged bytes on stdout")
    kept.version_flag(parser)
    parser.workspace_flag()
    parser.json_flag()
    args = parser.parse(argv)
    if args.stdout and args.json:
        raise UsageError("--stdout or --json, not both", "--json has the bytes too")
    path, version = kept.split(args.what, args.version)
    place = kept.Place(args.workspace, path)
    with Client(place.mount) as client:
        row = _conflict(client, place, version)
        with putback.Present(place.mount.mountpoint, place.path) as present:
            plan = _plan(client, row, present, args.mode, place)
            return _carry_out(client, row, present, plan, args, place)


def _conflict(client: Client, place: kept.Place, version: int | None) -> Any:
    if version is not None:
        return kept.find(client, place, version)
    for path in (place.path, place.from_top()):
        rows = client.call("versions.list", path=path, limit=1000) if path is not None else []
        for row in rows:
            if row["conflict"] and not row["resolved"]:
                if path != place.path:
                    terminal.note(f"{terminal.shown(place.given)} is taken from the workspace's top")
                    place.path = str(path)
                return row
    raise UsageError(
        f"no unresolved conflict over {terminal.shown(place.path)}",
        "`fsguard conflicts` lists those there are",
    )


# ---- what would be written ---------------------------------------------------------------------


def _plan(client: Client, row: Any, present: putback.Present, mode: str | None, place: kept.Place) -> Plan:
    present.replaceable()
    if mode != "ours":
        kept.need_kept(row)
    reason = None
    if present.kind == "absent":
        reason = f"{terminal.shown(row['path'])} is not there any more, there is nothing to merge"
    elif "symlink" in (present.kind, row["kind"]):
        reason = f"{terminal.shown(row['path'])} is a symlink, it cannot be merged"
    ours = present.read()
    if reason is None and row["kept"]:
        try:
            merge = client.call("versions.merge", id=row["id"], mode=mode)
        except UsageError as error:
            reason = error.message  # no text, say: a side can be taken all the same
        else:
            if merge["base"]:
                import binascii

                return Plan(ours, binascii.a2b_base64(merge["data"]), merge["conflicts"], True)
            reason = f"what {_task(row)} had read is not kept, so there is nothing to merge on"
    if mode == "ours":
        return Plan(ours, ours)
    if mode == "theirs":
        return Plan(ours, None)
    options = [
        f"{kept.command('resolve', place.typed, row['version'], '--theirs', '--apply')}: what"
        f" {kept.author(row)} wrote ({kept.size(row['size'])})",
        f"{kept.command('resolve', place.typed, row['version'], '--ours', '--apply')}: leave it as it is now",
    ]
    raise FsguardError(reason or "it was not merged", "\n".join(options))


def _task(row: Any) -> str:
    return terminal.cut(row["task"], 40) if row["task"] is not None else "who destroyed it"


# ---- writing it ----------------------------------------------------------------------------------


def _carry_out(
    client: Client, row: Any, present: putback.Present, plan: Plan, args: Any, place: kept.Place
) -> int:
    if args.stdout:
        kept.write_out(kept.content(client, row) if plan.data is None else plan.data)
    apply = args.apply
    if not (apply or args.json or args.stdout):
        _preview(client, row, present, plan)
        if not plan.conflicts:
            apply = bool(kept.ask(f"write it to {terminal.shown(place.typed)}?"))
    outcome = _write(client, row, present, plan) if apply else None
    resolved = apply and bool(client.call("versions.resolved", ids=[row["id"]])["resolved"])
    if args.json:
        _print_json(client, row, plan, outcome, resolved, place)
    elif outcome is not None:
        _tell(row, plan, outcome, place, args.stdout)
    elif not args.stdout:
        _advise(plan, place, row)
    return 1 if plan.conflicts else 0


def _write(client: Client, row: Any, present: putback.Present, plan: Plan) -> dict[str, Any]:
    if plan.data is None:
        return putback.bring_back(client, present.top, row, present.path)
    names = present.stat.st_nlink if present.stat is not None else 0
    outcome: dict[str, Any] = {"same": False, "before": None, "unrestored": [], "names": names}
    if plan.data == plan.ours or present.kind != "file":
        return outcome | {"same": True}
    with putback.Present(present.top, present.path) as again:
        if again.kind != "file" or again.read() != plan.ours:
            raise BusyError(
                f"{terminal.shown(present.path)} was changed while it was merged; nothing was written",
                "run it again, on what is there now",
            )
    try:
        outcome["before"] = putback.keep(client, present.path)
        outcome["unrestored"] = putback.put(present.top, present.path, [plan.data], present.attributes())
    except OSError as error:
        raise putback.trouble(error, present.path) from None
    return outcome


# ---- saying it -----------------------------------------------------------------------------------


def _preview(client: Client, row: Any, present: putback.Present, plan: Plan) -> None:
    name = terminal.shown(present.path)
    print(_summary(row, plan))
    if client.call("versions.diffable", path=present.path)["secret"]:
        print("(not shown: it looks like a secret; --stdout has it)")
        return
    old = plan.ours
    new = kept.content(client, row) if plan.data is None else plan.data
    if textdiff.binary(old) or textdiff.binary(new):
        print(f"(binary: {kept.size(len(old))} now, {kept.size(len(new))} then)")
    elif old == new:
        print("(the file would stay as it is)")
    else:
        textdiff.show(textdiff.unified(old, new, f"{name}\tnow", f"{name}\tmerged"))


def _summary(row: Any, plan: Plan) -> str:
    """What was merged, or which side was taken."""
    if plan.data is None:
        return f"what {kept.author(row)} wrote, as it was"
    if not plan.merged:
        return "the file as it is now"
    parts = f"what {kept.author(row)} wrote and what is there now"
    if plan.conflicts:
        return f"{parts}, merged, with {_places(plan.conflicts)} to settle by hand"
    return f"{parts}, merged without conflicts"


def _places(count: int) -> str:
    return f"{count} conflict{'' if count == 1 else 's'}"


def _advise(plan: Plan, place: kept.Place, row: Any) -> None:
    again = kept.command("resolve", place.typed, row["version"])
    if plan.conflicts:
        terminal.note(f"nothing was written. {again} --ours, --theirs or --union decides for you;")
        terminal.note("--apply writes it with conflict markers")
    else:
        terminal.note(f"nothing was written. To write it: {again} --apply, with the same flags")


def _tell(row: Any, plan: Plan, outcome: dict[str, Any], place: kept.Place, quiet: bool) -> None:
    name = terminal.shown(place.typed)
    lines = [f"{name}: {_summary(row, plan)}"]
    undo = undoing(place.typed, outcome)
    lines.append(f"  to undo: {undo}" if undo else "  the file stays as it is")
    for line in lines:
        if quiet:
            terminal.note(line.strip())
        else:
            print(line)
    for remark in remarks(outcome):
        terminal.note(f"{name}: {remark}")
    if plan.conflicts:
        terminal.note(f"{name} has conflict markers now, in {_places(plan.conflicts)}: edit it")


def _print_json(
    client: Client, row: Any, plan: Plan, outcome: dict[str, Any] | None, resolved: bool, place: kept.Place
) -> None:
    import binascii

    data = kept.content(client, row) if plan.data is None else plan.data
    before = outcome["before"] if outcome else None
    terminal.print_json(
        {
            **row,
            "clean": plan.conflicts == 0,
            "conflicts": plan.conflicts,
            "base": plan.merged,
            "data": binascii.b2a_base64(data, newline=False).decode(),
            "applied": outcome is not None,
            "resolved": bool(row["resolved"]) or resolved,
            "before": before["version"] if before else None,
            "undo": undoing(place.typed, outcome) if outcome else None,
        }
    )
