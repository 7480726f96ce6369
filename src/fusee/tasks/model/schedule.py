"""When a task fires: by cron, at an interval, or once at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Protocol
from zoneinfo import ZoneInfo

from fusee.errors import Invalid
from fusee.tasks.cron import Cron

__all__ = ["CronSchedule", "IntervalSchedule", "OnceSchedule", "Schedule", "zone_named"]


class Schedule(Protocol):
    """The instants of a schedule, in microseconds since the epoch, each once, in order."""

    def next(self, after: int) -> int | None:
        """The first one later than `after`."""

    def matches(self, at: int) -> bool:
        """Whether it fires at that very instant."""

    def fires(self, after: int) -> Iterator[int]:
        """All that are later than `after`."""


@dataclass(frozen=True, slots=True)
class CronSchedule:
    cron: Cron
    zone: ZoneInfo

    def next(self, after: int) -> int | None:
        return self.cron.next(after, self.zone)

    def matches(self, at: int) -> bool:
        return self.cron.matches(at, self.zone)

    def fires(self, after: int) -> Iterator[int]:
        return self.cron.fires(after, self.zone)


@dataclass(frozen=True, slots=True)
class IntervalSchedule:
    """Every `every` microseconds from `anchor` on: the first fire is one interval after it."""

    every: int
    anchor: int

    def next(self, after: int) -> int | None:
        return self.anchor + max(1, (after - self.anchor) // self.every + 1) * self.every

    def matches(self, at: int) -> bool:
        return at > self.anchor and (at - self.anchor) % self.every == 0

    def fires(self, after: int) -> Iterator[int]:
        at = after
        while (found := self.next(at)) is not None:
            yield found
            at = found


@dataclass(frozen=True, slots=True)
class OnceSchedule:
    at: int

    def next(self, after: int) -> int | None:
        return self.at if self.at > after else None

    def matches(self, at: int) -> bool:
        return at == self.at

    def fires(self, after: int) -> Iterator[int]:
        return islice((self.at,), 1 if self.at > after else 0)


@lru_cache(maxsize=1000)
def zone_named(name: str) -> ZoneInfo:
    """The IANA zone of this name; raises `Invalid` when there is none."""
    try:
        return ZoneInfo(name)
    except Exception:
        raise Invalid(
            f"timezone {name!r:.60} is not a zone of the IANA database; write it like Europe/Berlin or UTC",
            field="timezone",
        ) from None
