"""Keeps low priorities from waiting for ever behind high ones."""

from __future__ import annotations

from fusee.engine.store.engine_store import EngineStore
from fusee.events import Bus
from fusee.service import Service

__all__ = ["Lift"]


class Lift(Service):
    """Once an interval, never more often: the pace at which starved runs are let through."""

    def __init__(self, store: EngineStore, bus: Bus, *, after: float, interval: float = 1.0) -> None:
        super().__init__("lift", interval, bus)
        self.store = store
        self.after = after

    async def run_once(self) -> None:
        await self.store.aging.lift(self.after)
