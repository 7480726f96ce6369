"""What worker and child say to each other: JSON messages, each after its length. Never pickle."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["HEADER", "Answer", "Go", "Order", "Ready", "pack"]

HEADER = 4
"""Bytes of the length, big-endian."""


class Order(msgspec.Struct, frozen=True, kw_only=True, tag="order"):
    """One call that the child is to make: at once before `start_by`, else after it was told to go."""

    run_id: int
    attempt: int
    handler: str
    queue: str
    payload: dict[str, Any]
    module: str
    qualname: str
    file: str | None
    unwrap: int
    main: str | None
    run_parameter: str | None
    task: str | None
    fire_time: str | None
    shard_index: int
    shard_total: int
    kind: str | None = None
    start_by: float | None
    """By the monotonic clock, which all processes of a machine share; None for any time."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The child could begin, but it is late: it waits for `Go`, since the run may have been canceled."""


class Go(msgspec.Struct, frozen=True, tag="go"):
    """The call may begin, before this time."""

    start_by: float | None


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag="answer"):
    """How it ended."""

    end: str
    effect: str
    result: str | None = None
    error: str | None = None
    after: float | None = None


def pack(message: Order | Ready | Go | Answer) -> bytes:
    data = msgspec.json.encode(message)
    return len(data).to_bytes(HEADER, "big") + data
