"""Instants as people read them."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["iso"]


def iso(at: int) -> str:
    """Microseconds since the epoch as RFC 3339 in UTC; the fraction only where there is one."""
    seconds, micro = divmod(at, 1_000_000)
    moment = datetime.fromtimestamp(seconds, UTC).replace(microsecond=micro)
    return moment.isoformat(timespec="microseconds" if micro else "seconds").replace("+00:00", "Z")
