"""What the control socket answers: the guard's records as JSON, and changes to them.

A caller is who the kernel says it is (SO_PEERCRED). One that works for a task
itself speaks for that task and those below it, and for no other: it may read
everything, but not end, acknowledge or note on behalf of a sibling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import trio

from fsguard.attribution.resolver import Resolver
from fsguard.control.server import Handler, Peer
from fsguard.core.model import Kind
from fsguard.dispatch import Dispatch
from fsguard.keeping import StoreKeeper
from fsguard.service.account import Account
from fsguard.service.activity import Activity
from fsguard.service.base import Part, warning_json
from fsguard.service.leases import LeaseRequests
from fsguard.service.records import Records
from fsguard.service.runs import Runs
from fsguard.service.tasks import Tasks
from fsguard.service.tools import Tools
from fsguard.service.versions import Versions
from fsguard.service.warnings import Warnings

__all__ = ["Service", "warning_json"]


class Service:
    """All answers.

    :param status: facts that only the daemon knows, for `status`.
    :param keeper: where bytes are put by; None: nothing is kept.
    :param root: descriptor of the backing directory.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        resolver: Resolver,
        status: Callable[[], Mapping[str, Any]],
        keeper: StoreKeeper | None,
        root: int,
    ) -> None:
        self._dispatch = dispatch
        self._resolver = resolver
        self._status = status
        self.runs = Runs(dispatch, resolver)
        self._warnings = Warnings(dispatch, resolver)
        self._records = Records(dispatch, resolver)
        self._tasks = Tasks(dispatch, resolver)
        self._leases = LeaseRequests(dispatch, resolver)
        self._tools = Tools(dispatch, resolver, keeper, root)
        self._versions = Versions(dispatch, resolver, keeper, root)
        self._activity = Activity(dispatch, resolver, status, self._tasks, self._leases)
        self.account = Account(dispatch, resolver, status, self._tasks, self._versions, root)

    def handlers(self) -> dict[str, Handler]:
        """Every method of the control protocol; the docstring of each says what it takes."""
        return {
            "status": self.status,
            "metrics": self.metrics,
            "activity": self._activity.activity,
            "records": self.account.records,
            "run.begin": self.runs.run_begin,
            "run.end": self.runs.run_end,
            "warnings": self._warnings.warnings,
            "warnings.follow": self._warnings.follow,
            "log": self._records.log,
            "who": self._records.who,
            "check": self._records.check,
            "note": self._records.note,
            "tool.begin": self._tools.tool_begin,
            "tool.end": self._tools.tool_end,
            "task.start": self._tools.task_start,
            "task.list": self._tasks.task_list,
            "task.show": self._tasks.task_show,
            "task.end": self._tasks.task_end,
            "policy.get": self._tasks.policy_get,
            "policy.set": self._tasks.policy_set,
            "turns.set": self._tasks.turns_set,
            "lease.acquire": self._leases.acquire,
            "lease.release": self._leases.release,
            "lease.list": self._leases.list,
            "lease.request": self._leases.request,
            "versions.list": self._versions.listing,
            "versions.find": self._versions.find,
            "versions.read": self._versions.read,
            "versions.keep_now": self._versions.keep_now,
            "versions.conflicts": self._versions.conflicts,
            "versions.resolved": self._versions.resolved,
            "versions.merge": self._versions.merge,
            "versions.undo_plan": self._versions.undo_plan,
            "versions.diffable": self._versions.diffable,
        }

    def parts(self) -> dict[str, object]:
        """What goes to the next program, by the names of `restart.KEPT`."""
        return {
            "runs": self.runs,
            "account": self.account,
            "versions": self._versions,
            "lease_requests": self._leases,
        }

    def groups(self) -> dict[str, Part]:
        """All that answer, by names that stay."""
        return {
            "runs": self.runs,
            "warnings": self._warnings,
            "records": self._records,
            "tasks": self._tasks,
            "leases": self._leases,
            "tools": self._tools,
            "versions": self._versions,
            "activity": self._activity,
            "account": self.account,
        }

    def taken_over(self) -> None:
        """A process that had asked somebody's questions has ended, and with it all who waited for answers."""
        self._leases.forget_askers()

    async def metrics(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        """`status`, and what is counted since the mount began. Takes nothing."""
        outbox, waiting = self._dispatch.guard.outbox, self._dispatch.waiting
        store = await self._versions.store_or_none()
        kept = None
        if store is not None:
            number = await trio.to_thread.run_sync(store.catalogue.count)
            kept = {"versions": number, "bytes": store.stored_bytes}
        return {
            **await self.status(peer, params),
            "raised": {str(kind): outbox.raised[kind] for kind in Kind},
            "withdrawn": {str(kind): outbox.withdrawn[kind] for kind in Kind},
            "turns": {"waits": waiting.waits, "seconds": round(waiting.waited, 6)},
            "log_lines": len(self._dispatch.guard.history),
            "kept": kept,
        }

    async def status(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        """Everything about the mount at once. Takes nothing."""
        guard = self._dispatch.guard
        return {
            **self._status(),
            "policy": guard.policies.default,
            "attribution": dict(self._resolver.means),
            "tasks": self._tasks.all(),
            "open_handles": self._dispatch.open_total(),
            "pending": len(guard.outbox.pending()),
            "warnings_total": guard.outbox.total,
            "paths_known": len(guard.ledger),
            "queues": self._dispatch.waiting.queues(),
            "leases": self._leases.all(),
        }
