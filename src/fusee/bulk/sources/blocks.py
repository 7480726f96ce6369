"""Reading in blocks: item runners ask for a few items each, the source is asked for a thousand."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

__all__ = ["BLOCK", "KEPT", "BlockReader"]

BLOCK = 1024
KEPT = 8
"""Blocks in memory: stretches mostly follow each other, a few lag behind."""


class BlockReader(ABC):
    """Keeps the blocks read last; `load` is called for one block at a time."""

    def __init__(self, block: int = BLOCK) -> None:
        self._block = block
        self._blocks: OrderedDict[int, Sequence[Any]] = OrderedDict()
        self._turn = asyncio.Lock()

    @abstractmethod
    async def load(self, first: int, end: int) -> Sequence[Any]:
        """The items of `[first, end)`; fewer where the source ends."""

    def at_hand(self, first: int, end: int) -> Sequence[Any] | None:
        number = first // self._block
        items = self._blocks.get(number)
        if items is None or end > (number + 1) * self._block:
            return None
        begin = number * self._block
        return items[first - begin : end - begin]

    async def read(self, first: int, end: int) -> Sequence[Any]:
        found: list[Any] = []
        for number in range(first // self._block, (end - 1) // self._block + 1):
            begin = number * self._block
            items = await self._of(number)
            part = items[max(0, first - begin) : max(0, end - begin)]
            found += part
        if len(found) != end - first:
            raise OSError(
                f"items {first} to {end} were asked for, and {len(found)} are there: the source changed"
            )
        return found

    async def _of(self, number: int) -> Sequence[Any]:
        async with self._turn:
            items = self._blocks.get(number)
            if items is None:
                items = await self.load(number * self._block, (number + 1) * self._block)
                self._blocks[number] = items
                if len(self._blocks) > KEPT:
                    self._blocks.popitem(last=False)
            else:
                self._blocks.move_to_end(number)
            return items

    async def close(self) -> None:
        self._blocks.clear()
