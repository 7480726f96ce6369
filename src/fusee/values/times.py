"""Instants as people read them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

__all__ = ["iso", "parse_time", "show_time", "show_times"]


# A long interval's next time can lie beyond the calendar.
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


def iso(at: int) -> str:
    """Microseconds since the epoch as RFC 3339 in UTC; the fraction only where there is one."""
    seconds, micro = divmod(min(at, _LATEST), 1_000_000)
    moment = datetime.fromtimestamp(seconds, UTC).replace(microsecond=micro)
    return moment.isoformat(timespec="microseconds" if micro else "seconds").replace("+00:00", "Z")


def show_time(at: int) -> str:
    """The same with all its digits: `2030-01-31T09:00:00.000000Z`."""
    moment = _EPOCH + timedelta(microseconds=min(at, _LATEST))
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if moment.year > 999 else moment.isoformat()


def show_times(times: Iterable[int]) -> list[str]:
    return [show_time(at) for at in times]


_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII)
_HOW = "must be a time with its offset, such as 2030-01-31T09:00:00Z or 2030-01-31T10:00:00+01:00"


def parse_time(value: object) -> int:
    """Microseconds since the epoch."""
    if not isinstance(value, str) or not _RFC3339.fullmatch(value):
        raise ValueError(_HOW)
    try:
        at = datetime.fromisoformat(value.upper())
        since = (at - _EPOCH) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        raise ValueError(f"{_HOW}; there is no {value[:40]}") from None
    if not 0 <= since < _LATEST:
        raise ValueError("must not be before 1970 or after 9999")
    return since
