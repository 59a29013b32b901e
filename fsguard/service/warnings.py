"""Warnings: asked for, acknowledged, followed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import trio

from fsguard.control import params as p
from fsguard.control.server import Peer
from fsguard.core.model import Warning
from fsguard.service.base import Part, noted, warning_json

__all__ = ["Warnings"]


class Warnings(Part):
    async def warnings(self, peer: Peer, params: dict[str, Any]) -> list[dict[str, Any]]:
        """What waits to be told, to `task` or to anybody; with `all`, everything on record.

        `ack` marks it as delivered.
        """
        name = p.optional_text(params, "task")
        outbox = self._guard.outbox
        self.settle()
        if p.flag(params, "all"):
            found = [w for w in outbox if name is None or w.task == name]
        else:
            found = outbox.pending(name)
        if p.flag(params, "ack"):
            self._may_speak_for(peer, self._known(name) if name is not None else None)
            outbox.deliver(found)
        return [warning_json(w) for w in found]

    @noted
    def _delivered(self, number: int) -> None:
        warning = self._guard.outbox.find(number)
        if warning is not None:
            warning.delivered = True

    async def follow(self, peer: Peer, params: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """What waits, then each warning as it is raised; to `task` only, acknowledged with `ack`."""
        name = p.optional_text(params, "task")
        ack = p.flag(params, "ack")
        if ack:
            self._may_speak_for(peer, self._known(name) if name is not None else None)
        send, receive = trio.open_memory_channel[Warning](10_000)

        def listener(warning: Warning) -> None:
            if name is None or warning.task == name:
                try:
                    send.send_nowait(warning)
                except trio.WouldBlock:
                    pass  # a reader that slow reads the rest with `fsguard warnings`

        outbox = self._guard.outbox
        outbox.listeners.add(listener)
        try:
            for w in outbox.pending(name):
                if ack:
                    self._delivered(w.id)
                yield warning_json(w)
            async for w in receive:
                if w.withdrawn:
                    continue
                if ack:
                    self._delivered(w.id)
                yield warning_json(w)
        finally:
            outbox.listeners.discard(listener)
