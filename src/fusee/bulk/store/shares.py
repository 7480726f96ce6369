"""A segment's share of its job's concurrency and of its rate, beside what the other segments hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, update

from fusee.bulk.model.pacing import Grant, RatePart, even_share, grant
from fusee.bulk.store.tables import bulk_segments
from fusee.engine.model.states import RunStatus

__all__ = ["rate_grant", "running", "share_of", "void_parts"]


def running(others: Sequence[Row[Any]]) -> list[Row[Any]]:
    """Those of the other open segments that a worker has."""
    return [row for row in others if row.status == RunStatus.RUNNING]


def share_of(job: Row[Any], segment: Row[Any], others: Sequence[Row[Any]]) -> int:
    """Its share of the concurrency; never more than what the other segments that run leave."""
    shares = {row.number: int(row.share) for row in running(others)}
    rank = sum(number < segment.number for number in shares)
    fair = even_share(job.concurrency, len(shares) + 1, rank)
    return max(0, min(fair, int(job.concurrency) - sum(shares.values())))


def rate_grant(
    job: Row[Any],
    segment: Row[Any],
    worker: int,
    others: Sequence[Row[Any]],
    now: int,
    *,
    first_at: int,
    wants: float | None,
    latency: float | None,
) -> Grant:
    """Its part of the job's rate; `worker` is the session that works on it."""
    parts = {row.number: _part(row, row.wants, row.session_id) for row in running(others)}
    mine = _part(segment, wants, worker)
    return grant(job.rate, parts, segment.number, mine, now, first_at=first_at, latency=latency)


def _part(row: Row[Any], wants: float | None, worker: int) -> RatePart:
    return RatePart(pace=row.pace, until=row.pace_until, wants=wants, worker=worker)


def void_parts(connection: Connection, job_id: int, worker: int, others: Sequence[Row[Any]]) -> None:
    """Take the parts of a worker that had run out before it was heard from again: others may have them."""
    numbers = [row.number for row in others if row.session_id == worker]
    if numbers:
        there = bulk_segments.c.job_id == job_id, bulk_segments.c.number.in_(numbers)
        connection.execute(update(bulk_segments).where(*there).values(pace=0.0, pace_until=0))
