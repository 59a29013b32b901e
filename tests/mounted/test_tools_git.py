"""git on the mount: a day's work by one task, and two tasks in two worktrees."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.abilities import need_tools
from tests.kit.agents import together
from tests.kit.mounting import Result, Workspace

TREE = """
set -e
git init -q -b main .
git config user.name A && git config user.email a@example.org && git config commit.gpgsign false
for d in 1 2 3 4 5 6 7 8; do
  mkdir -p src/$d/deep
  for f in 1 2 3 4 5 6 7 8 9 10; do
    seq $((d * f * 7)) >src/$d/f$f.txt
    echo "print($d, $f)" >src/$d/deep/m$f.py
  done
done
printf '#!/bin/sh\\necho run\\n' >run.sh && chmod 755 run.sh && ln -s src/1/f1.txt link
git add -A && git commit -qm first
"""


@pytest.fixture
def repository(workspace: Workspace) -> Workspace:
    need_tools("git")
    workspace.sh("alice", TREE).ok()
    return workspace


def git(workspace: Workspace, *args: str, task: str = "alice") -> Result:
    return workspace.run(task, "git", *args).ok()


def assert_whole(workspace: Workspace) -> None:
    """Nothing is damaged, nothing looks changed, and nobody was warned."""
    assert git(workspace, "status", "--porcelain").out == ""
    fsck = git(workspace, "fsck", "--full", "--strict", "--no-dangling")
    assert (fsck.out, fsck.err) == ("", "")
    assert workspace.conflicts() == []


def test_status_is_clean_without_reading_files_again(repository: Workspace) -> None:
    # A stat that differs from the index (inode, ctime, size) would be listed.
    assert (
        repository.sh("alice", "git update-index --refresh; git diff-files; git diff-index HEAD").ok().out
        == ""
    )
    assert_whole(repository)


def test_branch_edit_merge_and_rebase(repository: Workspace) -> None:
    script = """
    set -e
    git checkout -q -b topic
    sed -i 's/^3$/three/' src/*/f1.txt
    git commit -qam topic-1
    echo more >>src/1/f2.txt && git mv src/2/f3.txt src/2/renamed.txt && git rm -q src/3/f4.txt
    git commit -qam topic-2
    git checkout -q main
    echo main >>src/8/f9.txt && git commit -qam main-1
    git checkout -q topic && git rebase -q main
    git checkout -q main && git merge -q --no-edit topic
    git log --oneline | wc -l
    git checkout -q HEAD~2 && git checkout -q main
    """
    assert repository.sh("alice", script).ok().out.split() == ["4"]
    assert_whole(repository)
    assert (repository.root / "src/2/renamed.txt").is_file()
    assert not (repository.root / "src/3/f4.txt").exists()


def test_stash_restore_clean_and_reset(repository: Workspace) -> None:
    script = """
    set -e
    echo changed >src/1/f1.txt && echo new >untracked
    git stash -q -u && test ! -e untracked && git stash pop -q && test -e untracked
    git restore src/1/f1.txt && git clean -qfd && test ! -e untracked
    echo x >>src/2/f2.txt && git checkout -q -- src/2/f2.txt
    echo x >>src/2/f3.txt && git reset -q --hard
    """
    repository.sh("alice", script).ok()
    assert_whole(repository)


def test_gc_repack_and_clone(repository: Workspace) -> None:
    git(repository, "gc", "-q", "--prune=now")
    git(repository, "repack", "-qadf")
    git(repository, "clone", "-q", ".", "copy")
    assert git(repository, "-C", "copy", "status", "--porcelain").out == ""
    repository.sh("alice", "rm -rf copy && ls .git/objects/pack/*.pack").ok()
    assert_whole(repository)


def test_modes_and_symlinks_are_kept(repository: Workspace) -> None:
    listed = git(repository, "ls-files", "-s", "run.sh", "link").out
    assert [line.split()[0] for line in listed.splitlines()] == ["120000", "100755"]
    assert (repository.root / "link").readlink() == Path("src/1/f1.txt")
    assert repository.run("alice", "./run.sh").ok().out == "run\n"


def test_two_tasks_in_two_worktrees_at_once(repository: Workspace) -> None:
    git(repository, "worktree", "add", "-q", "-b", "b1", "trees/b1")
    git(repository, "worktree", "add", "-q", "-b", "b2", "trees/b2", task="bob")
    work = """
    set -e
    cd trees/%s
    for n in 1 2 3 4; do
      echo "%s $n" >>src/1/f1.txt && git add -A && git commit -qm "%s $n"
    done
    git status --porcelain
    """
    results = together(
        repository.start("alice", "sh", "-c", work % ("b1", "b1", "b1")),
        repository.start("bob", "sh", "-c", work % ("b2", "b2", "b2")),
    )
    assert [(r.code, r.out) for r in results] == [(0, ""), (0, "")], [r.err for r in results]
    assert git(repository, "log", "--oneline", "b1").out.count("\n") == 5
    assert git(repository, "log", "--oneline", "b2").out.count("\n") == 5
    git(repository, "worktree", "remove", "trees/b1")
    git(repository, "worktree", "remove", "trees/b2", task="bob")
    assert_whole(repository)


def test_parallel_adds_keep_the_index_whole(repository: Workspace) -> None:
    """index.lock is created exclusively: one wins, the others fail or retry, nothing is lost."""
    work = """
    for n in 1 2 3 4 5; do
      echo $0 $n >new-$0-$n
      until git add new-$0-$n 2>/dev/null; do :; done
    done
    """
    together(*(repository.start("alice", "bash", "-c", work, str(who)) for who in range(3)))
    assert git(repository, "ls-files", "new-*").out.count("\n") == 15
    git(repository, "commit", "-qm", "all")
    assert_whole(repository)
