"""How fast a bulk job goes: slots of an exact rate, a speed that forgets, a concurrency that finds its level.

A rate is kept by giving out *slots*: so many starts in a row, each `1/rate` after the one before. The next
slot begins where the last one ended, whoever asks; nothing is counted and nothing has to be given back.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, exp, floor

__all__ = ["MICROSECONDS", "Aimd", "Slot", "decayed", "even_share", "reserve"]

MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class Slot:
    """`count` starts: the first at `begin` (microseconds), each next one `1/rate` seconds later."""

    begin: int
    count: int
    rate: float

    @property
    def end(self) -> int:
        """When the slot after this one begins."""
        return self.begin + ceil(self.count * MICROSECONDS / self.rate)

    def due(self, now: int) -> int:
        """How many of them may have started by now."""
        if now < self.begin:
            return 0
        return min(self.count, floor((now - self.begin) * self.rate / MICROSECONDS) + 1)

    def time_of(self, number: int) -> int:
        """When start `number` (from 0) is due."""
        return self.begin + ceil(number * MICROSECONDS / self.rate)


def reserve(rate: float, at: int, now: int, count: int, horizon: int) -> tuple[Slot | None, int]:
    """Up to `count` starts from `at`, where the last slot ended; (the slot, where it ends).

    None when all that fits before `horizon` is given out: ask again later. What nobody asked for in time is
    lost, never made up for: a job that was slow for an hour does not run at double speed in the next one.
    """
    begin = max(at, now)
    fits = floor((horizon - begin) * rate / MICROSECONDS)
    # One start always fits when nothing is ahead of it, however slow the rate.
    count = min(count, max(fits, 1 if begin <= now else 0))
    if count <= 0:
        return None, at
    slot = Slot(begin, count, rate)
    return slot, slot.end


def even_share(total: int, among: int, rank: int) -> int:
    """What number `rank` (from 0) gets when `total` is shared out evenly; all shares add up to `total`."""
    return total // among + (1 if rank < total % among else 0)


def decayed(speed: float, seconds: float, many: int, memory: float = 5.0) -> float:
    """Items a second over about the last `memory` seconds, when `many` more were done `seconds` later."""
    passed = max(0.0, seconds) / memory
    fades = exp(-min(passed, 700.0))
    weight = (1 - fades) / passed if passed > 1e-9 else 1.0
    return speed * fades + many / memory * weight


@dataclass(slots=True)
class Aimd:
    """Concurrency that backs off when errors or latency rise, and grows slowly while all is well."""

    most: int
    limit: float = 4.0
    baseline: float = 0.0
    """Seconds that an item takes when the other side is not under strain; follows slowly."""

    TOO_MANY_ERRORS = 0.1
    TOO_SLOW = 2.0
    BACK_OFF = 0.7
    FOLLOW = 0.05

    @property
    def allowed(self) -> int:
        return max(1, min(self.most, floor(self.limit)))

    def observe(self, ended: int, failed: int, latency: float) -> int:
        """Since the last look: items ended, failed among them, seconds each; answers what is allowed."""
        if ended <= 0:
            return self.allowed
        slow = self.baseline > 0 and latency > self.TOO_SLOW * self.baseline
        if failed / ended > self.TOO_MANY_ERRORS or slow:
            self.limit = max(1.0, min(self.limit, self.most) * self.BACK_OFF)
        else:
            self.limit = min(float(self.most), self.limit + max(1.0, self.limit * 0.1))
        if self.baseline <= 0 or latency < self.baseline:
            self.baseline = latency
        else:  # a service that became slower for good is believed in the end
            self.baseline += (latency - self.baseline) * self.FOLLOW
        return self.allowed
