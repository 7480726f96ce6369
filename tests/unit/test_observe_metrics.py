"""Metrics: counts by events, bounded labels, sampled queues."""

from __future__ import annotations

import random

import pytest

from fusee.batches.model.batch import BatchLoad, BatchPhase, BatchStatus
from fusee.bulk.model.job import BulkLoad, BulkStatus
from fusee.engine.model.queue import QueueLimits, QueueStats
from fusee.engine.model.session import Session, WorkerInfo
from fusee.engine.model.states import SessionState
from fusee.errors import StoreUnavailable
from fusee.events import (
    BulkJobRested,
    BulkProgressed,
    Bus,
    LoopFailed,
    RunAttemptEnded,
    RunsEnqueued,
    RunsFinished,
    RunStuck,
    SessionExpired,
)
from fusee.observe import Metrics
from fusee.observe.meters import BOUNDS, Histogram
from fusee.observe.metrics import MOST_NAMES, SAMPLE_EVERY


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def ended(end: str, status: str, handler: str = "h") -> RunAttemptEnded:
    return RunAttemptEnded(
        run_id=1, attempt=1, handler=handler, end=end, status=status, seconds=0.2, error=None
    )


def test_what_happens_is_counted():
    bus = Bus()
    metrics = Metrics(bus, version="1.2.3")
    bus.emit(RunsEnqueued(namespace="n", queue="q", handler="h", count=7))
    bus.emit(RunsFinished(handler="h", seconds=[0.1, 0.2, 40.0]))
    bus.emit(ended("failed", "delayed"))
    bus.emit(ended("failed", "failed"))
    bus.emit(ended("lost", "pending"))
    bus.emit(RunStuck(run_id=1, attempt=1, handler="h"))
    bus.emit(SessionExpired(session=1, worker="w", dropped=0))
    bus.emit(LoopFailed(loop="recover", error=RuntimeError(), failures=1))
    assert bus.broken == 0

    assert value(metrics, "fusee_build_info", version="1.2.3") == 1
    assert value(metrics, "fusee_runs_enqueued_total", queue="q", handler="h") == 7
    assert value(metrics, "fusee_runs_finished_total", handler="h", status="succeeded") == 3
    assert value(metrics, "fusee_runs_finished_total", handler="h", status="failed") == 1
    assert value(metrics, "fusee_runs_finished_total", handler="h", status="delayed") is None
    assert value(metrics, "fusee_attempts_total", handler="h", end="failed") == 2
    assert value(metrics, "fusee_attempts_total", handler="h", end="lost") == 1
    assert value(metrics, "fusee_run_duration_seconds_count", handler="h") == 6
    assert value(metrics, "fusee_run_duration_seconds_bucket", handler="h", le="0.25") == 5
    for name in ("runs_stuck", "leases_lost"):
        assert value(metrics, f"fusee_{name}_total") == 1
    assert value(metrics, "fusee_loop_failures_total", loop="recover") == 1


def test_closing_listens_no_more():
    bus = Bus()
    Metrics(bus).close()
    assert not any(bus.wants(kind) for kind in (RunsEnqueued, RunsFinished, RunAttemptEnded, LoopFailed))


def test_two_apps_do_not_share():
    one, two = Bus(), Bus()
    first, second = Metrics(one), Metrics(two)
    one.emit(RunsFinished(handler="h", seconds=[1.0]))
    assert value(first, "fusee_runs_finished_total", handler="h", status="succeeded") == 1
    assert value(second, "fusee_runs_finished_total", handler="h", status="succeeded") is None


def test_names_without_end_become_other():
    bus = Bus()
    metrics = Metrics(bus)
    for n in range(MOST_NAMES + 50):
        bus.emit(RunsFinished(handler=f"h{n}", seconds=[0.1]))
    bus.emit(RunsFinished(handler="h0", seconds=[0.1]))
    assert value(metrics, "fusee_runs_finished_total", handler="h0", status="succeeded") == 2
    assert value(metrics, "fusee_runs_finished_total", handler="other", status="succeeded") == 50
    assert len(metrics.durations) == MOST_NAMES + 1


