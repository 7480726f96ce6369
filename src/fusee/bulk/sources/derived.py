"""Items of another job: those in its quarantine, or those that are done, the last one first."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from fusee.bulk.sources.base import (
    BlockReader,
    ItemSource,
    PageReader,
    Placed,
    Reader,
    SourceKinds,
    fields_of,
)
from fusee.bulk.store.store import BulkBackend
from fusee.errors import Conflict

__all__ = ["DoneSource", "QuarantineSource"]


class _Of(ABC):
    """A source with some items of another job; each keeps the index that it has there."""

    placed = True

    def __init__(
        self, given: Mapping[str, Any], kinds: SourceKinds, store: Callable[[], BulkBackend]
    ) -> None:
        fields = fields_of(given, "job", "source")
        self.job_id = fields.get("job")
        if type(self.job_id) is not int or not isinstance(fields.get("source"), Mapping):
            raise ValueError("job must be the number of a job, source the source of its items")
        self.inner: ItemSource = kinds.make(fields["source"])
        self.store = store
        self.sparse = self.inner.sparse

    async def check(self) -> None:
        await self._verify_inner()

    @abstractmethod
    async def bounds(self) -> tuple[int, int]: ...

    async def count(self, first: int, stop: int) -> int | None:
        return None

    async def items(self) -> int:
        """Returns how many there are."""
        return (await self.bounds())[1]

    async def fingerprint(self) -> dict[str, Any]:
        await self._verify_inner()
        return {"items": await self.items()}

    async def verify(self, kept: Mapping[str, Any]) -> None:
        """Items are found by counting: when the other job continued meanwhile, their places have changed."""
        await self._verify_inner()
        items = await self.items()
        if items != kept["items"]:
            raise Conflict(
                f"source: bulk job {self.job} continued meanwhile: it had {kept['items']} such items, it has"
                f" {items}: create a new job"
            )

    async def _verify_inner(self) -> None:
        """Check that it reads the same content as that job did."""
        kept = (await self.store().bulk_job(self.job)).fingerprint
        if kept is not None:
            await self.inner.verify(kept)

    @property
    def job(self) -> int:
        assert isinstance(self.job_id, int)
        return self.job_id


class QuarantineSource(_Of):
    async def bounds(self) -> tuple[int, int]:
        return 0, await self.store().quarantined_count(self.job)

    def reader(self) -> Reader:
        return _QuarantineReader(self)

    def pages(self) -> None:
        return None


class _QuarantineReader(BlockReader):
    def __init__(self, source: QuarantineSource) -> None:
        super().__init__()
        self._source = source
        self._inner = source.inner.reader()

    async def load(self, first: int, end: int) -> Sequence[Any]:
        source = self._source
        indexes = await source.store().quarantined_indexes(source.job, first, end - first)
        return await _picked(self._inner, indexes)

    async def close(self) -> None:
        await super().close()
        await self._inner.close()


class DoneSource(_Of):
    """Goes backwards: item 0 is the highest one that is done. The place of a row by key is its distance from
    the end of that job."""

    def __init__(
        self, given: Mapping[str, Any], kinds: SourceKinds, store: Callable[[], BulkBackend]
    ) -> None:
        super().__init__(given, kinds, store)
        self.keyed = self.inner.pages() is not None

    async def bounds(self) -> tuple[int, int]:
        if self.keyed:
            job = await self.store().bulk_job(self.job)
            return 0, (job.stop or 0) - (job.first or 0)
        return 0, sum(end - first for first, end in await self.ranges())

    async def count(self, first: int, stop: int) -> int | None:
        return await self.items() if self.keyed else None

    async def items(self) -> int:
        if self.keyed:
            return (await self.store().bulk_job(self.job)).done
        return await super().items()

    async def ranges(self) -> list[tuple[int, int]]:
        """Returns the ranges of items that are done, without quarantined ones, the last range first."""
        store = self.store()
        found = await store.done_ranges(self.job)
        after = -1
        whole: list[tuple[int, int]] = []
        bad: list[int] = []
        while page := await store.bulk_quarantine(self.job, after=after, limit=1000):
            bad += [item.place for item in page]
            after = page[-1].place
        at = 0
        for first, end in found:
            while at < len(bad) and bad[at] < end:
                if bad[at] > first:
                    whole.append((first, bad[at]))
                first = bad[at] + 1
                at += 1
            if first < end:
                whole.append((first, end))
        return whole[::-1]

    def reader(self) -> Reader:
        return _DoneReader(self)

    def pages(self) -> PageReader | None:
        return _DoneRows(self) if self.keyed else None


class _DoneReader(BlockReader):
    def __init__(self, source: DoneSource) -> None:
        super().__init__()
        self._source = source
        self._inner = source.inner.reader()
        self._ranges: list[tuple[int, int]] | None = None
        self._starts: list[int] = []

    async def load(self, first: int, end: int) -> Sequence[Any]:
        if self._ranges is None:
            self._ranges = await self._source.ranges()
            self._starts = [0, *accumulate(high - low for low, high in self._ranges)]
        indexes: list[int] = []
        at = first
        while at < min(end, self._starts[-1]):
            number = bisect_right(self._starts, at) - 1
            _, high = self._ranges[number]
            many = min(end, self._starts[number + 1]) - at
            last = high - 1 - (at - self._starts[number])
            indexes += range(last, last - many, -1)
            at += many
        return await _picked(self._inner, indexes)

    async def close(self) -> None:
        await super().close()
        await self._inner.close()


class _DoneRows:
    """Rows that are done, by key, the last one first."""

    def __init__(self, source: DoneSource) -> None:
        self._source = source
        self._inner: Any = source.inner.pages()  # an undo is not undone: these can be read backwards
        self._ranges: list[tuple[int, int]] = []
        self._stop: int | None = None

    async def page(self, first: int, end: int, most: int) -> Sequence[tuple[int, Placed]]:
        if self._stop is None:
            self._ranges = (await self._source.ranges())[::-1]
            self._stop = (await self._source.store().bulk_job(self._source.job)).stop or 0
        stop, starts = self._stop, [low for low, _ in self._ranges]
        found: list[tuple[int, Placed]] = []
        while len(found) < most and first < end:
            rows = await self._inner.page(stop - end, stop - first, most, backwards=True)
            for key, row in rows:
                number = bisect_right(starts, key) - 1
                if number >= 0 and key < self._ranges[number][1]:
                    found.append((stop - 1 - key, row))
            if len(rows) < most:
                break
            first = stop - rows[-1][0]
        return found[:most]

    async def close(self) -> None:
        await self._inner.close()


async def _picked(reader: Reader, indexes: Sequence[int]) -> list[Any]:
    """Returns items by index, in that order; adjacent ones are read together."""
    items: list[Any] = []
    at = 0
    while at < len(indexes):
        step = indexes[at + 1] - indexes[at] if at + 1 < len(indexes) else 1
        to = at + 1
        if abs(step) == 1:
            while to < len(indexes) and indexes[to] - indexes[to - 1] == step:
                to += 1
        low, high = min(indexes[at], indexes[to - 1]), max(indexes[at], indexes[to - 1])
        part = await reader.read(low, high + 1)
        found = zip(range(low, high + 1), part, strict=True)
        placed = [item if isinstance(item, Placed) else Placed(index, item) for index, item in found]
        items += placed if indexes[at] == low else placed[::-1]
        at = to
    return items
