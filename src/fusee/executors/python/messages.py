"""The messages between a worker and its child processes: JSON, each after its length. Never pickle."""

from __future__ import annotations

from typing import Any

import msgspec

from fusee.engine.model.outcome import Ended
from fusee.engine.worker.context import RunFacts
from fusee.executors.python.importable import ImportPath

__all__ = ["HEADER", "CallEnded", "Go", "HandlerCall", "Ready", "pack"]

HEADER = 4
"""Bytes of the length, big-endian."""


class HandlerCall(msgspec.Struct, frozen=True, tag="call"):
    """A call that the child is to make: at once before `start_by`, else after `Go`."""

    run: RunFacts
    function: ImportPath
    payload: dict[str, Any]
    run_parameter: str | None
    start_by: float | None
    """By the monotonic clock, which all processes of a machine share; None for any time."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The child could begin, but it is late: it waits for `Go`, since the run may have been canceled."""


class Go(msgspec.Struct, frozen=True, tag="go"):
    """The call may begin, before this time."""

    start_by: float | None


class CallEnded(msgspec.Struct, frozen=True, tag="ended"):
    """How the call ended."""

    ended: Ended


def pack(message: HandlerCall | Ready | Go | CallEnded) -> bytes:
    data = msgspec.json.encode(message)
    return len(data).to_bytes(HEADER, "big") + data
