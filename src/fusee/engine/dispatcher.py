"""The loops of the engine in a dispatcher: each asks the store in `run_once` and returns what it did."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from time import monotonic

from fusee.engine.model.states import RunStatus
from fusee.engine.store.callbacks import Concluded
from fusee.engine.store.engine_store import EngineStore
from fusee.engine.store.outbox import Aggregated
from fusee.engine.store.ready_queue import Promoted
from fusee.engine.store.recovery import Recovered
from fusee.engine.store.retention import Pruned
from fusee.events import Bus, RunAttemptEnded, RunsPromoted, RunsPruned, SessionLost
from fusee.service import Service

__all__ = ["Aggregate", "Expire", "Lift", "Promote", "Prune", "Recover"]


class Promote(Service):
    """Makes delayed runs claimable when their time has come.

    Sleeps until the next due time it knows of; a hint wakes it when something earlier is accepted.
    """

    def __init__(self, store: EngineStore, bus: Bus, interval: float = 1.0) -> None:
        super().__init__("promote", interval, bus)
        self.store = store

    async def run_once(self) -> Promoted:
        promoted = await self.store.ready_queue.promote()
        self.pause = promoted.next_in
        if promoted.count:
            self.bus.emit(RunsPromoted(count=promoted.count))
        return promoted


class Recover(Service):
    """Finds sessions whose lease has expired by the database's clock and returns their runs."""

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


class Expire(Service):
    """Ends the waiting of runs whose service did not call back in time."""

    def __init__(self, store: EngineStore, bus: Bus, interval: float = 1.0) -> None:
        super().__init__("expire", interval, bus)
        self.store = store

    async def run_once(self) -> Sequence[Concluded]:
        expired = await self.store.callbacks.expire()
        for one in expired:
            self.bus.emit(RunAttemptEnded(**asdict(one)))
        return expired


class Lift(Service):
    """Keeps low priorities from waiting forever behind high ones.

    Runs once an interval, never more often: that is the pace at which starved runs are let through.
    """

    def __init__(self, store: EngineStore, bus: Bus, *, after: float, interval: float = 1.0) -> None:
        super().__init__("lift", interval, bus)
        self.store = store
        self.after = after

    async def run_once(self) -> None:
        await self.store.aging.lift(self.after)


GATHER = 0.05
"""Seconds from one pass to the next at least: in a stream each takes many ends; the first waits for none."""
ATTENTIVE_FOR = 2.0
LOOK_AGAIN = 0.05
"""While something happens, and no other process can wake us, we look this often."""


class Aggregate(Service):
    """Lets owners react to runs that have ended. A hint wakes it at each end; the interval is the floor."""

    def __init__(self, store: EngineStore, bus: Bus, interval: float = 1.0, *, region: str = "") -> None:
        super().__init__("aggregate", interval, bus)
        self.store = store
        self.region = region
        self._last = self._busy = 0.0

    async def run_once(self) -> Aggregated:
        await asyncio.sleep(max(0.0, self._last + GATHER - monotonic()))
        self._last = monotonic()
        did = await self.store.aggregation.aggregate(region=self.region)
        now = monotonic()
        if did:
            self._busy = now
        hears = self.store.database.capabilities.notify
        self.pause = LOOK_AGAIN if not hears and now - self._busy < ATTENTIVE_FOR else None
        return did


KEYS_KEPT = 7 * 86400.0
"""Seconds that keys of requests are kept where runs are kept forever."""


class Prune(Service):
    """Deletes finished runs by age, a few at a time."""

    def __init__(
        self,
        store: EngineStore,
        bus: Bus,
        *,
        retention: float,
        forget_others: Callable[[], Awaitable[object]],
        batch: int,
        interval: float = 60.0,
    ) -> None:
        super().__init__("prune", interval, bus)
        self.store = store
        self.retention = retention
        """0 keeps runs forever."""
        self.forget_others = forget_others
        """Called once in each walk through all runs: for what has an age of its own."""
        self.batch = batch
        self._cursor = 0

    async def run_once(self) -> Pruned:
        if self._cursor == 0:  # once in a walk through all runs
            await self.forget_others()
            await self.store.retention.forget_keys(self.retention or KEYS_KEPT)
        if self.retention == 0:
            return Pruned(0, 0)
        pruned = await self.store.retention.prune(self.retention, self._cursor, self.batch)
        self._cursor = pruned.cursor
        if pruned.count:
            self.bus.emit(RunsPruned(count=pruned.count))
        return pruned
