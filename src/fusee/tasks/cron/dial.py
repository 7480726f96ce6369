"""When a wall clock shows what the expression asks for: a clock without a zone, counted in local seconds.

Local seconds are what the epoch would count if the place had always been at Greenwich: days of 86,400 s.
"""

from __future__ import annotations

from datetime import date

from fusee.tasks.cron.fields import HOUR, MINUTE, MONTH, SECOND, CronField, Span, mask_of
from fusee.tasks.cron.parse import Fields

__all__ = ["DAY", "NEVER", "Dial"]

DAY = 86_400
NEVER = 1 << 60
"""A day, and so a second, far beyond any calendar."""

_EPOCH = date(1970, 1, 1).toordinal()
_LAST = date.max.toordinal()
_LENGTHS = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_EVERY_DAY = tuple((1 << length + 1) - 2 for length in (28, 29, 30, 31) for _ in range(7))
_EVERY_MONTH = (1 << 13) - 2


class Dial:
    """Tables instead of tests: entry `n` is the first allowed value from `n` on, so a step is one look-up."""

    __slots__ = (
        "_every_day",
        "_first",
        "_first_in_hour",
        "_first_second",
        "_hours",
        "_masks",
        "_minutes",
        "_months",
        "_seconds",
    )

    def __init__(self, fields: Fields) -> None:
        self._seconds = _table(SECOND, fields.seconds)
        self._minutes = _table(MINUTE, fields.minutes)
        self._hours = _table(HOUR, fields.hours)
        self._months = _table(MONTH, fields.months)
        self._masks = fields.masks
        self._first_second = self._seconds[0]
        self._first_in_hour = self._minutes[0] * 60 + self._first_second
        self._first = self._hours[0] * 3600 + self._first_in_hour
        self._every_day = self._masks == _EVERY_DAY and mask_of(MONTH, fields.months) == _EVERY_MONTH

    def next(self, local: int) -> int:
        """The first match at or after `local`; NEVER, or later, when the calendar ends before one."""
        day, second = divmod(local, DAY)
        allowed = self._day_from(day)
        if allowed == day:
            if (found := self._time_from(second)) >= 0:
                return day * DAY + found
            allowed = self._day_from(day + 1)
        return allowed * DAY + self._first

    def _time_from(self, second: int) -> int:
        """The first allowed second of the day from `second` on; -1 when none is left."""
        hour, second = divmod(second, 3600)
        if self._hours[hour] == hour:
            minute, second = divmod(second, 60)
            if self._minutes[minute] == minute and (found := self._seconds[second]) < 60:
                return hour * 3600 + minute * 60 + found
            if (found := self._minutes[minute + 1]) < 60:
                return hour * 3600 + found * 60 + self._first_second
        found = self._hours[hour + 1]
        return found * 3600 + self._first_in_hour if found < 24 else -1

    def _day_from(self, day: int) -> int:
        """The first allowed day from `day` on, counted from the epoch."""
        if self._every_day:
            return day
        ordinal = day + _EPOCH
        if ordinal > _LAST:
            return NEVER
        at = date.fromordinal(ordinal)
        year, month, before = at.year, at.month, at.day - 1
        first = ordinal - before
        if self._months[month] == month:
            # Ordinals count from a Monday at 1, so the remainder is the weekday with Sunday at 0.
            left = self._masks[(_length(year, month) - 28) * 7 + first % 7] >> before + 1
            if left:
                return day + (left & -left).bit_length() - 1
        while True:
            month = self._months[month + 1]
            if month > 12:
                year, month = year + 1, self._months[0]
                if year > date.max.year:
                    return NEVER
            first = date(year, month, 1).toordinal()
            mask = self._masks[(_length(year, month) - 28) * 7 + first % 7]
            if mask:
                return first - _EPOCH + (mask & -mask).bit_length() - 2


def _table(field: CronField, spans: tuple[Span, ...]) -> tuple[int, ...]:
    mask = mask_of(field, spans)
    nearest = field.high + 1
    table = [nearest]
    for value in range(field.high, -1, -1):
        if mask >> value & 1:
            nearest = value
        table.append(nearest)
    return tuple(reversed(table))


def _length(year: int, month: int) -> int:
    if month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0):
        return 29
    return _LENGTHS[month]
