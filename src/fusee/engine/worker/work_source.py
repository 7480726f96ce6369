"""The contract of a work source: where a worker gets runs, and reports how they ended.

`DatabaseSource` implements it for workers with a database: a claim is a statement. `broker.rabbitmq`
implements it for workers without one: runs arrive as messages, and everything else is RPC to a process that
has the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from fusee.engine.model.run import Claimed
from fusee.engine.model.session import WorkerInfo
from fusee.engine.store.contract import Exchanged, Finished, LaneMap, Order, Settlement
from fusee.engine.store.engine_store import EngineStore
from fusee.engine.store.wakes import Wakes

__all__ = ["DatabaseSource", "WorkSource"]


class WorkSource(Protocol):
    """Each write is fenced by session and attempt, and may be repeated when its result was lost."""

    @property
    def wakes(self) -> Wakes:
        """Fires `pending` when there may be runs to claim, and `cancel` when a run should stop."""

    @property
    def lane_map(self) -> LaneMap:
        """The lanes and limits as last read."""

    async def read_new_lanes(self) -> bool:
        """Read new lanes; returns whether there were any."""

    async def read_limits(self) -> object:
        """Read which queues have limits or strategies, which change what the worker claims."""

    async def open_session(self, info: WorkerInfo, ttl: float) -> int:
        """Begin a session, and return its id; its lease runs from now, by the database's clock."""

    async def renew(self, session: int, ttl: float, running: int) -> None:
        """Extend the lease; raises `LeaseLost` when it has expired."""

    async def drain_session(self, session: int) -> None:
        """Stop claiming; the lease continues."""

    async def drain_asked(self, session_ids: Sequence[int]) -> bool:
        """Whether someone asked one of these sessions, all of this process, to drain."""

    async def end_session(self, session: int) -> None:
        """End the session."""

    async def give_up_session(self, session: int) -> None:
        """Release the runs of a session whose lease this process no longer trusts; they have all stopped."""

    async def exchange(self, session: int, finished: Finished, order: Order) -> Exchanged:
        """Report successes and claim runs; each run that is returned may start here, once."""

    async def claim_limited(self, session: int, queue: str, order: Order) -> list[Claimed]:
        """Claim runs of a queue with limits."""

    async def claim_assigned(self, session: int, limited: Sequence[str], order: Order) -> list[Claimed]:
        """Claim runs that a strategy assigned to this worker, some of them of queues with limits."""

    async def settle(self, session: int, settlements: Sequence[Settlement]) -> list[tuple[int, int]]:
        """Report other ends; returns the (run, attempt) pairs that the fence refused."""

    async def record_stale(self, late: Sequence[tuple[int, int, str]]) -> None:
        """Note the attempts that ended after they were lost."""

    async def owned(self, session: int) -> list[tuple[int, int]]:
        """The (run, attempt) pairs that this session runs according to the store."""

    async def cancel_requests(self, session: int, run_ids: Sequence[int]) -> list[tuple[int, int]]:
        """The (run, attempt) pairs among these runs that should stop."""

    async def confirm_start(self, session: int, run_id: int, attempt: int) -> bool:
        """Whether an attempt that has not begun yet still may begin; its cancel counts from this moment."""

    async def open_callback(
        self, session: int, run_id: int, attempt: int, digest: str, *, timeout: float, signed: bool
    ) -> None:
        """Let an external service end this attempt."""


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
