"""What has to be told, derived from the meaning of the warnings and not from the guard's code.

The model is told what every process really did, act by act: which content it
took in, which content it left. From that it knows who had seen what, whose
work stood in a file, and what each act destroyed. It has no bounds, no
grouping, no sentences and no clock; acts are numbered.

`Oracle.must` are the conflicts that have to be told, `Oracle.may` those that
may be (where only the writer knows whether its new content still holds what
others wrote), `Oracle.notes` the notes that have to be told.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import NamedTuple

__all__ = ["Finding", "Oracle", "Who", "kind_class"]

OVERWRITE = "overwrite"
REMEMBERED = 5  # so many earlier contents and deeds of a path are surely remembered


class Finding(NamedTuple):
    """One conflict or note: who is told, about which path, what, and whose doing it was."""

    task: str
    path: str
    kind: str
    sibling: str | None


class Missed(NamedTuple):
    """What a task has not seen, the latest last."""

    kind: str
    deeds: list[Deed]


def kind_class(kind: str) -> str:
    """stale_write and lost_update differ in who is judged (task, process), not in what is lost."""
    return OVERWRITE if kind in ("stale_write", "lost_update") else kind


@dataclass(frozen=True)
class Who:
    """A process: its task (None: a person), its command, and the processes above it."""

    task: str | None
    command: int
    process: int
    above: tuple[int, ...] = ()

    def kin(self, other: Who) -> bool:
        return self.process == other.process or self.process in other.above or other.process in self.above


@dataclass(frozen=True)
class Deed:
    """One change of the content of one path."""

    number: int
    who: Who
    gone: bool = False
    appended: bool = False
    made: bool = False  # there was nothing before

    @property
    def task(self) -> str | None:
        return self.who.task


@dataclass(frozen=True)
class Picture:
    """What a task last saw of a path: everything up to deed `number`; `before` this command: up to that."""

    number: int
    there: bool
    command: int
    before: int | None
    noted: int = 0
    blind: bool = False
    process: Who | None = None
    came: int = 0  # with that rename, along with the deeds up to there
    act: int = 0  # when
    doubt: int = 0  # it may know all, what it missed being forgotten: now (2), or `before` (1)

    def carried(self, current: int, number: int) -> Picture:
        """Under another name, where what was deed `current` is deed `number`."""
        before = number if self.before is not None and self.before >= current else self.before
        noted = number if self.noted >= current else self.noted
        seen = number if self.number >= current else self.number
        return replace(self, number=seen, before=before, noted=noted, came=number)


@dataclass
class Name:
    """A path and its past."""

    deeds: list[Deed] = field(default_factory=list)
    pictures: dict[str, Picture] = field(default_factory=dict)
    contents: list[tuple[int, bytes]] = field(default_factory=list)
    owners: dict[bytes, Deed | None] = field(default_factory=dict)
    alive: list[Deed] = field(default_factory=list)
    brought: dict[Deed, int] = field(default_factory=dict)  # by which command, to a name that was free
    was_alive: dict[int, list[Deed]] = field(default_factory=dict)
    hidden: dict[Deed, set[str | None]] = field(default_factory=dict)  # from whom
    unsure: set[int] = field(default_factory=set)  # contents that went with their directory, unread
    replaced: set[Deed] = field(default_factory=set)  # deletions by a command that then made it anew
    came: dict[Deed, int] = field(default_factory=dict)  # by a rename, which was that deed
    back: dict[Deed, int] = field(default_factory=dict)  # so too, where it had been perhaps too long ago
    over: set[Deed] = field(default_factory=set)  # the file that they were in is gone
    cleared: tuple[Who, list[Deed]] | None = None  # by whom, and what it knew of the content
    laid: set[Deed] = field(default_factory=set)  # they came with a file that took the place of another
    doubtful: set[Deed] = field(default_factory=set)  # back with such a content
    perhaps: dict[int, set[Deed]] = field(default_factory=dict)  # doubtful ones of `was_alive`
    loose: set[Deed] = field(default_factory=set)  # with such a content they came back into the file
    vague: set[Deed] = field(default_factory=set)  # so, perhaps, they came along when it was renamed
    returned: dict[Deed, int] = field(default_factory=dict)  # by a rename, from another name, with that deed

    @property
    def number(self) -> int:
        return self.deeds[-1].number if self.deeds else 0

    def seen_by(self, task: str) -> list[Deed]:
        """What is news to `task`, if it has not seen it."""
        return [d for d in self.deeds if task not in self.hidden.get(d, ())]

    def since(self, deed: Deed) -> int:
        """From which deed on it has been part of what is called so."""
        return self.came.get(deed, deed.number)

    def after(self, deed: Deed, number: int, came: int = 0) -> bool:
        """Is it news to who knows what is called so up to `number`, and what had come with `came`?"""
        return deed.number > number or self.came.get(deed, 0) > max(number, came)

    def copy(self) -> Name:
        return Name(
            list(self.deeds),
            dict(self.pictures),
            list(self.contents),
            dict(self.owners),
            list(self.alive),
            dict(self.brought),
            dict(self.was_alive),
            {d: set(tasks) for d, tasks in self.hidden.items()},
            set(self.unsure),
            set(self.replaced),
            dict(self.came),
            dict(self.back),
            set(self.over),
            self.cleared,
            set(self.laid),
            set(self.doubtful),
            dict(self.perhaps),
            set(self.loose),
            set(self.vague),
            dict(self.returned),
        )


@dataclass
class Pending:
    """A path that a command deleted and may still make anew."""

    who: Who
    deed: Deed
    before: Name
    content: bytes | None  # None: it went with its directory, unread
    must: set[str]
    may: set[str]
    known: int
    said: list[Finding]
    view: Missed | None
    perhaps: bool  # something else may have been said instead of `view`


def tokens(content: bytes) -> list[bytes]:
    """Content is a row of marks of eight bytes, each written once in a world."""
    return [content[i : i + 8] for i in range(0, len(content), 8)]


class Oracle:
    """:param parents: task → parent.
    :param watched: there are tasks from the beginning.
    """

    def __init__(self, parents: dict[str, str] | None = None, watched: bool = True) -> None:
        self.parents = parents or {}
        self.files: dict[str, list[bytes]] = {}  # one-element lists: names of one file share theirs
        self.names: dict[str, Name] = {}
        self.memory: dict[tuple[int, str], int] = {}  # what a process itself has taken in
        self.pending: dict[str, Pending] = {}
        self.number = 0
        self.acts = 0
        self.watched = watched
        self.must: list[Finding] = []
        self.may: list[Finding] = []
        self.notes: list[Finding] = []

    # -- questions -----------------------------------------------------------------

    def content(self, path: str) -> bytes | None:
        box = self.files.get(path)
        return box[0] if box is not None else None

    def name(self, path: str) -> Name:
        return self.names.setdefault(path, Name())

    def known_content(self, who: Who, path: str) -> bytes:
        """What the process would work from: what it read itself, else what its task last saw."""
        number = self._known(who, path)
        for n, content in reversed(self.name(path).contents):
            if n <= number:
                return content
        return b""

    def _known(self, who: Who, path: str) -> int:
        own = self.memory.get((who.process, path))
        if own is not None:
            return own
        picture = self.name(path).pictures.get(who.task or "")
        return picture.number if picture and picture.there and not picture.blind else -1

    def take(self) -> tuple[set[Finding], set[Finding], set[Finding]]:
        """(must, may, notes) since the last call."""
        result = set(self.must), set(self.may), set(self.notes)
        self.acts += 1
        self.must, self.may, self.notes = [], [], []
        return result

    def _related(self, a: str, b: str) -> bool:
        def line(t: str | None) -> Iterable[str]:
            while t is not None:
                yield t
                t = self.parents.get(t)

        return a in line(b) or b in line(a)

    # -- looks -----------------------------------------------------------------------

    def file(self, path: str, content: bytes) -> None:
        """It was there before anybody came."""
        self.files[path] = [content]
        self.name(path).contents.append((0, content))
        self.name(path).owners |= dict.fromkeys(tokens(content))

    def _same_file(self, path: str) -> list[str]:
        box = self.files[path]
        return [p for p, b in self.files.items() if b is box]

    def look(self, who: Who, path: str) -> None:
        """`who` reads the whole content of `path`, or finds that there is nothing to read."""
        self.watched = self.watched or who.task is not None
        if path not in self.files:
            name = self.name(path)
            if who.task is not None and who.task in name.pictures:
                self._see(who, name, there=False)
            return
        for p in self._same_file(path):
            self.memory[who.process, p] = self.name(p).number
            if who.task is not None:
                self._see(who, self.name(p), there=True)

    def _see(self, who: Who, name: Name, there: bool, wrote: bool = False) -> None:
        assert who.task is not None
        old = name.pictures.get(who.task)
        name.pictures[who.task] = Picture(
            name.number,
            there,
            who.command,
            self._before(old, who),
            name.number if wrote else (old.noted if old is not None and there else 0),
            process=who,
            came=old.came if old is not None else 0,
            act=self.acts,
            doubt=self._doubt(old, who),
        )

    @staticmethod
    def _doubt(old: Picture | None, who: Who) -> int:
        if old is None:
            return 0
        return int(old.doubt == 2 or (old.doubt == 1 and old.command == who.command))

    @staticmethod
    def _before(old: Picture | None, who: Who) -> int | None:
        if old is None or old.blind:
            return None
        return old.before if old.command == who.command else old.number

    # -- judging -----------------------------------------------------------------------

    def _judge(self, who: Who, path: str, *, gone: bool = False, append: bool = False) -> list[Finding]:
        """What is to be said before `who` changes `path`; conflicts are put on record."""
        if who.task is None:
            return []
        must, notes = len(self.must), len(self.notes)
        said = self._judge_picture(who, path, gone, append)
        name = self.name(path)
        picture = name.pictures.get(who.task)
        if picture is not None and picture.doubt:
            others = {d.task for d in name.seen_by(who.task)} - {who.task}
            kinds = ("stale_view",) if picture.doubt == 1 else ("stale_view", OVERWRITE, "external_write")
            self.may += [Finding(who.task, path, kind, t) for kind in kinds for t in others]
            self.may += self.notes[notes:]
            del self.notes[notes:]
            if picture.doubt == 2:
                self.may += self.must[must:]
                del self.must[must:]
        return said

    def _judge_picture(self, who: Who, path: str, gone: bool, append: bool) -> list[Finding]:
        assert who.task is not None
        name = self.name(path)
        picture = name.pictures.get(who.task)
        seen, came = (picture.number, picture.came) if picture is not None else (0, 0)
        news = [d for d in name.seen_by(who.task) if name.after(d, seen, came) and d.task != who.task]
        found: Missed | None = None
        if path not in self.files:
            if picture is not None and picture.there and news and news[-1].gone:
                found = Missed("external_write" if news[-1].task is None else "resurrected", news[-1:])
        elif not append:
            found = self._overwrite(who, path, news, picture, gone)
        if found is not None:
            return self._say(who, path, found, name.deeds, news)
        if path in self.files and not gone:
            view = self._view(who, path, append)
            if view is not None:
                self._say(who, path, view, name.deeds)
        return []

    def _say(
        self, who: Who, path: str, missed: Missed, deeds: list[Deed], others: Iterable[Deed] = ()
    ) -> list[Finding]:
        """Put it on record that `who` has missed some of what is, or was, there."""
        kind, news = missed
        findings = [Finding(str(who.task), path, kind, d.task) for d in news]
        if news[-1] in deeds[-REMEMBERED:] and news[-1] not in self.name(path).vague:
            (self.notes if kind == "stale_view" else self.must).append(findings[-1])
        else:  # forgotten, perhaps, or not there: then it is another one that is named, or nobody
            findings += [Finding(str(who.task), path, kind, d.task) for d in others]
            if kind == OVERWRITE:
                findings.append(Finding(str(who.task), path, "external_write", None))
            self.may += findings
        return findings

    def _view(self, who: Who, path: str, append: bool = False) -> Missed | None:
        """The note that `who`'s picture from before this command is old."""
        name = self.name(path)
        picture = name.pictures.get(who.task or "")
        if who.task is None or picture is None or picture.blind:
            return None
        before = picture.before if picture.command == who.command else picture.number
        if before is None:
            return None
        old = max(before, picture.noted)
        missed = [d for d in name.seen_by(who.task) if name.after(d, old, picture.came)]
        missed = [d for d in missed if d.task not in (None, who.task)]
        missed = [d for d in missed if not (append and d.appended)]
        return Missed("stale_view", missed) if missed else None

    def _overwrite(
        self, who: Who, path: str, news: list[Deed], picture: Picture | None, gone: bool
    ) -> Missed | None:
        assert who.task is not None
        name = self.name(path)
        own = self.memory.get((who.process, path))
        lost = [] if gone else self._lost(who, path)
        if lost:
            return Missed(OVERWRITE, lost)
        if not news or (own is not None and own >= name.number):
            return None
        siblings = [d for d in news if d.task is not None]
        if siblings:
            return Missed(OVERWRITE, siblings)
        return Missed("external_write", news) if picture is not None and not picture.blind else None

    def _lost(self, who: Who, path: str) -> list[Deed]:
        """What would be lost if the process wrote what it made from its own copy."""
        name = self.name(path)
        own = self.memory.get((who.process, path))
        if own is None or who.task is None or self._child_told(who, name, name.pictures.get(who.task)):
            return []
        return [d for d in name.seen_by(who.task) if name.after(d, own) and self._rival(d, who)]

    @staticmethod
    def _child_told(who: Who, name: Name, picture: Picture | None) -> bool:
        """`text=$(cat f)`: what a process's own child has just read flows back to it."""
        if picture is None or picture.number < name.number or picture.process is None:
            return False
        return who.process in picture.process.above

    def _rival(self, deed: Deed, who: Who) -> bool:
        assert who.task is not None
        if deed.task is None:
            return False
        if deed.task == who.task:
            return deed.who.command != who.command and not deed.who.kin(who)
        return not self._related(deed.task, who.task)

    # -- changes ---------------------------------------------------------------------------

    def _deed(self, who: Who, **more: bool) -> Deed:
        self.number += 1
        return Deed(self.number, who, **more)

    def _put(
        self,
        who: Who,
        path: str,
        deed: Deed,
        content: bytes | None,
        known: int | None,
        brought: Iterable[Deed] = (),
        unread: bool = False,
    ) -> None:
        """`path` now holds `content`, made from what was known at `known` (None: from what was there).

        `unread`: it came with its directory.
        """
        name = self.name(path)
        name.deeds.append(deed)
        self.watched = self.watched or who.task is not None
        if not self.watched:  # before the first task comes, nothing is read to remember it
            name.unsure.update(n for n, _ in name.contents)
        if name.cleared is not None:
            by, kept = name.cleared
            name.cleared = None
            if content and by.task == who.task and (by.command == who.command or by.kin(who)):
                name.alive += kept  # emptied and filled again by one program
        alive = name.alive if known is None else [d for d in name.alive if name.since(d) <= known]
        name.alive = [*alive, deed]
        surely = name.alive
        recent = [n for n, _ in name.contents[-REMEMBERED:]]
        for number, earlier in name.contents:
            if content is not None and earlier == content:  # whose work was in that is back with it
                # (but for whoever has deleted it: that one has given it up)
                back = [d for d in name.was_alive.get(number, ()) if not self._given_up(d, name)]
                new = [d for d in back if d not in name.alive]
                name.alive += new
                name.over.difference_update(new)
                if unread:
                    name.doubtful.update(new)
                    name.loose.update(new)
                elif number in name.unsure or number not in recent:
                    name.doubtful.update({*name.alive} - {*brought, deed})
                    name.loose.update(new)
                else:
                    name.loose.difference_update(back)
                    surely = [*brought, *back, deed]
                    name.doubtful.difference_update(back)
        # What an earlier content had no part of is gone; if it is in a later one, it comes from a memory.
        name.doubtful.update(d for d in name.alive if d not in surely)
        name.was_alive[deed.number] = list(surely)
        name.perhaps[deed.number] = name.doubtful.intersection(surely)
        if content is None:
            name.over.update(name.deeds)
            self.memory.pop((who.process, path), None)
        else:
            name.contents.append((deed.number, content))
            for token in tokens(content):
                name.owners.setdefault(token, deed)
            if (who.process, path) in self.memory:
                self.memory[who.process, path] = deed.number
        if who.task is not None:
            self._see(who, name, there=content is not None, wrote=True)

    @staticmethod
    def _given_up(deed: Deed, name: Name) -> bool:
        gone = (d for d in name.deeds if d.gone and d not in name.replaced)
        since = max(name.since(deed), name.returned.get(deed, 0))  # not what it did to the name meanwhile
        return any(d.task == deed.task and d.number > since for d in gone)

    def write(self, who: Who, path: str, content: bytes) -> None:
        """A whole new content, by truncation, or in a file made anew."""
        if path not in self.files:
            self._create(who, path, content)
            return
        before = self.files[path][0]
        names = self._same_file(path)
        if content == before:  # no change: judged when the bytes are known
            for p in names if content else ():
                self._knows(who, p)
            return
        for p in names:
            self._judge(who, p)
        self.files[path][0] = content
        for p in names:
            self._reverts(who, p, content, before)
            self._fill(self.name(p), before)
            self._put(who, p, self._deed(who), content, self._known(who, p) if before else None)

    @staticmethod
    def _fill(name: Name, before: bytes) -> None:
        """Who emptied it may be said to have something in it, whoever fills it."""
        if not before:
            name.doubtful.update(name.alive)

    def _knows(self, who: Who, path: str) -> None:
        name = self.name(path)
        if (who.process, path) in self.memory:
            self.memory[who.process, path] = name.number
        if who.task is not None:  # as if it had read it
            self._see(who, name, there=True)

    def _create(self, who: Who, path: str, content: bytes) -> None:
        self._judge(who, path)
        self.files[path] = [content]
        self._appear(who, path, content, self._deed(who, made=True))

    def _appear(
        self,
        who: Who,
        path: str,
        content: bytes,
        deed: Deed,
        brought: Iterable[Deed] = (),
        unread: bool = False,
    ) -> None:
        """A file has come to a name that was free."""
        name = self.name(path)
        again = self.pending.pop(path, None)
        if again is not None and again.who.task == who.task and again.who.command == who.command:
            if content == again.content:
                self._undo(who, path, again)
                return
            if again.view is not None:
                must, notes = len(self.must), len(self.notes)
                self._say(who, path, again.view, again.before.deeds)
                if again.perhaps:
                    self.may += [*self.must[must:], *self.notes[notes:]]
                    del self.must[must:], self.notes[notes:]
            name.replaced.add(again.deed)
            name.over = again.before.over
            before, known = again.content or b"", again.known
            kept = [d for d in again.before.alive if name.since(d) <= known]
            self._reverts(who, path, content, before, again.before)
        else:
            if again is not None:
                self._tell(again, path)
            self._reverts(who, path, content, None)
            kept = []
        name.alive = [*brought, *kept]
        self._put(who, path, deed, content, None, brought, unread)

    def _undo(self, who: Who, path: str, again: Pending) -> None:
        """Deleted and made anew with the same content by one command: nothing has happened."""
        self.must = [f for f in self.must if f not in again.said]
        self.may = [f for f in self.may if f not in again.said]
        name = again.before
        had = name.pictures.get(who.task or "")
        name.pictures = self.names[path].pictures
        self.names[path] = name
        self._knows(who, path)
        if had is not None and who.task is not None:  # what was to be noted still is
            name.pictures[who.task] = replace(name.pictures[who.task], noted=had.noted)

    def patch(self, who: Who, path: str, content: bytes) -> None:
        """Some bytes in place (or the size): `content` is what it then holds."""
        before = self.files[path][0]
        if content == before:
            return
        names = self._same_file(path)
        for p in names:
            self._judge(who, p)
        self.files[path][0] = content
        for p in names:
            self._reverts(who, p, content, before)
            name, known = self.name(p), self._known(who, p)
            self._fill(name, before)
            kept = [d for d in name.alive if name.since(d) <= known]
            self._put(who, p, self._deed(who), content, None if content else -1)
            name.cleared = None if content else (who, kept)

    def append(self, who: Who, path: str, more: bytes) -> None:
        if path not in self.files:
            self._judge(who, path)
            self.files[path] = [more]
            self._appear(who, path, more, self._deed(who, made=True))
            return
        before = self.files[path][0]
        self.files[path][0] = content = before + more
        for p in self._same_file(path):
            name = self.name(p)
            self._judge(who, p, append=True)
            old = name.pictures.get(who.task or "")
            seen, came = (old.number, old.came) if old is not None else (0, 0)
            news = [d for d in name.seen_by(who.task or "") if name.after(d, seen, came)]
            missed = [d for d in news if d.task != who.task]
            surely = any(d in name.deeds[-REMEMBERED:] and d not in name.vague for d in missed)
            self._reverts(who, p, content, before)
            self._fill(name, before)
            self._put(who, p, self._deed(who, appended=True), content, None)
            if missed and who.task is not None:
                # What was there is still there, and still unseen.
                name.pictures[who.task] = Picture(
                    old.number if old else 0,
                    True,
                    old.command if old else -1,
                    old.before if old else None,
                    name.number,
                    old is None or old.blind,
                    old.process if old else None,
                    old.came if old else 0,
                    old.act if old else self.acts,
                    (old.doubt if old else 0) if surely else 2,
                )

    def delete(self, who: Who, path: str) -> None:
        said = self._judge(who, path, gone=True)
        self._vanish(who, path, self.files.pop(path)[0], said)

    def _vanish(self, who: Who, path: str, content: bytes, said: list[Finding], unread: bool = False) -> None:
        name = self.name(path)
        before, known = name.copy(), self._known(who, path)
        lost = self._lost(who, path)
        view = Missed(OVERWRITE, lost) if lost else self._view(who, path)
        must, may = self._stakes(who, name, content)
        deed = self._deed(who, gone=True)
        self._put(who, path, deed, None, -1)
        earlier = self.pending.pop(path, None)
        if earlier is not None:
            self._tell(earlier, path)
        if unread:
            name.unsure.add(max(n for n, _ in name.contents))
        surely = any(f in self.must for f in said)
        left = None if unread else content
        view = None if surely else view
        self.pending[path] = Pending(who, deed, before, left, must, may, known, said, view, bool(said))

    def _stakes(self, who: Who, name: Name, content: bytes, since: int = -1) -> tuple[set[str], set[str]]:
        """Whose work (later than `since`) is in the content: surely, and perhaps."""
        recent = set(name.deeds[-REMEMBERED:])
        was_alive = name.was_alive.get(since, ())
        surely = set(was_alive) - name.perhaps.get(since, set())
        owned = [d for t in tokens(content) if (d := name.owners.get(t)) is not None]
        # What was deleted and comes back from somebody's memory is that one's work.
        owners = [d for d in owned if d in recent and d in name.alive and d not in name.doubtful]
        if name.deeds and not name.deeds[-1].gone:
            owners.append(name.deeds[-1])

        def others(deeds: Iterable[Deed], came: Callable[[Deed], int], kept: Container[Deed]) -> set[str]:
            # A name that this very command gave to the file is nobody's loss.
            later = (d for d in deeds if d.number > since or (came(d) > since and d not in kept))
            theirs = (d for d in later if name.brought.get(d) != who.command)
            return {d.task for d in theirs if d.task is not None and d.task != who.task}

        def perhaps(deed: Deed) -> int:  # where it is forgotten that it had been here, it is new
            return max(name.since(deed), name.back.get(deed, 0))

        surely.intersection_update([d for d in name.deeds if d.number <= since][-REMEMBERED:])
        return others(owners, name.since, was_alive), others([*owned, *name.alive], perhaps, surely)

    def _tell(self, pending: Pending, path: str) -> None:
        if pending.who.task is None:
            return
        for into, tasks in ((self.must, pending.must), (self.may, pending.may)):
            into += [Finding(t, path, "reverted", pending.who.task) for t in sorted(tasks)]

    def _reverts(
        self, who: Who, path: str, content: bytes, before: bytes | None, past: Name | None = None
    ) -> None:
        """Is `content` one from before somebody's work? `before` is what it takes the place of."""
        name = past or self.name(path)
        if who.task is None:
            return
        numbers = [n for n, c in name.contents if c == content]
        if not numbers:
            return
        since = numbers[-1]
        recent = [n for n, _ in name.contents][-REMEMBERED:]
        if before is None:
            last = name.deeds[-1] if name.deeds else None
            if last is None or not last.gone or last.task in (None, who.task):
                return
            own, victim = self._own_file(name), {str(last.task)}
            must = victim if True not in own else set()
            may = victim if False in own else set()
        else:
            must, may = self._stakes(who, name, before, since)
            # It may be an older one that is remembered to be the same.
            known = [n for n in numbers if n not in name.unsure]
            may |= set().union(*self._stakes(who, name, before, known[-1] if known else numbers[0]))
        into = self.must if since in recent and since not in name.unsure else self.may
        into += [Finding(t, path, "reverted", who.task) for t in sorted(must)]
        self.may += [Finding(t, path, "reverted", who.task) for t in sorted(may)]

    @staticmethod
    def _own_file(name: Name) -> set[bool]:
        """{True} when whoever deleted it last had also made it (a temporary file, a lock), {False} when not.

        Both when the beginning may be forgotten, and what is then the first tells another story.
        """
        task = name.deeds[-1].task
        run = list(takewhile(lambda d: d.task == task, reversed(name.deeds)))
        return {d.made and d not in name.laid for d in run[REMEMBERED - 1 :] or run[-1:]}

    # -- names -----------------------------------------------------------------------------

    def rename(self, who: Who, source: str, target: str) -> None:
        """The source's name is gone; what the task knew of it, it knows of the target."""
        box, over = self.files[source], self.files.get(target)
        if over is not None and over[0] == box[0]:
            said = self._judge(who, source, gone=True)
            self.files[target] = self.files.pop(source)
            self._vanish(who, source, box[0], said)
            self._knows(who, target)
            return
        self._judge(who, target)
        said = self._judge(who, source, gone=True)
        self._move(who, source, target, said)

    def rename_directory(self, who: Who, source: str, target: str) -> None:
        below = sorted(p for p in self.files if p.startswith(source + "/"))
        said = {p: self._judge(who, p, gone=True) for p in below}
        known = [p for p in below if self.name(p).deeds or self.name(p).pictures]
        coming = {target + p[len(source) :] for p in known}
        for p in [p for p in self.names if p.startswith(target + "/") and p not in coming]:
            # Another directory took its name: what was there is past.
            gone = self.pending.pop(p, None)
            if gone is not None:
                self._tell(gone, p)
            del self.names[p]
            self.memory = {(who, q): n for (who, q), n in self.memory.items() if q != p}
        for p in below:
            name, new = self.name(p), target + p[len(source) :]
            if p in known:
                sure = len(self.must)
                if new in self.pending:
                    # What comes is not compared with what was there, nor made from it.
                    self.pending[new].content = self.pending[new].view = None
                self._move(who, p, new, said[p], unread=True)
                # What stands below a moved directory is not read: a revert by content may pass unseen.
                self.may += [f for f in self.must[sure:] if f.path == new and f.kind == "reverted"]
                self.must[sure:] = [f for f in self.must[sure:] if f not in self.may]
            else:  # nobody has touched it or looked at it: nothing to remember
                self.files[new] = self.files.pop(p)
                self.name(new).contents += name.contents
                self.name(new).owners |= name.owners
                name.unsure.update(n for n, _ in name.contents)
                self.name(new).unsure |= name.unsure

    @staticmethod
    def _temporary(who: Who, name: Name) -> bool:
        """What a task made itself, as far as is surely known, and moves on: its content here need not be."""
        first = name.deeds[: 1 - REMEMBERED] or name.deeds[:1]
        return any(d.made for d in first) and all(d.task == who.task for d in name.deeds[-REMEMBERED:])

    def _move(self, who: Who, source: str, target: str, said: list[Finding], unread: bool = False) -> None:
        old, new = self.name(source), self.name(target)
        box, over = self.files.pop(source), self.files.get(target)
        ignorant = who.task is not None and not self._knows_now(who.task, old)
        if self._temporary(who, old):
            old.unsure.update(n for n, c in old.contents if c == box[0])
        current = old.number
        up_to_date = {t: p for t, p in old.pictures.items() if p.there and p.number >= old.number}
        outdated = {t: p for t, p in old.pictures.items() if p.there and p.number < old.number}
        unwritten, looked = all(d.task is None for d in new.deeds), set(new.pictures)
        known = -1 if ignorant or over is None else self._known(who, target)
        brought = [d for d in old.alive if not d.gone]
        past = [d for d in old.deeds if d not in old.over]
        for token, owner in old.owners.items():  # who wrote it first, under whatever name
            had = new.owners.get(token, owner)
            new.owners[token] = min(owner, had, key=lambda d: d.number) if owner and had else None
        new.was_alive = {**old.was_alive, **new.was_alive}
        new.perhaps = {**old.perhaps, **new.perhaps}
        new.doubtful |= old.doubtful.intersection(brought)
        contents = sorted({*new.contents, *old.contents})
        unsure = new.unsure | {n for n, _ in old.contents}  # they stood under another name
        self.files[target] = box
        again = self.pending.get(target)
        if over is not None or again is None or again.who.command != who.command or ignorant:
            # Another file takes the name: what was not known is not there any more, and has been told.
            lost = {d for d in new.deeds if new.since(d) > known}
        else:
            lost = {d for d in new.deeds if new.since(d) > again.known}
        deed = self._deed(who)
        mine = new.pictures.get(who.task or "")
        taken, undone = self.memory.get((who.process, target)), False
        if over is not None:
            self._reverts(who, target, box[0], over[0])
            new.alive = [*brought, *(d for d in new.alive if new.since(d) <= known)]
            self._put(who, target, deed, box[0], None, brought)
            new.laid.update(past)
        else:
            self._appear(who, target, box[0], deed, brought, unread)
            new = self.name(target)
            if new.deeds[-1:] != [deed]:
                lost, past, undone = set(), [], True  # it was there before, and is there again
        new.brought |= dict.fromkeys(past, who.command)
        new.contents = sorted({*contents, *new.contents})
        new.unsure |= unsure | ({deed.number} if unread else set())
        for d in past:
            if d not in new.deeds or over is not None:  # but not when it was only moved away and back
                new.came[d] = new.number
            elif d not in new.deeds[-REMEMBERED:]:
                new.back[d] = new.number
        new.vague |= (old.loose | old.vague).intersection(past).difference(new.deeds)
        new.deeds = sorted({*new.deeds, *past}, key=lambda d: d.number)
        new.returned |= dict.fromkeys(past, new.number)
        for d in past:
            new.hidden[d] = set(old.hidden.get(d, ()))
            for its, theirs in ((new.laid, old.laid), (new.replaced, old.replaced)):
                if d in theirs:
                    its.add(d)
            new.over.discard(d)
        for d in lost - set(past):
            new.hidden.setdefault(d, set()).add(who.task)
        for task, picture in up_to_date.items():
            if undone and task == who.task:
                continue
            new.pictures[task] = picture.carried(current, new.number)
        for task, picture in outdated.items():
            if (unwritten and task not in looked) or task == who.task:
                new.pictures[task] = picture.carried(current, new.number)
        if who.task is not None:
            if not ignorant and not undone:
                if mine is not None and not mine.blind:
                    new.pictures[who.task] = mine
                self._see(who, new, there=True, wrote=True)
            if ignorant and taken is not None:
                self.memory[who.process, target] = taken
            if ignorant and who.task not in outdated:
                new.pictures[who.task] = Picture(0, True, -1, None, 0, True)
        self._vanish(who, source, box[0], said, unread)

    @staticmethod
    def _knows_now(task: str, name: Name) -> bool:
        picture = name.pictures.get(task)
        return picture is not None and not picture.blind and picture.number >= name.number

    def link(self, who: Who, known: str, target: str) -> None:
        """A further name: what was seen under the one, last under that, is seen under the other."""
        self._judge(who, target)
        others = self._same_file(known)
        self.files[target] = self.files[known]
        self._appear(who, target, self.files[known][0], self._deed(who, made=True))
        new = self.name(target)
        latest: dict[str, Picture] = {}
        for old in map(self.name, sorted(others)):
            for task, picture in old.pictures.items():
                had = latest.get(task)
                if picture.there and picture.number >= old.number and (had is None or had.act < picture.act):
                    latest[task] = picture.carried(old.number, new.number)
        new.pictures |= {task: picture for task, picture in latest.items() if task != who.task}

    def end(self, command: int) -> None:
        """The command is over: what it deleted stays deleted."""
        for path, pending in list(self.pending.items()):
            if pending.who.command == command:
                del self.pending[path]
                self._tell(pending, path)
