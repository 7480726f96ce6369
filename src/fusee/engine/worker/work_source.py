"""The contract of a broker: where a worker fetches runs, and hands in how they ended.

The store fulfils it as it is (`database`): a claim is a statement. `rabbitmq.RabbitWorkSource` fulfils it for
workers that have no database: runs arrive as messages, and everything else is asked of the store by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from fusee.engine.model.run import Claimed
from fusee.engine.model.session import WorkerInfo
from fusee.engine.store.contract import Exchanged, Finished, LaneMap, Order, Settlement
from fusee.engine.store.wakes import Wakes

__all__ = ["WorkSource"]


class WorkSource(Protocol):
    """Each write is fenced by session and attempt, and may be repeated when its answer was lost."""

    @property
    def wakes(self) -> Wakes:
        """Fires `pending` when there may be something to fetch, `cancel` when something should stop."""

    @property
    def lane_map(self) -> LaneMap:
        """The lanes and limits as last read."""

    async def read_new_lanes(self) -> bool:
        """Look for new lanes; true when there were any."""

    async def read_limits(self) -> object:
        """Look which queues have limits that the worker has to heed in what it asks for."""

    async def open_session(self, info: WorkerInfo, ttl: float) -> int:
        """Begin a session; its lease runs from now, by the database's clock."""

    async def renew(self, session: int, ttl: float, running: int) -> None:
        """Prolong the lease; `LeaseLost` when it is over."""

    async def drain_session(self, session: int) -> None:
        """Nothing more is fetched; the lease goes on."""

    async def drain_asked(self, session_ids: Sequence[int]) -> bool:
        """Whether someone asked one of these sessions, all of one process, to leave."""

    async def end_session(self, session: int) -> None:
        """Say goodbye."""

    async def give_up_session(self, session: int) -> None:
        """Hand over what a session owned whose lease this process no longer trusts, all of it stopped."""

    async def exchange(self, session: int, finished: Finished, order: Order) -> Exchanged:
        """Hand in successes, fetch runs; each that is answered may start, once, here."""

    async def claim_limited(self, session: int, queue: str, order: Order) -> list[Claimed]:
        """Fetch runs of a queue with limits."""

    async def claim_given(self, session: int, limited: Sequence[str], order: Order) -> list[Claimed]:
        """Fetch runs that a strategy gave to this worker, some of queues with limits."""

    async def settle(self, session: int, settlements: Sequence[Settlement]) -> list[tuple[int, int]]:
        """Hand in other ends; answers what was refused."""

    async def record_stale(self, late: Iterable[tuple[int, int, str]]) -> None:
        """Note what ended after it was lost."""

    async def owned(self, session: int) -> list[tuple[int, int]]:
        """(run, attempt) of all that the store believes this session runs."""

    async def cancel_requests(self, session: int, run_ids: Sequence[int]) -> list[tuple[int, int]]:
        """Which of them should stop."""

    async def confirm_start(self, session: int, run_id: int, attempt: int) -> bool:
        """Whether an attempt that has not begun yet still may; a cancel counts its time from this moment."""

    async def open_callback(
        self, session: int, run_id: int, attempt: int, digest: str, *, timeout: float, signed: bool
    ) -> None:
        """Let an outside service end this attempt."""
