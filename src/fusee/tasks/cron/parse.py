"""The whole line: macros, five or six fields, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from fusee.tasks.cron.days import LENGTHS, Part, month_masks, parse_special
from fusee.tasks.cron.fields import (
    DAY,
    FIELDS,
    HOUR,
    MINUTE,
    MONTH,
    MONTHS,
    WEEKDAY,
    CronError,
    CronField,
    FieldPosition,
    Span,
    mask_of,
    parse_span,
    shown,
)

__all__ = ["LONGEST", "MACROS", "Fields", "read", "why_never"]

LONGEST = 1000
"""Characters; a list of every value in every field takes 560."""

MACROS = {
    "@YEARLY": "0 0 0 1 1 *",
    "@ANNUALLY": "0 0 0 1 1 *",
    "@MONTHLY": "0 0 0 1 * *",
    "@WEEKLY": "0 0 0 * * 0",
    "@DAILY": "0 0 0 * * *",
    "@MIDNIGHT": "0 0 0 * * *",
    "@HOURLY": "0 0 * * * *",
    "@EVERY_MINUTE": "0 * * * * *",
    "@EVERY_SECOND": "* * * * * *",
}


class Fields(NamedTuple):
    """An expression, read: what each field lists, and the two things that its spelling decides."""

    text: str
    """Six fields, one space between them, in capitals."""
    seconds: tuple[Span, ...]
    minutes: tuple[Span, ...]
    hours: tuple[Span, ...]
    days: tuple[Part, ...]
    months: tuple[Span, ...]
    weekdays: tuple[Part, ...]
    both: bool
    """A day must match both day fields, since one starts with `*` or is `?` (Debian's rule); else either."""
    fixed: bool
    """It names times of day, so daylight saving neither loses nor repeats one; see `is_fixed`."""
    masks: tuple[int, ...]
    """The days that match, in each of the 28 kinds of month; see `month_masks`."""


def read(expression: object) -> Fields:
    """Read five fields, six, or a macro; raises CronError, which says what to change."""
    if not isinstance(expression, str):
        raise CronError(f"a cron expression is text, not {type(expression).__name__}")
    if len(expression) > LONGEST:
        raise CronError(f'cron "{shown(expression)}" has {len(expression)} characters; {LONGEST} is the most')
    # Not str.split(): it also splits at characters that are nothing but a mistake here, such as \x1c.
    written = expression.strip(" \t\r\n")
    # Only what is ASCII: a dotless i would turn into the I of FRI.
    capitals = written.upper() if written.isascii() else written
    words = re.split("[ \t\r\n]+", _without_macro(written, capitals))
    if len(words) not in (5, 6):
        raise _wrong_count(written, len(words))
    first = 0 if len(words) == 5 else 1
    texts = words if first else ["0", *words]
    places = [FieldPosition(written, field.name, number + first) for number, field in enumerate(FIELDS)]
    parts = [_parts(field, text, place) for field, text, place in zip(FIELDS, texts, places, strict=True)]
    seconds, minutes, hours, days, months, weekdays = parts
    both = any(text == "?" or text.startswith("*") for text in (texts[3], texts[5]))
    masks = month_masks(days, weekdays, both)
    fields = Fields(
        text=" ".join(texts),
        seconds=_spans(seconds),
        minutes=_spans(minutes),
        hours=_spans(hours),
        days=days,
        months=_spans(months),
        weekdays=weekdays,
        both=both,
        fixed=is_fixed(texts[1], _spans(minutes), texts[2], _spans(hours)),
        masks=masks,
    )
    if reason := why_never(texts[3], days, fields.months, texts[5], masks):
        message = f'cron "{shown(written)}" never fires: {reason}'
        raise CronError(message, DAY.name, places[3].position)
    return fields


def is_fixed(minute: str, minutes: tuple[Span, ...], hour: str, hours: tuple[Span, ...]) -> bool:
    """Whether hour and minute name times of day, rather than a rhythm.

    A field is a rhythm if it starts with `*`, has a step, or lists every value; either of the two makes the
    schedule one. Seconds do not count: `*/15 0 2 * * *` is still about two o'clock.
    """
    return not (_rhythm(MINUTE, minute, minutes) or _rhythm(HOUR, hour, hours))


def _rhythm(field: CronField, text: str, spans: tuple[Span, ...]) -> bool:
    return text.startswith("*") or "/" in text or mask_of(field, spans).bit_count() == field.size


def _without_macro(written: str, capitals: str) -> str:
    if not capitals.startswith("@"):
        return capitals
    if six := MACROS.get(capitals):
        return six
    if capitals == "@REBOOT":
        raise CronError('cron "@reboot": nothing here reboots; give the times, or trigger the task by hand')
    if capitals.startswith("@EVERY "):
        raise CronError(f'cron "{shown(written)}": that is an interval, not a cron expression')
    known = ", ".join(name.lower() for name in MACROS)
    raise CronError(f'cron "{shown(written)}" is none of {known}')


def _wrong_count(written: str, count: int) -> CronError:
    if not written:
        return CronError("cron is empty; every day at nine is 0 9 * * *")
    year = " (a year, as in Quartz, is not supported)" if count == 7 else ""
    fields = "minute, hour, day of month, month, day of week"
    return CronError(
        f'cron "{shown(written)}" has {count} field{"s" if count > 1 else ""}{year}; it takes 5 ({fields}),'
        " or 6 with the second in front"
    )


def _parts(field: CronField, text: str, place: FieldPosition) -> tuple[Part, ...]:
    if text == "?":
        if field not in (DAY, WEEKDAY):
            raise place.refuse('takes no "?", only the two day fields do; write *')
        text = "*"
    items = text.split(",")
    if "" in items:
        raise place.refuse(f'"{shown(text)}" has a comma with nothing beside it')
    # The same item again changes nothing, and a hostile list is mostly that.
    unique = dict.fromkeys(items)
    return tuple(parse_special(field, item, place) or parse_span(field, item, place) for item in unique)


def _spans(parts: tuple[Part, ...]) -> tuple[Span, ...]:
    return tuple(part for part in parts if isinstance(part, Span))


_EVERY_WEEKDAY = (Span(WEEKDAY.low, WEEKDAY.low + WEEKDAY.size - 1, star=True),)


def why_never(
    day: str, days: Sequence[Part], months: Sequence[Span], weekday: str, masks: tuple[int, ...]
) -> str | None:
    """Why an expression can never fire; None when it can. It is refused when it is written: nobody should
    find out years later that a task is silent.

    Every month begins on every weekday within the 400 years after which the calendar repeats, February 29
    too; so a month can match if and only if its length has a mask that is not empty.
    """
    numbers = sorted({month for span in months for month in span.values(MONTH)})
    if _can(numbers, masks):
        return None
    names = _either([MONTHS[number - 1] for number in numbers])
    if not _can(numbers, month_masks(days, _EVERY_WEEKDAY, both=True)):
        items = day.split(",")
        one = len(items) == 1
        return f"{shown(', '.join(items))} {'is not a day' if one else 'are not days'} of {names}"
    where = "any month" if len(numbers) == MONTH.size else names
    return f"no day of {where} is both {shown(day)} in day of month and {shown(weekday)} in day of week"


def _can(months: Sequence[int], masks: tuple[int, ...]) -> bool:
    return any(
        any(masks[(length - 28) * 7 : (length - 27) * 7]) for month in months for length in LENGTHS[month]
    )


def _either(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
