"""Time on the wire: RFC 3339, UTC, microseconds."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

from fusee.config import parse_duration

__all__ = ["DueAt", "Seconds", "Time", "parse_time", "show_time", "show_times"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_END = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_LATEST = datetime.max.replace(tzinfo=UTC)
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII)
_HOW = "must be a time with its offset, such as 2030-01-31T09:00:00Z or 2030-01-31T10:00:00+01:00"


def show_time(microseconds: int | None) -> str | None:
    """`2030-01-31T09:00:00.000000Z`."""
    if microseconds is None:
        return None
    try:
        at = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        at = _LATEST
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if at.year > 999 else at.isoformat()


def show_times(times: Iterable[int]) -> list[str]:
    return [show_time(at) or "" for at in times]


def parse_time(value: object) -> int:
    """Microseconds since the epoch."""
    if not isinstance(value, str) or not _RFC3339.fullmatch(value):
        raise ValueError(_HOW)
    try:
        at = datetime.fromisoformat(value.upper())
        since = (at - _EPOCH) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        raise ValueError(f"{_HOW}; there is no {value[:40]}") from None
    if not 0 <= since < _END:
        raise ValueError("must not be before 1970 or after 9999")
    return since


def _with_plus(value: object) -> object:
    """In a query a plus that was not escaped has become a space."""
    return re.sub(r" (\d\d:\d\d)$", r"+\1", value) if isinstance(value, str) else value


DueAt = Annotated[
    int,
    BeforeValidator(parse_time),
    WithJsonSchema({"type": "string", "format": "date-time", "examples": ["2030-01-31T09:00:00Z"]}),
]
Time = Annotated[
    int,
    BeforeValidator(lambda value: parse_time(_with_plus(value))),
    WithJsonSchema({"type": "string", "format": "date-time", "examples": ["2030-01-31T09:00:00Z"]}),
]
"""The same in a query."""
Seconds = Annotated[
    float,
    BeforeValidator(parse_duration),
    WithJsonSchema(
        {"anyOf": [{"type": "number"}, {"type": "string"}], "examples": [90, "90s", "2m", "1h30m"]}
    ),
]
