"""The sliding window of a segment: which items may be in progress, and below which index all are done.

It is a ring of one byte for each place: the memory is the size of the window, however long the job is and
however long an item is stuck. Items end in any order; the watermark moves when the lowest one has ended.
Every checkpoint contains what is done beyond the watermark, so that it is not done again after a crash.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from fusee.bulk.model.done_map import decode_done, encode_done

__all__ = ["LARGEST_WINDOW", "Checkpoint", "Window", "window_for"]

LARGEST_WINDOW = 2**18
"""The largest size of a window: its checkpoint is then at most 32 KiB."""
LARGEST_CHOSEN = 2**16
"""The largest size that is chosen because of items that wait for a retry: a checkpoint of at most 8 KiB."""
SLACK = 1.0
"""Seconds that the attempts of an item may take besides the pauses between them."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a segment is: all items below `watermark` are done, and those beyond it that `done`
    contains."""

    watermark: int
    done: bytes = b""


def window_for(concurrency: int, speed: float = 0.0, span: float = 0.0) -> int:
    """Returns twice the concurrency, so that a slow item does not make the others wait; and at least the
    number of items that start within `span` seconds, so that an item that waits for a retry does not
    either."""
    waiting = min(LARGEST_CHOSEN, ceil(speed * (span + SLACK))) if span else 0
    return min(LARGEST_WINDOW, max(2, 2 * concurrency, waiting))


class Window:
    """Items of `[start, stop)`; at most `size` of them between the watermark and the last one issued."""

    __slots__ = ("_done", "_places", "beyond", "next", "size", "start", "stop", "watermark")

    def __init__(self, start: int, stop: int, size: int) -> None:
        if not 0 <= start <= stop:
            raise ValueError(f"a window goes from 0 or more to no less, not from {start} to {stop}")
        if not 1 <= size <= LARGEST_WINDOW:
            raise ValueError(f"a window has 1 to {LARGEST_WINDOW} places, not {size}")
        self.start = start
        self.stop = stop
        self.size = size
        self.watermark = start
        """Every item below this index is done."""
        self.next = start
        """The first item that was not considered for issuing."""
        self.beyond = 0
        """The number of items at or above the watermark that are done."""
        self._places = size
        self._done = bytearray(size)

    @classmethod
    def restore(cls, start: int, stop: int, size: int, checkpoint: Checkpoint) -> Window:
        """Returns the window of a checkpoint; what was issued and not done is issued again."""
        if not start <= checkpoint.watermark <= stop:
            raise ValueError(f"watermark {checkpoint.watermark} lies outside of {start} to {stop}")
        window = cls(start, stop, size)
        window.watermark = window.next = checkpoint.watermark
        done = decode_done(checkpoint.done)
        if len(done) > min(LARGEST_WINDOW, stop - checkpoint.watermark):
            raise ValueError("the checkpoint contains items beyond the window")
        # The window may have been larger before: its done items still need their places.
        window._places = max(size, len(done))
        window._done = bytearray(window._places)
        first = checkpoint.watermark % window._places
        whole = min(len(done), window._places - first)
        window._done[first : first + whole] = done[:whole]
        window._done[: len(done) - whole] = done[whole:]
        window.beyond = done.count(1)
        window._slide()
        return window

    @property
    def finished(self) -> bool:
        return self.watermark >= self.stop

    @property
    def full(self) -> bool:
        """Whether nothing can be issued before the watermark moves, or at all."""
        return self.next >= min(self.stop, self.watermark + self.size)

    @property
    def done(self) -> int:
        """The number of items that are done."""
        return self.watermark - self.start + self.beyond

    def issue(self, most: int) -> range:
        """Returns up to `most` adjacent items that were not issued; an empty range when the window is
        full."""
        limit = min(self.stop, self.watermark + self.size)
        first = self.next
        if not self.beyond and first < limit:  # nothing to skip: the common case
            self.next = end = min(limit, first + most)
            return range(first, end)
        first = self._skip(first, limit, 0)
        if first >= limit:
            self.next = max(self.next, min(first, limit))
            return range(first, first)
        end = self._skip(first, min(limit, first + most), 1)
        self.next = end
        return range(first, end)

    def mark(self, index: int) -> None:
        """An item is done; raises `ValueError` when it was never issued, or is done already."""
        place = index % self._places
        if not self.watermark <= index < self.next or self._done[place]:
            self._refuse(index)
        self._done[place] = 1
        self.beyond += 1
        if index == self.watermark:
            self._slide()

    def mark_all(self, first: int, end: int) -> None:
        """The items of `[first, end)`, issued together, are done."""
        count = end - first
        if count <= 0:
            return
        if not self.watermark <= first < end <= self.next:
            self._refuse(first if not self.watermark <= first < self.next else end - 1)
        if not self.beyond and first == self.watermark:  # in order: there is nothing to remember
            self.watermark = end
            return
        place = first % self._places
        head = min(count, self._places - place)
        if self._done.find(1, place, place + head) >= 0 or self._done.find(1, 0, count - head) >= 0:
            self._refuse(next(index for index in range(first, end) if self._done[index % self._places]))
        self._done[place : place + head] = b"\x01" * head
        self._done[: count - head] = b"\x01" * (count - head)
        self.beyond += count
        if first == self.watermark:
            self._slide()

    def after(self, count: int) -> int:
        """Returns the index after the lowest `count` items that are not done."""
        done, at = self._from_watermark(), -1
        for nr in range(count):
            at = done.find(0, at + 1)
            if at < 0:
                return self.watermark + len(done) + count - nr
        return self.watermark + at + 1

    def resize(self, size: int) -> None:
        """Change the number of places; what is issued stays issued."""
        if not 1 <= size <= LARGEST_WINDOW:
            raise ValueError(f"a window has 1 to {LARGEST_WINDOW} places, not {size}")
        self.size = size
        needed = max(size, self.next - self.watermark, self._extent())
        if needed > self._places:
            kept = self._from_watermark()
            self._places = needed
            self._done = bytearray(needed)
            first = self.watermark % needed
            whole = min(len(kept), needed - first)
            self._done[first : first + whole] = kept[:whole]
            self._done[: len(kept) - whole] = kept[whole:]

    def shrink(self, stop: int) -> None:
        """Give away the items from `stop` on, of which none was considered for issuing."""
        if not max(self.next, self.watermark + self._extent()) <= stop <= self.stop:
            raise ValueError(f"items from {stop} on cannot be given away: some were issued or done")
        self.stop = stop

    def done_beyond(self) -> list[int]:
        """Returns the items above the watermark that are done."""
        if not self.beyond:
            return []
        return [self.watermark + at for at, done in enumerate(self._from_watermark()) if done]

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.watermark, encode_done(bytes(self._from_watermark())))

    # -- the ring

    def _slide(self) -> None:
        """Move the watermark to the first item that is not done, and free the places behind it."""
        while self.beyond:
            place = self.watermark % self._places
            run = self._done.find(0, place)
            length = (self._places if run < 0 else run) - place
            if length == 0:
                break
            self._done[place : place + length] = bytes(length)
            self.watermark += length
            self.beyond -= length
        # Items that are done according to a checkpoint were never issued here, and need not be.
        self.next = max(self.next, self.watermark)

    def _skip(self, index: int, limit: int, value: int) -> int:
        """Returns the first item from `index` on whose place contains `value`; `limit` when there is none."""
        while index < limit:
            place = index % self._places
            stretch = min(self._places - place, limit - index)
            found = self._done.find(value, place, place + stretch)
            if found >= 0:
                return index + found - place
            index += stretch
        return limit

    def _from_watermark(self) -> bytearray:
        place = self.watermark % self._places
        return self._done[place:] + self._done[:place]

    def _extent(self) -> int:
        """Returns the number of places from the watermark to the last done item."""
        return self._from_watermark().rfind(1) + 1 if self.beyond else 0

    def _refuse(self, index: int) -> None:
        if index < self.watermark or (index < self.next and self._done[index % self._places]):
            raise ValueError(f"item {index} is done already")
        raise ValueError(f"item {index} was never issued")
