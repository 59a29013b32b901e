"""Tools that copy, pack, move and edit files: what comes out is what went in."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.kit.abilities import need_tools
from tests.kit.mounting import Workspace
from tests.kit.posix import snapshot

OLD = 1_000_000_000


def make_tree(top: Path) -> None:
    """Some of everything that an archive has to keep."""
    choose = random.Random(5)
    for directory in ("a", "a/b", "c", "c/empty"):
        (top / directory).mkdir(parents=True, exist_ok=True)
    for number, size in enumerate((0, 1, 100, 4096, 70_000, 300_000)):
        (top / f"a/file {number}").write_bytes(choose.randbytes(size))
    (top / "a/b/program").write_text("#!/bin/sh\nexit 0\n")
    (top / "a/b/program").chmod(0o751)
    (top / "a/b/read only").write_text("x")
    (top / "a/b/read only").chmod(0o444)
    (top / os.fsdecode(b"c/caf\xe9")).write_text("not UTF-8")
    os.link(top / "a/file 2", top / "c/hard link")
    os.symlink("../a/file 1", top / "c/symlink")
    os.symlink("/nowhere", top / "c/dangling")
    os.mkfifo(top / "c/fifo")
    with open(top / "c/sparse", "wb") as file:
        file.truncate(3_000_000)
        file.seek(2_000_000)
        file.write(b"island")
    for number, (directory, names, files) in enumerate(os.walk(top, topdown=False)):
        for name in (*names, *files, "."):
            os.utime(os.path.join(directory, name), (OLD, OLD + number), follow_symlinks=False)


@pytest.fixture
def tree(workspace: Workspace) -> Workspace:
    make_tree(workspace.top / "original")
    return workspace


def same(first: Path, second: Path, *, directories: bool = True) -> bool:
    """Equal trees, times included (those of directories only if asked: rsync moves them by deleting)."""

    def times(top: Path) -> dict[str, int]:
        every = (p for p in sorted(top.rglob("*")) if directories or not p.is_dir())
        return {str(p.relative_to(top)): p.lstat().st_mtime_ns for p in every}

    assert snapshot(first) == snapshot(second)
    assert times(first) == times(second)
    return True


def test_tar_into_the_mount_and_out_again(tree: Workspace) -> None:
    need_tools("tar")
    tree.sh("alice", "tar -C ../original -cf - . | (mkdir in && tar -C in -xpf -)").ok()
    assert same(tree.top / "original", tree.root / "in")
    tree.sh("alice", "tar -cSf all.tar in && mkdir ../out && tar -C ../out -xpf all.tar").ok()
    assert same(tree.top / "original", tree.top / "out/in")
    assert tree.run("alice", "tar", "-df", "all.tar").ok().out == ""
    assert tree.conflicts() == []


def test_rsync_in_again_and_out(tree: Workspace) -> None:
    need_tools("rsync")
    tree.sh("alice", "rsync -aH ../original/ in/").ok()
    assert same(tree.top / "original", tree.root / "in")
    assert tree.sh("alice", "rsync -aHni --checksum ../original/ in/").ok().out == ""
    script = """
    set -e
    cd ../original
    echo changed >>'a/file 3' && rm 'a/file 5' && mv c/empty moved
    cd -
    rsync -aH --delete ../original/ in/
    echo again >>'../original/a/file 4'
    rsync -aH --inplace --no-whole-file ../original/ in/
    rsync -aH in/ ../out/
    """
    tree.sh("alice", script).ok()
    assert same(tree.top / "original", tree.root / "in", directories=False)
    assert same(tree.top / "original", tree.top / "out", directories=False)
    assert tree.conflicts() == []


def test_cp_mv_and_rm(tree: Workspace) -> None:
    script = """
    set -e
    cp -a ../original in && cp -a in copy && diff -r --no-dereference in/a copy/a
    mv copy moved && mv moved ../elsewhere && mv ../elsewhere back
    rm -rf back/c/empty && mkdir back/c/empty && touch -r in/c/empty back/c/empty && touch -r in/c back/c
    """
    tree.sh("alice", script).ok()
    assert same(tree.root / "in", tree.root / "back")
    tree.sh("alice", "rm -rf in back").ok()
    assert list(tree.root.iterdir()) == []
    assert tree.conflicts() == []


def test_every_way_to_change_a_file(workspace: Workspace) -> None:
    need_tools("patch", "dd", "ed" if os.path.exists("/bin/ed") else "sed")
    script = """
    set -e
    seq 10 >f && chmod 640 f
    sed -i s/3/three/ f
    printf '@@ -1,2 +1,2 @@\\n-1\\n+one\\n 2\\n' | patch -s f
    printf XX | dd of=f bs=1 seek=4 conv=notrunc status=none
    echo tail >>f
    echo teed | tee -a f >/dev/null
    truncate -s +5 f && truncate -s -5 f
    install -m 600 f g && mv f h && ln -f h f && cp --remove-destination g h
    perl -pi -e s/tail/TAIL/ f
    LC_ALL=C sort -o f f
    cat f; stat -c %a f h
    """
    out = workspace.sh("alice", script).ok().out
    assert out.split() == ["10", "4", "5", "6", "7", "8", "9", "TAIL", "XXthree", "one", "teed", "640", "600"]
    assert workspace.conflicts() == []


def test_find_and_xargs_over_many_files(workspace: Workspace) -> None:
    script = """
    set -e
    mkdir -p d/{1..20} && touch d/{1..20}/{1..20}
    find d -type f | wc -l
    find d -type f -name '*1*' -print0 | xargs -0 -P4 -n20 rm
    find d -type f | wc -l
    find d -delete && ls
    """
    assert workspace.run("alice", "bash", "-c", script).ok().out.split() == ["400", "180"]
    assert workspace.conflicts() == []
