"""What bodies of requests have in common: commands are small models, nouns are read by their fields."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

__all__ = ["VERSION", "CancelIn", "FireReason", "Incoming", "Reason", "Version"]


class Incoming(BaseModel):
    """A command: the shape is checked here, the rules by the service."""

    model_config = ConfigDict(strict=True, extra="forbid", hide_input_in_errors=True)


def _check_reason(reason: str) -> str:
    if not reason.isprintable():
        raise ValueError("must be one line of printable text")
    return reason


Reason = Annotated[str, Field(min_length=1, max_length=500), AfterValidator(_check_reason)]
FireReason = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_check_reason)]
"""Kept with a fire, whose column is shorter."""

_STALE = "The version that you saw; the change is refused with 409 when it is stale."
Version = Annotated[int | None, Field(default=None, ge=1, description=_STALE)]
VERSION: dict[str, Any] = {
    "type": ["integer", "null"],
    "minimum": 1,
    "default": None,
    "description": _STALE,
}
"""The same as a schema, beside the fields of a noun."""


class CancelIn(Incoming):
    """Why something is canceled."""

    reason: Reason = "canceled by request"
