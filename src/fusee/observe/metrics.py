"""Prometheus metrics: plain counts fed by events, drawn when someone asks.

No label is unbounded: never an id, and beyond 200 names of one kind the rest is "other".
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter as Tally
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from fusee.batches.model.batch import BatchLoad
from fusee.bulk.model.job import BulkLoad
from fusee.engine.model.queue import QueueStats
from fusee.engine.model.session import Session
from fusee.engine.model.states import TERMINAL, SessionState
from fusee.events import (
    BrokerConnection,
    Bus,
    Event,
    LoopFailed,
    MessageDeadLettered,
    QueuesStalled,
    RunAttemptEnded,
    RunsAssigned,
    RunsEnqueued,
    RunsFinished,
    RunsGranted,
    RunsPublished,
    RunsRecalled,
    RunStuck,
    SessionExpired,
    TasksFired,
    WorkerMemory,
)
from fusee.facts import facts
from fusee.observe.meters import MOST_NAMES, Counter, Histogram, Labels, Names, total_metrics
from fusee.observe.work import BulkMetrics, batch_gauges

__all__ = ["MOST_NAMES", "Metrics"]

log = logging.getLogger("fusee.metrics")

SAMPLE_EVERY = 5.0
SAMPLE_PATIENCE = 2.0
ELSEWHERE = "(other namespaces)"
"""Stands for every name of a namespace that is not ours."""
TERMINAL_TEXT = frozenset(str(status) for status in TERMINAL)

E = TypeVar("E", bound=Event)


class Metrics(Collector):
    """The metrics of one app, in a registry of their own.

    Make it before the workers: they time their runs only when someone listens. What belongs to another
    namespace than `namespace` is counted without its names. Without a bus it shows only what the database
    knows of a namespace: that is for callers of a namespace that is not the process's own.
    """

    def __init__(
        self,
        bus: Bus | None,
        *,
        version: str = "0",
        namespace: str | None = None,
        queues: Callable[[], Awaitable[Sequence[QueueStats]]] | None = None,
        workers: Callable[[], Awaitable[Sequence[Session]]] | None = None,
        bulk: Callable[[], Awaitable[Sequence[BulkLoad]]] | None = None,
        batches: Callable[[], Awaitable[Sequence[BatchLoad]]] | None = None,
        totals: Callable[[], Awaitable[Sequence[tuple[str, str, int]]]] | None = None,
        unreadable: Callable[[], Sequence[tuple[str, int | str, str]]] = tuple,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.of_process = bus is not None
        bus = bus or Bus()
        self.version = version
        self.namespace = namespace
        self.queues = queues
        self.workers = workers
        self.bulk = bulk
        self.batches = batches
        self.totals = totals
        self.unreadable = unreadable
        self.now_us = now_us
        self.monotonic = monotonic
        self._handler, self._queue, self._loop = Names(), Names(), Names()
        self._region, self._release, self._label = Names(), Names(), Names()
        self.enqueued = Counter("fusee_runs_enqueued", "Runs accepted here.", "queue", "handler")
        self.finished = Counter("fusee_runs_finished", "Runs that ended here.", "handler", "status")
        self.attempts = Counter("fusee_attempts", "Attempts that ended here.", "handler", "end")
        self.leases_lost = Counter("fusee_leases_lost", "Leases that workers here could not renew in time.")
        self.stuck = Counter("fusee_runs_stuck", "Runs that ignored being told to stop and hold a slot.")
        self.loop_failures = Counter("fusee_loop_failures", "Failed passes of a loop.", "loop")
        self.sample_failures = Counter("fusee_sample_failures", "Times the database could not be sampled.")
        self.fires = Counter("fusee_fires", "Fires decided here, by what decided them.", "code")
        self.assigned = Counter("fusee_runs_assigned", "Runs that a dispatcher here gave to a worker.")
        self.taken_back = Counter("fusee_runs_taken_back", "Given runs that went home without their worker.")
        self.published = Counter(
            "fusee_broker_published",
            "Runs published here; again=yes, if they had been published before.",
            "again",
        )
        self.granted = Counter("fusee_broker_granted", "Dispatched runs that workers were allowed to start.")
        self.denied = Counter(
            "fusee_broker_refused", "Dispatched runs that workers asked to start and that were refused."
        )
        self.recalled = Counter("fusee_broker_recalled", "Dispatched runs that returned to the ready queue.")
        self.dead = Counter("fusee_broker_dead", "Messages that the broker gave up.", "reason")
        self.broker_connected: bool | None = None
        self.memory_full = False
        """None if there is no message broker."""
        self.lateness = Histogram()
        self.stalled: dict[str, float] = {}
        self.durations: dict[str, Histogram] = {}
        self.bulk_metrics = BulkMetrics(
            bus, lambda namespace, name: name if self._is_ours(namespace) else ELSEWHERE
        )
        self._sampled: tuple[Sequence[QueueStats], Sequence[Session], Sequence[BulkLoad]] | None = None
        self._batches: Sequence[BatchLoad] = ()
        self._totals: Sequence[tuple[str, str, int]] | None = None
        self._sampled_at = -SAMPLE_EVERY
        self._sampling = asyncio.Lock()
        self.registry = CollectorRegistry()
        self.registry.register(self)
        if self.of_process:
            ProcessCollector(registry=self.registry)
        self._undo = [
            *self.bulk_metrics.undo,
            bus.subscribe(RunsEnqueued, self._on_enqueued),
            bus.subscribe(RunsFinished, self._on_finished),
            bus.subscribe(RunAttemptEnded, self._on_attempt_ended),
            bus.subscribe(SessionExpired, lambda event: self.leases_lost.add(1)),
            bus.subscribe(RunStuck, lambda event: self.stuck.add(1)),
            bus.subscribe(TasksFired, self._on_fired),
            bus.subscribe(RunsAssigned, self._on_assigned),
            bus.subscribe(QueuesStalled, self._on_stalled),
            bus.subscribe(RunsPublished, lambda e: self.published.add(e.count, "yes" if e.again else "no")),
            bus.subscribe(RunsGranted, self._on_granted),
            bus.subscribe(RunsRecalled, lambda event: self.recalled.add(event.count)),
            bus.subscribe(MessageDeadLettered, lambda event: self.dead.add(1, event.reason)),
            bus.subscribe(BrokerConnection, self._on_broker_connection),
            bus.subscribe(WorkerMemory, self._on_memory),
            bus.subscribe(LoopFailed, lambda event: self.loop_failures.add(1, self._loop(event.loop))),
        ]

    def close(self) -> None:
        """Listen no more."""
        for undo in self._undo:
            undo()
        self._undo.clear()

    # -- what happens

    def _on_enqueued(self, event: RunsEnqueued) -> None:
        if self._is_ours(event.namespace):
            self.enqueued.add(event.count, self._queue(event.queue), self._handler(event.handler))
        else:
            self.enqueued.add(event.count, ELSEWHERE, ELSEWHERE)

    def _is_ours(self, namespace: str) -> bool:
        return self.namespace is None or namespace == self.namespace

    def _on_finished(self, event: RunsFinished) -> None:
        handler = self._handler(event.handler)
        count = len(event.seconds)
        self.finished.add(count, handler, "succeeded")
        self.attempts.add(count, handler, "succeeded")
        self._duration(handler).add(event.seconds)

    def _on_attempt_ended(self, event: RunAttemptEnded) -> None:
        handler = self._handler(event.handler)
        self.attempts.add(1, handler, str(event.end))
        if event.status in TERMINAL_TEXT:
            self.finished.add(1, handler, str(event.status))
        self._duration(handler).add((event.seconds,))

    def _on_stalled(self, event: QueuesStalled) -> None:
        self.stalled = {}
        for (namespace, queue), seconds in event.waiting.items():
            name = self._queue(queue) if self._is_ours(namespace) else ELSEWHERE
            self.stalled[name] = max(seconds, self.stalled.get(name, 0.0))

    def _on_assigned(self, event: RunsAssigned) -> None:
        self.assigned.add(event.placed)
        self.taken_back.add(event.returned)

    def _on_granted(self, event: RunsGranted) -> None:
        self.granted.add(event.granted)
        self.denied.add(event.refused)

    def _on_memory(self, event: WorkerMemory) -> None:
        self.memory_full = event.full

    def _on_broker_connection(self, event: BrokerConnection) -> None:
        self.broker_connected = event.up

    def _on_fired(self, event: TasksFired) -> None:
        for code, count in event.counts.items():
            self.fires.add(count, code)
        self.lateness.add(event.lateness)

    def _duration(self, handler: str) -> Histogram:
        found = self.durations.get(handler)
        if found is None:
            found = self.durations[handler] = Histogram()
        return found

    # -- what is shown

    async def render(self) -> bytes:
        """The text that Prometheus reads; drawn in a thread, so that a scrape holds nobody up."""
        await self._sample()
        return await asyncio.to_thread(generate_latest, self.registry)

    async def _sample(self) -> None:
        """Queues and workers as the database knows them, at most every few seconds."""
        if self.queues is None or self.workers is None:
            return
        async with self._sampling:
            if self.monotonic() - self._sampled_at < SAMPLE_EVERY:
                return
            try:
                async with asyncio.timeout(SAMPLE_PATIENCE):
                    loads = () if self.bulk is None else await self.bulk()
                    self._batches = () if self.batches is None else await self.batches()
                    # Kept when the next sample fails: a counter that went away for a while shows no increase.
                    self._totals = None if self.totals is None else await self.totals()
                    self._sampled = (await self.queues(), await self.workers(), loads)
            except Exception as error:
                # Old depths would look like the truth: better none.
                self._sampled = None
                self.sample_failures.add(1)
                log.warning("could not sample queues", extra=facts(error=f"{type(error).__name__}: {error}"))
            self._sampled_at = self.monotonic()

    def collect(self) -> Iterable[Metric]:
        yield InfoMetricFamily("fusee_build", "The version that runs.", {"version": self.version})
        if self._totals is not None:
            yield from total_metrics(self._totals, self._label)
        if self.of_process:
            yield from self._of_process()
        if self._sampled is not None:
            yield from self._of_queues(self._sampled[0])
            yield from self._of_workers(self._sampled[1])
            yield from self.bulk_metrics.gauges(self._sampled[2])
            yield from batch_gauges(self._batches, self._label)

    def _of_process(self) -> Iterable[Metric]:
        for counter in (
            self.enqueued,
            self.finished,
            self.attempts,
            self.leases_lost,
            self.stuck,
            self.loop_failures,
            self.sample_failures,
            self.fires,
            self.assigned,
            self.taken_back,
            self.published,
            self.granted,
            self.denied,
            self.recalled,
            self.dead,
        ):
            yield counter.family()
        yield from self.bulk_metrics.counters()
        if self.broker_connected is not None:
            yield GaugeMetricFamily(
                "fusee_broker_connected",
                "1 while the message broker is connected.",
                value=int(self.broker_connected),
            )
        yield GaugeMetricFamily(
            "fusee_worker_memory_full",
            "1 while this process is above worker.max_memory and claims nothing.",
            value=int(self.memory_full),
        )
        durations = HistogramMetricFamily(
            "fusee_run_duration_seconds", "How long attempts took.", labels=["handler"]
        )
        for handler, histogram in list(self.durations.items()):
            durations.add_metric([handler], histogram.buckets(), histogram.total)
        yield durations
        late = HistogramMetricFamily(
            "fusee_schedule_lateness_seconds", "Between the time of a fire and its decision.", labels=[]
        )
        late.add_metric([], self.lateness.buckets(), self.lateness.total)
        yield late
        stalled = GaugeMetricFamily(
            "fusee_queue_stalled_seconds",
            "How long a stalled queue's oldest run has waited.",
            labels=["queue"],
        )
        for queue, seconds in list(self.stalled.items()):
            stalled.add_metric([queue], seconds)
        yield stalled
        aside = GaugeMetricFamily(
            "fusee_rows_set_aside", "Rows that this process cannot read and leaves out.", labels=["kind"]
        )
        for kind, many in Tally(kind for kind, _, _ in self.unreadable()).items():
            aside.add_metric([kind], many)
        yield aside

    def _of_queues(self, queues: Sequence[QueueStats]) -> Iterable[Metric]:
        depth = GaugeMetricFamily(
            "fusee_queue_depth", "Runs that have not ended.", labels=["queue", "status"]
        )
        oldest = GaugeMetricFamily(
            "fusee_queue_oldest_seconds", "How long the oldest due run has waited.", labels=["queue"]
        )
        sums: dict[Labels, int] = {}
        ages: dict[str, float] = {}
        for stats in queues:
            name = self._queue(stats.name)
            for status in ("blocked", "delayed", "pending", "running", "waiting"):
                sums[name, status] = sums.get((name, status), 0) + getattr(stats, status)
            age = 0.0 if stats.oldest_pending_at is None else (self.now_us() - stats.oldest_pending_at) / 1e6
            ages[name] = max(ages.get(name, 0.0), age)
        for labels, many in sums.items():
            depth.add_metric(labels, many)
        for name, age in ages.items():
            oldest.add_metric([name], age)
        yield depth
        yield oldest

    def _of_workers(self, sessions: Sequence[Session]) -> Iterable[Metric]:
        yield GaugeMetricFamily("fusee_workers", "Live workers.", value=len(sessions))
        states = GaugeMetricFamily("fusee_workers_by_state", "Live workers, by state.", labels=["state"])
        for state in (SessionState.ALIVE, SessionState.DRAINING):
            states.add_metric([state], sum(session.state is state for session in sessions))
        yield states
        regions = GaugeMetricFamily("fusee_workers_by_region", "Live workers, by region.", labels=["region"])
        for region, many in Tally(self._region(session.info.region) for session in sessions).items():
            regions.add_metric([region], many)
        yield regions
        versions = GaugeMetricFamily(
            "fusee_workers_by_version", "Live workers, by the version they run.", labels=["version"]
        )
        for version, many in Tally(self._release(session.info.version) for session in sessions).items():
            versions.add_metric([version], many)
        yield versions
        yield from _resources(sessions)
        slots = sum(session.info.capacity for session in sessions)
        yield GaugeMetricFamily("fusee_worker_slots", "Runs that all live workers can hold.", value=slots)
        busy = sum(session.running for session in sessions)
        yield GaugeMetricFamily(
            "fusee_worker_usage_ratio",
            "Of the slots of all live workers, the share in use.",
            value=busy / slots if slots else 0.0,
        )
        yield GaugeMetricFamily(
            "fusee_worker_busy", "Runs that live workers held at their last renewal.", value=busy
        )


def _resources(sessions: Sequence[Session]) -> Iterable[Metric]:
    """What live workers declare to have, and what of it no work has asked for."""
    cpu = GaugeMetricFamily("fusee_worker_cpu", "Cores that live workers declare.", labels=["what"])
    cpu.add_metric(["declared"], sum(session.info.cpu or 0.0 for session in sessions))
    cpu.add_metric(["free"], sum(session.cpu_free or 0.0 for session in sessions))
    yield cpu
    memory = GaugeMetricFamily(
        "fusee_worker_memory_bytes", "Memory that live workers declare.", labels=["what"]
    )
    memory.add_metric(["declared"], sum(session.info.memory or 0 for session in sessions))
    memory.add_metric(["free"], sum(session.memory_free or 0 for session in sessions))
    yield memory
