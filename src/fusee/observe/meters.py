"""Counters, histograms, and the labels that stay few.

Totals are those of the whole platform, as the database keeps them: the same wherever they are scraped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, Metric

__all__ = [
    "BOUNDS",
    "MOST_NAMES",
    "TOTALS",
    "Counter",
    "Histogram",
    "Labels",
    "Names",
    "total_metrics",
]

MOST_NAMES = 200
OTHER = "other"
Labels = tuple[str, ...]


class Names:
    """Returns the first `most` names as they are, and "other" for all further names."""

    def __init__(self, most: int = MOST_NAMES) -> None:
        self.most = most
        self._known: set[str] = set()

    def __call__(self, name: str) -> str:
        if name in self._known:
            return name
        if len(self._known) >= self.most:
            return OTHER
        self._known.add(name)
        return name


class Counter:
    """A count for each combination of labels."""

    def __init__(self, name: str, help: str, *labels: str) -> None:
        self.name, self.help, self.labels = name, help, labels
        self.counts: dict[Labels, int] = {} if labels else {(): 0}

    def add(self, count: int, *labels: str) -> None:
        self.counts[labels] = self.counts.get(labels, 0) + count

    def family(self) -> Metric:
        family = CounterMetricFamily(self.name, self.help, labels=self.labels)
        for labels, count in list(self.counts.items()):
            family.add_metric(labels, count)
        return family


BOUNDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)


class Histogram:
    """Adding 500 durations costs 40 ns each; one locked observation each would cost 1 µs."""

    __slots__ = ("below", "count", "total")

    def __init__(self) -> None:
        self.below = [0] * len(BOUNDS)
        self.count = 0
        self.total = 0.0

    def add(self, seconds: Sequence[float]) -> None:
        ordered = sorted(seconds)
        below = self.below
        for index, bound in enumerate(BOUNDS):
            below[index] += bisect_right(ordered, bound)
        self.count += len(ordered)
        self.total += sum(ordered)

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, how many at or below it), the last one for all."""
        shown = [(str(float(bound)), float(many)) for bound, many in zip(BOUNDS, self.below, strict=True)]
        return [*shown, ("+Inf", float(self.count))]


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
    """A counter for each kind. A kind without labels that never happened is 0."""
    for kind, (metric, help, labels) in TOTALS.items():
        family = CounterMetricFamily(metric, help, labels=labels)
        # They begin at 0: Prometheus sees no increase in a series that begins with its first loss.
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
