"""Batches in metrics: what is under way, by operation, as the database says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric

from fusee.batches.model.batch import BatchLoad
from fusee.observe.counter import Names

__all__ = ["batch_gauges"]


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
