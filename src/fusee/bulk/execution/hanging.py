"""Calls that could not be stopped and still run in this process: their items are not started beside them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["HangingCall", "HangingCalls", "after"]

LOOK_EVERY = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class HangingCall:
    job_id: int
    items: Sequence[int]
    """Their places in the job; of rows by key their keys. In order."""
    over: Callable[[], bool]
    outcome: Callable[[], Any] | None = None
    """Returns or raises what it did, once it is over; None when that is not known."""


class HangingCalls:
    """Those of one process, over all of its jobs and whatever became of their segments."""

    def __init__(self) -> None:
        self._calls: list[HangingCall] = []

    def add(self, call: HangingCall) -> None:
        self._calls.append(call)

    def of(self, job_id: int) -> list[HangingCall]:
        self._calls = [call for call in self._calls if not call.over()]
        return [call for call in self._calls if call.job_id == job_id]


def after(
    hanging: Sequence[HangingCall], call: Callable[[Any], Any], *, indexed: bool, keyed: bool = False
) -> Callable[..., Any]:
    """`call`, taking (index or indexes, what it takes), that waits for the hanging calls of the same items.
    When one of them had just these items, its outcome counts, and they are not called for again."""

    async def waiting(given: tuple[Any, Any]) -> Any:
        alone = isinstance(given[0], int)
        wanted = (given[0],) if alone else given[0]
        if keyed:
            wanted = sorted(row.index for row in ((given[1],) if alone else given[1]))
        for one in hanging:
            if not _overlap(one.items, wanted):
                continue
            while not one.over():  # noqa: ASYNC110 - rare, and its thread may belong to a loop that is gone
                await asyncio.sleep(LOOK_EVERY)
            if one.outcome is not None and list(one.items) == list(wanted):
                return one.outcome()
        return await call(given if indexed else given[1])

    return waiting


def _overlap(one: Sequence[int], other: Sequence[int]) -> bool:
    if one[-1] < other[0] or other[-1] < one[0]:
        return False
    return not set(one).isdisjoint(other)
