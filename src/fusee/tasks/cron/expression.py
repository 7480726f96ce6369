"""`Cron`: an expression that was read, and its instants in a time zone.

Two kinds of schedule meet daylight saving, and each has one rule:

- A **fixed** schedule names times of day: neither its minute nor its hour field starts with `*`, has a step,
  or lists every value. It fires when the wall clock first reaches or passes a time. So what a gap skips fires
  once, right after the gap, however many times were in it; and in a repeated hour only the first pass counts.
- Any other schedule is a rhythm. It fires whenever the wall clock shows a match: evenly through both passes
  of a repeated hour, and not at all in an hour that does not exist.

Seconds do not decide: `*/15 0 2 * * *` is fixed, for it is about two o'clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from zoneinfo import ZoneInfo

from fusee.tasks.cron import chinese, english
from fusee.tasks.cron.dial import DAY, Dial
from fusee.tasks.cron.parse import read
from fusee.tasks.cron.zones import EARLIEST, LATEST, offsets_of

__all__ = ["LANGUAGES", "Cron", "next_fires"]

LANGUAGES = {"en": english.describe, "zh": chinese.describe}

_MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression. Two are equal when their normalised texts are equal."""

    text: str
    """Always six fields, in capitals; macros are spelt out."""
    fixed: bool = field(init=False, repr=False, compare=False)
    """Which daylight-saving rule it is under; see the module."""
    _dial: Dial = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        fields = read(self.text)
        object.__setattr__(self, "text", fields.text)
        object.__setattr__(self, "fixed", fields.fixed)
        object.__setattr__(self, "_dial", Dial(fields))

    @classmethod
    def parse(cls, expression: str) -> Cron:
        """Read five fields, six with seconds in front, or a macro; raises CronError."""
        return _parsed(expression) if isinstance(expression, str) else cls(expression)

    def next(self, after: int, zone: ZoneInfo) -> int | None:
        """The first fire later than `after`, both in microseconds since the epoch.

        None when the calendar ends first: it reaches to the end of 9999-12-30.
        """
        return next(self.fires(after, zone), None)

    def matches(self, at: int, zone: ZoneInfo) -> bool:
        """Whether this instant is a fire, to the microsecond."""
        return at % _MICROSECONDS == 0 and self.next(at - 1, zone) == at

    def fires(self, after: int, zone: ZoneInfo) -> Iterator[int]:
        """Every fire later than `after`, in order."""
        offsets, dial, fixed = offsets_of(zone), self._dial, self.fixed
        at = max(after // _MICROSECONDS + 1, EARLIEST)
        while at < LATEST:
            start, end, offset, seen = offsets.at(at)
            end = min(end, LATEST)
            local = at + offset
            if fixed and (at == start or local < seen):
                local = seen
            while (found := dial.next(local) - offset) < end:
                # Below `at` is what a gap skipped, all of it at once.
                found = max(found, at)
                yield found * _MICROSECONDS
                local = found + offset + 1
            # No wall clock shows a match more than a day early: leap over the zone's other changes.
            at = max(end, dial.next(end - DAY) - DAY)

    def describe(self, language: str = "en") -> str:
        """The schedule in words of a language: "en" or "zh", also with a region as in "zh-CN"."""
        words = LANGUAGES.get(language.replace("_", "-").partition("-")[0].lower())
        if words is None:
            raise ValueError(f"no words for {language[:20]!r}; there are {', '.join(LANGUAGES)}")
        return words(read(self.text))


def next_fires(cron: Cron, after: int, zone: ZoneInfo, count: int = 5) -> list[int]:
    """The first `count` fires later than `after`; fewer where the calendar ends."""
    return list(islice(cron.fires(after, zone), count))


# A task looks at its own schedule again and again. Bounded, since users write the text.
@lru_cache(maxsize=4096)
def _parsed(expression: str) -> Cron:
    return Cron(expression)
