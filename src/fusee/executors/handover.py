"""Work that outlives its worker: the next attempt finds it elsewhere and resumes it, or stops it."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Coroutine, Mapping
from typing import Any

from fusee.engine.model.outcome import Effect, End
from fusee.engine.worker.executor import Job, Unstoppable
from fusee.executors.stopping import within

__all__ = ["Superseded", "namespace_key", "payload_digest", "stop_unless_handed_over"]


class Superseded(Exception):
    """A later attempt owns the work: this one must not touch it any more."""


def namespace_key(namespace: str) -> str:
    """Return a short name for Fusee's namespace, which may be longer than names elsewhere, or hold more."""
    return hashlib.sha256(namespace.encode()).hexdigest()[:8]


def payload_digest(payload: Mapping[str, Any]) -> str:
    """Return what tells two runs of the same number apart (of another database, or of a restored one)."""
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


async def stop_unless_handed_over(
    job: Job, stop: Coroutine[None, None, None], seconds: float, unstopped: str
) -> None:
    """Run `stop` to its end, or not at all when only this worker leaves and the next one resumes the work.

    `Unstoppable`, with the text `unstopped`, is raised when it takes longer than `seconds`.
    """
    if job.stop_reason in (End.RETURNED, End.LOST):
        stop.close()
        if job.stop_reason is End.RETURNED:
            job.effect = Effect.NONE  # what has begun goes on: handing it back loses nothing
        return
    stopping = asyncio.ensure_future(stop)
    if not await within(stopping, seconds):
        stopping.cancel()
        raise Unstoppable(unstopped)
    stopping.result()
