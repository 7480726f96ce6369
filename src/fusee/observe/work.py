"""Batches and bulk jobs in metrics: what workers here did, and what the database says is left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric

from fusee.batches.model.batch import BatchLoad
from fusee.bulk.model.job import BulkLoad
from fusee.events import BulkJobRested, BulkProgressed, Bus
from fusee.observe.meters import Counter, Names

__all__ = ["BulkMetrics", "batch_gauges"]


def batch_gauges(loads: Sequence[BatchLoad], names: Names) -> Iterable[Metric]:
    """No label names a batch or a target."""
    batches = GaugeMetricFamily("fusee_batches", "Batches that are not done.", labels=["operation", "phase"])
    targets = GaugeMetricFamily(
        "fusee_batch_targets", "Targets of batches that are not done.", labels=["operation", "status"]
    )
    many: dict[tuple[str, str], int] = {}
    stand: dict[tuple[str, str], int] = {}
    for load in loads:
        operation = names(load.operation)
        key = (operation, str(load.phase))
        many[key] = many.get(key, 0) + load.batches
        for status, count in load.targets.items():
            stand[operation, str(status)] = stand.get((operation, str(status)), 0) + count
    for labels, count in many.items():
        batches.add_metric(labels, count)
    for labels, count in stand.items():
        targets.add_metric(labels, count)
    return (batches, targets)


class BulkMetrics:
    def __init__(self, bus: Bus, named: Callable[[str, str], str] = lambda namespace, name: name) -> None:
        """`named` gives a name as it may be shown, from its namespace and itself."""
        self._named = named
        self._business = Names()
        self.items = Counter(
            "fusee_bulk_items",
            "Items of bulk jobs that ended here.",
            "business",
            "end",
        )
        self.retries = Counter("fusee_bulk_retries", "Tries of items beyond the first.", "business")
        self.replays = Counter(
            "fusee_bulk_replays",
            "Items under way at the last checkpoint of a worker that was lost, and started again.",
            "business",
        )
        self.rested = Counter(
            "fusee_bulk_jobs_rested",
            "Jobs that dispatchers here saw come to rest.",
            "business",
            "status",
        )
        self.undo: list[Callable[[], None]] = [
            bus.subscribe(BulkProgressed, self._on_progress),
            bus.subscribe(BulkJobRested, self._on_rest),
        ]

    def _on_progress(self, event: BulkProgressed) -> None:
        business = self._business(event.business)
        for counter, count, labels in (
            (self.items, event.done, (business, "done")),
            (self.items, event.quarantined, (business, "quarantined")),
            (self.retries, event.retried, (business,)),
            (self.replays, event.replayed, (business,)),
        ):
            if count > 0:
                counter.add(count, *labels)

    def _on_rest(self, event: BulkJobRested) -> None:
        business = self._business(self._named(event.namespace, event.business))
        self.rested.add(1, business, event.status)

    def counters(self) -> Iterable[Metric]:
        for counter in (self.items, self.retries, self.replays, self.rested):
            yield counter.family()

    def gauges(self, loads: Sequence[BulkLoad]) -> Iterable[Metric]:
        jobs = GaugeMetricFamily(
            "fusee_bulk_jobs", "Bulk jobs that are not over.", labels=["business", "status"]
        )
        left = GaugeMetricFamily(
            "fusee_bulk_items_left", "Items of running jobs that have not ended.", labels=["business"]
        )
        speed = GaugeMetricFamily(
            "fusee_bulk_speed",
            "Items a second of running jobs.",
            labels=["business"],
        )
        held = GaugeMetricFamily(
            "fusee_bulk_jobs_held",
            "Running bulk jobs, by what keeps them from starting more items.",
            labels=["business", "by"],
        )
        stalled = GaugeMetricFamily(
            "fusee_bulk_jobs_stalled",
            "Running bulk jobs that have ended no item for a while, though items are under way.",
            labels=["business"],
        )
        still: dict[str, int] = {}
        by_held: dict[tuple[str, str], int] = {}
        by_status: dict[tuple[str, str], int] = {}
        sums: dict[str, tuple[int, float]] = {}
        for load in loads:
            business = self._business(load.business)
            key = (business, str(load.status))
            by_status[key] = by_status.get(key, 0) + load.jobs
            if load.held_by is not None:
                by = (business, str(load.held_by))
                by_held[by] = by_held.get(by, 0) + load.jobs
            still[business] = still.get(business, 0) + load.stalled
            rest, fast = sums.get(business, (0, 0.0))
            sums[business] = (rest + load.left, fast + load.speed)
        for key, many in by_status.items():
            jobs.add_metric(key, many)
        for key, many in by_held.items():
            held.add_metric(key, many)
        for business, (rest, fast) in sums.items():
            left.add_metric([business], rest)
            speed.add_metric([business], fast)
        for business, many in still.items():
            stalled.add_metric([business], many)
        return (jobs, left, speed, held, stalled)
