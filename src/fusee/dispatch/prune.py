"""Deletes finished runs by age, a small batch at a time."""

from __future__ import annotations

from fusee.events import Bus, RunsPruned
from fusee.service import Service
from fusee.store import Pruned, Store

__all__ = ["Prune"]


class Prune(Service):
    def __init__(
        self, store: Store, bus: Bus, *, retention: float, batch: int, interval: float = 60.0
    ) -> None:
        super().__init__("prune", interval, bus)
        self.store = store
        self.retention = retention
        self.batch = batch
        self._cursor = 0

    async def run_once(self) -> Pruned:
        pruned = await self.store.prune(self.retention, self._cursor, self.batch)
        self._cursor = pruned.cursor
        if pruned.count:
            self.bus.emit(RunsPruned(count=pruned.count))
        return pruned
