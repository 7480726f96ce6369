"""Time on the wire: RFC 3339, UTC, microseconds."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

from fusee.config import parse_duration
from fusee.values.times import parse_time

__all__ = ["DueAt", "Seconds", "Time"]


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
