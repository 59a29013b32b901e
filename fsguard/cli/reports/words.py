"""Others' words and times, as HTML: escaped, cut, and on the local clock."""

from __future__ import annotations

from datetime import datetime
from html import escape

from fsguard.cli import terminal
from fsguard.cli.reports.records import moment
from fsguard.cli.status import duration

__all__ = ["clock", "day", "lines", "more", "offset", "span", "text", "when"]


def text(words: object, limit: int = 300) -> str:
    """On one line: what does not simply print is spelled out, what HTML means something by is escaped."""
    return escape(terminal.cut(words, limit))


def lines(words: str) -> str:
    """The same with its line ends."""
    return escape(terminal.shown(words, lines=True))


def day(time: float) -> str:
    return f"{datetime.fromtimestamp(time):%Y-%m-%d}"


def clock(time: float, fine: bool = False, dated: bool = False) -> str:
    local = datetime.fromtimestamp(time)
    shown = f"{local:%H:%M:%S}" + (f".{local.microsecond // 1000:03}" if fine else "")
    return f"{local:%Y-%m-%d} {shown}" if dated else shown


def offset(time: float) -> int:
    """Seconds that the clock here was ahead of UTC."""
    ahead = datetime.fromtimestamp(time).astimezone().utcoffset()
    return round(ahead.total_seconds()) if ahead is not None else 0


def when(time: str | None) -> str:
    """A time of the daemon's (RFC 3339), as the clock here shows it; "" for none."""
    if time is None:
        return ""
    try:
        return f"{datetime.fromtimestamp(moment(time)):%Y-%m-%d %H:%M:%S}"
    except (ValueError, TypeError, OverflowError):
        return text(time, 40)


def span(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else duration(seconds)


def more(count: int, most: int, name: str) -> str:
    """What a table says below itself when it is not the whole."""
    if count <= most:
        return ""
    return (
        f'<p class="soft">These are {most:,} of {count:,} {name};'
        " <code>fsguard report --format json</code> has them all.</p>\n"
    )
