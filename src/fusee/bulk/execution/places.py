"""The places of a segment: what its window runs over, and what its checkpoints say about that.

Items of most sources have an index each, and the window runs over the indexes (`Dense`). Rows of a query have
keys with gaps between them, which may be very wide (`Keyed`): rows are read in pages, in the order of their
keys, and numbered as they come, and the window runs over these numbers. A checkpoint contains keys: every row
below its watermark is done, and so are the keys that it lists beyond. So its size depends on the window and
not on the distance between keys, and rows that are added or deleted meanwhile move no other row.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from typing import Any, Protocol

from fusee.bulk.model.done_map import done_runs, encode_runs
from fusee.bulk.model.segment import Segment
from fusee.bulk.model.spec import MOST_ITEMS
from fusee.bulk.model.window import Checkpoint, Window
from fusee.bulk.sources import PageReader, Placed

__all__ = ["Dense", "Keyed", "Places", "Reached"]

PAGE = 1024
"""Rows that are read at once; the next page is read when fewer than this wait to be issued."""


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a segment is, in places."""

    checkpoint: Checkpoint
    reached: int
    ended: int
    """The number of items that ended."""
    absent: int = 0
    """The number of places without an item that were passed over."""


class Places(Protocol):
    window: Window

    @property
    def end(self) -> int:
        """The window's watermark when everything is done; larger than any index while that is not known."""

    @property
    def reading(self) -> bool:
        """Whether more rows must be read before anything can be issued."""

    @property
    def replayed(self) -> int:
        """The number of items that an earlier worker had started and that were not recorded as done."""

    def so_far(self) -> Reached: ...

    def place_of(self, number: int) -> int:
        """Returns the place in the job of an item of the window."""

    def names_of(self, numbers: Sequence[int]) -> Sequence[int]:
        """Returns numbers, in order, by which every segment of the job knows these items."""

    @property
    def known(self) -> int:
        """Items of the window below this can be read now."""

    @property
    def mark(self) -> int:
        """The watermark as a place."""

    def behind(self, number: int) -> int:
        """Returns the place after the item before this number of the window, as far as it is known."""

    def suspects(self, place: int) -> int | None:
        """Returns how many items below this place are not done; None when each place has an item."""

    def spare(self) -> tuple[int, int]:
        """Returns about how many items were not issued, and the place where the second half of them
        begins."""

    def hold_back(self, place: int) -> None:
        """Issue nothing from this place on until `follow` says where the segment ends."""

    def follow(self, stop: int, gate: int | None = None) -> None:
        """The store says where the segment ends; `gate`: issue nothing from this place on."""


class Dense:
    """Every place of the segment has an item."""

    reading = False

    def __init__(self, segment: Segment, size: int, checkpoint: Checkpoint) -> None:
        self.window = Window.restore(segment.first, segment.stop, size, checkpoint)
        self.end = segment.stop
        self.replayed = segment.reached - segment.first - segment.ended - segment.absent
        self._reached = segment.reached

    def so_far(self) -> Reached:
        self._reached = max(self._reached, self.window.next)
        return Reached(self.window.checkpoint(), self._reached, self.window.done)

    def place_of(self, number: int) -> int:
        return number

    def names_of(self, numbers: Sequence[int]) -> Sequence[int]:
        return numbers

    @property
    def known(self) -> int:
        return self.end

    @property
    def mark(self) -> int:
        return self.window.watermark

    def behind(self, number: int) -> int:
        return number

    def suspects(self, place: int) -> int | None:
        return None

    def spare(self) -> tuple[int, int]:
        if self.window.stop != self.end:
            return 0, self.end
        rest = self.end - self.window.next
        return rest, self.window.next + (rest + 1) // 2

    def hold_back(self, place: int) -> None:
        self.window.shrink(place)

    def follow(self, stop: int, gate: int | None = None) -> None:
        self.end = stop
        self.window.stop = stop if gate is None else min(stop, gate)