def test_a_histogram_counts_as_one_would_by_hand():
    chance = random.Random(7)
    histogram = Histogram()
    everything: list[float] = []
    for size in (0, 1, 3, 500):
        batch = [chance.choice((*BOUNDS, chance.expovariate(1))) for _ in range(size)]
        histogram.add(batch)
        everything += batch
    for bound, many in zip(BOUNDS, histogram.below, strict=True):
        assert many == sum(seconds <= bound for seconds in everything)
    assert histogram.count == len(everything)
    assert histogram.total == pytest.approx(sum(everything))


class Sampled:
    def __init__(self) -> None:
        self.asked = 0
        self.fails = False
        self.names = ["q"]

    async def queues(self) -> list[QueueStats]:
        self.asked += 1
        if self.fails:
            raise StoreUnavailable("away")
        return [
            QueueStats(
                name=name,
                limits=QueueLimits(),
                blocked=0,
                delayed=2,
                pending=3,
                running=1,
                waiting=0,
                oldest_pending_at=1_000_000,
            )
            for name in self.names
        ]

    async def workers(self) -> list:
        return []


async def test_queues_are_sampled_at_most_every_few_seconds():
    now = [100.0]
    sampled = Sampled()
    metrics = Metrics(
        Bus(),
        queues=sampled.queues,
        workers=sampled.workers,
        now_us=lambda: 61_000_000,
        monotonic=lambda: now[0],
    )
    text = (await metrics.render()).decode()
    assert 'fusee_queue_depth{queue="q",status="pending"} 3.0' in text
    assert 'fusee_queue_oldest_seconds{queue="q"} 60.0' in text
    await metrics.render()
    assert sampled.asked == 1
    now[0] += SAMPLE_EVERY
    sampled.fails = True
    text = (await metrics.render()).decode()
    assert sampled.asked == 2
    assert "fusee_queue_depth{" not in text  # old depths would look like the truth
    assert "fusee_sample_failures_total 1.0" in text


async def test_many_queues_are_summed_as_other():
    sampled = Sampled()
    sampled.names = [f"q{n}" for n in range(MOST_NAMES + 4)]
    metrics = Metrics(Bus(), queues=sampled.queues, workers=sampled.workers)
    text = (await metrics.render()).decode()
    assert 'fusee_queue_depth{queue="other",status="pending"} 12.0' in text


async def test_workers_are_counted_by_state_region_and_version_and_never_by_name():
    def session(state: str, region: str = "", version: str = "1.0", cpu: float | None = None) -> Session:
        info = WorkerInfo(
            name=f"secret-{region}-{state}",
            host="h",
            pid=1,
            version=version,
            capacity=4,
            executors=("python",),
            handlers=(),
            queues=("*",),
            region=region,
            cpu=cpu,
            memory=100,
        )
        return Session(
            id=1,
            namespace="default",
            info=info,
            state=SessionState(state),
            running=2,
            started_at=0,
            seen_at=0,
            expires_at=0,
            ended_at=None,
            cpu_taken=1.5,
            memory_taken=40,
        )

    sampled = Sampled()

    async def workers() -> list:
        return [session("alive", "eu", cpu=4), session("alive"), session("draining", "eu", "1.1")]

    metrics = Metrics(Bus(), queues=sampled.queues, workers=workers)
    text = (await metrics.render()).decode()
    for line in (
        'fusee_workers_by_state{state="alive"} 2.0',
        'fusee_workers_by_state{state="draining"} 1.0',
        'fusee_workers_by_region{region="eu"} 2.0',
        'fusee_workers_by_version{version="1.1"} 1.0',
        'fusee_worker_cpu{what="declared"} 4.0',
        'fusee_worker_cpu{what="free"} 2.5',
        'fusee_worker_memory_bytes{what="free"} 180.0',
    ):
        assert line in text
    assert "secret" not in text


def progressed(business: str, **counts: int) -> BulkProgressed:
    return BulkProgressed(
        business=business, **{"done": 0, "quarantined": 0, "retried": 0, "replayed": 0, **counts}
    )


