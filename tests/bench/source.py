"""A source tree to work on, always the same: sizes and shape of a large Python project."""

from __future__ import annotations

import io
import os
import random
import tarfile
from pathlib import Path

__all__ = ["make"]

FILES, DIRECTORIES = 6800, 700
WORDS = [
    b"import os",
    b"return self",
    b"def get(self, name):",
    b"class Field:",
    b"    for item in items:",
    b"value = None",
]


def make(tarball: Path) -> Path:
    """Write the archive `tarball`, or the one that BENCH_SRC names (its top directory is the tree)."""
    given = os.environ.get("BENCH_SRC")
    if given:
        return Path(given)
    rng = random.Random(6800)
    directories = ["tree"]
    while len(directories) < DIRECTORIES:
        above = rng.choice(directories[-60:])
        directories.append(
            f"{above}/{rng.choice(('core', 'db', 'locale', 'tests', 'views', 'forms'))}{len(directories)}"
        )
    with tarfile.open(tarball, "w:gz", compresslevel=1) as archive:
        for directory in directories:
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode, entry.mtime = tarfile.DIRTYPE, 0o755, 1_700_000_000
            archive.addfile(entry)
        for number in range(FILES):
            lines = [
                rng.choice(WORDS) + b"  # %d" % rng.randrange(10**6)
                for _ in range(int(rng.expovariate(1 / 120)) + 1)
            ]
            data = b"\n".join(lines) + b"\n"
            entry = tarfile.TarInfo(f"{rng.choice(directories)}/module{number}.py")
            entry.size, entry.mode, entry.mtime = len(data), 0o644, 1_700_000_000
            archive.addfile(entry, io.BytesIO(data))
    return tarball
