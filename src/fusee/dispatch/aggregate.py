"""Reacts to what has ended: frees places in line, opens gates, fires what follows, ends workflows."""

from __future__ import annotations

from fusee.events import Bus
from fusee.service import Service
from fusee.store import Aggregated, Store

__all__ = ["Aggregate"]


class Aggregate(Service):
    """Woken by a hint at each end; the interval is the floor."""

    def __init__(self, store: Store, bus: Bus, interval: float = 1.0) -> None:
        super().__init__("aggregate", interval, bus)
        self.store = store

    async def run_once(self) -> Aggregated:
        return await self.store.aggregate()
