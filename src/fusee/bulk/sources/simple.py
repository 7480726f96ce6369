"""Items that need not be read: an integer range, and a list that is part of the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from fusee.bulk.model.spec import MOST_ITEMS
from fusee.bulk.sources.base import fields_of

__all__ = ["ListSource", "RangeSource"]


class _AtHand:
    """A source that is its own reader."""

    sparse = False
    placed = False

    async def check(self) -> None:
        """It was checked when it was created."""

    async def count(self, first: int, stop: int) -> None:
        """Every place has an item."""

    async def fingerprint(self) -> None:
        """It is part of the job."""

    async def verify(self, kept: Mapping[str, Any]) -> None:
        """It is part of the job."""

    def pages(self) -> None:
        """Every place has an item."""

    def reader(self) -> Self:
        return self

    async def close(self) -> None:
        """Nothing is open."""


class RangeSource(_AtHand):
    """`{"kind": "range", "start": 0, "stop": 10_000_000_000}`: the items are the indexes themselves."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        fields = fields_of(given, "start", "stop")
        start, stop = fields.get("start", 0), fields.get("stop")
        if type(start) is not int or type(stop) is not int:
            raise ValueError("start and stop must be whole numbers")
        if not 0 <= start <= stop <= MOST_ITEMS:
            raise ValueError(f"start and stop must be 0 ≤ start ≤ stop ≤ {MOST_ITEMS}")
        self.start: int = start
        self.stop: int = stop

    async def bounds(self) -> tuple[int, int]:
        return self.start, self.stop

    def at_hand(self, first: int, end: int) -> Sequence[Any]:
        return range(first, end)

    async def read(self, first: int, end: int) -> Sequence[Any]:
        return range(first, end)


class ListSource(_AtHand):
    """`{"kind": "list", "items": [...]}`."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        items = fields_of(given, "items").get("items")
        if not isinstance(items, list | tuple):
            raise ValueError("items must be a list")
        self.items: Sequence[Any] = items

    async def bounds(self) -> tuple[int, int]:
        return 0, len(self.items)

    def at_hand(self, first: int, end: int) -> Sequence[Any]:
        return self.items[first:end]

    async def read(self, first: int, end: int) -> Sequence[Any]:
        return self.items[first:end]
