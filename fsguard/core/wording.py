"""Warnings as sentences: what an agent, or a person, reads.

A sentence states facts: the path, who changed it, with which command, both
times, what that means and what to do next. Words that come from another task
(names, commands, file names) are data: quoted, escaped and cut, so that they
can neither drive a terminal nor pass for an instruction.
"""

from __future__ import annotations

import shlex
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import lru_cache

from fsguard.core.leases import Lease
from fsguard.core.model import Act, Kept, Kind, Write
from fsguard.core.rules import Finding

__all__ = ["clock", "quote", "reminder", "reverted", "rfc3339", "sentence", "show_path"]

MAX_QUOTED = 120
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def rfc3339(t: float) -> str:
    """`t` (seconds since the epoch) as RFC 3339 in local time, with microseconds."""
    whole = int(t // 1)
    micro = round((t - whole) * 1e6)
    if micro == 1_000_000:
        whole, micro = whole + 1, 0
    second, zone = _second(whole)
    return f"{second}.{micro:06}{zone}"


@lru_cache(maxsize=4096)
def _second(whole: int) -> tuple[str, str]:
    """A log has fifty thousand times, and many of each second."""
    text = datetime.fromtimestamp(whole).astimezone().isoformat()
    return text[:19], text[19:]


def clock(t: float, now: float | None = None) -> str:
    """Time of day for a sentence; agents and people compare it with their own logs.

    With the date, unless it is the day of `now`: a mount may live for weeks.
    """
    then = datetime.fromtimestamp(t)
    today = now is None or then.date() == datetime.fromtimestamp(now).date()
    return then.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S")


def quote(text: str, limit: int = MAX_QUOTED) -> str:
    """Foreign words made harmless: escaped, cut and in double quotes."""
    out = []
    for ch in text[: limit + 1]:
        if ch in '"\\':
            out.append("\\" + ch)
        elif ch == "\n":
            out.append("\\n")
        elif unicodedata.category(ch) in _UNSAFE:
            code = ord(ch)
            if 0xDC80 <= code <= 0xDCFF:
                out.append(f"\\x{code - 0xDC00:02x}")
            else:
                out.append(f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
        else:
            out.append(ch)
    cut = "…" if len(text) > limit else ""
    return '"' + "".join(out[:limit]) + cut + '"'


def show_path(path: bytes) -> str:
    """A file name for a sentence: bare when it is plain, quoted when it is not."""
    text = path.decode("utf-8", "surrogateescape")
    quoted = quote(text, 240)
    plain = quoted[1:-1] == text and " " not in text
    return text if plain else quoted


def command(name: str, path: bytes, version: int | None = None) -> str:
    """A command of ours about `path`, to be pasted into a shell: a file name stays one word there.

    An agent will run what it reads here, whoever has chosen the name.
    """
    text = path.decode("utf-8", "surrogateescape")
    if text.startswith("-"):
        text = "./" + text
    if version is not None:
        text += f"@{version}"
    if any(unicodedata.category(ch) in _UNSAFE for ch in text):
        return f"`fsguard {name} $'{''.join(map(_ansi_c, text))}'`"
    return f"`fsguard {name} {shlex.quote(text)}`"


def _ansi_c(ch: str) -> str:
    code = ord(ch)
    if ch in "'\\":
        return "\\" + ch
    if unicodedata.category(ch) not in _UNSAFE:
        return ch
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x80 else f"\\U{code:08x}"


def _who(write: Write, now: float | None) -> str:
    if write.task is None:
        return f"{quote(write.process.name or 'a process', 40)} (pid {write.process.pid or '?'}, no task)"
    task = write.task
    about = [quote(task.name, 40)] if task.name else []
    if task.intent or task.doing:
        about.append(f"working on {quote(task.intent or task.doing or '', 100)}")
    if task.ended is not None:
        about.append(f"ended at {clock(task.ended, now)}")
    return f"task {quote(task.id, 80)}" + (f" ({', '.join(about)})" if about else "")


def _authors(writes: Sequence[Write]) -> list[Write]:
    """One write of each author, newest first."""
    seen: dict[object, Write] = {}
    for w in writes:
        seen.setdefault(w.author if w.task is not None else w.process, w)
    return list(seen.values())


_DID = {
    Act.DELETE: "deleted",
    Act.MOVE_AWAY: "moved away",
    Act.REPLACE: "replaced",
    Act.CREATE: "made",
    Act.TRUNCATE: "rewrote",
    Act.WRITE: "changed",
    Act.APPEND: "appended to",
}


def _did(write: Write, what: str, now: float | None) -> str:
    return f"{_who(write, now)} {what} at {clock(write.time, now)} with {quote(write.command.text)}"


def _changes(path: str, writes: Sequence[Write], now: float | None) -> str:
    authors = _authors(writes)
    text = _did(authors[0], f"{_DID[authors[0].act]} {path}", now)
    if len(authors) > 1:
        text += ", and so did " + " and ".join(_who(w, now) for w in authors[1:4])
        if len(authors) > 4:
            text += f" and {len(authors) - 4} more"
    return text


def _also(more: int) -> str:
    return f" The same holds for {more} more path{'s' if more > 1 else ''}." if more else ""


_ACT = {
    Act.WRITE: "writes over",
    Act.APPEND: "appends to",
    Act.TRUNCATE: "rewrites",
    Act.REPLACE: "replaces",
    Act.DELETE: "deletes",
    Act.MOVE_AWAY: "moves away",
    Act.CREATE: "re-creates",
}


def _read(finding: Finding, path: str, now: float | None) -> str:
    if finding.read_time is None:
        return f"you never read {path}"
    return f"you last saw it at {clock(finding.read_time, now)}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def sentence(
    finding: Finding,
    path: bytes,
    text: str,
    refused: bool,
    more: int = 0,
    waited: float | None = None,
    link: bool = False,
    now: float | None = None,
) -> str:
    """The warning for `finding`; `more` counts further paths. `now`: when it is said.

    `text` is the warned task's own; empty: it is only asked what would be.

    `waited`: for a collision, the seconds for which the turn was waited for in vain.
    `link`: it is a symlink, which is looked at by readlink(2).
    """
    p = show_path(path)
    mine = quote(text) if text else "a write now"
    does, read = _ACT[finding.act], _read(finding, p, now)
    if finding.kind is Kind.PARTIAL_VIEW:
        return f"{mine} {does} {p} as a whole; {read}, and only a part of it.{_also(more)}"
    if finding.kind is Kind.CONCURRENT_WRITE:
        return _collision(finding, path, mine, refused, waited, now) + _also(more)
    first = _changes(p, finding.writes, now)
    if finding.kind is Kind.STALE_VIEW:
        return (
            f"{first}; {read}. {mine} worked on the newer version, but what you remember of {p} is"
            f" old: read it again before you edit it.{_also(more)}"
        )
    if finding.kind is Kind.LOST_UPDATE:
        when = clock(finding.read_time, now) if finding.read_time is not None else "an earlier time"
        what = f"{mine} read {p} at {when} and {does} it from that old copy"
    elif finding.kind is Kind.RESURRECTED:
        what = f"{_capital(read)}; {mine} {does} it"
    else:
        what = f"{_capital(read)}; {mine} {does} that version unseen"
    if refused:
        look = f"See where {p} leads (`readlink`)" if link else f"Read {p} first"
        return f"{first}. {what}: refused, nothing was changed. {look}, then do it again.{_also(more)}"
    see = command("who", path)
    look = f"See where {p} leads" if link else f"Read {p} again"
    return f"{first}. {what}. {look} and put back what is missing; see {see}.{_also(more)}"


def _writing(write: Write, path: str, now: float | None) -> str:
    """Who holds the turn; of a turn that is over (`version` tells it apart), what was written in it."""
    if write.version:
        return _did(write, f"{_DID[write.act]} {path}", now)
    since = f"since {clock(write.time, now)}, with {quote(write.command.text)}"
    return f"{_who(write, now)} is writing {path} ({since})"


def _collision(
    finding: Finding, path: bytes, mine: str, refused: bool, waited: float | None, now: float | None
) -> str:
    p = show_path(path)
    first = _writing(finding.writes[0], p, now)
    does = _ACT[finding.act]
    if waited is not None:
        text = f"{first}; {mine} waited {waited:g} s for its turn in vain"
        if not waited:
            text = f"{first}, and waits for what {mine} holds: neither could go on"
        if refused:
            return f"{text}: refused, nothing was changed. Try again when it is done; see `fsguard status`."
        text += f", and {'it' if waited else mine} goes on without"
    elif refused:
        return f"{first}; {mine} {does} it: refused, nothing was changed. Try again when it is done."
    else:
        text = f"{first}; {mine} {does} it at the same time"
    return f"{text}. The two may be mixed or one of them lost: read {p} again; see {command('who', path)}."


def collided(path: bytes, act: Write, mine: Write, more: int = 0) -> str:
    """To the one who was writing: somebody else did something to the same file meanwhile."""
    p = show_path(path)
    return (
        f"{_did(act, f'{_DID[act.act]} {p}', act.time)} while your {quote(mine.command.text)} was writing it."
        f" The two may be mixed or one of them lost: read {p} again; see {command('who', path)}.{_also(more)}"
    )


def waited(path: bytes, text: str, holder: Write, seconds: float, more: int = 0) -> str:
    """A note: how long a write waited, and for whom."""
    p = show_path(path)
    return f"{quote(text)} waited {seconds:.1f} s until {_who(holder, None)} had written {p}.{_also(more)}"


def leased(
    path: bytes, text: str, lease: Lease, since: float, until: float, waited: float, now: float, more: int = 0
) -> str:
    """A refusal: who holds the lease, why, since when, until when, and what can be done."""
    p = show_path(path)
    why = f" ({quote(lease.reason)})" if lease.reason else ""
    wait = f" waited {waited:.1f} s and" if waited >= 0.1 else ""
    return (
        f"Task {quote(lease.task.id, 80)} has a lease on {p}{why} since {clock(since, now)}, until"
        f" {clock(until, now)} unless it goes on writing; {quote(text)}{wait} was refused, nothing was"
        f" changed. Try again later, or ask for it: {command('lease request', path)};"
        f" `fsguard lease release {lease.id} --force` takes it.{_also(more)}"
    )


def asked_for(lease: Lease, asker: str, reason: str) -> str:
    """To a lease's holder: somebody else needs the paths."""
    why = f" ({quote(reason)})" if reason else ""
    what = ", ".join(quote(x) for x in lease.patterns.lines[:4])
    return (
        f"Task {quote(asker, 80)} asks for what your lease {lease.id} covers, {what}{why}."
        f" `fsguard lease release {lease.id}` gives it back."
    )


def remedy(path: bytes, kept: Kept) -> str:
    """How to bring back what was destroyed, or why that can't be done."""
    if kept.reason is not None:
        return f" What was there is not kept: {kept.reason}."
    return f" {command('restore', path, kept.number)} brings back what was there."


def reverted(path: bytes, act: Write, victim: Write, deleted: bool, more: int = 0) -> str:
    """To the victim: what it wrote was put back to an earlier content, or deleted."""
    p = show_path(path)
    if deleted:
        what = _did(act, f"{'moved away' if act.act is Act.MOVE_AWAY else 'deleted'} {p}", act.time)
    else:
        what = _did(act, f"put {p} back to an earlier content", act.time)
    return (
        f"{what}. What you wrote there at {clock(victim.time, act.time)} is gone. Look at {p} before you"
        f" build on it; see {command('who', path)}.{_also(more)}"
    )


def reminder(child: str, paths: Iterable[bytes]) -> str:
    """To a parent, when a child ends: what it changed of what the parent had read."""
    listed = [show_path(p) for p in paths]
    shown = ", ".join(listed[:8]) + (f", +{len(listed) - 8} more" if len(listed) > 8 else "")
    return f"Task {quote(child, 80)} has ended; it changed what you had read: {shown}. Read it again first."
