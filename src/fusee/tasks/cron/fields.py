"""What one field of a cron expression may hold: numbers, names, ranges, steps, lists; and `CronError`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

__all__ = [
    "DAY",
    "FIELDS",
    "HOUR",
    "MINUTE",
    "MONTH",
    "MONTHS",
    "SECOND",
    "WEEKDAY",
    "WEEKDAYS",
    "CronError",
    "CronField",
    "FieldPosition",
    "Span",
    "mask_of",
    "parse_span",
    "parse_value",
    "shown",
]


class CronField(NamedTuple):
    """What a field is called, and which values it takes."""

    name: str
    low: int
    high: int
    size: int
    """How many values differ: a week has 7 days, though both 0 and 7 say Sunday."""
    names: tuple[str, ...] = ()


MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
WEEKDAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")

SECOND = CronField("second", 0, 59, 60)
MINUTE = CronField("minute", 0, 59, 60)
HOUR = CronField("hour", 0, 23, 24)
DAY = CronField("day of month", 1, 31, 31)
MONTH = CronField("month", 1, 12, 12, tuple(name[:3].upper() for name in MONTHS))
WEEKDAY = CronField("day of week", 0, 7, 7, tuple(name[:3].upper() for name in WEEKDAYS))

FIELDS = (SECOND, MINUTE, HOUR, DAY, MONTH, WEEKDAY)


class Span(NamedTuple):
    """`5`, `5-20`, `5-20/3`, `5/3`, `*` and `*/3`: from `first` to `last`, by `step`.

    `first` above `last` goes round the end: `FRI-MON`, `22-6`.
    """

    first: int
    last: int
    step: int = 1
    star: bool = False

    def values(self, field: CronField) -> list[int]:
        """In the order in which they are met; Sunday is 0."""
        last = self.last if self.first <= self.last else self.last + field.size
        top = field.low + field.size
        return [
            value if value < top else value - field.size for value in range(self.first, last + 1, self.step)
        ]


def mask_of(field: CronField, spans: Iterable[Span]) -> int:
    """A bit for each value."""
    mask = 0
    for span in spans:
        for value in span.values(field):
            mask |= 1 << value
    return mask


def parse_span(field: CronField, text: str, place: FieldPosition) -> Span:
    body, slash, by = text.partition("/")
    step = 1
    if slash:
        if not _digits(by):
            raise place.refuse(f'step "{shown(by)}" is not a number')
        step = int(by)
        # A longer step would quietly mean "once": */90 minutes is not every 90 minutes.
        if not 1 <= step <= field.size:
            raise place.refuse(f"step {shown(by)} is not in 1-{field.size}")
    if body == "*":
        return Span(field.low, field.low + field.size - 1, step, star=True)
    low, dash, high = body.partition("-")
    if dash:
        return _range(field, parse_value(field, low, place), parse_value(field, high, place), step, place)
    value = parse_value(field, body, place)
    return Span(value, field.high if slash else value, step)


def _range(field: CronField, first: int, last: int, step: int, place: FieldPosition) -> Span:
    if field is WEEKDAY and first == 7:
        first, last = 0, last % 7
    if field is DAY and first > last:
        # Months differ in length, so a range round the end of one has no fixed meaning with a step.
        raise place.refuse(f"range {first}-{last} runs backwards; write {first}-31,1-{last}")
    return Span(first, last, step)


def parse_value(field: CronField, text: str, place: FieldPosition) -> int:
    """A number or a name, within the field."""
    if text in field.names:
        return field.names.index(text) + field.low
    allowed = f"{field.low}-{field.high}"
    if not _digits(text):
        named = f" or {field.names[0]}-{field.names[-1]}" if field.names else ""
        raise place.refuse(f'"{shown(text)}" is not a number in {allowed}{named}')
    value = int(text)
    if not field.low <= value <= field.high:
        raise place.refuse(f"{shown(text)} is not in {allowed}")
    return value


def _digits(text: str) -> bool:
    """str.isdigit alone would take the digits of every script."""
    return text.isascii() and text.isdigit()


_MOST_SHOWN = 80


class CronError(ValueError):
    """Not a cron expression, or one that never fires."""

    field: str | None
    """"second", "minute", "hour", "day of month", "month" or "day of week"; None: the line as a whole."""
    position: int | None
    """Which field, counted from 1 as it was written: minutes are first of five and second of six."""

    def __init__(self, message: str, field: str | None = None, position: int | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.position = position


@dataclass(frozen=True, slots=True)
class FieldPosition:
    """The expression and the field that are being parsed, for the message of a refusal."""

    expression: str
    field: str
    position: int

    def refuse(self, what: str) -> CronError:
        message = f'cron "{shown(self.expression)}": {self.field} {what} (field {self.position})'
        return CronError(message, self.field, self.position)


def shown(text: str) -> str:
    """Short and printable: what a user typed goes into logs and answers."""
    clipped = text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 3] + "..."
    return clipped if clipped.isascii() and clipped.isprintable() else ascii(clipped)[1:-1]
