"""A time zone as periods of constant offset, so that finding the next fire is whole-number arithmetic.

`zoneinfo` gives the offset of one instant and hides its list of transitions. We read the offset of each day
for about a year at a time, find each change by bisection, and keep the result. A pair of changes that undo
each other within a day would be missed; in the whole tz database the closest such pair is almost four days
apart (Freetown, 1939).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

__all__ = ["EARLIEST", "LATEST", "OffsetPeriod", "Offsets", "offsets_of"]

_DAY = 86_400
_BLOCK = 1 << 25
"""Seconds surveyed at a time: 388 days."""
_MOST_BLOCKS = 256

_EPOCH = datetime(1970, 1, 1)
_SECOND = timedelta(seconds=1)
_ONE_DAY = timedelta(days=1)

# A day from either end of the calendar: no offset reaches 24 hours, so local dates never leave it.
EARLIEST = (datetime(1, 1, 2) - _EPOCH) // _SECOND
LATEST = (datetime(9999, 12, 31) - _EPOCH) // _SECOND


class OffsetPeriod(NamedTuple):
    """From `start` until before `end` (seconds since the epoch), local time is `offset` ahead of UTC."""

    start: int
    end: int
    offset: int
    seen: int
    """The wall clock's high-water mark: the first local second that it had not shown before `start`.

    Below `start + offset` where the clock jumped ahead (a gap), above where it was set back.
    """


class Offsets:
    """The periods of one zone, found when they are needed."""

    __slots__ = ("_blocks", "_latest", "_zone")

    def __init__(self, zone: ZoneInfo) -> None:
        self._zone = zone
        self._blocks: dict[int, list[OffsetPeriod]] = {}
        self._latest = OffsetPeriod(0, 0, 0, 0)

    def at(self, second: int) -> OffsetPeriod:
        """The period that holds this second; it may end with a block, without a change of offset."""
        latest = self._latest
        if latest[0] <= second < latest[1]:
            return latest
        block = second // _BLOCK
        stretches = self._blocks.get(block)
        if stretches is None:
            stretches = self._survey(block)
            if len(self._blocks) >= _MOST_BLOCKS:  # users choose how far they ask ahead
                self._blocks.clear()
            self._blocks[block] = stretches
        # Two threads may each put theirs here: both are right, so neither needs a lock.
        self._latest = latest = stretches[bisect_right(stretches, second, key=lambda s: s.start) - 1]
        return latest

    def _survey(self, block: int) -> list[OffsetPeriod]:
        begin, end = block * _BLOCK, (block + 1) * _BLOCK
        # From two days earlier: no longer does a clock that was set back repeat itself.
        start = begin - 2 * _DAY
        offset = self._offset(start)
        seen = start + offset
        found = []
        for before, after in self._days_that_differ(start, end):
            change = self._change(before, after, offset)
            found.append(OffsetPeriod(start, change, offset, seen))
            seen = max(seen, change + offset)
            start, offset = change, self._offset(change)
        found.append(OffsetPeriod(start, end, offset, seen))
        inside = [stretch for stretch in found if begin < stretch.end and stretch.start < end]
        first = inside[0]
        if first.start < begin:
            inside[0] = first._replace(start=begin, seen=max(first.seen, begin + first.offset))
        return inside

    def _days_that_differ(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Pairs of seconds, a day apart, with another offset at the second than at the first."""
        low, high = max(start, EARLIEST), min(end, LATEST - _DAY)
        # Arithmetic within one zone is on the wall clock, so this counts days and subtracts offsets alike.
        utc = (_EPOCH + timedelta(seconds=low)).replace(tzinfo=self._zone)
        last = self._zone.fromutc(utc) - utc
        for second in range(low, high, _DAY):
            utc += _ONE_DAY
            offset = self._zone.fromutc(utc) - utc
            if offset != last:
                yield second, second + _DAY
                last = offset

    def _change(self, before: int, after: int, offset: int) -> int:
        """The first second, after `before` and not after `after`, that no longer has this offset."""
        while after - before > 1:
            middle = (before + after) // 2
            if self._offset(middle) == offset:
                before = middle
            else:
                after = middle
        return after

    def _offset(self, second: int) -> int:
        utc = _EPOCH + timedelta(seconds=min(max(second, EARLIEST), LATEST - 1))
        local = self._zone.fromutc(utc.replace(tzinfo=self._zone))
        return (local.replace(tzinfo=None) - utc) // _SECOND


@lru_cache(maxsize=1024)
def offsets_of(zone: ZoneInfo) -> Offsets:
    return Offsets(zone)
