"""Finds sessions whose lease has expired by the database's clock and returns their runs."""

from __future__ import annotations

from fusee.events import Bus, SessionLost
from fusee.service import Service
from fusee.store import Recovered, Store

__all__ = ["Recover"]


class Recover(Service):
    def __init__(self, store: Store, bus: Bus, interval: float = 5.0) -> None:
        super().__init__("recover", interval, bus)
        self.store = store

    async def run_once(self) -> Recovered:
        recovered = await self.store.recover()
        for session, worker in recovered.sessions:
            self.bus.emit(
                SessionLost(
                    session=session, worker=worker, requeued=recovered.requeued, failed=recovered.failed
                )
            )
        return recovered
