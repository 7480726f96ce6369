"""Deletes finished runs by age, a few at a time, and batches by an age of their own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fusee.engine.store.engine_store import EngineStore
from fusee.engine.store.retention import Pruned
from fusee.events import Bus, RunsPruned
from fusee.service import Service

__all__ = ["Prune"]

KEYS_KEPT = 7 * 86400.0
"""Seconds that keys of requests are kept where runs are kept forever."""


class Prune(Service):
    def __init__(
        self,
        store: EngineStore,
        bus: Bus,
        *,
        retention: float,
        forget_batches: Callable[[], Awaitable[object]],
        batch: int,
        interval: float = 60.0,
    ) -> None:
        super().__init__("prune", interval, bus)
        self.store = store
        self.retention = retention
        """0 keeps runs forever."""
        self.forget_batches = forget_batches
        """Called once in each walk: batches have an age of their own."""
        self.batch = batch
        self._cursor = 0

    async def run_once(self) -> Pruned:
        if self._cursor == 0:  # once in a walk through all runs
            await self.forget_batches()
            await self.store.retention.forget_keys(self.retention or KEYS_KEPT)
        if self.retention == 0:
            return Pruned(0, 0)
        pruned = await self.store.retention.prune(self.retention, self._cursor, self.batch)
        self._cursor = pruned.cursor
        if pruned.count:
            self.bus.emit(RunsPruned(count=pruned.count))
        return pruned
