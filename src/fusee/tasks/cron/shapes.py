"""What a schedule looks like before it is put into words of a language."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from fusee.tasks.cron.days import Part
from fusee.tasks.cron.fields import HOUR, MINUTE, SECOND, CronField, Span, mask_of
from fusee.tasks.cron.parse import Fields

__all__ = ["clock", "clock_times", "even", "is_every", "listed", "only", "open_ended", "stepped"]

_MOST_TIMES = 6
"""Times of day that are still worth listing one by one."""


def is_every(parts: Sequence[Part]) -> bool:
    """A star without a step, alone or in a list."""
    return any(isinstance(part, Span) and part.star and part.step == 1 for part in parts)


def stepped(field: CronField, spans: Sequence[Part]) -> Span | None:
    """The span, where the field is a single one with a step that takes at least two values."""
    span = spans[0]
    if len(spans) == 1 and isinstance(span, Span) and span.step > 1 and len(span.values(field)) > 1:
        return span
    return None


def even(field: CronField, span: Span) -> bool:
    """From end to end of the field in equal steps, so that "every 15 minutes" says it all."""
    return span.star and field.size % span.step == 0


def open_ended(field: CronField, span: Span) -> bool:
    """`5/15` and `*/7` go on to the end of the field, which need not be said."""
    return span.last == field.high


def only(field: CronField, spans: Sequence[Span]) -> int | None:
    """The value, where the field allows a single one."""
    mask = mask_of(field, spans)
    return mask.bit_length() - 1 if mask.bit_count() == 1 else None


def listed(
    field: CronField, parts: Sequence[Part], to: Callable[[int, int], str], one: Callable[[int], str]
) -> list[str]:
    """The spans as words, in the order written: ranges stay ranges, steps become their values."""
    words: list[str] = []
    for part in parts:
        if not isinstance(part, Span):
            continue
        values = part.values(field)
        if part.step == 1 and len(values) > 2:
            words.append(to(values[0], values[-1]))
        else:
            words.extend(one(value) for value in values)
    return list(dict.fromkeys(words))


def clock(hour: int, minute: int = 0, second: int | None = None) -> str:
    return f"{hour:02}:{minute:02}" if second is None else f"{hour:02}:{minute:02}:{second:02}"


def clock_times(fields: Fields) -> list[str]:
    """The times of day, where there are few; empty where there are many, or where they are a rhythm."""
    written = ((SECOND, fields.seconds), (MINUTE, fields.minutes), (HOUR, fields.hours))
    if any(is_every(spans) or stepped(field, spans) for field, spans in written[1:]):
        return []
    seconds, minutes, hours = ([*_bits(mask_of(field, spans))] for field, spans in written)
    if len(seconds) * len(minutes) * len(hours) > _MOST_TIMES:
        return []
    shown = seconds if any(seconds) else [None]
    return [clock(*time) for time in product(hours, minutes, shown)]


def _bits(mask: int) -> list[int]:
    return [value for value in range(mask.bit_length()) if mask >> value & 1]
