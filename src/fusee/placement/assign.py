"""Gives runs to workers, where a queue or a run asks for a strategy."""

from __future__ import annotations

import asyncio
from time import monotonic

from fusee.events import Bus, RunsAssigned
from fusee.placement.store.assign import Assigned, Assignments
from fusee.service import Service

__all__ = ["Assign"]

GATHER = 0.02
"""Seconds between two passes at least: in a stream of runs each takes many."""
LOOK_AGAIN = 0.05
"""While strategies are in use: workers take what they were given without telling us."""


class Assign(Service):
    """Hints wake it only while something asks for a strategy; else it looks once an interval."""

    def __init__(self, store: Assignments, bus: Bus, interval: float = 1.0, *, region: str = "") -> None:
        super().__init__("assign", interval, bus)
        self.store = store
        self.region = region
        self.in_use = False
        self._last = 0.0

    def hint(self) -> None:
        """Something stands in line."""
        if self.in_use:
            self.wake()

    async def run_once(self) -> Assigned:
        await asyncio.sleep(max(0.0, self._last + GATHER - monotonic()))
        did = await self.store.assign(self.region)
        self._last = monotonic()
        self.in_use = did.in_use
        self.pause = LOOK_AGAIN if did.in_use else None
        if did:
            self.bus.emit(RunsAssigned(placed=did.placed, returned=did.returned))
        return did
