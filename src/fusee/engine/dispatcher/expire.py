"""Ends the waiting of runs whose service did not call back in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from fusee.engine.store.callbacks import Concluded
from fusee.engine.store.engine_store import EngineStore
from fusee.events import Bus, RunAttemptEnded
from fusee.service import Service

__all__ = ["Expire"]


class Expire(Service):
    def __init__(self, store: EngineStore, bus: Bus, interval: float = 1.0) -> None:
        super().__init__("expire", interval, bus)
        self.store = store

    async def run_once(self) -> Sequence[Concluded]:
        expired = await self.store.callbacks.expire()
        for one in expired:
            self.bus.emit(RunAttemptEnded(**asdict(one)))
        return expired