class Keyed:
    """The rows of one segment by key; it is also the reader of its rows. Places are keys, or follow from
    them."""

    def __init__(self, segment: Segment, size: int, checkpoint: Checkpoint, reader: PageReader) -> None:
        self.window = Window(0, 0, size)
        self.replayed = 0
        self._reader = reader
        self._first = segment.first
        self._stop = segment.stop
        self._held = segment.stop
        self._gate: int | None = None
        """Nothing is issued from `_held` or `_gate` on."""
        self._mark = checkpoint.watermark
        self._loaded = checkpoint.watermark
        """All rows below this place were read."""
        self._reached = self._reached_before = segment.reached
        self._ended_before = segment.ended
        self._done_before = [
            place
            for first, end in done_runs(checkpoint.done)
            for place in range(checkpoint.watermark + first, checkpoint.watermark + end)
        ]
        """The places beyond the watermark that were done when the segment was taken, in order."""
        self._base = 0
        """The number of the first row in memory."""
        self._rows: list[Placed] = []
        self._places: list[int] = []
        self._wanted = asyncio.Event()
        self._wanted.set()

    # -- rows

    @property
    def known(self) -> int:
        return self._base + len(self._rows)

    @property
    def end(self) -> int:
        return self.known if self._loaded >= self._stop else MOST_ITEMS

    @property
    def reading(self) -> bool:
        return self.window.next >= self.known and self._loaded < self._stop

    async def more(self) -> bool:
        """Wait until rows are needed, and read a page of them; returns false when all were read."""
        while self._loaded < self._stop:
            await self._wanted.wait()
            self._wanted.clear()
            if self.known - self.window.next < PAGE:
                await self._load()
                return True
        return False

    async def _load(self) -> None:
        found = await self._reader.page(self._loaded, self._stop, PAGE)
        done = self._done_before
        for place, row in found:
            if place >= self._stop:  # it was given away meanwhile
                break
            at = bisect_left(done, place)
            if at < len(done) and done[at] == place:
                continue
            self._rows.append(row)
            self._places.append(place)
            self.replayed += place < self._reached_before
        whole = len(found) == PAGE
        self._loaded = min(self._stop, found[-1][0] + 1) if whole else self._stop
        self._open()

    def _open(self) -> None:
        """Let the window issue what is known and not held back."""
        until = self._held if self._gate is None else min(self._held, self._gate)
        self.window.stop = self._base + bisect_left(self._places, until)
        self._want()

    def _want(self) -> None:
        if self.known - self.window.next < PAGE:
            self._wanted.set()

    # -- as the reader of the item runners

    def at_hand(self, first: int, end: int) -> Sequence[Any]:
        self._want()
        return self._rows[first - self._base : end - self._base]

    async def read(self, first: int, end: int) -> Sequence[Any]:
        return self.at_hand(first, end)

    async def close(self) -> None:
        await self._reader.close()

    # -- as places

    def place_of(self, number: int) -> int:
        return self._places[number - self._base]

    def names_of(self, numbers: Sequence[int]) -> Sequence[int]:
        return sorted(self._rows[number - self._base].index for number in numbers)

    @property
    def mark(self) -> int:
        number = self.window.watermark
        return self.place_of(number) if number < self.known else self._loaded

    def behind(self, number: int) -> int:
        last = min(number, self.known) - 1
        return self.place_of(last) + 1 if last >= max(self._base, self.window.watermark) else self.mark

    def suspects(self, place: int) -> int | None:
        end = self._base + bisect_left(self._places, place)
        done = sum(number < end for number in self.window.done_beyond())
        return max(0, end - self.window.watermark - done)

    def so_far(self) -> Reached:
        window = self.window
        self._mark = self.mark
        issued = self.place_of(window.next - 1) + 1 if window.next > window.watermark else self._mark
        self._reached = max(self._reached, issued, self._mark)
        before = self._done_before
        del before[: bisect_left(before, self._mark)]
        beyond = [*merge(before, [self.place_of(number) for number in window.done_beyond()])]
        ended = self._ended_before + window.done
        absent = self._mark - self._first + len(beyond) - ended
        self._forget()
        checkpoint = Checkpoint(self._mark, encode_runs(_runs(beyond, self._mark)))
        return Reached(checkpoint, self._reached, ended, absent)

    def _forget(self) -> None:
        """Rows below the watermark are not needed any more."""
        many = self.window.watermark - self._base
        del self._rows[:many]
        del self._places[:many]
        self._base += many

    def spare(self) -> tuple[int, int]:
        """Estimates by the density of the rows that were read and not issued, unless all rows are known."""
        waiting = self._places[self.window.next - self._base :]
        if self._held != self._stop or not waiting:
            return 0, self._stop
        if self._loaded >= self._stop:
            return len(waiting), waiting[len(waiting) // 2]
        per_place = len(waiting) / (self._loaded - waiting[0])
        rest = len(waiting) + int(per_place * (self._stop - self._loaded))
        return rest, waiting[0] + (self._stop - waiting[0] + 1) // 2

    def hold_back(self, place: int) -> None:
        self._held = place
        self._open()

    def follow(self, stop: int, gate: int | None = None) -> None:
        if stop < self._stop:
            kept = bisect_left(self._places, stop)
            del self._rows[kept:]
            del self._places[kept:]
        self._stop = self._held = stop
        self._gate = gate
        self._loaded = min(self._loaded, stop)
        self._open()


def _runs(places: Sequence[int], mark: int) -> Iterator[tuple[int, int]]:
    """Yields runs of adjacent places, counted from the watermark."""
    at = 0
    while at < len(places):
        end = at + 1
        while end < len(places) and places[end] == places[end - 1] + 1:
            end += 1
        yield places[at] - mark, places[end - 1] + 1 - mark
        at = end
