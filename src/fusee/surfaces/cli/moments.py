"""Times as people write and read them, in the time zone of what they are about."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import click

from fusee.surfaces.cli.output import human

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

__all__ = ["TIMES", "away", "local_text", "moment", "now_us", "time_text", "times_table"]

TIMES = "2027-01-31T03:00:00Z, 2027-01-31 03:00 (its time zone), 03:00 (today), now, -5m (ago), +5m"

_SECOND = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")


def moment(text: str, zone: ZoneInfo, now: int, option: str) -> int:
    """Microseconds since the epoch; a time without an offset is on the clocks of `zone`."""
    text = text.strip()
    try:
        if text == "now":
            return now - now % _SECOND
        if text[:1] in ("-", "+"):
            return _away_from(now, text)
        if clock := _CLOCK.fullmatch(text):
            today = (_EPOCH + timedelta(microseconds=now)).astimezone(zone).replace(tzinfo=None)
            hour, minute, second = (int(part or 0) for part in clock.groups())
            return _on_clocks(today.replace(hour=hour, minute=minute, second=second, microsecond=0), zone)
        at = datetime.fromisoformat(text)
        return _on_clocks(at, zone) if at.tzinfo is None else _microseconds(at)
    except (ValueError, OverflowError):
        raise click.BadParameter(f"write a time such as {TIMES}; not {text!r}", param_hint=option) from None


def _away_from(now: int, text: str) -> int:
    from fusee.values.durations import seconds_from

    distance = round(seconds_from(text[1:], "the time") * _SECOND)
    at = now + distance if text[0] == "+" else now - distance
    return at - at % _SECOND


def _on_clocks(naive: datetime, zone: ZoneInfo) -> int:
    """The instant at which clocks of this zone show it, the first of two.

    What they skip is right after the gap: there a task fires that was due in it.
    """
    at = _microseconds(naive.replace(tzinfo=zone))
    if (_EPOCH + timedelta(microseconds=at)).astimezone(zone).replace(tzinfo=None) == naive:
        return at
    low, high = _microseconds(naive.replace(tzinfo=zone, fold=1)) // _SECOND, at // _SECOND
    ahead = _offset(high, zone)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _offset(middle, zone) == ahead else (middle, high)
    return high * _SECOND


def _offset(second: int, zone: ZoneInfo) -> timedelta | None:
    return (_EPOCH + timedelta(seconds=second)).astimezone(zone).utcoffset()


def _microseconds(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)


def now_us() -> int:
    return time.time_ns() // 1000


def time_text(at: int | None) -> str | None:
    """Microseconds since the epoch as RFC 3339 in UTC, with six digits of a second."""
    if at is None:
        return None
    seconds, micro = divmod(at, 1_000_000)
    moment = datetime.fromtimestamp(seconds, UTC).replace(microsecond=micro)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def local_text(at: int, zone: ZoneInfo) -> str:
    """`Sun 2027-01-31 03:00:00 CET`; the fraction only where there is one."""
    there = (_EPOCH + timedelta(microseconds=at)).astimezone(zone)
    fraction = f".{there.microsecond:06}" if there.microsecond else ""
    return f"{there:%a %Y-%m-%d %H:%M:%S}{fraction} {there:%Z}"


def away(at: int, now: int) -> str:
    """`in 12s`, `3m05s ago`."""
    return f"in {human((at - now) / 1e6)}" if at > now else f"{human((now - at) / 1e6)} ago"


def times_table(times: Sequence[int], zone: ZoneInfo, now: int) -> Table:
    """One row for each: in its time zone, in UTC, and how far away."""
    from fusee.surfaces.cli.output import table

    both = zone.key != "UTC"
    drawn = table(*([zone.key] if both else []), "UTC", "")
    for at in times:
        texts = [local_text(at, zone)] if both else []
        drawn.add_row(*texts, local_text(at, ZoneInfo("UTC")).removesuffix(" UTC"), away(at, now))
    return drawn
