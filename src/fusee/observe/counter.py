"""Counts by labels, and labels that stay few."""

from __future__ import annotations

from prometheus_client.core import CounterMetricFamily, Metric

__all__ = ["MOST_NAMES", "OTHER", "Counter", "Labels", "Names"]

MOST_NAMES = 200
OTHER = "other"
Labels = tuple[str, ...]


class Names:
    """The first so many names pass; the rest is "other"."""

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
