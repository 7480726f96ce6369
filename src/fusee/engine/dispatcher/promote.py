"""Makes delayed runs claimable when their time has come."""

from __future__ import annotations

from fusee.engine.store.engine_store import EngineStore
from fusee.engine.store.ready_queue import Promoted
from fusee.events import Bus, RunsPromoted
from fusee.service import Service

__all__ = ["Promote"]


class Promote(Service):
    """Sleeps until the next due time it knows of; a hint wakes it when something earlier is accepted."""

    def __init__(self, store: EngineStore, bus: Bus, interval: float = 1.0) -> None:
        super().__init__("promote", interval, bus)
        self.store = store

    async def run_once(self) -> Promoted:
        promoted = await self.store.ready_queue.promote()
        self.pause = promoted.next_in
        if promoted.count:
            self.bus.emit(RunsPromoted(count=promoted.count))
        return promoted
