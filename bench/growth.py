"""Does the length of the queue matter? The same worker on 10,000, 100,000 and 1,000,000 waiting runs.

Each round measures each length once, in an order that rotates, on a database of its own; short queues are
drained several times a round, so that each length is timed for about as long as the noise lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from statistics import median

from rich.table import Table

from bench.engine import Engine

__all__ = ["LENGTHS", "Growth", "as_table", "measure_growth"]

LENGTHS = {10_000: 10, 100_000: 2, 1_000_000: 1}
"""How long a queue, and how often it is drained in a round."""

Fresh = Callable[[], AbstractAsyncContextManager[str]]
"""A new database for as long as the block lasts."""


@dataclass
class Growth:
    """Runs a second by the queue's length, one figure a round."""

    rates: dict[int, list[float]] = field(default_factory=dict)

    def median(self, length: int) -> float:
        return median(self.rates[length])

    def against_the_shortest(self, length: int) -> float:
        """The median of what each round says: what slows a whole round down does not count."""
        shortest = self.rates[min(self.rates)]
        return median(rate / first for rate, first in zip(self.rates[length], shortest, strict=True))


async def measure_growth(
    engine: Engine, fresh: Fresh, *, rounds: int, scale: float, tell: Callable[[str], None]
) -> Growth:
    lengths = {round(length * scale): times for length, times in LENGTHS.items()}
    growth = Growth({length: [] for length in lengths})
    for number in range(rounds):
        for length in _rotated([*lengths], number):
            tell(f"round {number + 1} of {rounds}: {engine.name}, {length:,} runs")
            async with fresh() as url:
                seconds = await engine.drains(url, length, lengths[length])
            growth.rates[length].append(length * len(seconds) / sum(seconds))
    return growth


def _rotated(lengths: Sequence[int], by: int) -> Sequence[int]:
    by %= len(lengths)
    return [*lengths[by:], *lengths[:by]]


def as_table(growths: dict[str, Growth]) -> Table:
    table = Table(title="Drain by the queue's length: runs a second")
    for heading in ("", "runs", "median", "lowest", "highest", "against the shortest"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, growth in growths.items():
        for length, rates in growth.rates.items():
            table.add_row(
                name,
                f"{length:,}",
                f"{growth.median(length):,.0f}",
                f"{min(rates):,.0f}",
                f"{max(rates):,.0f}",
                f"{growth.against_the_shortest(length):.0%}",
            )
    return table
