"""Finds sessions whose lease has expired by the database's clock and returns their runs."""

from __future__ import annotations

from collections import Counter

from fusee.engine.model.states import RunStatus
from fusee.engine.store.engine_store import EngineStore
from fusee.engine.store.recovery import Recovered
from fusee.events import Bus, SessionLost
from fusee.service import Service

__all__ = ["Recover"]


class Recover(Service):
    def __init__(self, store: EngineStore, bus: Bus, interval: float = 5.0) -> None:
        super().__init__("recover", interval, bus)
        self.store = store
        self._lost: dict[int, tuple[str, Counter[RunStatus]]] = {}
        """Sessions that were taken and whose runs are still being returned: (worker, what became of them)."""

    async def run_once(self) -> Recovered:
        recovered = await self.store.recovery.recover()
        for session, worker in recovered.sessions:
            self._lost[session] = (worker, Counter())
        for session, tally in recovered.by_session.items():
            if session in self._lost:
                self._lost[session][1].update(tally)
        if not recovered.more:  # a session of many receipts takes several passes
            lost, self._lost = self._lost, {}
            for session, (worker, became) in lost.items():
                self._tell(session, worker, became)
        return recovered

    def _tell(self, session: int, worker: str, became: Counter[RunStatus]) -> None:
        failed, canceled = became[RunStatus.FAILED], became[RunStatus.CANCELED]
        self.bus.emit(
            SessionLost(
                session=session,
                worker=worker,
                requeued=became.total() - failed - canceled,
                failed=failed,
                canceled=canceled,
            )
        )
