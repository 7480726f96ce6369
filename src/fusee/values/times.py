"""Instants as people read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

__all__ = ["iso"]


# A long interval's next time can lie beyond the calendar.
_LATEST = (datetime.max - datetime(1970, 1, 1)) // timedelta(microseconds=1)


def iso(at: int) -> str:
    """Microseconds since the epoch as RFC 3339 in UTC; the fraction only where there is one."""
    seconds, micro = divmod(min(at, _LATEST), 1_000_000)
    moment = datetime.fromtimestamp(seconds, UTC).replace(microsecond=micro)
    return moment.isoformat(timespec="microseconds" if micro else "seconds").replace("+00:00", "Z")
