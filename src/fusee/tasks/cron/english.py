"""Schedules in English: "every 15 minutes, from 09:00 to 17:59, Monday to Friday"."""

from __future__ import annotations

from collections.abc import Sequence

from fusee.tasks.cron.days import Last, LastOf, LastWeekday, Near, Nth, Part
from fusee.tasks.cron.fields import (
    DAY,
    HOUR,
    MINUTE,
    MONTH,
    MONTHS,
    SECOND,
    WEEKDAY,
    WEEKDAYS,
    CronField,
    Span,
)
from fusee.tasks.cron.parse import Fields
from fusee.tasks.cron.shapes import clock, clock_times, even, is_every, listed, only, open_ended, stepped

__all__ = ["describe"]

_ORDINALS = ("", "first", "second", "third", "fourth", "fifth")


def describe(fields: Fields) -> str:
    day = _day(fields)
    time = _rhythm(fields)
    if times := clock_times(fields):
        time = f"at {_and(times)}" if day else f"every day at {_and(times)}"
    return ", ".join(piece for piece in (time, day, _month(fields.months)) if piece)


# --- time of day -------------------------------------------------------------------------------------


def _rhythm(fields: Fields) -> str:
    second, minute = only(SECOND, fields.seconds), only(MINUTE, fields.minutes)
    if second is not None and minute is not None:
        return _hours(fields.hours, minute, second)
    pieces = []
    if second is None or second > 0:
        pieces.append(_unit(SECOND, fields.seconds))
        if is_every(fields.minutes) and not pieces[0].startswith("every"):
            pieces[0] += " of every minute"
    if not is_every(fields.minutes):
        words = _unit(MINUTE, fields.minutes)
        inside = pieces and pieces[0].startswith("every") and words.startswith("at ")
        pieces.append(words.replace("at ", "in ", 1) if inside else words)
        if is_every(fields.hours) and not words.startswith("every"):
            pieces[-1] += " of every hour"
    elif not pieces:
        pieces.append("every minute")
    if not is_every(fields.hours):
        pieces.append(_window(fields.hours))
    return ", ".join(pieces)


def _hours(hours: Sequence[Span], minute: int, second: int) -> str:
    """A rhythm of whole hours: the minute and the second are always the same."""

    def at(hour: int) -> str:
        return clock(hour, minute, second or None)

    exact = minute == second == 0
    if is_every(hours):
        past = f"minute {minute} and second {second}" if second else f"minute {minute}"
        return "every hour" if exact else f"at {past} of every hour"
    if span := stepped(HOUR, hours):
        every = f"every {span.step} hours"
        if exact and even(HOUR, span):
            return every
        return f"{every} from {at(span.first)}" + ("" if open_ended(HOUR, span) else f" to {at(span.last)}")
    if len(hours) == 1:
        values = hours[0].values(HOUR)
        return f"every hour from {at(values[0])} to {at(values[-1])}"
    words = listed(HOUR, hours, lambda a, b: f"{at(a)} to {at(b)}", at)
    return f"{'hourly' if any(' to ' in word for word in words) else 'at'} {_and(words)}"


def _unit(field: CronField, spans: Sequence[Span]) -> str:
    if is_every(spans):
        return f"every {field.name}"
    if span := stepped(field, spans):
        words = f"every {span.step} {field.name}s"
        if even(field, span):
            return words
        return f"{words} from {field.name} {span.first}" + (
            "" if open_ended(field, span) else f" to {span.last}"
        )
    words_of = listed(field, spans, lambda a, b: f"{a} to {b}", str)
    return f"at {field.name}{'s' if _many(field, spans) else ''} {_and(words_of)}"


def _window(hours: Sequence[Span]) -> str:
    """The hours in which something happens more often than hourly."""
    if len(hours) == 1 and hours[0].step == 1:
        values = hours[0].values(HOUR)
        return f"from {clock(values[0])} to {clock(values[-1], 59)}"
    words = listed(HOUR, hours, lambda a, b: f"{a} to {b}", str)
    return f"during hour{'s' if _many(HOUR, hours) else ''} {_and(words)}"


def _many(field: CronField, spans: Sequence[Span]) -> bool:
    return only(field, spans) is None


# --- days --------------------------------------------------------------------------------------------


def _day(fields: Fields) -> str:
    of_month, of_week = _of_month(fields.days), _of_week(fields.weekdays)
    if of_month and of_week:
        return f"{of_month}, but only {of_week}" if fields.both else f"{of_month} or {of_week}"
    return of_month or of_week


def _of_month(parts: Sequence[Part]) -> str:
    if is_every(parts):
        return ""
    if span := stepped(DAY, parts):
        to = "" if open_ended(DAY, span) else f" to {span.last}"
        return f"every {span.step} days from day {span.first}{to} of the month"
    pieces = []
    if numbers := listed(DAY, parts, lambda a, b: f"{a} to {b}", str):
        many = len(numbers) > 1 or not numbers[0].isdigit()
        pieces.append(f"day{'s' if many else ''} {_and(numbers)}")
    for part in parts:
        match part:
            case Last(0):
                pieces.append("the last day")
            case Last(before):
                pieces.append(f"the {_ordinal(before + 1)}-to-last day")
            case LastWeekday():
                pieces.append("the last weekday")
            case Near(day):
                pieces.append(f"the weekday nearest day {day}")
            case _:
                pass
    return f"on {_and(pieces)} of the month"


def _of_week(parts: Sequence[Part]) -> str:
    if is_every(parts):
        return ""
    pieces = _names(WEEKDAY, parts, WEEKDAYS)
    if len(parts) == 1 and " to " in "".join(pieces):
        return pieces[0]
    for part in parts:
        match part:
            case Nth(weekday, nth):
                pieces.append(f"the {_ORDINALS[nth]} {WEEKDAYS[weekday]} of the month")
            case LastOf(weekday):
                pieces.append(f"the last {WEEKDAYS[weekday]} of the month")
            case _:
                pass
    return f"on {_and(pieces)}"


def _month(spans: Sequence[Span]) -> str:
    if is_every(spans):
        return ""
    words = _and(_names(MONTH, spans, MONTHS))
    return words if len(spans) == 1 and " to " in words else f"in {words}"


def _names(field: CronField, parts: Sequence[Part], names: Sequence[str]) -> list[str]:
    def name(value: int) -> str:
        return names[value - field.low]

    return listed(field, parts, lambda a, b: f"{name(a)} to {name(b)}", name)


def _ordinal(number: int) -> str:
    teen = 10 < number % 100 < 14
    return f"{number}{'th' if teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def _and(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
