"""The tree of tasks, bounded in number: the longest unseen is forgotten first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from fsguard.core.model import Task

__all__ = ["Tasks"]

MAX_FORGOTTEN = 100_000


class Tasks:
    """Tasks by ID.

    :param limit: how many are remembered.
    """

    def __init__(self, limit: int = 10_000) -> None:
        self.limit = limit
        self._tasks: OrderedDict[str, Task] = OrderedDict()
        self._forgotten: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self._tasks.values())

    def find(self, task_id: str) -> Task | None:
        return self._tasks.get(task_id)

    def get(self, task_id: str, now: float, version: int) -> Task:
        """The task called `task_id`, made when it is new.

        `version` is the ledger's present version: an ID that comes back after
        it was forgotten is not held responsible for what happened before.
        """
        task = self._tasks.get(task_id)
        if task is None:
            task = self._tasks[task_id] = Task(task_id, started=now, last_seen=now)
            if task_id in self._forgotten:
                del self._forgotten[task_id]
                task.floor = version
            while len(self._tasks) > self.limit:
                self._forget(next(iter(self._tasks.values())))
        else:
            self._tasks.move_to_end(task_id)
            task.last_seen = now
        return task

    def adopt(self, child: Task, parent: Task) -> bool:
        """Make `parent` the parent of `child`, unless it has one or is below it."""
        if child.parent is parent:
            return True
        if child.parent is not None or parent.below(child):
            return False
        child.parent = parent
        parent.children[child.id] = child
        return True

    def forget_idle(self, older_than: float) -> int:
        """Forget tasks last seen before `older_than`; returns how many."""
        stale = [t for t in self._tasks.values() if t.last_seen < older_than]
        for task in stale:
            self._forget(task)
        return len(stale)

    def _forget(self, task: Task) -> None:
        del self._tasks[task.id]
        if task.parent is not None:
            task.parent.children.pop(task.id, None)
        for child in task.children.values():
            child.parent = None
        task.children.clear()
        self._forgotten[task.id] = None
        if len(self._forgotten) > MAX_FORGOTTEN:
            self._forgotten.popitem(last=False)
