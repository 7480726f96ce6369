"""Reacts to what has ended: frees places in line, opens gates, fires what follows, ends workflows."""

from __future__ import annotations

import asyncio
from time import monotonic

from fusee.engine.store.aggregate import Aggregated
from fusee.engine.store.engine_store import EngineStore
from fusee.events import Bus
from fusee.service import Service

__all__ = ["Aggregate"]

GATHER = 0.05
"""Seconds from one pass to the next at least: in a stream each takes many ends; the first waits for none."""
ATTENTIVE_FOR = 2.0
LOOK_AGAIN = 0.05
"""While something happens, and no other process can wake us, we look this often."""


class Aggregate(Service):
    """Woken by a hint at each end; the interval is the floor."""

    def __init__(self, store: EngineStore, bus: Bus, interval: float = 1.0, *, region: str = "") -> None:
        super().__init__("aggregate", interval, bus)
        self.store = store
        self.region = region
        self._last = self._busy = 0.0

    async def run_once(self) -> Aggregated:
        await asyncio.sleep(max(0.0, self._last + GATHER - monotonic()))
        self._last = monotonic()
        did = await self.store.aggregation.aggregate(region=self.region)
        now = monotonic()
        if did:
            self._busy = now
        hears = self.store.database.capabilities.notify
        self.pause = LOOK_AGAIN if not hears and now - self._busy < ATTENTIVE_FOR else None
        return did
