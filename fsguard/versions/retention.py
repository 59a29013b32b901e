"""What is dropped, and when: by age, by number, by bytes, by free space.

A version is protected while it is

* the newest kept one of an unresolved conflict, one for each path and each
  sibling whose content was destroyed there; or
* the kept content that the destroying task had seen before that conflict (the
  base of a three-way merge).

Everything else goes when a limit says so, oldest first. A version that shares
its content with one that stays costs nothing, so bytes are counted, and freed,
by content: whole blocks of 4 KiB, each content once; the content that was last
kept longest ago goes first, with all versions that have it.
"""

from __future__ import annotations

from .catalogue import Catalogue
from .content import Places
from .model import Limits

__all__ = ["BATCH", "plan", "stored_bytes"]

#: Versions that one call drops at most.
BATCH = 1000
_BLOCK = 4096
_COST = f"(size + {_BLOCK - 1}) / {_BLOCK} * {_BLOCK}"
_PROTECTED = """
SELECT max(id) FROM versions WHERE conflict AND NOT resolved AND kept GROUP BY path, sibling
UNION
SELECT b.id FROM versions b JOIN versions c ON b.path = c.path AND b.version = c.base_version
 WHERE b.kept AND c.id IN
  (SELECT max(id) FROM versions WHERE conflict AND NOT resolved AND kept GROUP BY path, sibling)
"""


def stored_bytes(catalogue: Catalogue) -> int:
    """Bytes of all content, each once, in whole blocks."""
    each = f"SELECT max({_COST}) AS c FROM versions WHERE kept AND kind = 'file' GROUP BY digest"
    (total,) = catalogue.writer.execute(f"SELECT sum(c) FROM ({each})").fetchone()
    return int(total or 0)


def plan(
    catalogue: Catalogue, limits: Limits, places: Places, now: float, batch: int = BATCH
) -> tuple[list[int], bool]:
    """The versions that are to be dropped, at most `batch`; and whether there may be more.

    `now` is in seconds since the epoch.
    """
    free, total = places.space()
    return choose(catalogue, limits, now, free, total, batch)


def choose(
    catalogue: Catalogue, limits: Limits, now: float, free: int, total: int, batch: int = BATCH
) -> tuple[list[int], bool]:
    """`plan`, for a filesystem with `free` of `total` bytes."""
    run = catalogue.writer.execute
    protected = {row[0] for row in run(_PROTECTED)}
    chosen: dict[int, None] = {}

    def take(ids: list[int]) -> None:
        for id_ in ids:
            if id_ not in protected:
                chosen[id_] = None

    take([r[0] for r in run("SELECT id FROM versions WHERE time < ? ORDER BY id", (now - limits.age,))])
    many = "SELECT path, kept, count(*) FROM versions GROUP BY path, kept HAVING count(*) > ?"
    for path, kept, count in run(many, (limits.per_path,)).fetchall():
        oldest = "SELECT id FROM versions WHERE path = ? AND kept = ? ORDER BY id LIMIT ?"
        take([r[0] for r in run(oldest, (path, kept, count - limits.per_path))])
    _by_bytes(catalogue, limits, free, total, protected, chosen)
    ids = sorted(chosen)
    return ids[:batch], len(ids) > batch


def _by_bytes(
    catalogue: Catalogue,
    limits: Limits,
    free: int,
    total: int,
    protected: set[int],
    chosen: dict[int, None],
) -> None:
    """Add versions to `chosen` until what is left fits."""
    sql = (
        f"SELECT digest, max({_COST}), max(id) FROM versions"
        " WHERE kept AND kind = 'file' GROUP BY digest ORDER BY max(id)"
    )
    run = catalogue.writer.execute
    contents = run(sql).fetchall()
    used = sum(cost for _, cost, _ in contents)
    over = max(used - limits.total_bytes, limits.floor(total) - free)
    if over <= 0:
        return
    of = "SELECT id FROM versions WHERE kept AND kind = 'file' AND digest = ?"
    for digest, cost, _ in contents:
        ids = [row[0] for row in run(of, (digest,))]
        if any(id_ in protected for id_ in ids):
            continue
        if over <= 0:
            return
        chosen.update(dict.fromkeys(ids))
        over -= cost
