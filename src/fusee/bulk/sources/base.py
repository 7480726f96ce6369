"""The contract of a source: how many items there are, and any stretch of them by index."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fusee.errors import Invalid

__all__ = ["ABSENT", "BadItem", "ItemSource", "PageReader", "Placed", "Reader", "SourceKinds", "fields_of"]


class _Absent:
    """There is no such item: a gap between keys."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = _Absent()


@dataclass(frozen=True, slots=True)
class BadItem:
    """An item that is there and cannot be read: it is quarantined, the others go on."""

    error: str
    raw: bytes = b""


@dataclass(frozen=True, slots=True)
class Placed:
    """Another job's item, with the index that it has there: what its handler is told."""

    index: int
    item: Any


class Reader(Protocol):
    """Reads the items of one segment by index; asked for stretches that mostly follow each other."""

    def at_hand(self, first: int, end: int) -> Sequence[Any] | None:
        """The items of `[first, end)` when they need no waiting."""

    async def read(self, first: int, end: int) -> Sequence[Any]:
        """The items of `[first, end)`, `ABSENT` where there is none."""

    async def close(self) -> None: ...


class PageReader(Protocol):
    """Reads the rows of one segment in the order of their keys."""

    async def page(self, first: int, end: int, most: int) -> Sequence[tuple[int, Placed]]:
        """(place, row) of the first rows of `[first, end)`, in the order of their places; fewer than `most`
        when these are all."""

    async def close(self) -> None: ...


class ItemSource(Protocol):
    sparse: bool
    """Whether an item may be `ABSENT`, or a `BadItem`."""
    placed: bool
    """Whether every item is `Placed`: it has another index than its place in this job."""

    async def check(self) -> None:
        """Raise `Invalid` when it cannot be read; called when a job is created."""

    async def bounds(self) -> tuple[int, int]:
        """(the first place, one past the last)."""

    async def count(self, first: int, stop: int) -> int | None:
        """How many items lie between these places: `UNKNOWN` when counting takes too long, None when there is
        one at each place."""

    async def fingerprint(self) -> dict[str, Any] | None:
        """What tells its content from another; kept with a job. None when it cannot change under a job."""

    async def verify(self, kept: Mapping[str, Any]) -> None:
        """Raise `Conflict` when the items that this fingerprint stands for are not all there as they were;
        more of them behind those are no change."""

    def reader(self) -> Reader:
        """By index."""

    def pages(self) -> PageReader | None:
        """By key, of a source whose places between its bounds may be empty; None of any other."""


Maker = Callable[[Mapping[str, Any]], ItemSource]


class SourceKinds:
    """kind → what makes such a source; built-in kinds register as yours do."""

    def __init__(self) -> None:
        self._makers: dict[str, Maker] = {}
        self._internal: set[str] = set()

    def register(self, kind: str, maker: Maker, *, internal: bool = False) -> None:
        """`internal`: made by the platform alone, and not offered to callers."""
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
    """The fields of a source, without its kind; refuses what is not known."""
    unknown = sorted(set(given) - {"kind", *known})
    if unknown:
        raise ValueError(
            f"a source of kind {given.get('kind')} has no {unknown[0]!r:.60}; it has {', '.join(known)}"
        )
    return {name: value for name, value in given.items() if name != "kind"}
