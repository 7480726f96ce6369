"""What worker and child say to each other: JSON messages, each after its length. Never pickle."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["HEADER", "Answer", "Order", "pack"]

HEADER = 4
"""Bytes of the length, big-endian."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One call that the child is to make."""

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


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """How it ended."""

    end: str
    effect: str
    result: str | None = None
    error: str | None = None
    after: float | None = None


def pack(message: Order | Answer) -> bytes:
    data = msgspec.json.encode(message)
    return len(data).to_bytes(HEADER, "big") + data
