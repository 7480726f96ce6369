"""The two day fields: `L`, `W` and `#`, and how day of month and day of week go together.

Which days of a month match depends on two facts only, the month's length and the weekday of its first day.
There are 28 such months, so a schedule's days are a table of 28 masks, and whether it can ever fire is a look
at that table rather than a search through the calendar.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fusee.tasks.cron.fields import DAY, WEEKDAY, CronField, FieldPosition, Span, mask_of, parse_value

__all__ = ["LENGTHS", "Last", "LastOf", "LastWeekday", "Near", "Nth", "Part", "month_masks", "parse_special"]

LENGTHS: tuple[tuple[int, ...], ...] = (
    (),
    (31,),
    (28, 29),
    *((n,) for n in (31, 30, 31, 30, 31, 31, 30, 31, 30, 31)),
)
"""How long each month can be, January at 1."""


@dataclass(frozen=True, slots=True)
class Last:
    """`L`, and `L-3`: days before the last one."""

    before: int


@dataclass(frozen=True, slots=True)
class LastWeekday:
    """`LW`: the last Monday to Friday of the month."""


@dataclass(frozen=True, slots=True)
class Near:
    """`15W`: the Monday to Friday nearest to that day, in the same month."""

    day: int


@dataclass(frozen=True, slots=True)
class LastOf:
    """`5L`, `FRIL`: the last such weekday of the month."""

    weekday: int


@dataclass(frozen=True, slots=True)
class Nth:
    """`FRI#2`: the second Friday of the month."""

    weekday: int
    nth: int


Part = Span | Last | LastWeekday | Near | LastOf | Nth


def parse_special(field: CronField, text: str, place: FieldPosition) -> Part | None:
    """None where the text is an ordinary span."""
    if field is DAY:
        return _of_month(text, place)
    return _of_week(text, place) if field is WEEKDAY else None


def _of_month(text: str, place: FieldPosition) -> Part | None:
    if text == "LW":
        return LastWeekday()
    if text == "L":
        return Last(0)
    if match := re.fullmatch(r"L-([0-9]{1,4})", text):
        if not 1 <= int(match[1]) <= 30:
            raise place.refuse(f"L-{match[1]}: {match[1]} is not in 1-30")
        return Last(int(match[1]))
    if match := re.fullmatch(r"([0-9]{1,4})W", text):
        return Near(parse_value(DAY, match[1], place))
    return None


def _of_week(text: str, place: FieldPosition) -> Part | None:
    name, sharp, nth = text.partition("#")
    if sharp:
        if nth not in ("1", "2", "3", "4", "5"):
            raise place.refuse(f'"{text[:20]}": a month has weekdays #1 to #5')
        return Nth(parse_value(WEEKDAY, name, place) % 7, int(nth))
    if text == "L":
        # Quartz reads it as Saturday, others as the last day of the month: whom would we surprise?
        raise place.refuse('"L" needs a weekday: 5L or FRIL is the last Friday of the month')
    if text.endswith("L"):
        return LastOf(parse_value(WEEKDAY, text[:-1], place) % 7)
    return None


def month_masks(days: Sequence[Part], weekdays: Sequence[Part], both: bool) -> tuple[int, ...]:
    """The days that match, a bit each, for a month of `length` that begins on `first` (Sunday is 0).

    Index: (length - 28) * 7 + first. `both`: a day must match both fields, not just either.
    """
    plain_days = mask_of(DAY, (part for part in days if isinstance(part, Span)))
    plain_weekdays = mask_of(WEEKDAY, (part for part in weekdays if isinstance(part, Span)))
    special_days = [part for part in days if not isinstance(part, Span)]
    special_weekdays = [part for part in weekdays if not isinstance(part, Span)]
    masks = []
    for length in (28, 29, 30, 31):
        exist = (1 << length + 1) - 2
        for first in range(7):
            month = plain_days | _days_of(special_days, length, first)
            # The week, turned so that its first day is the month's, then laid down five times.
            turned = (plain_weekdays >> first | plain_weekdays << 7 - first) & 0b1111111
            week = turned * _FIVE_WEEKS | _days_of(special_weekdays, length, first)
            masks.append((month & week if both else month | week) & exist)
    return tuple(masks)


_FIVE_WEEKS = sum(1 << day for day in (1, 8, 15, 22, 29))


def _days_of(parts: Sequence[Part], length: int, first: int) -> int:
    mask = 0
    for part in parts:
        mask |= 1 << _day_of(part, length, first)
    return mask


def _day_of(part: Part, length: int, first: int) -> int:
    """The day that `part` means in such a month; 0 where there is none."""
    match part:
        case Last(before):
            return max(length - before, 0)
        case LastWeekday():
            return _nearest_weekday(length, length, first)
        case Near(day):
            return _nearest_weekday(day, length, first) if day <= length else 0
        case LastOf(weekday):
            return length - (first + length - 1 - weekday) % 7
        case Nth(weekday, nth):
            day = 1 + (weekday - first) % 7 + 7 * (nth - 1)
            return day if day <= length else 0
    return 0


def _nearest_weekday(day: int, length: int, first: int) -> int:
    weekday = (first + day - 1) % 7
    if weekday == 6:
        return day - 1 if day > 1 else 3
    if weekday == 0:
        return day + 1 if day < length else day - 2
    return day
