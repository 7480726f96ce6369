"""Gives up uploads that nobody goes on with, and deletes what is left of discarded batches."""

from __future__ import annotations

from fusee.batches.store.store import BatchStore
from fusee.events import Bus
from fusee.service import Service

__all__ = ["Sweep"]


class Sweep(Service):
    """Also where nothing is pruned by age: a given-up upload is nobody's history."""

    def __init__(self, store: BatchStore, bus: Bus, interval: float = 60.0) -> None:
        super().__init__("sweep", interval, bus)
        self.store = store

    async def run_once(self) -> int:
        return await self.store.retention.sweep_batches()
