"""Totals of the whole platform, as the database keeps them: the same wherever they are scraped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, Metric

from fusee.observe.counter import Names

__all__ = ["TOTALS", "total_metrics"]

TOTALS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "sessions_lost": ("fusee_sessions_lost", "Dead workers that a dispatcher found.", ()),
    "runs_lost": (
        "fusee_runs_lost",
        "Attempts lost with their worker, by what became of the run.",
        ("outcome",),
    ),
    "results_refused": ("fusee_runs_refused", "Late results that the fence refused.", ()),
    "fires_missed": (
        "fusee_fires_missed",
        "Fires that no dispatcher decided in time: missed for good, or caught up.",
        ("code",),
    ),
    "batches_ended": (
        "fusee_batches_ended",
        "Batches for which nothing was left to do, by how they ended.",
        ("status", "operation"),
    ),
    "batches_stopped": (
        "fusee_batches_stopped",
        "Batches that stopped because more targets failed than they allow.",
        ("operation",),
    ),
}
"""Name in the store → (metric, help, labels). The label of a total has one word for each."""
BEGIN_AT_0 = {"runs_lost": ("requeued", "failed", "canceled"), "fires_missed": ("catch_up", "caught_up")}


def total_metrics(totals: Sequence[tuple[str, str, int]], names: Names) -> Iterable[Metric]:
    """A counter for each kind; what never happened is 0 where it has no labels."""
    for kind, (metric, help, labels) in TOTALS.items():
        family = CounterMetricFamily(metric, help, labels=labels)
        # From 0 on: Prometheus sees no increase in a series that begins with its first loss.
        sums: dict[tuple[str, ...], int] = {(word,): 0 for word in BEGIN_AT_0.get(kind, ())}
        if not labels:
            sums = {(): 0}
        for _, label, value in (total for total in totals if total[0] == kind):
            words = label.split(" ", len(labels) - 1) if labels else ()
            # Users name operations; the values of all other labels are ours, and few.
            values = tuple(
                names(word) if of == "operation" else word for of, word in zip(labels, words, strict=True)
            )
            sums[values] = sums.get(values, 0) + value
        for values, value in sums.items():
            family.add_metric(values, value)
        yield family
