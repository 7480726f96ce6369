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
}
"""Name in the store → (metric, help, labels). The label of a total has one word for each."""


def total_metrics(totals: Sequence[tuple[str, str, int]], names: Names) -> Iterable[Metric]:
    """A counter for each kind; what never happened is 0 where it has no labels."""
    for kind, (metric, help, labels) in TOTALS.items():
        family = CounterMetricFamily(metric, help, labels=labels)
        sums: dict[tuple[str, ...], int] = {} if labels else {(): 0}
        for _, label, value in (total for total in totals if total[0] == kind):
            values = tuple(names(word) for word in label.split(" ", len(labels) - 1)) if labels else ()
            sums[values] = sums.get(values, 0) + value
        for values, value in sums.items():
            family.add_metric(values, value)
        yield family
