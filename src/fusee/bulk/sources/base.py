"""The contract of a source: how many items there are, and any stretch of them by index.

Most sources are read in blocks (`BlockReader`): item runners ask for a few items each, the source for a
thousand.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fusee.errors import Invalid

__all__ = [
    "ABSENT",
    "BLOCK",
    "KEPT",
    "BadItem",
    "BlockReader",
    "ItemSource",
    "PageReader",
    "Placed",
    "Reader",
    "SourceKinds",
    "fields_of",
]

BLOCK = 1024
KEPT = 8
"""Blocks in memory: stretches mostly follow each other, a few lag behind."""


class _Absent:
    """Stands for an item that does not exist: a gap between keys."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = _Absent()


@dataclass(frozen=True, slots=True)
class BadItem:
    """An item that exists and cannot be read: it is quarantined, and the others continue."""

    error: str
    raw: bytes = b""


@dataclass(frozen=True, slots=True)
class Placed:
    """An item of another job, with the index that it has there; the handler receives this index."""

    index: int
    item: Any


class Reader(Protocol):
    """Reads the items of one segment by index; asked for stretches that mostly follow each other."""

    def at_hand(self, first: int, end: int) -> Sequence[Any] | None:
        """Returns the items of `[first, end)` when they are in memory."""

    async def read(self, first: int, end: int) -> Sequence[Any]:
        """Returns the items of `[first, end)`, `ABSENT` for those that do not exist."""

    async def close(self) -> None: ...


class BlockReader(ABC):
    """Keeps the blocks that were read last; calls `load` for one block at a time."""

    def __init__(self, block: int = BLOCK) -> None:
        self._block = block
        self._blocks: OrderedDict[int, Sequence[Any]] = OrderedDict()
        self._turn = asyncio.Lock()

    @abstractmethod
    async def load(self, first: int, end: int) -> Sequence[Any]:
        """Returns the items of `[first, end)`; fewer at the end of the source."""

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


class PageReader(Protocol):
    """Reads the rows of one segment in the order of their keys."""

    async def page(self, first: int, end: int, most: int) -> Sequence[tuple[int, Placed]]:
        """Returns (place, row) of the first rows of `[first, end)`, in the order of their places; fewer than
        `most` when there are no more."""

    async def close(self) -> None: ...


class ItemSource(Protocol):
    sparse: bool
    """Whether an item may be `ABSENT`, or a `BadItem`."""
    placed: bool
    """Whether every item is `Placed`: its index differs from its place in this job."""

    async def check(self) -> None:
        """Raises `Invalid` when it cannot be read; called when a job is created."""

    async def bounds(self) -> tuple[int, int]:
        """Returns the first place, and one past the last."""

    async def count(self, first: int, stop: int) -> int | None:
        """Returns how many items there are between these places: `UNKNOWN` when counting takes too long, None
        when each place has one."""

    async def fingerprint(self) -> dict[str, Any] | None:
        """Returns what identifies its content, to be stored with a job; None when it cannot change under a
        job."""

    async def verify(self, kept: Mapping[str, Any]) -> None:
        """Raises `Conflict` when the items of this fingerprint are no longer the same; items that were
        appended are no change."""

    def reader(self) -> Reader:
        """Returns a reader by index."""

    def pages(self) -> PageReader | None:
        """Returns a reader by key, for a source with gaps between its bounds; None for any other source."""


Maker = Callable[[Mapping[str, Any]], ItemSource]


class SourceKinds:
    """kind → what makes such a source; built-in kinds are registered as yours are."""

    def __init__(self) -> None:
        self._makers: dict[str, Maker] = {}
        self._internal: set[str] = set()

    def register(self, kind: str, maker: Maker, *, internal: bool = False) -> None:
        """`internal`: only the platform creates such a source; it is not offered to callers."""
        self._makers[kind] = maker
        if internal:
            self._internal.add(kind)

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def make(self, given: Mapping[str, Any]) -> ItemSource:
        kind = given.get("kind")
        maker = self._makers.get(str(kind))
        if maker is None:
            offered = ", ".join(sorted(self._makers.keys() - self._internal))
            raise Invalid(
                f"no source of kind {str(kind)[:40]!r}; there are {offered}",
                field="source",
            )
        try:
            return maker(given)
        except (ValueError, TypeError) as error:
            raise Invalid(f"source: {error}", field="source") from None


def fields_of(given: Mapping[str, Any], *known: str) -> dict[str, Any]:
    """Returns the fields of a source, without its kind; refuses unknown fields."""
    unknown = sorted(set(given) - {"kind", *known})
    if unknown:
        raise ValueError(
            f"a source of kind {given.get('kind')} has no {unknown[0]!r:.60}; it has {', '.join(known)}"
        )
    return {name: value for name, value in given.items() if name != "kind"}
