"""A `RunSpec` on its way into the table."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from fusee.errors import Invalid
from fusee.model import RunSpec
from fusee.model.names import MOST_PAYLOAD

__all__ = ["NewRun", "decode", "encode", "encode_rows", "new_run"]

_encoder = msgspec.json.Encoder()
_decode = msgspec.json.Decoder().decode


class NewRun(NamedTuple):
    """One row to insert; the database adds its own time."""

    lane_id: int
    priority: int
    delay_us: int
    due_at: int | None
    payload: str | None
    options: str | None
    origin_id: int | None
    idempotency_key: str | None

    @property
    def immediate(self) -> bool:
        return self.due_at is None and self.delay_us == 0


def new_run(spec: RunSpec, lane_id: int) -> NewRun:
    options = spec.options()
    return NewRun(
        lane_id,
        spec.priority,
        round(spec.delay * 1_000_000),
        spec.due_at,
        encode(spec.payload, "payload") if spec.payload else None,
        encode(options, "options") if options else None,
        spec.origin_id,
        spec.idempotency_key,
    )


def encode(value: Any, what: str) -> str:
    try:
        text = _encoder.encode(value)
    except (TypeError, ValueError, UnicodeEncodeError, RecursionError) as error:
        raise Invalid(f"{what} cannot be written as JSON: {error}", field=what) from None
    if len(text) > MOST_PAYLOAD:
        raise Invalid(
            f"{what} is {len(text)} bytes; at most {MOST_PAYLOAD} are allowed. Store large data elsewhere"
            " and pass a reference to it",
            field=what,
        )
    return text.decode()


def encode_rows(rows: Any) -> str:
    """Rows on their way into one statement, as JSON."""
    return _encoder.encode(rows).decode()


def decode(text: str | None) -> Any:
    return None if text is None else _decode(text)
