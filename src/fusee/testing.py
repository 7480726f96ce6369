"""The test kit: your handlers, a private database in memory, and a clock that you move.

    async def test_reminder():
        async with TestKit(app) as kit:
            run = await app.enqueue("remind", {"user": 7}, delay=3600)
            await kit.run_until_idle()
            assert (await kit.run(run)).status == "delayed"
            kit.clock.tick(hours=1)
            await kit.run_until_idle()
            assert (await kit.run(run)).status == "succeeded"

Nothing runs in the background: `run_until_idle` executes what is due, in this task, and returns.
"""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Self

from fusee.app.fusee import Fusee
from fusee.clock import ManualClock
from fusee.engine.model.run import Claimed, Run
from fusee.engine.model.session import START_WITHIN
from fusee.engine.model.states import RunStatus
from fusee.engine.store.contract import Finished, Order
from fusee.engine.worker.worker import Worker
from fusee.runs.handle import RunHandle
from fusee.stores import open_store

__all__ = ["ManualClock", "TestKit"]


class TestKit:
    """Puts an app on a database in memory and a manual clock, for as long as the `async with` lasts."""

    __test__ = False  # the name is for users; pytest shall not collect it

    def __init__(self, app: Fusee, *, clock: ManualClock | None = None) -> None:
        self.app = app
        self.clock = clock or ManualClock()
        self._worker: Worker | None = None
        self._session = 0

    async def __aenter__(self) -> Self:
        if self.app._store is not None:
            raise RuntimeError(
                "the app is open already: enter the TestKit first, and outside of app.running()"
            )
        self.app._store = open_store(
            "sqlite://", namespace=self.app.config.namespace, clock=self.clock, max_connections=1
        )
        await self.app.open()
        if not self.app.config.database.migrate:
            await self.app.store.upgrade()
        self._worker = self.app.worker()
        self._session = await self.app.store.sessions.open_session(self._worker.info, ttl=10 * 366 * 86400.0)
        self._worker.held.session = self._worker.served.session = self._session
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._worker is not None:
            for executor in self._worker.planner.executors.values():
                await executor.close()
        await self.app.close()

    async def run_until_idle(self, *, most: int = 100_000) -> int:
        """Promote what is due and execute it, and what that leads to; answers how many attempts were made."""
        worker = self._worker
        assert worker is not None
        store, pool = self.app.store, worker.pool
        made = 0
        while made < most:
            while await store.callbacks.expire():
                pass
            while (
                await store.tasks.firing.fire_due()
                or await store.aggregation.aggregate()
                or await store.ready_queue.promote()
                or await store.assignments.assign()
            ):
                pass
            await worker.served.read()
            order = Order(100, worker.served.free, pool.receipts.next())
            claimed = (await store.claims.exchange(self._session, Finished(), order)).claimed
            for queue, lanes in worker.served.limited.items():
                limited = Order(100, lanes, pool.receipts.next())
                claimed += await store.queues.claim_limited(self._session, queue, limited)
            if worker.served.own_limited:
                given = Order(100, [], pool.receipts.next())
                claimed += await store.assigned_claims.claim_assigned(
                    self._session, worker.served.own_limited, given
                )
            if not claimed:
                return made
            made += len(claimed)
            await self._execute(worker, claimed)
        raise RuntimeError(
            f"still not idle after {most} attempts: does a handler enqueue itself without end?"
        )

    async def _execute(self, worker: Worker, claimed: list[Claimed]) -> None:
        pool, store = worker.pool, self.app.store
        now = asyncio.get_running_loop().time()
        for run in claimed:
            run.start_by = now + START_WITHIN
        pool.take(claimed)
        while pool.slots:  # timeouts are kept by the real clock: a handler's own time is real
            tasks = [slot.task for slot in pool.slots if slot.task is not None]
            await asyncio.wait(tasks, timeout=0.05)
            pool.watch(time.monotonic())
        finished, settlements = pool.outcomes.collect()
        if settlements:
            await store.outcomes.settle(self._session, settlements)
        used_up = pool.receipts.ended([*finished.receipts, *(s.receipt for s in settlements)])
        await store.claims.exchange(self._session, finished, Order(used_up=used_up))

    async def run(self, run: RunHandle | int) -> Run:
        """How that run stands now."""
        return await self.app.store.runs.run(int(run))

    async def statuses(self, *runs: RunHandle | int) -> list[RunStatus]:
        return [(await self.run(run)).status for run in runs]
