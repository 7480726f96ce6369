"""The speed of a bulk job: a rate that segments share, a measured speed, a concurrency that adapts.

Segments share the rate, not time: each has a part of it (its *pace*) and starts its items evenly at that
pace. The parts never add up to more than the rate. A segment that cannot use its part keeps what it uses and
a little more, and the others share the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, floor, inf
from typing import Literal

from fusee.errors import Invalid

__all__ = [
    "HOLD",
    "MICROSECONDS",
    "UNLIMITED",
    "Aimd",
    "Grant",
    "RatePart",
    "decayed",
    "even_share",
    "fair_parts",
    "grant",
    "rate_from",
    "rate_shown",
]

MICROSECONDS = 1_000_000
UNLIMITED = 0.0
"""The rate of a job that has no cap; written `unlimited`."""
HOLD = -1.0
"""The rate of a job that runs and starts nothing for now; written `hold`."""
SLOWEST, FASTEST = 0.001, 10.0**9
WORDS = {"unlimited": UNLIMITED, "hold": HOLD}

GRANT_LASTS = 1_600_000
"""Microseconds for which the only worker of a job gets its parts: a checkpoint a second, and some delay."""
SHARED_LASTS = 550_000
"""The same when other workers have parts too. The part of a lost worker is unused until then: when that is a
quarter of the rate, this costs 1.4 % of what ten seconds allow."""
RENEW_EVERY = 250_000
"""Microseconds after which a worker that is not the only one asks for another grant."""
LONGEST_LATENCY = 2.0
"""Grants last longer by twice the seconds that answers take, up to this: with a slow store, parts that expire
before they are renewed would cost more than the parts of lost workers."""
EXACT_FROM = 5.0
"""Items per second. At a lower rate one item is more than 2 % of ten seconds: then grants need not be
short."""
HEADROOM = 1.05
"""A segment that uses less than its part keeps this multiple of what it uses: noise must not throttle it."""
LEAST_PART = 0.01
"""The share of an even part that an idle segment keeps, so that it can begin at once."""


def rate_from(given: object) -> float:
    """Reads a rate as callers write it: items per second, `unlimited` or `hold`."""
    if isinstance(given, str) and given.strip().lower() in WORDS:
        return WORDS[given.strip().lower()]
    if isinstance(given, bool) or not isinstance(given, int | float) or not given == given:
        raise Invalid(
            f"rate must be items per second, or unlimited, or hold, not {given!r:.40}", field="rate"
        )
    if given == 0:
        raise Invalid(
            "rate must not be 0: say unlimited for no cap, or hold to start nothing for now", field="rate"
        )
    if not SLOWEST <= given <= FASTEST:
        raise Invalid(
            f"rate must be from {SLOWEST:g} to {FASTEST:.0f} items per second, or unlimited, or hold,"
            f" not {given!r:.40}",
            field="rate",
        )
    return float(given)


def rate_shown(rate: float) -> float | Literal["unlimited", "hold"]:
    """Returns a rate as people read and write it."""
    if rate == UNLIMITED:
        return "unlimited"
    return "hold" if rate == HOLD else rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A segment's part of its job's rate."""

    pace: float
    """Items per second."""
    until: int
    """By the database's clock, in microseconds; nothing starts after it without another grant."""
    first_at: int
    """When the segment's very first items may start: the segments of a job begin one after the other."""
    fair: float
    """The pace that the segment would have if the others had no more than their own parts already."""
    free_at: int | None = None
    """When the part of another worker becomes free, unless that worker asks again before. None when there is
    no other worker, or when the rate is too low for it to matter."""
    lapsed: bool = False
    """Whether all parts of the worker had expired: those of its other segments are void until they ask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RatePart:
    """The part of the rate that a segment of the job holds."""

    pace: float
    until: int
    """0: it has not asked yet."""
    wants: float | None
    """Items per second that it could start; None when no limit is known."""
    worker: int
    """The session of its worker. Workers are lost as a whole, so each grant renews all parts of its
    worker."""


def fair_parts(rate: float, wants: Mapping[int, float | None]) -> dict[int, float]:
    """Returns max-min fair parts: one that wants less than an even part gets that; the others share the
    rest."""
    parts: dict[int, float] = {}
    rest, left = rate, len(wants)
    for key, most in sorted(wants.items(), key=lambda pair: inf if pair[1] is None else pair[1]):
        even = rest / left
        parts[key] = even if most is None else min(even, most)
        rest -= parts[key]
        left -= 1
    return parts


def grant(
    rate: float,
    others: Mapping[int, RatePart],
    me: int,
    mine: RatePart,
    now: int,
    *,
    first_at: int,
    latency: float | None,
) -> Grant:
    """Returns this segment's part, beside those that the others still hold.

    `mine` is what it holds and wants; `latency` is the seconds that answers take, None for a worker that does
    not renew its parts often enough for a short grant."""
    held_until: dict[int, int] = {mine.worker: mine.until}
    for part in others.values():
        held_until[part.worker] = max(held_until.get(part.worker, 0), part.until)
    holding = {worker for worker, until in held_until.items() if until > now}
    asking = {key: part for key, part in others.items() if part.worker in holding | {mine.worker}}
    waiting = {key: part for key, part in others.items() if part.until == 0}
    parts = fair_parts(rate, {me: mine.wants} | {key: part.wants for key, part in (asking | waiting).items()})
    fair = parts[me]
    if mine.wants is not None and fair >= mine.wants:
        even = rate / len(parts)
        contended = sum(parts.values()) >= rate * 0.999
        fair = max(mine.wants * HEADROOM, LEAST_PART * even if contended else even)
    held = sum(_counted(part) for part in others.values() if part.worker in holding)
    pace = max(0.0, min(fair, rate - held))
    lasts, free_at = GRANT_LASTS, None
    elsewhere = [part.worker for part in (asking | waiting).values() if part.worker != mine.worker]
    if elsewhere and latency is not None and rate >= EXACT_FROM:
        lasts = SHARED_LASTS
        free_at = min((held_until[one] for one in elsewhere if one in holding), default=now + lasts)
    return Grant(
        pace=pace,
        until=now + lasts + round(2 * min(latency or 0.0, LONGEST_LATENCY) * MICROSECONDS),
        first_at=first_at,
        fair=min(fair, rate),
        free_at=free_at,
        lapsed=mine.worker not in holding,
    )


def _counted(part: RatePart) -> float:
    """Returns what a part takes away from the others; its headroom is not counted and costs them nothing."""
    if part.wants is None or part.wants >= part.pace:
        return part.pace
    return max(part.wants, part.pace / HEADROOM)


def even_share(total: int, among: int, rank: int) -> int:
    """Returns the share of number `rank` (from 0) when `total` is divided evenly; all shares add up to
    `total`."""
    return total // among + (1 if rank < total % among else 0)


def decayed(speed: float, seconds: float, many: float, memory: float = 5.0) -> float:
    """Returns items per second over about the last `memory` seconds, when `many` more were done `seconds`
    later."""
    passed = max(0.0, seconds) / memory
    fades = exp(-min(passed, 700.0))
    weight = (1 - fades) / passed if passed > 1e-9 else 1.0
    return speed * fades + many / memory * weight


@dataclass(slots=True)
class Aimd:
    """A concurrency that decreases when errors or latency rise, and grows slowly while all is well."""

    most: int
    limit: float = 4.0
    baseline: float = 0.0
    """Seconds that an item takes when the other side is not overloaded; it follows slowly."""

    TOO_MANY_ERRORS = 0.1
    TOO_SLOW = 2.0
    BACK_OFF = 0.7
    FOLLOW = 0.05

    @property
    def allowed(self) -> int:
        return max(1, min(self.most, floor(self.limit)))

    def observe(self, ended: int, failed: int, latency: float) -> int:
        """Takes the items that ended since the last call, how many failed, seconds each; returns what is
        allowed."""
        if ended <= 0:
            return self.allowed
        slow = self.baseline > 0 and latency > self.TOO_SLOW * self.baseline
        if failed / ended > self.TOO_MANY_ERRORS or slow:
            self.limit = max(1.0, min(self.limit, self.most) * self.BACK_OFF)
        else:
            self.limit = min(float(self.most), self.limit + max(1.0, self.limit * 0.1))
        if self.baseline <= 0 or latency < self.baseline:
            self.baseline = latency
        else:  # after a while, a service that stays slower is the new baseline
            self.baseline += (latency - self.baseline) * self.FOLLOW
        return self.allowed
