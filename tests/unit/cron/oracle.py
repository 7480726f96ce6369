"""What should fire, found the slow way: walk every step of UTC and look at the wall clock.

Shares nothing with the engine: expressions come as a text for it and as plain sets for us, and zones are
asked instant by instant.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

__all__ = ["Wanted", "instant", "transitions", "walk", "walk_by_minutes", "wall_minutes", "walls"]

EPOCH = datetime(1970, 1, 1)
EVERY_DAY = frozenset(range(7))


@dataclass(frozen=True)
class Wanted:
    """An expression and, independent of it, what it means; weekdays as in date.weekday()."""

    text: str
    fixed: bool
    hours: frozenset[int]
    minutes: frozenset[int]
    seconds: frozenset[int] = frozenset({0})
    weekdays: frozenset[int] = EVERY_DAY

    def minutes_of_week(self) -> frozenset[int]:
        """The same, for a long walk by minutes: those after Thursday 00:00 at which it matches."""
        return frozenset(minute for minute in range(7 * 1440) if minute * 60 in self)

    def __contains__(self, local: int) -> bool:
        """Whether a wall clock that shows this local second shows a match."""
        day, second = divmod(local, 86_400)
        return (
            second % 60 in self.seconds
            and second // 60 % 60 in self.minutes
            and second // 3600 in self.hours
            and (day + 3) % 7 in self.weekdays  # the epoch was a Thursday
        )


def instant(*args: int) -> int:
    """Seconds since the epoch of a time in UTC."""
    return int(datetime(*args, tzinfo=UTC).timestamp())  # type: ignore[arg-type,misc]


def wall(second: int, zone: ZoneInfo) -> int:
    """What the wall clock shows, in local seconds."""
    local = datetime.fromtimestamp(second, zone).replace(tzinfo=None)
    return (local - EPOCH) // timedelta(seconds=1)


def walls(zone: ZoneInfo, start: int, end: int, step: int) -> Iterator[tuple[int, int]]:
    """Each step of UTC with its wall clock. The zone is asked every quarter of an hour.

    Nowhere in our years does an offset change at another time than a quarter.
    """
    assert 900 % step == 0 and start % 900 == 0 and end % 900 == 0
    for quarter in range(start, end, 900):
        ahead = wall(quarter, zone) - quarter
        for second in range(quarter, quarter + 900, step):
            yield second, second + ahead


def wall_minutes(zone: ZoneInfo, start: int, end: int) -> array[int]:
    """As `walls`, for years: only what the wall clock shows, in whole minutes."""
    shown = array("q")
    for quarter in range(start, end, 900):
        local = wall(quarter, zone) // 60
        shown.extend(range(local, local + 15))
    return shown


def walk_by_minutes(wanted: Wanted, start: int, clock: array[int]) -> list[int]:
    """As `walk`, for years: a look into a set of the week's minutes instead of into each field."""
    week = wanted.minutes_of_week()
    if not wanted.fixed:
        found = [index for index, local in enumerate(clock) if local % 10_080 in week]
    else:
        found = []
        high = clock[0] - 1
        for index, local in enumerate(clock):
            if local > high:
                if local % 10_080 in week or (local > high + 1 and _passed(week, high + 1, local)):
                    found.append(index)
                high = local
    return [start + index * 60 for index in found if index > 0]


def _passed(week: frozenset[int], low: int, high: int) -> bool:
    return any(minute % 10_080 in week for minute in range(low, high))


def walk(wanted: Wanted, clock: list[tuple[int, int]], step: int) -> list[int]:
    """The seconds at which it fires; those of the first step are not known, as we do not see what was before.

    A fixed schedule fires when the wall clock first reaches or passes a time; a rhythm when it shows one.
    """
    fires = []
    high = clock[0][1]
    for second, local in clock[1:]:
        if not wanted.fixed:
            if local in wanted:
                fires.append(second)
        elif local > high:
            if any(passed in wanted for passed in range(high + step, local + step, step)):
                fires.append(second)
            high = local
    return fires


@lru_cache
def transitions(zone: ZoneInfo, start: int, end: int) -> tuple[int, ...]:
    """The seconds at which the offset changes."""
    found = []
    before = wall(start, zone) - start
    for quarter in range(start, end, 900):
        ahead = wall(quarter, zone) - quarter
        if ahead != before:
            found.append(quarter)
        before = ahead
    return tuple(found)
