"""Readiness: the database answers, its schema fits, and no loop keeps failing."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from fusee.bulk.model.job import StalledJob
from fusee.errors import StoreUnavailable
from fusee.events import BrokerConnection, BulkJobsStalled, Bus, LoopFailed, QueuesStalled, WorkerMemory
from fusee.facts import facts

__all__ = ["Health"]

log = logging.getLogger("fusee.health")

FRESH = 1.0
"""Seconds for which an answer is reused: frequent checks do not reach the database."""
PATIENCE = 2.0
SCHEMA_EVERY = 60.0
MOST_NAMED = 10
FAILURES, WITHIN = 3, 30.0
"""A loop is failing when it failed this often within this many seconds."""


class Health:
    def __init__(
        self,
        bus: Bus,
        *,
        ping: Callable[[], Awaitable[None]],
        revision: Callable[[], Awaitable[tuple[str | None, str]]],
        unreadable: Callable[[], Sequence[tuple[str, int | str, str]]] = tuple,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.bus = bus
        self.ping = ping
        self.revision = revision
        self.unreadable = unreadable
        self.now = now
        self._loops: dict[str, deque[float]] = {}
        self._answer: tuple[list[str], float] = ([], -FRESH)
        self._schema_at = -SCHEMA_EVERY
        self._asking = asyncio.Lock()
        self._stalled: dict[tuple[str, str], float] = {}
        self._stalled_jobs: tuple[StalledJob, ...] = ()
        self._disconnected_at: float | None = None
        self._full: dict[str, str] = {}
        undo = [
            bus.subscribe(LoopFailed, self._failed),
            bus.subscribe(QueuesStalled, self._look_at),
            bus.subscribe(BulkJobsStalled, self._look_at_jobs),
            bus.subscribe(BrokerConnection, self._broker_connection),
            bus.subscribe(WorkerMemory, self._measured),
        ]
        self.forget = lambda: [one() for one in undo]

    def _failed(self, event: LoopFailed) -> None:
        self._loops.setdefault(event.loop, deque(maxlen=FAILURES)).append(self.now())

    def _look_at(self, event: QueuesStalled) -> None:
        self._stalled = event.waiting

    def _look_at_jobs(self, event: BulkJobsStalled) -> None:
        self._stalled_jobs = event.jobs

    def _broker_connection(self, event: BrokerConnection) -> None:
        if event.up:
            self._disconnected_at = None
        elif self._disconnected_at is None:
            self._disconnected_at = self.now()

    def _measured(self, event: WorkerMemory) -> None:
        self._full.pop(event.worker, None)
        if event.full:
            limit = f"{event.limit / 2**20:.0f} MiB"
            self._full[event.worker] = f"this worker is above its memory limit of {limit}: it claims nothing"

    def warnings(self, namespace: str | None = None) -> Sequence[str]:
        """Problems of the work, not of this process. It stays ready, since another process could not help.

        Queues are named only to callers of their namespace; without a namespace they are counted."""
        since = self._disconnected_at
        broker = [] if since is None else [f"RabbitMQ has been unreachable for {self.now() - since:.0f} s"]
        return [
            *broker,
            *self._stalls(namespace),
            *self._stalls_of_jobs(namespace),
            *self._full.values(),
            *self._set_aside(),
        ]

    def _stalls(self, namespace: str | None) -> list[str]:
        if namespace is None:
            many = len(self._stalled)
            says = "1 queue has stalled" if many == 1 else f"{many} queues have stalled"
            return [f"{says}: ask with an API key, or see `fusee queue list`, for which"] if many else []
        return [
            f"queue {queue} of {owner} has stalled: its oldest run has waited for {seconds:.0f} s"
            for (owner, queue), seconds in sorted(self._stalled.items())
            if owner == namespace
        ]

    def _stalls_of_jobs(self, namespace: str | None) -> list[str]:
        if namespace is None:
            many = len(self._stalled_jobs)
            says = "1 bulk job has stalled" if many == 1 else f"{many} bulk jobs have stalled"
            return [f"{says}: ask with an API key, or see `fusee bulk list`, for which"] if many else []
        return [
            f"bulk job {job.job_id} has stalled: no item has ended for {job.seconds:.0f} s"
            for job in self._stalled_jobs
            if job.namespace == namespace
        ]

    def _set_aside(self) -> list[str]:
        """The reason is left out, because it may quote the row of a tenant. The log has it."""
        rows = self.unreadable()
        if not rows:
            return []
        named = ", ".join(f"{kind} {row_id}" for kind, row_id, _ in rows[:MOST_NAMED])
        more = f" and {len(rows) - MOST_NAMED} more" if len(rows) > MOST_NAMED else ""
        return [f"set aside, because this version cannot read them: {named}{more}; the log says why"]

    async def reasons(self) -> Sequence[str]:
        """The reasons why this process is not ready; empty when it is."""
        async with self._asking:
            answer, at = self._answer
            if self.now() - at >= FRESH:
                answer = [*await self._store(), *self._failing()]
                self._answer = (answer, self.now())
            return answer

    async def _store(self) -> list[str]:
        # The reason is short: the driver's own text may name hosts and users, so only the log has it.
        try:
            async with asyncio.timeout(PATIENCE):
                await self.ping()
                if self.now() - self._schema_at < SCHEMA_EVERY:
                    return []
                has, wants = await self.revision()
        except TimeoutError:
            return [f"the database did not answer within {PATIENCE:g} s"]
        except Exception as error:
            log.warning("the database is not ready", extra=facts(error=f"{type(error).__name__}: {error}"))
            return [error.public if isinstance(error, StoreUnavailable) else "the database did not answer"]
        if has is None:
            return ["the database has no schema yet: run `fusee db upgrade`"]
        # A newer schema is no reason: schemas expand before they contract.
        if has < wants:
            return [f"the schema is at {has} and this version wants {wants}: run `fusee db upgrade`"]
        self._schema_at = self.now()
        return []

    def _failing(self) -> list[str]:
        long_ago = self.now() - WITHIN
        return [
            f"the {name} loop keeps failing"
            for name, times in sorted(self._loops.items())
            if len(times) == FAILURES and times[0] >= long_ago
        ]
