"""The database as a worker's source of work: each call goes to the part of the store that does it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fusee.engine.model.run import Claimed
from fusee.engine.model.session import WorkerInfo
from fusee.engine.store.contract import Exchanged, Finished, LaneMap, Order, Settlement
from fusee.engine.store.engine_store import EngineStore
from fusee.engine.store.wakes import Wakes

__all__ = ["DatabaseSource"]


class DatabaseSource:
    """What a worker asks of its source of work, asked of the store."""

    def __init__(self, store: EngineStore) -> None:
        self.store = store

    @property
    def wakes(self) -> Wakes:
        return self.store.wakes

    @property
    def lane_map(self) -> LaneMap:
        return self.store.lane_map

    async def read_new_lanes(self) -> bool:
        return await self.store.lanes.read_new_lanes()

    async def read_limits(self) -> object:
        return await self.store.queues.read_limits()

    async def open_session(self, info: WorkerInfo, ttl: float) -> int:
        return await self.store.sessions.open_session(info, ttl)

    async def renew(self, session: int, ttl: float, running: int) -> None:
        await self.store.sessions.renew(session, ttl, running)

    async def drain_session(self, session: int) -> None:
        await self.store.sessions.drain_session(session)

    async def drain_asked(self, session_ids: Sequence[int]) -> bool:
        return await self.store.sessions.drain_asked(session_ids)

    async def end_session(self, session: int) -> None:
        await self.store.sessions.end_session(session)

    async def give_up_session(self, session: int) -> None:
        await self.store.recovery.give_up_session(session)

    async def exchange(self, session: int, finished: Finished, order: Order) -> Exchanged:
        return await self.store.claims.exchange(session, finished, order)

    async def claim_limited(self, session: int, queue: str, order: Order) -> list[Claimed]:
        return await self.store.queues.claim_limited(session, queue, order)

    async def claim_assigned(self, session: int, limited: Sequence[str], order: Order) -> list[Claimed]:
        return await self.store.assigned_claims.claim_assigned(session, limited, order)

    async def settle(self, session: int, settlements: Sequence[Settlement]) -> list[tuple[int, int]]:
        return await self.store.outcomes.settle(session, settlements)

    async def record_stale(self, late: Iterable[tuple[int, int, str]]) -> None:
        await self.store.outcomes.record_stale(late)

    async def owned(self, session: int) -> list[tuple[int, int]]:
        return await self.store.runs.owned(session)

    async def cancel_requests(self, session: int, run_ids: Sequence[int]) -> list[tuple[int, int]]:
        return await self.store.runs.cancel_requests(session, run_ids)

    async def confirm_start(self, session: int, run_id: int, attempt: int) -> bool:
        return await self.store.runs.confirm_start(session, run_id, attempt)

    async def open_callback(
        self, session: int, run_id: int, attempt: int, digest: str, *, timeout: float, signed: bool
    ) -> None:
        await self.store.callbacks.open_callback(
            session, run_id, attempt, digest, timeout=timeout, signed=signed
        )