def test_bulk_jobs_are_counted_by_business():
    bus = Bus()
    metrics = Metrics(bus)
    bus.emit(progressed("mail", done=900, quarantined=2, retried=7))
    bus.emit(progressed("mail", done=100, replayed=3))
    bus.emit(BulkJobRested(job_id=17, business="mail", status="finished", reason=None))
    assert bus.broken == 0
    assert value(metrics, "fusee_bulk_items_total", business="mail", end="done") == 1000
    assert value(metrics, "fusee_bulk_items_total", business="mail", end="quarantined") == 2
    assert value(metrics, "fusee_bulk_retries_total", business="mail") == 7
    assert value(metrics, "fusee_bulk_replays_total", business="mail") == 3
    assert value(metrics, "fusee_bulk_jobs_rested_total", business="mail", status="finished") == 1
    metrics.close()
    bus.emit(progressed("mail", done=1))
    assert value(metrics, "fusee_bulk_items_total", business="mail", end="done") == 1000


async def test_bulk_jobs_that_are_not_over_are_sampled_with_few_labels():
    loads = [
        BulkLoad(business=f"b{n}", status=BulkStatus.RUNNING, jobs=1, left=10, speed=2.0)
        for n in range(MOST_NAMES + 5)
    ]
    loads.append(BulkLoad(business="b0", status=BulkStatus.STOPPED, jobs=2, left=0, speed=0.0))

    async def some() -> list[BulkLoad]:
        return loads

    async def none() -> list[object]:
        return []

    metrics = Metrics(Bus(), queues=none, workers=none, bulk=some)
    await metrics.render()
    assert value(metrics, "fusee_bulk_jobs", business="b0", status="running") == 1
    assert value(metrics, "fusee_bulk_jobs", business="b0", status="stopped") == 2
    assert value(metrics, "fusee_bulk_items_left", business="b1") == 10
    assert value(metrics, "fusee_bulk_speed", business="b1") == 2.0
    assert value(metrics, "fusee_bulk_items_left", business="other") == 50


async def test_totals_are_those_of_the_database_and_stay_when_it_is_away():
    now = [0.0]
    rows = [("sessions_lost", "", 3), ("runs_lost", "requeued", 5), ("runs_lost", "failed", 1)]
    away = False

    async def totals():
        if away:
            raise StoreUnavailable("gone")
        return rows

    async def nothing():
        return ()

    metrics = Metrics(Bus(), queues=nothing, workers=nothing, totals=totals, monotonic=lambda: now[0])
    assert value(metrics, "fusee_sessions_lost_total") is None, "not asked yet: no zero that is no fact"
    await metrics.render()
    assert value(metrics, "fusee_sessions_lost_total") == 3
    assert value(metrics, "fusee_runs_refused_total") == 0, "what never happened is 0"
    assert value(metrics, "fusee_runs_lost_total", outcome="requeued") == 5
    assert value(metrics, "fusee_runs_lost_total", outcome="canceled") == 0
    assert value(metrics, "fusee_fires_missed_total", code="catch_up") == 0
    away = True
    now[0] += SAMPLE_EVERY
    await metrics.render()
    assert value(metrics, "fusee_sessions_lost_total") == 3, "a gap would hide the next loss"


async def test_batches_are_counted_by_operation_and_never_by_name():
    def load(operation, phase=BatchPhase.APPLYING):
        targets = {BatchStatus.PENDING: 3, BatchStatus.RUNNING: 1}
        return BatchLoad(operation=operation, phase=phase, batches=1, targets=targets)

    async def batches():
        return [load(f"dial.op{nr}") for nr in range(MOST_NAMES + 5)] + [
            load("dial.op0", BatchPhase.STOPPING)
        ]

    async def totals():
        return [("batches_ended", "partial_fail dial.turn", 2), ("batches_stopped", "dial.turn", 1)]

    async def nothing():
        return ()

    metrics = Metrics(Bus(), queues=nothing, workers=nothing, batches=batches, totals=totals)
    await metrics.render()
    assert value(metrics, "fusee_batches", operation="dial.op0", phase="applying") == 1
    assert value(metrics, "fusee_batches", operation="dial.op0", phase="stopping") == 1
    assert value(metrics, "fusee_batch_targets", operation="dial.op0", status="pending") == 6
    assert value(metrics, "fusee_batches", operation="other", phase="applying") >= 5
    assert value(metrics, "fusee_batches_ended_total", status="partial_fail", operation="dial.turn") == 2
    assert value(metrics, "fusee_batches_stopped_total", operation="dial.turn") == 1
