"""What requests have in common: commands, reasons, times, and the version that a change is for.

Time on the wire is RFC 3339, in UTC, with microseconds.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import Header
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from fusee.config import parse_duration
from fusee.surfaces.rest.problems import Problem
from fusee.values.times import parse_time

__all__ = [
    "ETAG",
    "VERSION",
    "CancelIn",
    "DueAt",
    "IfMatch",
    "Incoming",
    "Reason",
    "Seconds",
    "Time",
    "Version",
    "etag",
    "line_of_text",
    "version_from",
]


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


class Incoming(BaseModel):
    """A command: the shape is checked here, the rules by the service."""

    model_config = ConfigDict(strict=True, extra="forbid", hide_input_in_errors=True)


def line_of_text(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be one line of printable text")
    return text


Reason = Annotated[str, Field(min_length=1, max_length=500), AfterValidator(line_of_text)]

_STALE = "The version that you saw; the change is refused with 409 when it is stale."
Version = Annotated[int | None, Field(default=None, ge=1, description=_STALE)]
VERSION: dict[str, Any] = {
    "type": ["integer", "null"],
    "minimum": 1,
    "default": None,
    "description": _STALE,
}
"""The same as a schema, beside the fields of a noun."""


ETAG: dict[str, Any] = {
    "headers": {
        "ETag": {
            "description": "The version, for If-Match.",
            "required": True,
            "schema": {"type": "string"},
        }
    }
}
_TAG = re.compile(r'"?([0-9]{1,18})"?')
IfMatch = Annotated[
    str | None,
    Header(description="The version that you saw, as ETag says it; the change is refused when it is stale."),
]


def etag(version: int) -> dict[str, str]:
    return {"ETag": f'"{version}"'}


def version_from(given: Any, if_match: str | None) -> int | None:
    """What the body and the header say; None: change it whatever its version."""
    if given is not None and (type(given) is not int or given < 1):
        raise Problem(422, f"version must be a whole number from 1 on, not {given!r:.60}", field="version")
    if if_match in (None, "", "*"):
        return given
    tag = _TAG.fullmatch(if_match.strip())
    if tag is None:
        raise Problem(422, f'If-Match must be a version such as "3", not {if_match!r:.60}', field="If-Match")
    said = int(tag[1])
    if given is not None and given != said:
        raise Problem(422, "version and If-Match say different things: send one of them", field="version")
    return said


class CancelIn(Incoming):
    """Why something is canceled."""

    reason: Reason = "canceled by request"
