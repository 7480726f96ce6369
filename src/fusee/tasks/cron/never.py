"""Why an expression can never fire: it is refused when it is written, not found silent years later."""

from __future__ import annotations

from collections.abc import Sequence

from fusee.tasks.cron.days import LENGTHS, Part, month_masks
from fusee.tasks.cron.errors import shown
from fusee.tasks.cron.fields import MONTH, MONTHS, WEEKDAY, Span

__all__ = ["why_never"]

_EVERY_WEEKDAY = (Span(WEEKDAY.low, WEEKDAY.low + WEEKDAY.size - 1, star=True),)


def why_never(
    day: str, days: Sequence[Part], months: Sequence[Span], weekday: str, masks: tuple[int, ...]
) -> str | None:
    """The reason; None when it can fire.

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
