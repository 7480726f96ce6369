"""Does the length of the queue matter? The same worker on 10,000, 100,000 and 1,000,000 waiting runs.

The queues are drained by turns, a slice of each in every round, in an order that rotates, until the longest
is empty: what slows the machine down for a while hits all of them alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from statistics import median, quantiles
from typing import NamedTuple

from rich.table import Table

from bench.engine import Engine

__all__ = ["Growth", "as_table", "measure_growth"]


class Queue(NamedTuple):
    """How many wait at first, and what is drained of them at a time; filled again when too few are left."""

    length: int
    size: int
    times: int = 1


QUEUES = (Queue(10_000, 10_000, 4), Queue(100_000, 50_000), Queue(1_000_000, 50_000))
ROUNDS = 18
"""Slices of the longest, which each take a little more than is timed."""

Fresh = Callable[[], AbstractAsyncContextManager[str]]
"""A new database for as long as the block lasts."""


@dataclass
class Growth:
    """Runs a second by the queue's length, one figure a round."""

    rates: dict[int, list[float]]

    def against_the_shortest(self, length: int) -> float:
        """The median of what the rounds say, each by itself."""
        shortest = self.rates[min(self.rates)]
        return median(rate / first for rate, first in zip(self.rates[length], shortest, strict=True))


async def measure_growth(
    engine: Engine, fresh: Fresh, *, scale: float, tell: Callable[[str], None]
) -> Growth:
    queues = [Queue(round(q.length * scale), round(q.size * scale), q.times) for q in QUEUES]
    growth = Growth({queue.length: [] for queue in queues})
    async with AsyncExitStack() as stack:
        runners = {
            queue: await stack.enter_async_context(
                engine.start("slices", await stack.enter_async_context(fresh()), *queue)
            )
            for queue in queues
        }
        for runner in runners.values():
            await runner.hear()
        for number in range(ROUNDS):
            tell(f"round {number + 1} of {ROUNDS}: {engine.name}")
            for queue in _rotated(queues, number):
                runners[queue].go()
                fact = await runners[queue].hear()
                growth.rates[queue.length].append(fact["runs"] / fact["seconds"])
    return growth


def _rotated(queues: Sequence[Queue], by: int) -> Sequence[Queue]:
    by %= len(queues)
    return [*queues[by:], *queues[:by]]


def as_table(growths: dict[str, Growth]) -> Table:
    table = Table(title="Drain by the queue's length: runs a second")
    for heading in ("", "runs", "median", "middle half", "against the shortest"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, growth in growths.items():
        for length, rates in growth.rates.items():
            low, middle, high = quantiles(rates, n=4)
            table.add_row(
                name,
                f"{length:,}",
                f"{middle:,.0f}",
                f"{low:,.0f} to {high:,.0f}",
                f"{growth.against_the_shortest(length):.0%}",
            )
    return table
