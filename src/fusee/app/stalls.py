"""Looks for queues and bulk jobs that do not move, and says so; it never restarts anything."""

from __future__ import annotations

from typing import Any

from fusee.engine.model.queue import ALERT_QUEUE, ALERT_RETRY
from fusee.engine.model.run import RunSpec
from fusee.events import BulkJobsStalled, Bus, QueuesStalled
from fusee.service import Service
from fusee.stores import Store

__all__ = ["Stalls"]

EVERY = 15.0
AGAIN_AFTER = 3600
"""Seconds: a queue that stays stalled is told of once in that time, by however many dispatchers."""


class Stalls(Service):
    def __init__(
        self, store: Store, bus: Bus, *, after: float, webhook: str | None = None, interval: float = EVERY
    ) -> None:
        super().__init__("stalls", interval, bus)
        self.store = store
        self.after = after
        self.webhook = webhook
        self._known: frozenset[tuple[str, str]] = frozenset()

    async def run_once(self) -> None:
        waiting = await self.store.aging.stalled(self.after)
        new = tuple(sorted(waiting.keys() - self._known))
        self.bus.emit(QueuesStalled(waiting=waiting, new=new))
        for namespace, queue in new:
            if queue != ALERT_QUEUE:
                await self._alert(namespace, "queue_stalled", f"queue-stalled:{queue}", {"queue": queue})
        self._known = frozenset(waiting)
        await self._look_at_bulk_jobs()

    async def _look_at_bulk_jobs(self) -> None:
        jobs = await self.store.bulk.stalls.stalled_bulk_jobs(self.after)
        self.bus.emit(BulkJobsStalled(jobs=tuple(jobs)))
        for job in jobs:
            if job.new:
                facts = {"bulk_job_id": job.job_id, "business": job.business, "seconds": round(job.seconds)}
                await self._alert(job.namespace, "bulk_job_stalled", f"bulk-stalled:{job.job_id}", facts)

    async def _alert(self, namespace: str, event: str, key: str, facts: dict[str, Any]) -> None:
        if self.webhook is None:
            return
        store = self.store if namespace == self.store.namespace else self.store.for_namespace(namespace)
        since = await store.database.read(store.context.now) // 1_000_000 // AGAIN_AFTER
        # The same for every dispatcher: under one key there is one request.
        body = {"event": event, "namespace": namespace, **facts, "stalled_after": self.after}
        spec = RunSpec(
            handler="http",
            executor="http",
            queue=ALERT_QUEUE,
            payload={"url": self.webhook, "method": "POST", "body": body},
            timeout=30.0,
            retry=ALERT_RETRY,
            idempotency_key=f"{key}:{since}"[:200],
        )
        await store.run_writer.enqueue([spec])
